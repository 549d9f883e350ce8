"""Focal temperature scaling: a temperature, then the posterior map of focal loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from refocal import _check
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.fit.maximum_likelihood import Likelihood, fit_focal_temperature, fit_temperature
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.calibrators.objectives import BestPoint, line_search, make_calibration_error, reject_weights
from refocal.calibrators.temperature import check_temperatures
from refocal.maps.heads import focal_head
from refocal.maps.posterior import MapSettings

# 003, section 5.1
PUBLISHED_GAMMAS = np.array([-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0])
PUBLISHED_TEMPERATURES = np.arange(1, 501) / 100

# The line is looked for in log(1 + gamma) and log T, in which it is straighter than in gamma and T, and has a bend.
_ANCHORS = np.log1p([0.0, 1.0, 5.0])
_TYPICAL_SLOPE = 0.4  # of log T along log(1 + gamma): where to look for the next anchor
_LINE = np.linspace(math.log(0.4), math.log(6.5), 17)

Objective = Callable[[float, float], float]


class FocalTemperatureScaling(Calibrator):
    """Psi^gamma(softmax(logits / T)), gamma > -1 and T > 0. The arg max never changes.

    Args:
        objective: What (gamma, T) minimize on the fit data: "nll", the negative log-likelihood; "ece" or
            "adaptive_ece", the calibration error over 15 bins of equal width or equal mass.
        search: "newton": by NLL, with exact first and second derivatives, from the solution of temperature scaling
            (and never worse than that on the fit data); "grid": every pair of the two grids; "line": the best pairs
            lie near a line, so that the best T at gamma = 0, 1 and 5 give it, a search along it follows, and one
            across it at the end.
        gamma_grid: For "grid", the values of gamma; None for the nine of 003.
        temperature_grid: For "grid", the temperatures; None for 0.01, 0.02, ..., 5 as in 003.
        input: "logits" or "probs".
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        gamma_: The focal parameter, from -0.97 to 50 with "newton".
        temperature_: T.
        gamma_error_, temperature_error_: Standard errors from the Hessian of the NLL; infinite where the data do not
            determine the parameters, and for "grid" and "line".
        at_bound_: Whether "newton" ended at a bound of gamma or of T (see `TemperatureScaling`).
        evaluations_: How often the objective was evaluated.

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

    Reference: 003, sections 4.2 and 5.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "gamma_": attributes.check_gamma,
        "temperature_": attributes.check_positive,
        "gamma_error_": attributes.check_standard_error,
        "temperature_error_": attributes.check_standard_error,
        "at_bound_": attributes.check_flag,
        "evaluations_": attributes.check_count,
    }

    def __init__(
        self,
        *,
        objective: str = "nll",
        search: str = "newton",
        gamma_grid: Any = None,
        temperature_grid: Any = None,
        input: str = "logits",
        classes: Any = None,
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
        objective = _objective(data, self.objective, weights)
        if search == "grid":
            cells = self.grid_cells()
            self.learn_from_grid(cells, np.array([objective(*cell) for cell in cells]))
            return
        evaluations = 0

        def counted(gamma: float, temperature: float) -> float:
            nonlocal evaluations
            evaluations += 1
            return objective(gamma, temperature)

        self._set_search_result(_line_search(counted, 1 / fit_temperature(data).beta), evaluations)

    def check_search(self) -> str:
        """The search, after a check of what belongs to it."""
        kind = _check.one_of(self.objective, "objective", ("nll", "ece", "adaptive_ece"))
        search = _check.one_of(self.search, "search", ("newton", "grid", "line"))
        if search == "newton" and kind != "nll":
            msg = f'search="newton" needs objective="nll", which has derivatives; got objective={kind!r}'
            raise ValueError(msg)
        if search != "grid" and not (self.gamma_grid is None and self.temperature_grid is None):
            msg = f'gamma_grid and temperature_grid belong to search="grid", got search={search!r}'
            raise ValueError(msg)
        return search

    def learn(self, data: Likelihood) -> None:
        """The likeliest (gamma, T), wherever the rows are; `fit` checks what it gets, and calls this."""
        fitted = fit_focal_temperature(data)
        self.gamma_, self.temperature_ = fitted.gamma, 1 / fitted.beta
        self.gamma_error_ = fitted.gamma_error
        self.temperature_error_ = fitted.relative_error / fitted.beta
        self.at_bound_, self.evaluations_ = fitted.at_bound, fitted.evaluations

    def grid_cells(self) -> list[tuple[float, float]]:
        """The pairs (gamma, T) of the grid."""
        grid = check_temperatures(self.temperature_grid, PUBLISHED_TEMPERATURES)
        return [(float(gamma), float(T)) for gamma in _gammas(self.gamma_grid) for T in grid]

    def learn_from_grid(self, cells: list[tuple[float, float]], objective: np.ndarray) -> None:
        """The pair of the grid with the least objective, wherever that was computed."""
        self._set_search_result(cells[int(np.argmin(objective))], len(cells))

    def _set_search_result(self, found: tuple[float, float], evaluations: int) -> None:
        self.gamma_, self.temperature_ = found
        self.gamma_error_ = self.temperature_error_ = math.inf
        self.at_bound_, self.evaluations_ = False, evaluations

    def _check_settings(self, classes: int | None) -> None:
        super()._check_settings(classes)
        self.check_search()

    def _head(self, classes: int) -> Head:
        settings = MapSettings.check(self.gamma_, None, 0.0, False, classes=classes)
        return Head(focal_head, {}, {"temperature": self.temperature_, "settings": settings})

    def _count_parameters(self) -> int:
        return 2


def _objective(data: LabeledLogits, kind: str, weights: np.ndarray | None) -> Objective:
    if kind == "nll":
        nll = data.prepare_focal_nll()
        return lambda gamma, T: nll(gamma, 1 / T, exact=False, curvature=False).value
    reject_weights(weights, kind)
    return make_calibration_error(data, equal_mass=kind == "adaptive_ece")


def _gammas(grid: Any) -> np.ndarray:
    values = PUBLISHED_GAMMAS if grid is None else np.asarray(grid, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        msg = f"gamma_grid must be a sequence of numbers, got {grid!r}"
        raise ValueError(msg)
    for value in values:
        _check.scalar_gamma(float(value))
    return values


def _line_search(objective: Objective, likeliest: float) -> tuple[float, float]:
    """The best T at each anchor, the best point along the line through them, and the best T there."""

    def at(u: float, log_temperature: float) -> float:
        return objective(math.expm1(u), math.exp(log_temperature))

    heights: list[float] = []
    expected = math.log(likeliest)
    for index, anchor in enumerate(_ANCHORS):
        if index:
            expected = heights[-1] + _TYPICAL_SLOPE * (anchor - _ANCHORS[index - 1])
        heights.append(line_search(partial(at, anchor), expected, width=0.3, points=7, rounds=2).x)

    def height(u: float) -> float:
        """The line through the anchors, its ends prolonged."""
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
