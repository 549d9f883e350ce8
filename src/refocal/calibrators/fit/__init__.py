"""Optimizers and likelihoods that the calibrators are fitted with."""
