"""Calls of kernels: what is computed, and the types and layouts of the tensors, without the data.

A call decides which kernels run and how they are compiled. It is the key under which the planner keeps its plan.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from refocal.losses.rows import common_dtype
from refocal.losses.spec import LossSpec, Reduction


def computes_gradient_at_once(dtype: torch.dtype, reduction: Reduction) -> bool:
    """Whether the gradient is computed with the loss, for an incoming gradient of 1, and scaled later.

    There are two exceptions. Without reduction, each loss has an incoming gradient of its own. In float16, gradients
    divided by the number of samples would underflow before the incoming gradient of a gradient scaler enlarges them.
    """
    return reduction != "none" and dtype != torch.float16


class FocalCall(NamedTuple):
    """A focal loss of a softmax output."""

    spec: LossSpec
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    target_shape: torch.Size
    target_strides: tuple[int, ...]
    target_dtype: torch.dtype
    weight_shape: torch.Size | None
    weight_dtype: torch.dtype | None
    autocast: bool
    differentiable: bool
    incoming: int = 0  # the kernels' INCOMING: 0 with the loss; later, 1 for one gradient, 2 for one per row

    @property
    def has_indices(self) -> bool:
        """Whether the targets are class indices."""
        return not self.target_dtype.is_floating_point

    @property
    def hard(self) -> bool:
        """Whether only one class per row has a loss."""
        return self.has_indices and not self.spec.label_smoothing

    @property
    def counted(self) -> bool:
        """Whether a mean divides by a number that depends on the targets."""
        return self.spec.reduction == "mean" and self.has_indices

    @property
    def gradient(self) -> bool:
        """Whether the gradient is computed: with the loss, or for an incoming one."""
        at_once = self.differentiable and computes_gradient_at_once(self.dtype, self.spec.reduction)
        return at_once or self.incoming > 0

    @property
    def expected(self) -> float:
        """What the sum of losses is divided by if all rows count and no class has a weight."""
        return math.prod(self.shape) / self.shape[1] if self.spec.reduction == "mean" else 1.0

    @property
    def loss_dtype(self) -> torch.dtype:
        """The type of the loss."""
        return common_dtype(self.dtype, self.target_dtype, self.weight_dtype, autocast=self.autocast)


class SigmoidCall(NamedTuple):
    """A sigmoid focal loss: `loss` and `gradient` say what is computed."""

    spec: LossSpec
    size: int
    dtype: torch.dtype
    target_dtype: torch.dtype
    loss_dtype: torch.dtype
    device: torch.device
    loss: bool
    gradient: bool


class PosteriorCall(NamedTuple):
    """A posterior map of logits (N, K, ...)."""

    gamma: float
    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class ChunkCall(NamedTuple):
    """A chunk of logits (n, V) of a linear loss, whose gradient may take their place."""

    spec: LossSpec
    shape: torch.Size
    stride: int
    dtype: torch.dtype
    device: torch.device
    weight_dtype: torch.dtype | None
    gamma_by_class: bool
    gradient: bool
    scale_by_row: bool


class NormalizerCall(NamedTuple):
    """The normalizers of a chunk of logits (n, V), for a posterior map."""

    gamma: float
    softcap: float
    shape: torch.Size
    stride: int
    dtype: torch.dtype
    device: torch.device
