"""Posterior maps as modules: from the logits of a trained network to p(y|x). They have no state and can be exported."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from refocal.core.inverse_focal import inverse_focal_posterior_from_logits
from refocal.core.posterior import posterior_from_logits
from refocal.core.sigmoid import sigmoid_posterior
from refocal.losses import fused
from refocal.losses.targets import check_tensors


class SoftmaxMap(nn.Module):
    """Softmax over dimension 1: the posterior map of proper losses."""

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities, like `logits`."""
        return torch.softmax(logits, dim=_class_dim(logits))


class FocalMap(nn.Module):
    """Psi^gamma over dimension 1; see `refocal.posterior_from_logits`."""

    def __init__(self, gamma: Any, *, weight: Any = None, label_smoothing: float = 0.0, detached: bool = False) -> None:
        super().__init__()
        self.gamma = gamma
        self.weight = None if weight is None else tuple(float(value) for value in weight)
        self.label_smoothing, self.detached = label_smoothing, detached

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities, like `logits`."""
        dim = _class_dim(logits)
        plain = self.weight is None and not self.label_smoothing and not self.detached
        if plain and fused.serves_map(logits, self.gamma):
            return fused.posterior_map(logits, float(self.gamma))
        probs = posterior_from_logits(
            logits.movedim(dim, -1),
            gamma=self.gamma,
            weight=self.weight,
            label_smoothing=self.label_smoothing,
            detached=self.detached,
        )
        return probs.movedim(-1, dim)

    def extra_repr(self) -> str:
        """The settings."""
        options = f"label_smoothing={self.label_smoothing}, detached={self.detached}"
        return f"gamma={self.gamma}, weight={self.weight}, {options}"


class InverseFocalMap(nn.Module):
    """The map of inverse focal loss over dimension 1, for gamma up to 1."""

    def __init__(self, gamma: float, *, weight: Any = None) -> None:
        super().__init__()
        self.gamma = gamma
        self.weight = None if weight is None else tuple(float(value) for value in weight)

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities, like `logits`."""
        dim = _class_dim(logits)
        rows = logits.movedim(dim, -1)
        return inverse_focal_posterior_from_logits(rows, gamma=self.gamma, weight=self.weight).movedim(-1, dim)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, weight={self.weight}"


class SigmoidMap(nn.Module):
    """The map of sigmoid focal loss, score by score; see `refocal.sigmoid_posterior`."""

    def __init__(self, gamma: Any, alpha: Any) -> None:
        super().__init__()
        self.gamma, self.alpha = gamma, alpha

    def forward(self, logits: Tensor) -> Tensor:
        """Probabilities, like `logits`."""
        check_tensors(logits=logits)
        return sigmoid_posterior(logits, gamma=self.gamma, alpha=self.alpha)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, alpha={self.alpha}"


def _class_dim(logits: Tensor) -> int:
    check_tensors(logits=logits)
    return 1 if logits.ndim > 1 else 0
