"""Triton kernels for the operations that dominate the training of small networks."""
