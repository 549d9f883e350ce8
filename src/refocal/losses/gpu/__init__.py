"""Fused GPU kernels of the losses: plans, launches and the kernels themselves."""
