"""`Calibrated` with groups and weights: given directly, through pipelines, and by scikit-learn's metadata routing."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, cross_val_predict, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from refocal.calibrators import Calibrated, TemperatureScaling

X, Y = load_digits(return_X_y=True)
X, Y = X[:360] / 16, Y[:360] % 3
GROUPS = np.random.default_rng(0).permutation(360) % 12
WEIGHTS = np.random.default_rng(1).integers(1, 4, 360).astype(float)
SCALER = StandardScaler()


class Nearest(ClassifierMixin, BaseEstimator):
    """A classifier that knows every sample of a group it has seen: only held-out groups show its real errors."""

    def fit(self, X, y):
        self.X_, self.y_, self.classes_ = X, y, np.unique(y)
        return self

    def decision_function(self, X):
        nearest = self.y_[np.argmin(((X[:, None] - self.X_) ** 2).sum(axis=2), axis=1)]
        return 3.0 * (nearest[:, None] == self.classes_)

    def predict(self, X):
        return self.classes_[np.argmax(self.decision_function(X), axis=1)]


def oracle(weights, groups=None, *, classifier_weights=None):
    """Fit by hand: scores of held-out groups, then a temperature."""
    classifier = LogisticRegression(C=0.5)
    scores = np.empty((360, 3))
    for train, test in GroupKFold(3).split(X, Y, groups) if groups is not None else KFold(3).split(X):
        scale = clone(SCALER).fit(X[train])
        own = None if classifier_weights is None else classifier_weights[train]
        fitted = clone(classifier).fit(scale.transform(X[train]), Y[train], own)
        scores[test] = fitted.decision_function(scale.transform(X[test]))
    scale = clone(SCALER).fit(X)
    final = clone(classifier).fit(scale.transform(X), Y, classifier_weights)
    temperature = TemperatureScaling().fit(scores, Y, weights)
    return temperature.temperature_, temperature.predict_proba(final.decision_function(scale.transform(X)))


def make(cv, *, routed=None):
    scaler, classifier = clone(SCALER), LogisticRegression(C=0.5)
    if routed is not None:
        scaler.set_fit_request(sample_weight=False)
        classifier.set_fit_request(sample_weight=routed)
    steps = Pipeline([("scale", scaler), ("classify", classifier)])
    return Calibrated(steps, TemperatureScaling(), cv=cv)


def check(model, expected):
    temperature, probs = expected
    assert model.calibrator_.temperature_ == pytest.approx(temperature, rel=1e-6)
    np.testing.assert_allclose(model.predict_proba(X), probs, atol=1e-6)


def test_groups_stay_together():
    check(make(GroupKFold(3)).fit(X, Y, groups=GROUPS), oracle(None, GROUPS))
    with pytest.raises(ValueError, match="'groups' parameter should not be None"):
        make(GroupKFold(3)).fit(X, Y)
    # six noisy copies of each sample: with copies in other folds, held-out scores look right too often
    rng = np.random.default_rng(0)
    copies = np.repeat(X[:60], 6, axis=0) + 1e-3 * rng.standard_normal((360, 64))
    labels, groups = np.repeat(rng.integers(3, size=60), 6), np.repeat(np.arange(60), 6)
    together = Calibrated(Nearest(), TemperatureScaling(), cv=GroupKFold(3)).fit(copies, labels, groups=groups)
    apart = Calibrated(Nearest(), TemperatureScaling(), cv=KFold(3, shuffle=True, random_state=0)).fit(copies, labels)
    assert together.calibrator_.temperature_ > 3 * apart.calibrator_.temperature_


def test_weights_reach_the_last_step_of_a_pipeline():
    expected = oracle(WEIGHTS, GROUPS, classifier_weights=WEIGHTS)
    check(make(GroupKFold(3)).fit(X, Y, WEIGHTS, groups=GROUPS), expected)
    nested = Calibrated(Pipeline([("all", make(None).estimator)]), TemperatureScaling(), cv=GroupKFold(3))
    check(nested.fit(X, Y, sample_weight=list(WEIGHTS), groups=list(GROUPS)), expected)
    assert abs(expected[0] - oracle(None, GROUPS)[0]) > 1e-3


def test_weights_of_one_step_are_its_own():
    only = make(KFold(3)).fit(X, Y, classify__sample_weight=WEIGHTS)
    check(only, oracle(None, classifier_weights=WEIGHTS))
    both = make(KFold(3)).fit(X, Y, np.ones(360), classify__sample_weight=WEIGHTS)
    check(both, oracle(None, classifier_weights=WEIGHTS))


def test_as_the_last_step_of_a_pipeline():
    outer = Pipeline([("scale", clone(SCALER)), ("calibrated", Calibrated(LogisticRegression(), TemperatureScaling()))])
    outer.set_params(calibrated__cv=GroupKFold(3))
    outer.fit(X, Y, calibrated__sample_weight=WEIGHTS, calibrated__groups=GROUPS)
    inner = Calibrated(LogisticRegression(), TemperatureScaling(), cv=GroupKFold(3))
    inner.fit(clone(SCALER).fit_transform(X), Y, WEIGHTS, groups=GROUPS)
    np.testing.assert_allclose(outer.predict_proba(X), inner.predict_proba(clone(SCALER).fit_transform(X)), atol=1e-12)


def test_arguments_without_folds_are_rejected():
    fitted = LogisticRegression().fit(X, Y)
    with pytest.raises(ValueError, match=r"groups: allowed only with cv, which makes folds and .* got cv=None"):
        Calibrated(fitted, TemperatureScaling()).fit(X, Y, groups=GROUPS)
    with pytest.raises(ValueError, match="a, groups: allowed only with cv"):
        Calibrated(fitted, TemperatureScaling()).fit(X, Y, groups=GROUPS, a=1)
    with pytest.raises(TypeError, match="nonsense"):
        Calibrated(LogisticRegression(), TemperatureScaling(), cv=3).fit(X, Y, nonsense=1)


def test_folds_in_which_a_class_is_not_learned_are_rejected():
    """A classifier that never saw a class gives it no probability, so its scores would destroy the calibrator."""
    order = np.concatenate([np.flatnonzero(label == Y)[:100] for label in range(3)])  # each fold is a class
    names = np.array(["a", "b", "c"])[Y]
    for labels, missing in ((Y, "0"), (names, "'a'")):
        with pytest.raises(ValueError, match=f"outside fold 1 of 3 there is no class {missing}: shuffle"):
            Calibrated(LogisticRegression(), TemperatureScaling(), cv=KFold(3)).fit(X[order], labels[order])
    groups = np.where(Y == 2, 12, GROUPS)  # a class that only one group has
    with pytest.raises(ValueError, match=r"outside fold \d of 3 there is no class 2"):
        make(GroupKFold(3)).fit(X, Y, groups=groups)
    frozen = FrozenEstimator(LogisticRegression().fit(X, Y))  # it is not fitted to the folds
    assert np.isfinite(Calibrated(frozen, TemperatureScaling(), cv=KFold(3)).fit(X[order], Y[order]).score(X, Y))
    with pytest.raises(TypeError, match="LinearRegression has neither decision_function nor predict_proba"):
        Calibrated(LinearRegression(), TemperatureScaling(), cv=KFold(3)).fit(X[order], Y[order])


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_routing_gives_each_part_what_it_requests():
    weighted = make(GroupKFold(3), routed=True).fit(X, Y, WEIGHTS, groups=GROUPS)
    check(weighted, oracle(WEIGHTS, GROUPS, classifier_weights=WEIGHTS))
    only_calibrator = make(GroupKFold(3), routed=False).fit(X, Y, WEIGHTS, groups=GROUPS)
    check(only_calibrator, oracle(WEIGHTS, GROUPS))
    renamed = make(KFold(3), routed="own").fit(X, Y, own=WEIGHTS)
    check(renamed, oracle(None, classifier_weights=WEIGHTS))
    with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
        make(KFold(3)).fit(X, Y, WEIGHTS)
    with pytest.raises(TypeError, match="groups"):
        make(KFold(3), routed=True).fit(X, Y, groups=GROUPS)
    fitted = LogisticRegression().fit(X, Y)
    ready = Calibrated(fitted, TemperatureScaling()).fit(X, Y, WEIGHTS)
    alone = TemperatureScaling().fit(fitted.decision_function(X), Y, WEIGHTS)
    assert ready.calibrator_.temperature_ == alone.temperature_


@pytest.mark.usefixtures("routing")
def test_routing_through_an_outer_pipeline_and_a_search():
    classifier = LogisticRegression().set_fit_request(sample_weight=True)
    inner = Calibrated(classifier, TemperatureScaling(), cv=GroupKFold(3))
    inner.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    outer = make_pipeline(clone(SCALER).set_fit_request(sample_weight=False), inner)
    outer.fit(X, Y, sample_weight=WEIGHTS, groups=GROUPS)
    with sklearn.config_context(enable_metadata_routing=False):
        plain = Calibrated(LogisticRegression(), TemperatureScaling(), cv=GroupKFold(3))
        plain.fit(clone(SCALER).fit_transform(X), Y, WEIGHTS, groups=GROUPS)
    np.testing.assert_allclose(outer.predict_proba(X), plain.predict_proba(clone(SCALER).fit_transform(X)), atol=1e-12)
    given = {"sample_weight": WEIGHTS, "groups": GROUPS}
    scores = cross_validate(outer, X, Y, cv=GroupKFold(2), params=given)["test_score"]
    assert scores.min() > 0.8
    assert cross_val_predict(outer, X, Y, cv=GroupKFold(2), params=given, method="predict_proba").shape == (360, 3)
    search = GridSearchCV(inner, {"estimator__C": [0.01, 1.0]}, cv=GroupKFold(2))
    search.fit(X, Y, **given)
    assert search.best_params_["estimator__C"] in (0.01, 1.0)
