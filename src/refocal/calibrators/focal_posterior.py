"""The posterior map of focal loss as a calibrator: it undoes the effect of focal loss on the probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import ArrayLike

from refocal._arrays import ClassWeights, PerClass, map_row_blocks
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head, check_bool
from refocal.calibrators.fit.maximum_likelihood import GAMMA_BOUNDS
from refocal.calibrators.training_data import list_classes
from refocal.maps.heads import focal_head
from refocal.maps.posterior import MapSettings, SmoothingEdge


@final
class FocalPosterior(Calibrator):
    """Recover p(y|x) from the logits of a network trained with focal loss, in closed form.

    Choose it if you know the gamma of the loss and have no held-out data: there is nothing to fit, and `predict_proba`
    works at once. With one gamma and no class weights, predicted classes do not change.

    The map is Psi^gamma(softmax(logits)).

    Args:
        gamma: Focusing parameter of the loss, > -1: a number, or one value per class. "fit" estimates one number by
            maximum likelihood, for a network whose gamma is unknown.
        weight: Class weights of the loss (K,), positive.
        label_smoothing: The epsilon of the loss's label smoothing, in [0, 1).
        smoothing_edge: How it is undone: "soft" for positive probabilities, "exact" for the exact inverse, which has
            zeros; see `refocal.posterior`.
        detached: Whether the loss stops the gradient through (1 - p)^gamma.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, or their number, see `Calibrator`. With them, `to_torch` and `to_onnx` work at
            once, too.

    Attributes:
        gamma_: The given gamma, or an estimate between -0.97 and 50.
        gamma_error_: Standard error of the estimate, from the curvature of the NLL. It is 0 for a given gamma, and
            infinite if the data do not determine gamma or the estimate is at an end of its range.

    Example:
        >>> import numpy as np
        >>> FocalPosterior(gamma=2).predict_proba(np.array([[2.0, 0.0, 0.0]])).round(4).tolist()
        [[0.973, 0.0135, 0.0135]]
        >>> FocalPosterior(gamma=2, classes=3).to_torch()
        CalibratedHead(FocalPosterior)

    Reference: Charoenphakdee et al. (2021), Eqs. 11-13.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "gamma_": attributes.check_gammas,
        "gamma_error_": attributes.check_standard_error,
    }
    _has_floor: ClassVar[bool] = False
    _takes_masks: ClassVar[bool] = True
    _earlier: ClassVar[dict[str, Any]] = {"smoothing_edge": "exact"}

    def __init__(
        self,
        *,
        gamma: PerClass | Literal["fit"],
        weight: ClassWeights = None,
        label_smoothing: float = 0.0,
        smoothing_edge: SmoothingEdge = "soft",
        detached: bool = False,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.gamma = gamma
        self.weight = weight
        self.label_smoothing = label_smoothing
        self.smoothing_edge = smoothing_edge
        self.detached = detached
        self.input = input
        self.classes = classes

    def __sklearn_is_fitted__(self) -> bool:
        return not self._is_estimated() or hasattr(self, "gamma_")

    def _is_estimated(self) -> bool:
        gamma: Any = self.gamma
        if isinstance(gamma, str) and gamma != "fit":
            msg = f'gamma must be a number greater than -1, one per class, or "fit", got {gamma!r}'
            raise ValueError(msg)
        return isinstance(gamma, str)

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        if not self._is_estimated():
            self.gamma_ = self._map_settings(self.gamma, logits.shape[1]).gamma
            self.gamma_error_ = 0.0
            return
        share = np.full(len(logits), 1 / len(logits)) if weights is None else weights / weights.sum()
        samples = len(logits) if weights is None else float(weights.sum())
        rows = logits.astype(np.float64, copy=False)

        def nll(u: float) -> float:
            """The NLL in u = log(1 + gamma). A class that label smoothing rules out counts as a tiny probability."""
            settings = self._map_settings(math.expm1(u), rows.shape[1])
            logs = map_row_blocks(lambda z: focal_head(z, temperature=1.0, settings=settings, log=True, xp=np), rows)
            return float(share @ -np.maximum(logs[np.arange(len(rows)), labels], -700.0))

        self.gamma_, self.gamma_error_ = _minimize_nll(nll, samples)

    def _map_settings(self, gamma: Any, classes: int) -> MapSettings:
        return MapSettings.check(
            gamma,
            self.weight,
            self.label_smoothing,
            self.detached,
            classes=classes,
            smoothing_edge=self.smoothing_edge,
        )

    def _check_settings(self, classes: int | None) -> None:
        check_bool(self.detached, "detached")
        gamma = 0.0 if self._is_estimated() else self.gamma
        settings: list[Any] = [gamma, self.weight]
        per_class = [value for value in settings if np.ndim(value) == 1]
        named = None if self.classes is None else len(list_classes(self.classes))
        self._map_settings(gamma, classes or named or (len(per_class[0]) if per_class else 2))

    def _head(self, classes: int) -> Head:
        settings = self._map_settings(getattr(self, "gamma_", self.gamma), classes)
        return Head(focal_head, {}, {"settings": settings})

    def _count_parameters(self) -> int:
        return int(self._is_estimated())


def _minimize_nll(nll: Callable[[float], float], samples: float) -> tuple[float, float]:
    """Find the gamma with the smallest NLL, and its standard error.

    The search goes from coarse to fine, because the NLL need not be convex in gamma.
    """
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
