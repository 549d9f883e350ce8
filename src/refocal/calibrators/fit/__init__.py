"""Likelihoods of labeled logits, and the optimizers that fit calibrators to them. NumPy and SciPy only."""
