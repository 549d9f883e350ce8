"""Which tensors the fast paths may take: ordinary tensors, outside of tracing, compiling and transformations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

PLAIN_TYPES = (Tensor, nn.Parameter)


def is_eager(logits: Any) -> bool:
    """Whether PyTorch runs each operation on a tensor at once, and differentiates it in reverse mode if at all."""
    if type(logits) not in PLAIN_TYPES or torch.compiler.is_compiling():
        return False
    if torch._C._get_tracing_state() or torch._C._are_functorch_transforms_active():
        return False
    return not torch._C._len_torch_dispatch_stack() and forward_ad._current_level < 0


def is_constant_beside(tensor: Any, logits: Tensor) -> bool:
    """Whether a fast path can read a tensor beside the logits, which alone it differentiates in.

    A tensor on another device is left to PyTorch, which raises.
    """
    if type(tensor) is not Tensor and not _has_address(tensor):
        return False
    return not tensor.requires_grad and tensor.get_device() == logits.get_device()


def _has_address(value: Any) -> bool:
    """Whether this is a tensor with memory of its own, unlike FakeTensor and DTensor."""
    return isinstance(value, Tensor) and type(value).__torch_dispatch__ is Tensor.__torch_dispatch__
