"""Focal loss for LightGBM: for `lightgbm.train` and for the estimators of its scikit-learn interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from refocal._extras import require
from refocal.boosting.callbacks import Batch

if TYPE_CHECKING:
    from refocal.boosting.focal import AbstractFocal


class LightGBMFocal:
    """The objective, the metric and the probabilities of a focal loss for LightGBM.

    LightGBM does not know the link of a custom objective: `predict` and `LGBMClassifier.predict_proba` return raw
    scores, which may be negative. `posterior` turns them into probabilities. Custom objectives start at 0, so pass
    `init_score=np.full(len(y), start)` (`np.tile(start, (len(y), 1))` for several classes), for validation data too.
    A fitted model does not add it: give `starting_score` to `posterior`.

    Example:
        >>> import numpy as np, lightgbm
        >>> from refocal.boosting import BinaryFocal
        >>> features = np.repeat([[0.0], [1.0]], 200, axis=0)
        >>> labels = (np.arange(400) % 10 < 1 + 3 * features[:, 0]).astype(int)  # 10% and 40% positives
        >>> focal = BinaryFocal(gamma=2)
        >>> settings = {"objective": focal.lightgbm.objective, "verbosity": -1, "num_threads": 1}
        >>> start = focal.starting_score(labels)
        >>> data = lightgbm.Dataset(features, labels, init_score=np.full(400, start))
        >>> model = lightgbm.train(settings, data, num_boost_round=100)
        >>> focal.lightgbm.posterior(model, [[0.0], [1.0]], starting_score=start).round(2).tolist()
        [0.1, 0.4]
    """

    def __init__(self, focal: AbstractFocal) -> None:
        require("lightgbm", extra="boosting", user="refocal.boosting")
        self._focal = focal

    def objective(self, first: Any, second: Any, sample_weight: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Compute gradient and Hessian; give this method to `objective=` of an estimator or in `params` of `train`.

        The two call it with different arguments; `Batch.read` names them.
        """
        gradient, hessian = Batch.read(first, second, sample_weight).differentiate(self._focal)
        if hessian.ndim == 2:
            # as LightGBM's own softmax objective, so that its settings keep their meaning
            classes = hessian.shape[1]
            hessian *= classes / (classes - 1)
        return gradient, hessian

    def metric(self, first: Any, second: Any, sample_weight: Any = None) -> tuple[str, float, bool]:
        """Compute the mean focal loss; give this method to `eval_metric=` of an estimator or `feval=` of `train`.

        Set `metric="None"` in `params`, or early stopping also watches another metric.

        Returns:
            The name "focal_loss", the value, and False: lower is better.
        """
        return "focal_loss", Batch.read(first, second, sample_weight).loss(self._focal), False

    def posterior(self, model: Any, features: Any, *, starting_score: Any = 0.0) -> np.ndarray:
        """Compute the class probabilities of a fitted model, at its best iteration if it was stopped early.

        Args:
            model: A `Booster` or an estimator.
            features: What its `predict` takes.
            starting_score: The `init_score` of every row in training.

        Returns:
            p(y=1|x) of shape (N,) for `BinaryFocal`, p(y|x) of shape (N, K) for `MulticlassFocal`.
        """
        return self._focal.posterior_of_model(model.predict(features, raw_score=True), starting_score)
