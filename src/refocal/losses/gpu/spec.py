"""What a call asks for: everything that decides about kernels and how they are compiled, without the data."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from refocal.losses.rows import common_dtype
from refocal.losses.settings import Reduction


def computes_gradient_at_once(dtype: torch.dtype, reduction: Reduction) -> bool:
    """Whether the gradient is computed with the loss, for an incoming gradient of 1, and scaled later.

    There are two exceptions. Without reduction, each loss has an incoming gradient of its own. In float16, gradients
    divided by the number of samples would underflow before the incoming gradient of a gradient scaler enlarges them.
    """
    return reduction != "none" and dtype != torch.float16


class FocalSpec(NamedTuple):
    """A focal loss of a softmax output."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    target_shape: torch.Size
    target_strides: tuple[int, ...]
    target_dtype: torch.dtype
    weight_shape: torch.Size | None
    weight_dtype: torch.dtype | None
    gamma: float | tuple[float, ...]
    ignore_index: int
    label_smoothing: float
    detached: bool
    reduction: Reduction
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
        return self.has_indices and not self.label_smoothing

    @property
    def counted(self) -> bool:
        """Whether a mean divides by a number that depends on the targets."""
        return self.reduction == "mean" and self.has_indices

    @property
    def gradient(self) -> bool:
        """Whether the gradient is computed: with the loss, or for an incoming one."""
        return self.incoming > 0 or (self.differentiable and computes_gradient_at_once(self.dtype, self.reduction))

    @property
    def expected(self) -> float:
        """What the sum of losses is divided by if all rows count and no class has a weight."""
        return math.prod(self.shape) / self.shape[1] if self.reduction == "mean" else 1.0

    @property
    def loss_dtype(self) -> torch.dtype:
        """The type of the loss."""
        return common_dtype(self.dtype, self.target_dtype, self.weight_dtype, autocast=self.autocast)


class SigmoidSettings(NamedTuple):
    """Everything a sigmoid focal loss depends on besides its data."""

    gamma: float
    alpha: float | None
    ignore_index: int


class SigmoidSpec(NamedTuple):
    """A sigmoid focal loss: `loss` and `gradient` say what is computed."""

    size: int
    dtype: torch.dtype
    target_dtype: torch.dtype
    loss_dtype: torch.dtype
    device: torch.device
    settings: SigmoidSettings
    reduction: Reduction
    loss: bool
    gradient: bool


class PosteriorSpec(NamedTuple):
    """A posterior map of logits (N, K, ...)."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    gamma: float
