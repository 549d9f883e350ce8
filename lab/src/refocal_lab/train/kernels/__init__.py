"""Kernels in Triton for what the training of small networks spends its time on."""
