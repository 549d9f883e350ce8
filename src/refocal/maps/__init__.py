"""The mathematics of focal loss as pure functions on arrays of any library (NumPy, PyTorch, JAX)."""
