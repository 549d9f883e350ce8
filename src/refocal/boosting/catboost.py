"""Focal loss for CatBoost. Its objectives and metrics are objects, and its derivatives are those of minus the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal._extras import require
from refocal.boosting.derivatives import row_derivatives

if TYPE_CHECKING:
    from refocal.boosting.focal import AbstractFocal


class CatBoostFocal:
    """The objective, the metric and the probabilities of a focal loss for CatBoost.

    CatBoost does not know the link of a custom objective. `predict_proba` applies a sigmoid or softmax, as for
    cross-entropy; these numbers look like probabilities and are not p(y|x). `posterior` is. Custom objectives start
    at 0, so pass the starting score as `baseline` of each `Pool`, and to `posterior`. For several classes, set
    `classes_count`; CatBoost then calls Python for each row of each tree, which is slow.

    Args:
        focal: The loss.
        objective: What `loss_function=` takes.

    Example:
        >>> import numpy as np, catboost
        >>> from refocal.boosting import BinaryFocal
        >>> features = np.repeat([[0.0], [1.0]], 200, axis=0)
        >>> labels = (np.arange(400) % 10 < 1 + 3 * features[:, 0]).astype(int)  # 10% and 40% positives
        >>> focal = BinaryFocal(gamma=2)
        >>> start = focal.starting_score(labels)
        >>> data = catboost.Pool(features, labels, baseline=np.full(400, start))
        >>> losses = {"loss_function": focal.catboost.objective, "eval_metric": focal.catboost.metric}
        >>> settings = {"iterations": 100, "learning_rate": 0.3, "verbose": False, "allow_writing_files": False}
        >>> model = catboost.CatBoostClassifier(**losses, **settings).fit(data)
        >>> focal.catboost.posterior(model, [[0.0], [1.0]], starting_score=start).round(2).tolist()
        [0.1, 0.4]
    """

    def __init__(self, focal: AbstractFocal, objective: RangeObjective | RowObjective) -> None:
        require("catboost", extra="boosting", user="refocal.boosting")
        self._focal = focal
        self.objective = objective

    @property
    def metric(self) -> FocalMetric:
        """The mean focal loss, for `eval_metric=`; lower is better."""
        return FocalMetric(self._focal)

    def posterior(self, model: Any, features: Any, *, starting_score: Any = 0.0) -> np.ndarray:
        """Compute the class probabilities of a fitted model.

        Args:
            model: A `CatBoost` model or a `CatBoostClassifier`.
            features: What its `predict` takes, with two dimensions. A `Pool` with a baseline needs no `starting_score`.
            starting_score: The baseline of every row in training.

        Returns:
            p(y=1|x) of shape (N,) for `BinaryFocal`, p(y|x) of shape (N, K) for `MulticlassFocal`.
        """
        return self._focal.posterior_of_model(model.predict(features, prediction_type="RawFormulaVal"), starting_score)


class RangeObjective:
    """The objective for two classes, many rows at a time."""

    def __init__(self, focal: AbstractFocal) -> None:
        self._focal = focal

    def calc_ders_range(self, approxes: Any, targets: Any, weights: Any) -> np.ndarray:
        """Compute first and second derivatives of minus the loss, shape (N, 2)."""
        gradient, hessian = self._focal.differentiate(targets, approxes, sample_weight=weights)
        return np.stack([-gradient, -hessian], axis=1)


class RowObjective:
    """The objective for several classes, one row at a time."""

    def __init__(self, gamma: float, weight: tuple[float, ...] | None) -> None:
        self._gamma, self._weight = gamma, weight

    def calc_ders_multi(self, approxes: Any, target: float, weight: float) -> tuple[np.ndarray, np.ndarray]:
        """Compute the gradient (K,) and the Hessian (K, K) of minus the loss."""
        label = int(target)
        gradient, hessian = row_derivatives(approxes, label, gamma=self._gamma)
        factor = -weight if self._weight is None else -weight * self._weight[label]
        return factor * gradient, factor * hessian


class FocalMetric:
    """The mean focal loss as CatBoost asks for it: sums over rows, which it divides at the end."""

    def __init__(self, focal: AbstractFocal) -> None:
        self._focal = focal

    def evaluate(self, approxes: Sequence[Any], target: Any, weight: Any) -> tuple[float, float]:
        """Sum the weighted losses and the weights of rows; `approxes` has one array per class."""
        scores = approxes[0] if len(approxes) == 1 else np.stack(approxes, axis=1)
        return self._focal.sum_losses(target, scores, sample_weight=weight)

    def get_final_error(self, error: float, weight: float) -> float:
        """Divide the sum of losses by the sum of weights."""
        return error / weight

    def is_max_optimal(self) -> bool:
        """Lower is better."""
        return False
