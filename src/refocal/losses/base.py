"""The bases of the loss modules, which hold settings, reduce, and know the posterior map of the networks they train."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from refocal import _check
from refocal.losses.rows import check_tensors, reduce, to_rows
from refocal.losses.spec import Reduction

FIT_INSTEAD = "fit refocal.calibrators.FocalTemperatureScaling to held-out predictions instead"


class NoPosteriorError(ValueError):
    """A loss was asked for a posterior map that has no closed form."""


class AbstractLoss(nn.Module):
    """Abstract: a loss of (logits, target) with a reduction and a posterior map."""

    def __init__(self, reduction: Reduction) -> None:
        super().__init__()
        if reduction not in ("none", "mean", "sum"):
            msg = f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}"
            raise ValueError(msg)
        self.reduction = reduction

    @abstractmethod
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced."""

    @property
    @abstractmethod
    def posterior_map(self) -> nn.Module:
        """The module that turns the logits of a network trained with this loss into p(y|x). It has no state."""

    def posterior(self, logits: Tensor) -> Tensor:
        """p(y|x) from the logits of a network trained with this loss, with classes on the same dimension."""
        return self.posterior_map(logits)


class AbstractSoftmaxLoss(AbstractLoss):
    """Abstract: a loss with one value per sample, reduced as `nn.CrossEntropyLoss` does."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None, ignore_index: int, reduction: Reduction) -> None:
        super().__init__(reduction)
        register_weight(self, weight)
        self.ignore_index = _check.whole(ignore_index, "ignore_index")

    @property
    def _class_weights(self) -> list[float] | Tensor | None:
        """The class weights (K,): numbers, or a tensor while compiling. For images, `weight` may have another shape."""
        if self.weight is None:
            return None
        weight = self.weight.flatten()
        return weight if torch.compiler.is_compiling() else weight.tolist()

    @abstractmethod
    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced."""
        losses = self.per_sample(logits, target)
        rows = to_rows(logits, target)
        return reduce(losses, rows, self.reduction, weight=self.weight, ignore_index=self.ignore_index)

    def extra_repr(self) -> str:
        """The settings."""
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"


class AbstractGammaLoss(AbstractSoftmaxLoss):
    """Abstract: a softmax loss with a single number gamma >= 0."""

    def __init__(
        self, gamma: float, *, weight: Tensor | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        self.gamma = _check.scalar_gamma(gamma, least=0.0)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, {super().extra_repr()}"


def register_weight(module: nn.Module, weight: Tensor | None) -> None:
    """Keep class weights as a buffer, which moves with the module."""
    if weight is not None:
        check_tensors(weight=weight)
    module.register_buffer("weight", weight)


def length(value: Any) -> int | None:
    """How many values a setting has; None if it is a single number, which may be an array without axes."""
    return len(value) if hasattr(value, "__len__") and getattr(value, "ndim", None) != 0 else None


def is_checked(value: Any, classes: int | None) -> bool:
    """Whether a setting has one value for each class. It is a tuple only if its values were checked."""
    return isinstance(value, tuple) and len(value) == classes
