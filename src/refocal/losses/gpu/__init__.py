"""The fused GPU kernels of the losses.

A call passes through these modules in this order:

- `dispatch` decides whether a kernel supports the call, and takes its place in automatic differentiation.
- `calls` describes the call: what is computed, and the types and layouts of its tensors.
- `plan` chooses kernels, grids and constants for a call; plans are cached. `layout` describes memory layouts.
- `execute` allocates the results and launches the kernels of a plan.
- `launch` starts one compiled kernel with little host time.
  `refocal.losses.internals` holds the private calls of PyTorch and Triton that this takes.
- `kernels` holds the Triton code.
"""
