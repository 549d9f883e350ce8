"""The posterior map of focal loss as a calibrator."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from refocal._arrays import map_row_blocks
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head, check_bool
from refocal.calibrators.fit.maximum_likelihood import GAMMA_BOUNDS
from refocal.maps.heads import focal_head
from refocal.maps.posterior import MapSettings


class FocalPosterior(Calibrator):
    """Psi^gamma(softmax(logits)): p(y|x) from the logits of a network trained with focal loss.

    With a known gamma there is nothing to fit, and `predict_proba` works at once.

    Args:
        gamma: Focusing parameter of the loss, > -1: a number, one value a class, or "fit" to estimate one number by
            maximum likelihood, for a network whose gamma nobody wrote down.
        weight: Class weights of the loss, (K,), positive.
        label_smoothing: The epsilon of the loss's label smoothing, in [0, 1).
        detached: Whether the loss stops the gradient through (1 - p)^gamma.
        input: "logits" or "probs".
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        gamma_: The gamma given, or estimated between -0.97 and 50.
        gamma_error_: Standard error of the estimate, from the curvature of the NLL; 0 for a given gamma, infinite
            where the data do not determine it (also at the ends of the range).

    Example:
        >>> import numpy as np
        >>> FocalPosterior(gamma=2).predict_proba(np.array([[2.0, 0.0, 0.0]])).round(4).tolist()
        [[0.973, 0.0135, 0.0135]]

    Reference: 001, Eqs. 11-13.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "gamma_": attributes.check_gammas,
        "gamma_error_": attributes.check_standard_error,
    }

    def __init__(
        self,
        *,
        gamma: Any,
        weight: Any = None,
        label_smoothing: float = 0.0,
        detached: bool = False,
        input: str = "logits",
        classes: Any = None,
    ) -> None:
        self.gamma = gamma
        self.weight = weight
        self.label_smoothing = label_smoothing
        self.detached = detached
        self.input = input
        self.classes = classes

    def __sklearn_is_fitted__(self) -> bool:
        return not self._is_estimated() or hasattr(self, "gamma_")

    def _is_estimated(self) -> bool:
        if isinstance(self.gamma, str) and self.gamma != "fit":
            msg = f'gamma must be a number greater than -1, one a class, or "fit", got {self.gamma!r}'
            raise ValueError(msg)
        return isinstance(self.gamma, str)

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        if not self._is_estimated():
            self.gamma_ = self._settings(self.gamma, logits.shape[1]).gamma
            self.gamma_error_ = 0.0
            return
        share = np.full(len(logits), 1 / len(logits)) if weights is None else weights / weights.sum()
        samples = len(logits) if weights is None else float(weights.sum())
        rows = logits.astype(np.float64, copy=False)

        def nll(u: float) -> float:
            """In u = log(1 + gamma); a class that label smoothing has ruled out costs as much as a tiny probability."""
            settings = self._settings(math.expm1(u), rows.shape[1])
            logs = map_row_blocks(lambda z: focal_head(z, temperature=1.0, settings=settings, log=True, xp=np), rows)
            return float(share @ -np.maximum(logs[np.arange(len(rows)), labels], -700.0))

        self.gamma_, self.gamma_error_ = _least(nll, samples)

    def _settings(self, gamma: Any, classes: int) -> MapSettings:
        return MapSettings.check(gamma, self.weight, self.label_smoothing, self.detached, classes=classes)

    def _check_settings(self, classes: int | None) -> None:
        super()._check_settings(classes)
        check_bool(self.detached, "detached")
        gamma: Any = 0.0 if self._is_estimated() else self.gamma
        named = [value for value in (gamma, self.weight, self.classes) if np.ndim(value) == 1]
        self._settings(gamma, classes or (len(named[0]) if named else 2))

    def _head(self, classes: int) -> Head:
        settings = self._settings(getattr(self, "gamma_", self.gamma), classes)
        return Head(focal_head, {}, {"temperature": 1.0, "settings": settings})

    def _count_parameters(self) -> int:
        return int(self._is_estimated())

    def _classes_of(self, columns: int) -> np.ndarray:
        if hasattr(self, "classes_"):
            return self.classes_
        return np.arange(columns) if self.classes is None else np.asarray(self.classes)


def _least(nll: Any, samples: float) -> tuple[float, float]:
    """The gamma with the least NLL, from coarse to fine as it need not be convex, and its standard error."""
    from scipy.optimize import minimize_scalar

    low, high = map(math.log1p, GAMMA_BOUNDS)
    grid = np.linspace(low, high, 25)
    values = [nll(float(u)) for u in grid]
    best = int(np.argmin(values))
    last = len(grid) - 1
    bounds = grid[max(best - 1, 0)], grid[min(best + 1, last)]
    found = minimize_scalar(nll, bounds=bounds, method="bounded", options={"xatol": 1e-8})
    if best in (0, last) and values[best] <= found.fun:
        return GAMMA_BOUNDS[0 if best == 0 else 1], math.inf
    u, h = float(found.x), 1e-3
    curvature = (nll(u + h) - 2 * nll(u) + nll(u - h)) / h**2
    error = (1 + math.expm1(u)) / math.sqrt(curvature * samples) if curvature > 0 else math.inf
    return math.expm1(u), error
