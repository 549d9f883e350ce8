"""Fused GPU kernels in Triton; importing this package needs Triton."""
