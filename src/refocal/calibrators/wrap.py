"""A classifier and its calibrator as one object."""

from __future__ import annotations

import sys
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_predict
from sklearn.utils.validation import check_is_fitted

from refocal import _check
from refocal.calibrators.base import Calibrator

_BATCH = 1024


class Calibrated(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A scikit-learn classifier or a PyTorch module, followed by a calibrator.

    What the calibrator gets is said by its `input`: "logits" are `decision_function` of a classifier, or the output of
    a module; "probs" are `predict_proba`, or a module whose output are probabilities.

    If both are fitted already, `predict_proba` works at once. Otherwise `fit` fits the calibrator, on data that the
    classifier must not have seen; with `cv`, it fits both.

    Args:
        estimator: A fitted classifier or a module (an unfitted classifier with `cv`). It is used, not copied.
        calibrator: A `refocal.calibrators` object.
        cv: None to fit the calibrator alone. A number of folds or a splitter: the calibrator is fitted to scores of
            held-out folds, then a copy of the classifier to all data.

    Attributes:
        estimator_: The classifier that predicts.
        calibrator_: The fitted calibrator.
        classes_: Labels of the columns.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.svm import LinearSVC
        >>> from refocal.calibrators import TemperatureScaling
        >>> X, y = load_iris(return_X_y=True)
        >>> model = Calibrated(LinearSVC(), TemperatureScaling(), cv=5).fit(X, y)
        >>> model.predict_proba(X[:1]).shape
        (1, 3)
    """

    def __init__(self, estimator: Any, calibrator: Calibrator, *, cv: Any = None) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the calibrator, and with `cv` the classifier, too. Returns self."""
        _check.unmasked(y, "y")
        _check.unmasked(sample_weight, "sample_weight")
        if self.cv is None:
            self.estimator_ = self.estimator
            scores = self._scores(X)
        else:
            if _is_module(self.estimator):
                msg = "cv needs a scikit-learn classifier, which can be fitted again; a torch module needs cv=None"
                raise TypeError(msg)
            weights = {} if sample_weight is None else {"sample_weight": np.asarray(sample_weight)}
            method = _method(self.estimator, self.calibrator)
            scores = cross_val_predict(clone(self.estimator), X, y, cv=self.cv, method=method, params=weights or None)
            self.estimator_ = clone(self.estimator).fit(X, y, **weights)
        calibrator = clone(self.calibrator)
        if calibrator.classes is None and hasattr(self.estimator_, "classes_"):
            calibrator.set_params(classes=self.estimator_.classes_)
        self.calibrator_ = calibrator.fit(scores, y, sample_weight)
        self.classes_ = self.calibrator_.classes_
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities (N, K), float64."""
        return self._fitted().predict_proba(self._scores(X))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Their logarithms."""
        return self._fitted().predict_log_proba(self._scores(X))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        return self._fitted().predict(self._scores(X))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "calibrator_") or (_is_ready(self.estimator) and _is_ready(self.calibrator))

    def _fitted(self) -> Calibrator:
        check_is_fitted(self)
        return self.calibrator_ if hasattr(self, "calibrator_") else self.calibrator

    def _scores(self, X: Any) -> np.ndarray:
        estimator = getattr(self, "estimator_", self.estimator)
        if _is_module(estimator):
            return _module_scores(estimator, X)
        scores: np.ndarray = getattr(estimator, _method(estimator, self.calibrator))(X)
        return scores


def _method(estimator: Any, calibrator: Calibrator) -> str:
    method = "decision_function" if calibrator.input == "logits" else "predict_proba"
    if not hasattr(estimator, method):
        other = "probs" if calibrator.input == "logits" else "logits"
        msg = f"{type(estimator).__name__} has no {method}: give the calibrator input={other!r}"
        raise TypeError(msg)
    return method


def _is_module(estimator: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(estimator, torch.nn.Module)


def _is_ready(part: Any) -> bool:
    if _is_module(part):
        return True
    try:
        check_is_fitted(part)
    except NotFittedError:
        return False
    return True


def _module_scores(module: Any, X: Any) -> np.ndarray:
    """The output of a module for each row, in evaluation mode, which is left as it was found."""
    torch = sys.modules["torch"]
    first = next(module.parameters(), None)
    inputs = torch.as_tensor(X)
    if first is not None and inputs.is_floating_point():
        inputs = inputs.to(first.dtype)
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            batches = [
                module(batch if first is None else batch.to(first.device)).float().cpu().numpy()
                for batch in inputs.split(_BATCH)
            ]
    finally:
        for part in training:
            part.training = True
    return np.concatenate(batches)
