"""Temperature scaling: all logits are divided by one number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, final, get_args

import numpy as np
from numpy.typing import ArrayLike

from refocal import _check
from refocal._check import Input
from refocal.calibrators import attributes
from refocal.calibrators.attributes import Check
from refocal.calibrators.base import Calibrator, Head, check_bool
from refocal.calibrators.fit.maximum_likelihood import Likelihood, Temperature, fit_temperature
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.calibrators.folded import FoldedLogits
from refocal.calibrators.objectives import focal_risk, line_search, make_calibration_error, reject_weights
from refocal.maps.heads import focal_head
from refocal.maps.posterior import MapSettings

PUBLISHED_TEMPERATURES = np.arange(1, 101) / 10  # Mukhoti et al. (2020), section 6: 0.1, 0.2, ..., 10

Objective = Literal["nll", "focal", "ece", "adaptive_ece"]


@final
class TemperatureScaling(Calibrator):
    """Correct over- or underconfidence with one number, the temperature T. Predicted classes do not change.

    This is the standard calibrator and a good baseline: it needs little held-out data. Choose
    `FocalTemperatureScaling` for a network trained with focal loss; it adds one parameter.

    The map is softmax(logits / T), T > 0.

    Maximum likelihood follows every row. One row in which a wrong class leads by 1e6 makes all predictions nearly
    uniform, because no smaller T explains it. Remove such a row, or use `AutoCalibrator` or
    `EnsembleTemperatureScaling`, whose uniform part explains it.

    Args:
        objective: The quantity that T minimizes on the data of the fit. "nll" is the negative log-likelihood; it is
            convex in 1/T, so its single minimum is found exactly. "focal" is the focal loss with `gamma` (TS_FL in
            Charoenphakdee et al., 2021). "ece" and "adaptive_ece" are the calibration error over 15 bins of equal
            width or of equal mass.
        gamma: Focal parameter >= 0 of the objective "focal"; must be 0 for all others.
        apply_posterior: Whether to apply the posterior map of focal loss after the objective "focal":
            Psi^gamma(softmax(logits / T)).
        temperature_grid: The temperatures to try for the calibration errors: an array, None for 0.1, 0.2, ..., 10 as
            in Mukhoti et al. (2020), or "continuous" for a search from coarse to fine around the maximum-likelihood
            temperature.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Labels of the columns, see `Calibrator`.

    Attributes:
        temperature_: T. If one-hot or uniform predictions are best (separable data, or all predictions wrong), 1/T is
            set to a bound: 1e4 divided by the median distance between the two largest logits of a row, or 1e-4 divided
            by the median distance of a logit from the largest. T is 1 if all logits of each row are equal.
        temperature_error_: Standard error of T, from the curvature of the NLL. It is infinite if the data do not
            determine T, and for the other objectives, which have no such theory.
        at_bound_: Whether T is at a bound.

    Example:
        >>> import numpy as np
        >>> logits = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0]])
        >>> calibrator = TemperatureScaling().fit(logits, np.array([0, 0, 1, 1]))
        >>> round(calibrator.temperature_, 4)  # 3 of 4 predictions are right: log-odds of log 3
        3.641

    Reference: Guo et al., "On Calibration of Modern Neural Networks", ICML 2017; Charoenphakdee et al. (2021), section
    6.1; Mukhoti et al. (2020), section 6.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "temperature_": attributes.check_positive,
        "temperature_error_": attributes.check_standard_error,
        "at_bound_": attributes.check_flag,
    }

    _takes_masks: ClassVar[bool] = True

    temperature_: float

    def __init__(
        self,
        *,
        objective: Objective = "nll",
        gamma: float = 0.0,
        apply_posterior: bool = False,
        temperature_grid: ArrayLike | Literal["continuous"] | None = None,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.objective = objective
        self.gamma = gamma
        self.apply_posterior = apply_posterior
        self.temperature_grid = temperature_grid
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        objective = self.check_objective()
        gamma = self.gamma
        data = LabeledLogits.prepare(logits, labels, weights)
        fitted = self.learn(data)
        if objective == "nll":
            return
        self.temperature_error_ = math.inf
        if objective == "focal":
            if fitted.evaluations and not fitted.at_bound and gamma > 0:
                self.temperature_ = minimize_focal_risk(data, gamma, self.temperature_)
            return
        reject_weights(weights, objective)
        error = make_calibration_error(data, equal_mass=objective == "adaptive_ece")
        self.temperature_ = minimize_error(lambda T: error(0.0, T), self.temperature_grid, self.temperature_)

    def check_objective(self) -> Objective:
        """Check the objective and the settings that belong to it."""
        objective: Objective = _check.one_of(self.objective, "objective", get_args(Objective))
        gamma = _check.scalar_gamma(self.gamma, least=0.0)
        if objective != "focal" and (gamma != 0 or self.apply_posterior):
            msg = f'gamma and apply_posterior belong to objective="focal", got objective={objective!r}'
            raise ValueError(msg)
        return objective

    def learn(self, data: Likelihood) -> Temperature:
        """Set the maximum-likelihood temperature.

        `fit` calls this after its checks. The rows may also be elsewhere, such as in files.
        """
        return self.store(fit_temperature(data))

    def _learn_fold(self, folded: FoldedLogits, fold: int | None) -> None:
        if self.check_objective() == "nll":
            self.store(folded.temperature(fold))
        else:
            super()._learn_fold(folded, fold)

    def store(self, fitted: Temperature) -> Temperature:
        """Set the result of a fit, wherever that was computed."""
        self.temperature_, self.at_bound_ = 1 / fitted.beta, fitted.at_bound
        self.temperature_error_ = self.temperature_ * fitted.relative_error
        return fitted

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        self.check_objective()
        check_bool(self.apply_posterior, "apply_posterior")

    def _head(self, classes: int) -> Head:
        gamma = self.gamma if self.apply_posterior else 0.0
        settings = MapSettings.check(gamma, None, 0.0, False, classes=classes)
        return Head(focal_head, {}, {"temperature": self.temperature_, "settings": settings})

    def _count_parameters(self) -> int:
        return 1


def minimize_focal_risk(data: LabeledLogits, gamma: float, start: float) -> float:
    """Find the temperature with the smallest focal loss by a search from coarse to fine in log T.

    The loss need not be convex in T.
    """
    from scipy.optimize import minimize_scalar

    def risk(log_temperature: float) -> float:
        return focal_risk(data, gamma, math.exp(log_temperature))

    # Focal loss asks for flatter predictions, and for steeper ones where no class is likely: by up to about 1 + gamma.
    reach = math.log1p(gamma) + 1
    grid = math.log(start) + np.linspace(-reach, reach, 48)
    best = int(np.argmin([risk(point) for point in grid]))
    bounds = (grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)])
    return math.exp(minimize_scalar(risk, bounds=bounds, method="bounded", options={"xatol": 1e-9}).x)


def minimize_error(error: Callable[[float], float], grid: Any, start: float) -> float:
    """Find the temperature with the smallest calibration error, on a grid or around the maximum-likelihood one."""
    if isinstance(grid, str):
        if grid != "continuous":
            msg = f'temperature_grid must be "continuous", a sequence of positive numbers or None, got {grid!r}'
            raise ValueError(msg)
        center = math.log(start)
        return math.exp(line_search(lambda x: error(math.exp(x)), center, width=1.0, points=41, rounds=4).x)
    values = check_temperatures(grid, PUBLISHED_TEMPERATURES)
    return float(values[int(np.argmin([error(float(T)) for T in values]))])


def check_temperatures(grid: Any, default: np.ndarray) -> np.ndarray:
    """Check a grid of temperatures; None stands for the default."""
    values = check_grid(grid, default, "temperature_grid")
    if not (np.all(values > 0) and np.all(np.isfinite(values))):
        msg = f"temperature_grid must be a sequence of positive numbers, got {grid!r}"
        raise ValueError(msg)
    return values


def check_grid(grid: Any, default: np.ndarray, name: str) -> np.ndarray:
    """Check a sequence of numbers; None stands for the default."""
    try:
        values = default if grid is None else np.asarray(grid, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.ndim != 1 or not len(values):
        msg = f"{name} must be a sequence of numbers, got {grid!r}"
        raise ValueError(msg)
    return values
