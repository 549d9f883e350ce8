"""Focal temperature scaling: a temperature, followed by the posterior map of focal loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike

from refocal import _check
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.maximum_likelihood import (
    FocalTemperature,
    Likelihood,
    fit_focal_temperature,
    fit_temperature,
)
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.calibrators.folded import FoldedLogits
from refocal.calibrators.objectives import BestPoint, line_search, make_calibration_error, reject_weights
from refocal.calibrators.temperature import check_grid, check_temperatures
from refocal.maps.heads import focal_head
from refocal.maps.posterior import MapSettings

# Komisarenko and Kull (2024), section 5.1
PUBLISHED_GAMMAS = np.array([-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0])
PUBLISHED_TEMPERATURES = np.arange(1, 501) / 100

# The line search works in log(1 + gamma) and log T. There, the line is straighter than in gamma and T; it has one bend.
_ANCHORS = np.log1p([0.0, 1.0, 5.0])
_TYPICAL_SLOPE = 0.4  # of log T by log(1 + gamma): tells where to look for the next anchor
_LINE = np.linspace(math.log(0.4), math.log(6.5), 17)

Objective = Literal["nll", "ece", "adaptive_ece"]
Search = Literal["newton", "grid", "line"]
Function = Callable[[float, float], float]  # of gamma and T


@final
class FocalTemperatureScaling(Calibrator):
    """Calibrate a network of any loss with two numbers, gamma and T. Predicted classes do not change.

    Choose it if you have held-out data and no special reason for another calibrator. It contains temperature scaling
    (gamma = 0) and the posterior map of focal loss (T = 1), and fits both parameters together.

    The map is Psi^gamma(softmax(logits / T)), gamma > -1 and T > 0.

    Maximum likelihood follows every row, also one in which a wrong class leads by 1e6; see `TemperatureScaling`.

    Args:
        objective: The quantity that (gamma, T) minimize on the data of the fit. "nll" is the negative log-likelihood.
            "ece" and "adaptive_ece" are the calibration error over 15 bins of equal width or of equal mass.
        search: "newton" minimizes the NLL with exact first and second derivatives. It starts from the solution of
            temperature scaling and is never worse than that on the data of the fit. "grid" tries every pair of the
            two grids. "line" uses the fact that the best pairs lie near a line: it finds the best T at gamma = 0, 1
            and 5, searches along the line through them, and then across it.
        gamma_grid: The values of gamma for "grid"; None for the nine of Komisarenko and Kull (2024).
        temperature_grid: The temperatures for "grid"; None for 0.01, 0.02, ..., 5 as in Komisarenko and Kull (2024).
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        gamma_: The focal parameter, from -0.97 to 50 with "newton".
        temperature_: T.
        gamma_error_, temperature_error_: Standard errors from the Hessian of the NLL. They are infinite if the data do
            not determine the parameters, and for "grid" and "line".
        at_bound_: Whether "newton" ended at a bound of gamma or of T (see `TemperatureScaling`).
        evaluations_: The number of evaluations of the objective.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.standard_normal((20_000, 5))
        >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        >>> from refocal import minimizer
        >>> focal_logits = np.log(minimizer(np.exp(logits) / np.exp(logits).sum(1, keepdims=True), gamma=3))
        >>> calibrator = FocalTemperatureScaling().fit(focal_logits, labels)
        >>> abs(calibrator.gamma_ - 3) < 3 * calibrator.gamma_error_
        True

    Reference: Komisarenko and Kull (2024), sections 4.2 and 5.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "gamma_": attributes.check_gamma,
        "temperature_": attributes.check_positive,
        "gamma_error_": attributes.check_standard_error,
        "temperature_error_": attributes.check_standard_error,
        "at_bound_": attributes.check_flag,
        "evaluations_": attributes.check_count,
    }
    _takes_masks: ClassVar[bool] = True

    def __init__(
        self,
        *,
        objective: Objective = "nll",
        search: Search = "newton",
        gamma_grid: ArrayLike | None = None,
        temperature_grid: ArrayLike | None = None,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.objective = objective
        self.search = search
        self.gamma_grid = gamma_grid
        self.temperature_grid = temperature_grid
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        search = self.check_search()
        data = LabeledLogits.prepare(logits, labels, weights)
        if search == "newton":
            self.learn(data)
            return
        objective = _make_objective(data, self.objective, weights)
        if search == "grid":
            cells = self.grid_cells()
            self.learn_from_grid(cells, np.array([objective(*cell) for cell in cells]))
            return
        evaluations = 0

        def evaluate(gamma: float, temperature: float) -> float:
            nonlocal evaluations
            evaluations += 1
            return objective(gamma, temperature)

        self._set_search_result(_line_search(evaluate, 1 / fit_temperature(data).beta), evaluations)

    def check_search(self) -> Search:
        """Check the search and the settings that belong to it."""
        kind = _check.one_of(self.objective, "objective", get_args(Objective))
        search: Search = _check.one_of(self.search, "search", get_args(Search))
        if search == "newton" and kind != "nll":
            msg = f'search="newton" needs objective="nll", which has derivatives; got objective={kind!r}'
            raise ValueError(msg)
        if search != "grid" and not (self.gamma_grid is None and self.temperature_grid is None):
            msg = f'gamma_grid and temperature_grid belong to search="grid", got search={search!r}'
            raise ValueError(msg)
        return search

    def learn(self, data: Likelihood) -> None:
        """Set the maximum-likelihood (gamma, T); see `TemperatureScaling.learn`."""
        self.store(fit_focal_temperature(data))

    def _learn_fold(self, folded: FoldedLogits, fold: int | None) -> None:
        if self.check_search() == "newton":
            self.store(folded.focal_temperature(fold))
        else:
            super()._learn_fold(folded, fold)

    def store(self, fitted: FocalTemperature) -> None:
        """Set the result of a fit, wherever that was computed."""
        self.gamma_, self.temperature_ = fitted.gamma, 1 / fitted.beta
        self.gamma_error_ = fitted.gamma_error
        self.temperature_error_ = fitted.relative_error / fitted.beta
        self.at_bound_, self.evaluations_ = fitted.at_bound, fitted.evaluations

    def grid_cells(self) -> list[tuple[float, float]]:
        """The pairs (gamma, T) of the grid."""
        grid = check_temperatures(self.temperature_grid, PUBLISHED_TEMPERATURES)
        return [(float(gamma), float(T)) for gamma in _check_gammas(self.gamma_grid) for T in grid]

    def learn_from_grid(self, cells: list[tuple[float, float]], objective: np.ndarray) -> None:
        """Set the pair (gamma, T) of the grid with the smallest objective, wherever that was computed."""
        self._set_search_result(cells[int(np.argmin(objective))], len(cells))

    def _set_search_result(self, found: tuple[float, float], evaluations: int) -> None:
        self.gamma_, self.temperature_ = found
        self.gamma_error_ = self.temperature_error_ = math.inf
        self.at_bound_, self.evaluations_ = False, evaluations

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        self.check_search()

    def _head(self, classes: int) -> Head:
        settings = MapSettings.check(self.gamma_, None, 0.0, False, classes=classes)
        return Head(focal_head, {}, {"temperature": self.temperature_, "settings": settings})

    def _count_parameters(self) -> int:
        return 2


def _make_objective(data: LabeledLogits, kind: Objective, weights: np.ndarray | None) -> Function:
    if kind == "nll":
        nll = data.prepare_focal_nll()
        return lambda gamma, T: nll(gamma, 1 / T, exact=False, curvature=False).value
    reject_weights(weights, kind)
    return make_calibration_error(data, equal_mass=kind == "adaptive_ece")


def _check_gammas(grid: Any) -> np.ndarray:
    values = check_grid(grid, PUBLISHED_GAMMAS, "gamma_grid")
    for value in values:
        _check.scalar_gamma(float(value))
    return values


def _line_search(objective: Function, start: float) -> tuple[float, float]:
    """Find the best T at each anchor, the best point on the line through them, and the best T at that point."""

    def at(u: float, log_temperature: float) -> float:
        return objective(math.expm1(u), math.exp(log_temperature))

    heights: list[float] = []
    expected = math.log(start)
    for index, anchor in enumerate(_ANCHORS):
        if index:
            expected = heights[-1] + _TYPICAL_SLOPE * (anchor - _ANCHORS[index - 1])
        heights.append(line_search(partial(at, anchor), expected, width=0.3, points=7, rounds=2).x)

    def height(u: float) -> float:
        """The log T of the line through the anchors, extended beyond its ends."""
        piece = 0 if u < _ANCHORS[1] else 1
        slope = (heights[piece + 1] - heights[piece]) / (_ANCHORS[piece + 1] - _ANCHORS[piece])
        return heights[piece] + slope * (u - _ANCHORS[piece])

    along = min((BestPoint(float(u), at(u, height(u))) for u in _LINE), key=lambda found: found.value)
    spacing = _LINE[1] - _LINE[0]
    finer = line_search(lambda u: at(u, height(u)), along.x, width=0.75 * spacing, points=4, rounds=1)
    along = min(along, finer, key=lambda found: found.value)
    across = line_search(partial(at, along.x), height(along.x), width=0.06, points=5, rounds=2)
    best = across.x if across.value < along.value else height(along.x)
    return math.expm1(along.x), math.exp(best)
