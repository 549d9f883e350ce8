"""Focal loss for XGBoost: for `xgboost.train` and for the estimators of its scikit-learn interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from refocal._extras import require
from refocal.boosting.callbacks import Batch

if TYPE_CHECKING:
    from refocal.boosting.focal import AbstractFocal


class XGBoostFocal:
    """The objective, the metric and the probabilities of a focal loss for XGBoost.

    XGBoost does not know the link of a custom objective. `XGBClassifier.predict_proba` and `predict` apply a sigmoid or
    softmax, as for cross-entropy; these numbers look like probabilities and are not p(y|x). `posterior` is. Pass
    `base_score=focal.xgboost.base_score(labels)`: without it, boosting starts from a constant for another loss. A
    fitted model adds it to its scores. For `train`, also name the objective whose link XGBoost keeps,
    "binary:logistic" or "multi:softprob", in `params`; `XGBClassifier` does so by itself.

    Example:
        >>> import numpy as np, xgboost
        >>> from refocal.boosting import BinaryFocal
        >>> features = np.repeat([[0.0], [1.0]], 200, axis=0)
        >>> labels = (np.arange(400) % 10 < 1 + 3 * features[:, 0]).astype(int)  # 10% and 40% positives
        >>> focal = BinaryFocal(gamma=2)
        >>> start = focal.xgboost.base_score(labels)
        >>> settings = {"objective": "binary:logistic", "base_score": start, "nthread": 1}
        >>> data = xgboost.DMatrix(features, labels)
        >>> model = xgboost.train(settings, data, num_boost_round=100, obj=focal.xgboost.objective)
        >>> [round(float(p), 2) for p in focal.xgboost.posterior(model, [[0.0], [1.0]])]
        [0.1, 0.4]
    """

    def __init__(self, focal: AbstractFocal) -> None:
        require("xgboost", extra="boosting", user="refocal.boosting")
        self._focal = focal

    def base_score(self, labels: Any, *, sample_weight: Any = None) -> float | list[float]:
        """Compute the constant from which boosting should start, in the form of XGBoost's parameter `base_score`.

        For two classes that is the sigmoid of `starting_score`, for several classes a list of raw scores.

        Args:
            labels: Class indices, shape (N,).
            sample_weight: Weights, shape (N,).
        """
        start = np.asarray(self._focal.starting_score(labels, sample_weight=sample_weight))
        return start.tolist() if start.ndim else float(1 / (1 + np.exp(-start)))

    def objective(self, first: Any, second: Any, sample_weight: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Compute gradient and Hessian; give this method to `objective=` of an estimator or `obj=` of `train`.

        The two call it with different arguments; `Batch.read` names them.
        """
        gradient, hessian = Batch.read(first, second, sample_weight).differentiate(self._focal)
        if hessian.ndim == 2:
            hessian *= 2  # as XGBoost's own softmax objective: twice the diagonal bounds the whole matrix
        return gradient, hessian

    @property
    def metric(self) -> Callable[..., Any]:
        """The mean focal loss, for `eval_metric=` of an estimator or `custom_metric=` of `train`; lower is better.

        Set `disable_default_eval_metric=True` in `params` of `train`, or XGBoost reports a metric of its own too.
        """
        return self.focal_loss

    def focal_loss(self, first: Any, second: Any, sample_weight: Any = None) -> float | tuple[str, float]:
        """Compute `metric`, whose name XGBoost takes from this method; `train` also expects the name in the result."""
        batch = Batch.read(first, second, sample_weight)
        value = batch.loss(self._focal)
        return ("focal_loss", value) if batch.scores is first else value

    def posterior(self, model: Any, features: Any) -> np.ndarray:
        """Compute the class probabilities of a fitted model, at its best iteration if it was stopped early.

        Args:
            model: A `Booster` or an estimator.
            features: What its `predict` takes, or an array for a `Booster`.

        Returns:
            p(y=1|x) of shape (N,) for `BinaryFocal`, p(y|x) of shape (N, K) for `MulticlassFocal`.
        """
        xgboost = require("xgboost", extra="boosting", user="refocal.boosting")
        if not isinstance(model, xgboost.Booster):
            return self._focal.posterior_of_model(model.predict(features, output_margin=True))
        data = features if isinstance(features, xgboost.DMatrix) else xgboost.DMatrix(features)
        best = model.attr("best_iteration")
        rounds = (0, 0) if best is None else (0, int(best) + 1)  # (0, 0) stands for all
        return self._focal.posterior_of_model(model.predict(data, output_margin=True, iteration_range=rounds))
