"""Which tensors the fast paths may take: ordinary tensors, outside of tracing, compiling and transformations."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from refocal.losses.internals import runs_at_once

_PLAIN_TYPES = (Tensor, nn.Parameter)


def is_eager(logits: Any) -> bool:
    """Whether PyTorch runs each operation on a tensor at once, and differentiates it in reverse mode if at all."""
    return type(logits) in _PLAIN_TYPES and runs_at_once()


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
