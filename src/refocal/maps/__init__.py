"""The mathematics of focal loss on arrays of any kind (NumPy, PyTorch, JAX): pure functions, no state."""
