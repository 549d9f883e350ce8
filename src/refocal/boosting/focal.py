"""Focal loss as the loss of boosted trees: settings, starting score, derivatives, value and posterior."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from refocal import _check
from refocal._containers import to_numpy
from refocal.boosting import derivatives
from refocal.boosting.catboost import CatBoostFocal, RangeObjective, RowObjective
from refocal.boosting.derivatives import Derivatives
from refocal.boosting.lightgbm import LightGBMFocal
from refocal.boosting.xgboost import XGBoostFocal
from refocal.maps.minimizer import minimizer
from refocal.maps.posterior import posterior_from_logits
from refocal.maps.sigmoid import sigmoid_minimizer, sigmoid_posterior


class AbstractFocal(ABC):
    """What `BinaryFocal` and `MulticlassFocal` share."""

    gamma: float
    _shape: ClassVar[tuple[str, ...]]  # of the raw scores of a model

    @abstractmethod
    def sum_losses(self, labels: Any, scores: Any, *, sample_weight: Any = None) -> tuple[float, float]:
        """Sum the weighted losses of rows and their weights; the quotient is the mean loss."""

    @abstractmethod
    def differentiate(self, labels: Any, scores: Any, *, sample_weight: Any = None) -> Derivatives:
        """Compute the gradient and a positive diagonal of the Hessian, of the shape of `scores`."""

    @abstractmethod
    def starting_score(self, labels: Any, *, sample_weight: Any = None) -> Any:
        """Compute the best constant score, from which boosting starts."""

    @abstractmethod
    def posterior(self, scores: Any) -> np.ndarray:
        """Recover class probabilities from raw scores."""

    def posterior_of_model(self, scores: Any, starting_score: Any = 0.0) -> np.ndarray:
        """Recover class probabilities from the raw scores that a model predicts for N rows."""
        predicted = np.asarray(scores)
        if predicted.ndim != len(self._shape):
            expected = f"({', '.join(self._shape)}{',' * (len(self._shape) == 1)})"
            msg = f"model must predict raw scores of shape {expected} for {type(self).__name__}, got {predicted.shape}"
            raise ValueError(msg)
        return self.posterior(predicted + np.asarray(starting_score))

    def loss(self, labels: Any, scores: Any, *, sample_weight: Any = None) -> float:
        """Compute the mean focal loss of raw scores, the value that the metrics for early stopping report."""
        total, weight = self.sum_losses(labels, scores, sample_weight=sample_weight)
        if not weight:
            msg = "sample_weight must not be zero everywhere"
            raise ValueError(msg)
        return total / weight

    @property
    def lightgbm(self) -> LightGBMFocal:
        """The objective, the metric and the probabilities for LightGBM."""
        return LightGBMFocal(self)

    @property
    def xgboost(self) -> XGBoostFocal:
        """The objective, the metric and the probabilities for XGBoost."""
        return XGBoostFocal(self)

    @property
    @abstractmethod
    def catboost(self) -> CatBoostFocal:
        """The objective, the metric and the probabilities for CatBoost."""


@dataclass(frozen=True, kw_only=True)
class BinaryFocal(AbstractFocal):
    """Focal loss for boosted trees with two classes, with the probabilities that belong to it.

    The loss of a raw score x with p = sigmoid(x) is -alpha (1 - p)^gamma log p for label 1 and
    -(1 - alpha) p^gamma log(1 - p) for label 0. The sigmoid of a fitted score is not p(y=1|x); `posterior` is.

    Args:
        gamma: Focusing parameter, >= 0. At 0 the loss is cross-entropy.
        alpha: Weight of label 1 in (0, 1); label 0 has weight 1 - alpha. None gives both labels weight 1.

    Example:
        >>> import numpy as np
        >>> focal = BinaryFocal(gamma=2)
        >>> start = focal.starting_score(np.array([0, 0, 0, 0, 0, 0, 0, 0, 0, 1]))
        >>> round(start, 3), round(float(1 / (1 + np.exp(-start))), 3), round(float(focal.posterior(start)), 3)
        (-0.82, 0.306, 0.1)

    Reference: Lin et al. (2017), Eq. 5; Charoenphakdee et al. (2021), Thm. 11.
    """

    gamma: float
    alpha: float | None = None
    _shape: ClassVar[tuple[str, ...]] = ("N",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", _check.scalar_gamma(self.gamma, least=0.0))
        object.__setattr__(self, "alpha", _check.alpha(self.alpha, classes=None))

    def sum_losses(self, labels: Any, scores: Any, *, sample_weight: Any = None) -> tuple[float, float]:
        """Sum the weighted losses of rows and their weights; the quotient is the mean loss.

        Args:
            labels: 0 or 1, shape (N,).
            scores: Raw scores, shape (N,).
            sample_weight: Weights, shape (N,).
        """
        positive, rows, weight = self._read(labels, scores, sample_weight)
        losses = derivatives.binary_losses(rows, positive, gamma=self.gamma)
        balanced = losses if self.alpha is None else losses * self._balance(positive)
        return _weighted_sum(balanced, weight), _weighted_sum(np.ones_like(losses), weight)

    def differentiate(self, labels: Any, scores: Any, *, sample_weight: Any = None) -> Derivatives:
        """Compute the gradient and a positive second derivative of each row's loss, shape (N,).

        The second derivative is exact where the focusing factor adds to the curvature. Where it takes away from it, for
        rows that are far on the wrong side, it is that of cross-entropy times the factor phi of the gradient, which is
        larger.

        Args:
            labels: 0 or 1, shape (N,).
            scores: Raw scores, shape (N,).
            sample_weight: Weights, shape (N,).

        Example:
            >>> import numpy as np
            >>> gradient, hessian = BinaryFocal(gamma=2).differentiate(np.array([1, 0]), np.array([1.0, 1.0]))
            >>> gradient.round(4).tolist(), hessian.round(4).tolist()
            ([-0.0526, 0.7682], [0.1106, 0.4525])
        """
        positive, rows, weight = self._read(labels, scores, sample_weight)
        gradient, hessian = derivatives.binary_derivatives(rows, positive, gamma=self.gamma)
        factor = 1.0 if self.alpha is None else self._balance(positive)
        factor = factor if weight is None else factor * weight
        return Derivatives(gradient * factor, hessian * factor)

    def starting_score(self, labels: Any, *, sample_weight: Any = None) -> float:
        """Compute the best constant score: the one whose posterior is the frequency of label 1.

        Args:
            labels: 0 or 1, shape (N,).
            sample_weight: Weights, shape (N,).
        """
        positive, _, weight = self._read(labels, None, sample_weight)
        shares = _frequencies(positive.astype(np.int64), 2, weight)
        prob = float(sigmoid_minimizer(shares[1], gamma=self.gamma, alpha=self.alpha))
        return float(np.log(prob) - np.log1p(-prob))

    def posterior(self, scores: Any) -> np.ndarray:
        """Recover p(y=1|x) from raw scores, as `refocal.sigmoid_posterior` does.

        Args:
            scores: Raw scores with the starting score added, any shape.
        """
        return sigmoid_posterior(_as_floats(scores), gamma=self.gamma, alpha=self.alpha)

    @property
    def catboost(self) -> CatBoostFocal:
        """The objective, the metric and the probabilities for CatBoost."""
        return CatBoostFocal(self, RangeObjective(self))

    def _balance(self, positive: np.ndarray) -> np.ndarray:
        alpha = 0.5 if self.alpha is None else self.alpha
        return np.where(positive, alpha, 1 - alpha)

    def _read(self, labels: Any, scores: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Labels as booleans, scores and weights in float64; without scores, zeros."""
        indices = _read_labels(labels, 2)
        rows = np.zeros(len(indices)) if scores is None else np.asarray(scores, dtype=np.float64)
        if rows.shape != indices.shape:
            msg = f"scores must have shape {indices.shape}, one score per label, got {rows.shape}"
            raise ValueError(msg)
        return indices == 1, rows, _read_weights(sample_weight, len(indices))


@dataclass(frozen=True, kw_only=True)
class MulticlassFocal(AbstractFocal):
    """Focal loss for boosted trees with several classes, with the probabilities that belong to it.

    The loss of raw scores with p = softmax(scores) is -weight_y (1 - p_y)^gamma log p_y for label y. The softmax of
    fitted scores is not p(y|x); `posterior` is.

    Args:
        gamma: Focusing parameter, >= 0. At 0 the loss is cross-entropy.
        weight: Positive weights, one per class. None gives all classes weight 1.

    Example:
        >>> import numpy as np
        >>> focal = MulticlassFocal(gamma=2)
        >>> start = focal.starting_score(np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 2]))
        >>> np.exp(start).round(3).tolist(), focal.posterior(start).round(3).tolist()
        ([0.535, 0.293, 0.172], [0.7, 0.2, 0.1])

    Reference: Lin et al. (2017), Eq. 4; Charoenphakdee et al. (2021), Thm. 11.
    """

    gamma: float
    weight: Any = None
    _shape: ClassVar[tuple[str, ...]] = ("N", "K")

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", _check.scalar_gamma(self.gamma, least=0.0))
        if self.weight is not None:
            weights = to_numpy(self.weight, "weight", column=True)
            if weights.ndim != 1 or len(weights) < 2:
                msg = f"weight must have one value per class, for at least 2 classes, got shape {weights.shape}"
                raise ValueError(msg)
            _check.weight(weights, classes=len(weights))
            object.__setattr__(self, "weight", tuple(map(float, weights)))

    def sum_losses(self, labels: Any, scores: Any, *, sample_weight: Any = None) -> tuple[float, float]:
        """Sum the weighted losses of rows and their weights; the quotient is the mean loss.

        Class weights count in both sums, as in `nn.CrossEntropyLoss`.

        Args:
            labels: Class indices, shape (N,).
            scores: Raw scores, shape (N, K).
            sample_weight: Weights, shape (N,).
        """
        indices, rows, weight = self._read(labels, scores, sample_weight)
        losses = derivatives.multiclass_losses(rows, indices, gamma=self.gamma)
        return _weighted_sum(losses, weight), _weighted_sum(np.ones_like(losses), weight)

    def differentiate(self, labels: Any, scores: Any, *, sample_weight: Any = None) -> Derivatives:
        """Compute the gradient and a positive diagonal of the Hessian of each row's loss, shape (N, K).

        The diagonal is exact where the focusing factor adds to the curvature. Where it takes away from it, for rows
        with a small probability of the true class, it is that of cross-entropy times the factor phi of the gradient.

        Args:
            labels: Class indices, shape (N,).
            scores: Raw scores, shape (N, K).
            sample_weight: Weights, shape (N,).

        Example:
            >>> import numpy as np
            >>> gradient, hessian = MulticlassFocal(gamma=2).differentiate(np.array([2]), np.array([[0.0, 1.0, 1.0]]))
            >>> gradient.round(4).tolist(), hessian.round(4).tolist()
            ([[0.1172, 0.3186, -0.4358]], [[0.1198, 0.3379, 0.4719]])
        """
        indices, rows, weight = self._read(labels, scores, sample_weight)
        gradient, hessian = derivatives.multiclass_derivatives(rows, indices, gamma=self.gamma)
        if weight is None:
            return Derivatives(gradient, hessian)
        return Derivatives(gradient * weight[:, None], hessian * weight[:, None])

    def starting_score(self, labels: Any, *, sample_weight: Any = None) -> np.ndarray:
        """Compute the best constant scores (K,): those whose posterior is the frequency of each class.

        Args:
            labels: Class indices, shape (N,). Every class must occur.
            sample_weight: Weights, shape (N,).
        """
        indices = _read_labels(labels, None if self.weight is None else len(self.weight))
        classes = int(indices.max()) + 1 if self.weight is None else len(self.weight)
        shares = _frequencies(indices, classes, _read_weights(sample_weight, len(indices)))
        return np.log(minimizer(shares, gamma=self.gamma, weight=self.weight))

    def posterior(self, scores: Any) -> np.ndarray:
        """Recover p(y|x) from raw scores, as `refocal.posterior_from_logits` does.

        Args:
            scores: Raw scores with the starting scores added, shape (..., K).
        """
        return posterior_from_logits(_as_floats(scores), gamma=self.gamma, weight=self.weight)

    @property
    def catboost(self) -> CatBoostFocal:
        """The objective, the metric and the probabilities for CatBoost."""
        return CatBoostFocal(self, RowObjective(self.gamma, self.weight))

    def _read(self, labels: Any, scores: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Labels as indices, scores in float64, and the product of weights per sample and per class."""
        rows = np.asarray(scores, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] < 2:
            msg = f"scores must have shape (N, K) with K >= 2, one score per class, got {rows.shape}"
            raise ValueError(msg)
        if self.weight is not None and rows.shape[1] != len(self.weight):
            msg = f"scores must have {len(self.weight)} classes, one for each value of weight, got {rows.shape[1]}"
            raise ValueError(msg)
        indices = _read_labels(labels, rows.shape[1])
        if len(rows) != len(indices):
            msg = f"scores must have one row for each of {len(indices)} labels, got {len(rows)}"
            raise ValueError(msg)
        weight = _read_weights(sample_weight, len(indices))
        if self.weight is not None:
            of_class = np.asarray(self.weight)[indices]
            weight = of_class if weight is None else weight * of_class
        return indices, rows, weight


def _as_floats(scores: Any) -> np.ndarray:
    """Scores as they are if they are floating-point numbers, else in float64."""
    array = np.asarray(scores)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def _read_labels(labels: Any, classes: int | None) -> np.ndarray:
    """Class indices from 0 to classes - 1 in int64; packages pass them as floats."""
    array = to_numpy(labels, "labels", column=True)
    if array.ndim != 1 or not len(array) or array.dtype.kind not in "biuf":
        msg = f"labels must be numbers of shape (N,) with N >= 1, got {array.dtype} of shape {array.shape}"
        raise ValueError(msg)
    most = np.inf if classes is None else classes - 1
    wrong = ~((array >= 0) & (array <= most) & (array == np.floor(array)) & np.isfinite(array))
    if wrong.any():
        allowed = "0 or 1" if classes == 2 else f"class indices from 0 to {most:g}"
        allowed = "class indices, 0 or more" if classes is None else allowed
        msg = f"labels must be {allowed}, got {array[wrong][0]} in row {int(np.flatnonzero(wrong)[0])}"
        raise ValueError(msg)
    return array.astype(np.int64)


def _read_weights(sample_weight: Any, rows: int) -> np.ndarray | None:
    """Weights per sample in float64."""
    if sample_weight is None:
        return None
    weight = np.asarray(to_numpy(sample_weight, "sample_weight", column=True), dtype=np.float64)
    if weight.shape != (rows,):
        msg = f"sample_weight must have shape ({rows},), one weight per label, got {weight.shape}"
        raise ValueError(msg)
    wrong = ~((weight >= 0) & np.isfinite(weight))
    if wrong.any():
        msg = (
            "sample_weight must be non-negative and finite, "
            f"got {weight[wrong][0]} in row {int(np.flatnonzero(wrong)[0])}"
        )
        raise ValueError(msg)
    return weight


def _frequencies(indices: np.ndarray, classes: int, weight: np.ndarray | None) -> np.ndarray:
    """Weighted share of each class, all positive."""
    counts = np.bincount(indices, weights=weight, minlength=classes)
    if not (counts > 0).all():
        msg = f"labels must have every class with a positive weight, got none of class {int(np.argmin(counts > 0))}"
        raise ValueError(msg)
    return counts / counts.sum()


def _weighted_sum(values: np.ndarray, weight: np.ndarray | None) -> float:
    return float(values.sum() if weight is None else values @ weight)
