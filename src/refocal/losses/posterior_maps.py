"""Posterior maps as modules: from the logits of a trained network to p(y|x). They are stateless and exportable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from refocal._arrays import ClassWeights, PerClass, recording
from refocal.losses.gpu import dispatch
from refocal.losses.rows import check_tensors
from refocal.maps.inverse_focal import inverse_focal_posterior_from_logits
from refocal.maps.posterior import MapSettings, SmoothingEdge, posterior_from_logits
from refocal.maps.sigmoid import sigmoid_posterior


class SoftmaxMap(nn.Module):
    """Softmax over dimension 1: the posterior map of proper losses."""

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities, like `logits`."""
        check_tensors(logits=logits)
        return torch.softmax(logits, dim=_class_dim(logits))


class FocalMap(nn.Module):
    """Psi^gamma over dimension 1; see `refocal.posterior_from_logits`."""

    def __init__(
        self,
        gamma: PerClass,
        *,
        weight: ClassWeights = None,
        label_smoothing: float = 0.0,
        smoothing_edge: SmoothingEdge = "soft",
        detached: bool = False,
    ) -> None:
        super().__init__()
        self.gamma: Any = gamma
        self.weight = _numbers(weight)
        self.label_smoothing, self.smoothing_edge, self.detached = label_smoothing, smoothing_edge, detached

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities, like `logits`."""
        check_tensors(logits=logits)
        plain = self.weight is None and not self.label_smoothing and not self.detached
        if plain and dispatch.supports_map(logits, self.gamma):
            return dispatch.posterior_map(logits, float(self.gamma))
        return _over_classes(
            posterior_from_logits,
            logits,
            gamma=self.gamma,
            weight=self.weight,
            label_smoothing=self.label_smoothing,
            smoothing_edge=self.smoothing_edge,
            detached=self.detached,
        )

    def check_settings(self, classes: int) -> MapSettings:
        """The settings, checked for so many classes: for many calls, since checking one value per class takes long."""
        return MapSettings.check(
            self.gamma,
            self.weight,
            self.label_smoothing,
            self.detached,
            classes=classes,
            smoothing_edge=self.smoothing_edge,
        )

    def extra_repr(self) -> str:
        """The settings."""
        edge = f", smoothing_edge={self.smoothing_edge!r}" if self.label_smoothing else ""
        options = f"label_smoothing={self.label_smoothing}{edge}, detached={self.detached}"
        return f"gamma={self.gamma}, weight={self.weight}, {options}"


class InverseFocalMap(nn.Module):
    """The map of inverse focal loss over dimension 1, for gamma up to 1."""

    def __init__(self, gamma: float, *, weight: ClassWeights = None) -> None:
        super().__init__()
        self.gamma = gamma
        self.weight = _numbers(weight)

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities, like `logits`."""
        check_tensors(logits=logits)
        return _over_classes(inverse_focal_posterior_from_logits, logits, gamma=self.gamma, weight=self.weight)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, weight={self.weight}"


class SigmoidMap(nn.Module):
    """The map of sigmoid focal loss, applied to each score; see `refocal.sigmoid_posterior`."""

    def __init__(self, gamma: PerClass, alpha: PerClass | None) -> None:
        super().__init__()
        self.gamma, self.alpha = gamma, alpha

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities, like `logits`."""
        check_tensors(logits=logits)
        with recording(logits):
            return sigmoid_posterior(logits, gamma=self.gamma, alpha=self.alpha)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, alpha={self.alpha}"


def _class_dim(logits: Tensor) -> int:
    return 1 if logits.ndim > 1 else 0


def _over_classes(posterior: Callable[..., Tensor], logits: Tensor, **settings: Any) -> Tensor:
    """A map with classes last, over the class dimension."""
    dim, last = _class_dim(logits), logits.ndim - 1  # TorchScript's ONNX exporter mishandles -1
    with recording(logits):
        return posterior(logits.movedim(dim, last), **settings).movedim(last, dim)


def _numbers(weight: Any) -> Any:
    """Class weights as numbers; a tensor while it is being compiled, when it has no values."""
    if weight is None or (torch.compiler.is_compiling() and isinstance(weight, Tensor)):
        return weight
    return tuple(float(value) for value in weight)
