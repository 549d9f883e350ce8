"""A classifier and its calibrator as one object."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
from numpy.typing import ArrayLike
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone, is_classifier
from sklearn.ensemble import BaggingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import check_cv, cross_val_predict
from sklearn.utils.metadata_routing import (
    UNUSED,
    MetadataRouter,
    MethodMapping,
    get_routing_for_object,
    process_routing,
)
from sklearn.utils.validation import check_is_fitted, column_or_1d

from refocal._check import Input
from refocal._containers import to_array, to_numpy
from refocal.calibrators.base import Calibrator
from refocal.calibrators.training_data import list_classes

_BATCH = 1024
_SHAPE = "decision_function_shape"
_METHODS: dict[Input, str] = {"logits": "decision_function", "probs": "predict_proba"}


@final
class Calibrated(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Join a classifier and its calibrator in one object that predicts calibrated probabilities.

    Use it to pass a scikit-learn classifier or a PyTorch module on with its calibration.

    The classifier says which scores the calibrator gets: the `decision_function` as logits if there is one, else the
    `predict_proba` as probabilities. The output of a module is logits. A calibrator with `input="logits"` or
    `input="probs"` overrides this: "probs" takes `predict_proba`, or the output of a module that returns probabilities.

    If both parts are already fitted, `predict_proba` works at once. Otherwise `fit` fits the calibrator; its data must
    be new to the classifier. With `cv`, `fit` fits both parts.

    Args:
        estimator: A fitted classifier or a module; with `cv`, an unfitted classifier. It is not copied.
        calibrator: A calibrator of `refocal.calibrators`.
        cv: None to fit only the calibrator. With a number of folds or a splitter, the calibrator is fitted to the
            scores of held-out folds, and a copy of the classifier to all data. Each class must occur outside every
            held-out fold. A splitter that keeps groups together, such as `GroupKFold`, needs `groups` in `fit`.

    Attributes:
        estimator_: The classifier that predicts.
        calibrator_: The fitted calibrator.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> from sklearn.svm import LinearSVC
        >>> from refocal.calibrators import TemperatureScaling
        >>> X, y = load_iris(return_X_y=True)
        >>> model = Calibrated(LinearSVC(), TemperatureScaling(), cv=5).fit(X, y)
        >>> model.predict_proba(X[:1]).shape
        (1, 3)
    """

    # `groups` is only for the splitter, so users cannot request it as metadata
    __metadata_request__fit: ClassVar[dict[str, str]] = {"groups": UNUSED}

    def __init__(self, estimator: Any, calibrator: Calibrator, *, cv: Any = None) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv

    def fit(
        self,
        X: Any,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        **params: Any,
    ) -> Self:
        """Fit the calibrator and, with `cv`, the classifier.

        With scikit-learn's metadata routing enabled, classifier and splitter get what they request.

        Args:
            X: Features, as the classifier takes them.
            y: Labels (N,).
            sample_weight: Weights (N,), or None. The calibrator uses them and, with `cv`, so does the classifier. If
                the classifier is a pipeline, its last step gets them, unless `params` has weights for one of its steps.
            groups: Groups of the samples (N,), which `cv` keeps together.
            **params: Further arguments of the classifier's `fit`, such as `logisticregression__sample_weight`. Arrays
                of N rows are split like the data.

        Returns:
            The object itself.
        """
        _check_calibrator(self.calibrator)
        labels: np.ndarray = column_or_1d(to_numpy(y, "y", column=True), warn=True)
        sample_weight = None if sample_weight is None else to_numpy(sample_weight, "sample_weight", column=True)
        groups = None if groups is None else to_numpy(groups, "groups", column=True)
        if self.cv is None and (groups is not None or params):
            names = sorted([*params, *(["groups"] if groups is not None else [])])
            msg = f"{', '.join(names)}: allowed only with cv, which makes folds and fits the classifier; got cv=None"
            raise ValueError(msg)
        input = _recognize_input(self.estimator, self.calibrator)
        if input == "logits":
            _reject_pairs_of_classes(self.estimator, labels)
        if self.cv is None:
            self.estimator_ = self.estimator
            scores = self._compute_scores(X, input)
        else:
            if _is_module(self.estimator):
                msg = "cv needs a scikit-learn classifier that can be fitted again; use cv=None with a torch module"
                raise TypeError(msg)
            method = _find_method(self.estimator, input)
            given = {"sample_weight": sample_weight, "groups": groups, **params}
            routes = self._route({name: value for name, value in given.items() if value is not None})
            cv = check_cv(self.cv, labels, classifier=is_classifier(self.estimator))
            splits = list(cv.split(X, labels, **routes.splitting))
            if not isinstance(self.estimator, FrozenEstimator):
                _check_folds(splits, labels)
            scores = cross_val_predict(
                clone(self.estimator),
                X,
                labels,
                cv=splits,
                method=method,
                params=routes.cross_fitting or None,
            )
            self.estimator_ = clone(self.estimator).fit(X, labels, **routes.fitting)
        calibrator = clone(self.calibrator)
        if not _is_module(self.estimator):  # a module may return either, so its output must still look like logits
            calibrator.set_params(input=input)
        if calibrator.classes is None and hasattr(self.estimator_, "classes_"):
            calibrator.set_params(classes=self.estimator_.classes_)
        _check_order(self.estimator_, calibrator.classes)
        self.calibrator_ = calibrator.fit(scores, labels, sample_weight)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities (N, K) in float64."""
        calibrator = self._get_calibrator()
        return calibrator.predict_proba(self._compute_scores(X, calibrator.input_))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the calibrated probabilities (N, K)."""
        calibrator = self._get_calibrator()
        return calibrator.predict_log_proba(self._compute_scores(X, calibrator.input_))

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row (N,)."""
        calibrator = self._get_calibrator()
        return calibrator.predict(self._compute_scores(X, calibrator.input_))

    @property
    def classes_(self) -> np.ndarray:
        """Labels of the columns (K,)."""
        return self._get_calibrator().classes_

    @property
    def n_features_in_(self) -> int:
        """The number of features that the classifier was fitted to."""
        return int(getattr(self, "estimator_", self.estimator).n_features_in_)

    @property
    def feature_names_in_(self) -> np.ndarray:
        """The names of the features that the classifier was fitted to, if they have names."""
        names: np.ndarray = getattr(self, "estimator_", self.estimator).feature_names_in_
        return names

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "calibrator_") or (_is_ready(self.estimator) and _is_ready(self.calibrator))

    def get_metadata_routing(self) -> MetadataRouter:
        """Tell scikit-learn which part takes which metadata: see its user guide on metadata routing."""
        router = MetadataRouter(owner=self).add_self_request(self)
        if self.cv is not None:
            router.add(estimator=self.estimator, method_mapping=MethodMapping().add(caller="fit", callee="fit"))
            router.add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        return router

    def _route(self, given: dict[str, Any]) -> _Routes:
        """Divide the arguments of `fit` between the splitter and the classifier."""
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **given)
            # cross_val_predict routes again, by the names under which the classifier requests what it takes
            taken = get_routing_for_object(self.estimator).consumes("fit", given)
            return _Routes(routed.splitter.split, {name: given[name] for name in taken}, routed.estimator.fit)
        splitting = {"groups": given.pop("groups")} if "groups" in given else {}
        weights = given.pop("sample_weight", None)
        if weights is not None and not any(name.endswith("__sample_weight") for name in given):
            given[_name_weights(self.estimator)] = weights
        return _Routes(splitting, given, given)

    def _get_calibrator(self) -> Calibrator:
        check_is_fitted(self)
        if hasattr(self, "calibrator_"):
            return self.calibrator_
        _check_order(self.estimator, getattr(self.calibrator, "classes_", self.calibrator.classes))
        return self.calibrator

    def _compute_scores(self, X: Any, input: Input) -> np.ndarray:
        estimator = getattr(self, "estimator_", self.estimator)
        if _is_module(estimator):
            return _evaluate_module(estimator, X)
        scores: np.ndarray = getattr(estimator, _find_method(estimator, input))(X)
        return scores


class _Routes(NamedTuple):
    """What the splitter gets, what `cross_val_predict` gets as `params`, and what the fit to all data gets."""

    splitting: dict[str, Any]
    cross_fitting: dict[str, Any]
    fitting: dict[str, Any]


def _name_weights(estimator: Any) -> str:
    """The argument of `fit` that takes weights; that of a pipeline is the one of its last step."""
    steps = getattr(estimator, "steps", None)
    if steps and not isinstance(estimator, FrozenEstimator):
        return f"{steps[-1][0]}__{_name_weights(steps[-1][1])}"
    parameters = signature(estimator.fit).parameters.values()
    if not any(each.name == "sample_weight" or each.kind is each.VAR_KEYWORD for each in parameters):
        msg = (
            f"{type(estimator).__name__} takes no sample_weight: fit without weights, or give them to the calibrator "
            "alone by sklearn.set_config(enable_metadata_routing=True)"
        )
        raise ValueError(msg)
    return "sample_weight"


def _recognize_input(estimator: Any, calibrator: Calibrator) -> Input:
    """Say what the calibrator gets: what it asks for or, if it does not say, what the classifier has."""
    if calibrator.input is None and not _is_module(estimator) and not hasattr(estimator, _METHODS["logits"]):
        return "probs"
    return calibrator.input_


def _find_method(estimator: Any, input: Input) -> str:
    """Return the method of a classifier that gives logits or probabilities."""
    if hasattr(estimator, _METHODS[input]):
        return _METHODS[input]
    name, other = type(estimator).__name__, "probs" if input == "logits" else "logits"
    msg = f"{name} has no {_METHODS[input]}: pass input={other!r} to the calibrator"
    if not any(hasattr(estimator, method) for method in _METHODS.values()):
        msg = f"{name} has neither decision_function nor predict_proba, so it gives no scores to calibrate"
    raise TypeError(msg)


def _reject_pairs_of_classes(estimator: Any, y: np.ndarray) -> None:
    """Reject a support vector machine whose columns are pairs of classes: three classes have three pairs, too."""
    classes = getattr(estimator, "classes_", np.unique(y))
    shapes = [getattr(_find_scorer(estimator), _SHAPE, "ovr"), *_list_searched_shapes(estimator)]
    wrong = next((shape for shape in shapes if shape != "ovr"), None)
    if len(classes) > 2 and wrong is not None:
        msg = f"the classifier must have {_SHAPE}='ovr', got {wrong!r}"
        raise ValueError(msg)


def _list_searched_shapes(estimator: Any) -> list[Any]:
    """List the shapes of scores that a search has not tried yet, for the classifier whose scores it passes on."""
    if getattr(estimator, "steps", None):
        return _list_searched_shapes(estimator.steps[-1][1])
    if isinstance(estimator, (BaggingClassifier, FrozenEstimator)):
        return _list_searched_shapes(estimator.estimator)
    grids = getattr(estimator, "param_grid", getattr(estimator, "param_distributions", ()))
    if not grids or hasattr(estimator, "best_estimator_"):
        return []
    parameters = {"": estimator.estimator, **estimator.estimator.get_params()}
    scorer = _find_scorer(estimator.estimator)
    found: list[Any] = []
    for grid in [grids] if isinstance(grids, Mapping) else grids:
        for name, values in grid.items():
            owner, _, parameter = name.rpartition("__")
            listed = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str)
            if parameter == _SHAPE and parameters.get(owner) is scorer and listed:
                found += list(values)
    return found


def _find_scorer(estimator: Any) -> Any:
    """Return the classifier whose columns of scores a pipeline, a search or a bagging ensemble passes on."""
    if getattr(estimator, "steps", None):
        return _find_scorer(estimator.steps[-1][1])
    is_search = hasattr(estimator, "refit") and hasattr(estimator, "estimator")
    if is_search or isinstance(estimator, (BaggingClassifier, FrozenEstimator)):
        return _find_scorer(getattr(estimator, "best_estimator_", estimator.estimator))
    return estimator


def _check_calibrator(value: object) -> None:
    if not isinstance(value, Calibrator):
        found = f"the class {value.__name__}: call it" if isinstance(value, type) else repr(value)
        msg = f"calibrator must be a calibrator of refocal.calibrators, got {found}"
        raise TypeError(msg)


def _check_order(estimator: Any, classes: ArrayLike | None) -> None:
    """Reject classes of a calibrator that are those of the classifier in another order. Other names may rename them."""
    columns = getattr(estimator, "classes_", None)
    if classes is None or np.ndim(classes) > 1 or not isinstance(columns, np.ndarray):
        return  # the calibrator rejects more than one axis
    own, given = columns.tolist(), list_classes(classes).tolist()
    if own != given and len(own) == len(given) and set(own) == set(given):  # 1.0 is 1
        msg = f"classes of the calibrator must be in the order of the classifier's, {own!r:.100}, got {given!r:.100}"
        raise ValueError(msg)


def _check_folds(splits: list[tuple[np.ndarray, np.ndarray]], y: np.ndarray) -> None:
    """Reject folds in which a classifier does not learn a class: such scores say nothing about the final classifier."""
    classes = np.unique(y)
    for number, (train, _) in enumerate(splits, start=1):
        missing = np.setdiff1d(classes, y[train])
        if len(missing):
            msg = (
                f"every class must occur outside each held-out fold, but outside fold {number} of {len(splits)} there "
                f"is no class {missing[:1].tolist()[0]!r}: shuffle the samples, or use a stratified splitter"
            )
            raise ValueError(msg)


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


def _evaluate_module(module: Any, X: Any) -> np.ndarray:
    """Compute the output of a module for each row in evaluation mode, then restore the mode of every part."""
    torch = sys.modules["torch"]
    first = next(module.parameters(), None)
    inputs = torch.as_tensor(to_array(X, "X"))
    if first is not None and inputs.is_floating_point():
        inputs = inputs.to(first.dtype)
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad():
            batches = [
                _to_scores(module(batch if first is None else batch.to(first.device))) for batch in inputs.split(_BATCH)
            ]
    finally:
        for part in training:
            part.training = True
    return np.concatenate(batches)


def _to_scores(output: Any) -> np.ndarray:
    """Return the output of a module in float32, or in float64 if it is."""
    torch = sys.modules["torch"]
    if not isinstance(output, torch.Tensor):
        msg = f"the module must return a tensor of logits (N, K), got {type(output).__name__}"
        raise TypeError(msg)
    scores: np.ndarray = output.to(torch.promote_types(output.dtype, torch.float32)).cpu().numpy()
    return scores
