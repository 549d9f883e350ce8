"""`Calibrated` with scikit-learn's classifiers as users have them: their scores, pipelines, frames and searches."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.stats import uniform
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV, StratifiedKFold, cross_val_predict
from sklearn.multiclass import OneVsRestClassifier, OutputCodeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC

from refocal.calibrators import (
    AutoCalibrator,
    Calibrated,
    FocalPosterior,
    FocalTemperatureScaling,
    PlattScaling,
    TemperatureScaling,
)

X, DIGITS = load_digits(return_X_y=True)
X, DIGITS = X[:240] / 16, DIGITS[:240]
NAMES = {2: np.array(["no", "yes"])[DIGITS % 2], 3: np.array(["low", "middle", "high"])[DIGITS // 4]}
WEIGHTS = np.random.default_rng(0).integers(1, 4, 240).astype(float)

LOGITS, PROBS = "decision_function", "predict_proba"
CLASSIFIERS = [
    (LinearSVC(), LOGITS),
    (SVC(), LOGITS),
    (RidgeClassifier(), LOGITS),
    (AdaBoostClassifier(n_estimators=5), LOGITS),
    (HistGradientBoostingClassifier(max_iter=5), LOGITS),
    (OneVsRestClassifier(LinearSVC()), LOGITS),
    (OneVsRestClassifier(GaussianNB()), PROBS),
    (RandomForestClassifier(10, random_state=0), PROBS),
    (KNeighborsClassifier(), PROBS),
    (GaussianNB(), PROBS),
    (MLPClassifier((8,), solver="lbfgs", alpha=1.0, max_iter=1000, random_state=0), PROBS),
]


def name_case(value):
    return type(value).__name__ if isinstance(value, BaseEstimator) else str(value)


# --- which scores


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("place", ["alone", "in a pipeline"])
@pytest.mark.parametrize(("classifier", "method"), CLASSIFIERS, ids=name_case)
def test_the_classifier_says_which_scores_it_has(classifier, method, place, classes):
    labels = NAMES[classes]
    estimator = classifier if place == "alone" else make_pipeline(StandardScaler(), classifier)
    model = Calibrated(estimator, TemperatureScaling(), cv=StratifiedKFold(2)).fit(X, labels)
    scores = cross_val_predict(clone(estimator), X, labels, cv=StratifiedKFold(2), method=method)
    assert scores.ndim == (1 if classes == 2 and method == LOGITS else 2)
    by_hand = TemperatureScaling(input="logits" if method == LOGITS else "probs").fit(scores, labels)
    assert model.calibrator_.temperature_ == by_hand.temperature_
    final = clone(estimator).fit(X, labels)
    np.testing.assert_allclose(model.predict_proba(X), by_hand.predict_proba(getattr(final, method)(X)), atol=1e-12)
    assert model.classes_.tolist() == sorted(set(labels))
    assert np.mean(model.predict(X) == final.predict(X)) > 0.97  # ties and the votes of SVC may differ
    assert model.calibrator.input is None  # as the user gave it


@pytest.mark.parametrize("calibrator", [FocalTemperatureScaling(), AutoCalibrator(), PlattScaling()], ids=name_case)
def test_exact_zeros_of_a_forest_become_finite_losses(calibrator):
    forest = RandomForestClassifier(10, random_state=0).fit(X[:120], NAMES[3][:120])
    raw = forest.predict_proba(X[120:])
    columns = np.searchsorted(forest.classes_, NAMES[3][120:])
    assert (raw[np.arange(120), columns] == 0).any()
    model = Calibrated(FrozenEstimator(forest), calibrator).fit(X[120:], NAMES[3][120:])
    assert model.predict_log_proba(X[120:])[np.arange(120), columns].mean() > -1.5


class UnitMargins(ClassifierMixin, BaseEstimator):
    """Margins between 0 and 1 that sum to 1: logits, as the name of the method says, whatever they look like."""

    def fit(self, X, y):
        self.inner_ = LogisticRegression().fit(X, y)
        self.classes_ = self.inner_.classes_
        return self

    def decision_function(self, X):
        return self.inner_.predict_proba(X)

    def predict(self, X):
        return self.inner_.predict(X)


def test_margins_that_look_like_probabilities_are_logits():
    model = Calibrated(UnitMargins(), TemperatureScaling(), cv=2).fit(X, NAMES[3])
    assert model.calibrator_.input_ == "logits"
    assert model.calibrator_.temperature_ < 0.5  # as probabilities they would be near 1


def test_the_calibrator_can_ask_for_the_other_scores():
    for input, method in (("logits", LOGITS), ("probs", PROBS)):
        model = Calibrated(LogisticRegression(), TemperatureScaling(input=input), cv=2).fit(X, NAMES[2])
        scores = getattr(model.estimator_, method)(X)
        np.testing.assert_array_equal(model.predict_proba(X), model.calibrator_.predict_proba(scores))
    fitted = TemperatureScaling().fit(np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 3)
    with pytest.raises(TypeError, match="GaussianNB has no decision_function: pass input='probs'"):
        Calibrated(GaussianNB().fit(X, NAMES[3]), fitted).predict_proba(X)  # it was fitted to logits
    with pytest.raises(TypeError, match="OutputCodeClassifier has neither decision_function nor predict_proba"):
        Calibrated(OutputCodeClassifier(LinearSVC()), TemperatureScaling(), cv=2).fit(X, NAMES[3])


def test_classes_in_another_order_than_those_of_the_classifier_are_rejected():
    names = np.array(["cat", "dog", "eel"])[DIGITS % 3]
    fitted = LogisticRegression().fit(X[:120], names[:120])
    turned = TemperatureScaling(classes=["eel", "dog", "cat"])
    message = r"order of the classifier's, \['cat', 'dog', 'eel'\], got \['eel', 'dog', 'cat'\]"
    for model in (Calibrated(fitted, turned), Calibrated(LogisticRegression(), turned, cv=3)):
        with pytest.raises(ValueError, match=message):
            model.fit(X[120:], names[120:])
    ready = Calibrated(fitted, clone(turned).fit(fitted.decision_function(X[120:]), names[120:]))
    unfitted = Calibrated(fitted, FocalPosterior(gamma=1.0, classes=["eel", "dog", "cat"]))
    for model in (ready, unfitted):
        with pytest.raises(ValueError, match=message):
            model.predict(X)
    with pytest.raises(ValueError, match=r"\[0, 1\], got \[1.0, 0.0\]"):
        Calibrated(LogisticRegression(), TemperatureScaling(classes=[1.0, 0.0]), cv=3).fit(X, DIGITS % 2)
    with pytest.raises(ValueError, match=r"classes must be 2 different labels, .*, got \[0, 1, 1\]"):
        Calibrated(LogisticRegression(), TemperatureScaling(classes=[0, 1, 1]), cv=3).fit(X, DIGITS % 2)
    renamed = Calibrated(fitted, TemperatureScaling(classes=["c", "d", "e"]))
    predicted = renamed.fit(X[120:], [name[0] for name in names[120:]]).predict(X)
    assert predicted.tolist() == [name[0] for name in fitted.predict(X)]


def test_scores_of_pairs_of_classes_are_rejected():
    """Three classes have three pairs, so the number of columns does not tell."""
    pairs = SVC(decision_function_shape="ovo")
    message = r"the classifier must have decision_function_shape='ovr', got .*'ovo'"
    search = GridSearchCV(make_pipeline(StandardScaler(), pairs), {"svc__C": [1.0]}, cv=2)
    for estimator in (
        pairs,
        make_pipeline(StandardScaler(), pairs),
        FrozenEstimator(clone(pairs).fit(X, NAMES[3])),
        search,
        FrozenEstimator(clone(search).fit(X, NAMES[3])),
        BaggingClassifier(pairs, n_estimators=2),
    ):
        with pytest.raises(ValueError, match=message):
            Calibrated(estimator, TemperatureScaling(), cv=2).fit(X, NAMES[3])
    shapes = {"svc__decision_function_shape": ["ovr", "ovo"]}
    pipeline = make_pipeline(StandardScaler(), SVC())
    for tried in (
        GridSearchCV(SVC(), [{"C": [1.0]}, {"decision_function_shape": np.array(["ovo"])}], cv=2),
        GridSearchCV(pipeline, shapes, cv=2),
        RandomizedSearchCV(pipeline, {**shapes, "svc__C": uniform(1, 2)}, n_iter=2, cv=2),
        make_pipeline(StandardScaler(), GridSearchCV(pipeline, shapes, cv=2)),
        BaggingClassifier(GridSearchCV(pipeline, shapes, cv=2), n_estimators=2),
    ):
        with pytest.raises(ValueError, match=message):
            Calibrated(tried, TemperatureScaling(), cv=2).fit(X, NAMES[3])
    for tried in (
        GridSearchCV(pipeline, {"svc__decision_function_shape": ["ovr"]}, cv=2),
        GridSearchCV(OneVsRestClassifier(SVC()), {"estimator__decision_function_shape": ["ovo"]}, cv=2),
    ):
        assert Calibrated(tried, TemperatureScaling(), cv=2).fit(X, NAMES[3]).score(X, NAMES[3]) > 0.9
    one_against_rest = Calibrated(OneVsRestClassifier(pairs), TemperatureScaling(), cv=2).fit(X, NAMES[3])
    assert one_against_rest.score(X, NAMES[3]) > 0.95
    two = Calibrated(pairs, TemperatureScaling(), cv=2).fit(X, NAMES[2])
    assert np.mean(two.predict(X) == NAMES[2]) > 0.95


# --- frozen classifiers, clones, searches


@pytest.mark.parametrize("cv", [None, 3])
def test_a_frozen_classifier_is_not_fitted_again(cv):
    pipeline = make_pipeline(StandardScaler(), KNeighborsClassifier()).fit(X[:120], NAMES[3][:120])
    model = clone(Calibrated(FrozenEstimator(pipeline), TemperatureScaling(), cv=cv))
    model.fit(X[120:], NAMES[3][120:], WEIGHTS[120:])
    scores = pipeline.predict_proba(X[120:])
    by_hand = TemperatureScaling(input="probs").fit(scores, NAMES[3][120:], WEIGHTS[120:])
    assert model.calibrator_.temperature_ == by_hand.temperature_
    np.testing.assert_array_equal(model.predict_proba(X), by_hand.predict_proba(pipeline.predict_proba(X)))


def test_predictions_by_cross_validation_and_searches_over_nested_parameters():
    model = Calibrated(make_pipeline(StandardScaler(), SVC()), TemperatureScaling(), cv=2)
    probs = cross_val_predict(model, X, NAMES[3], cv=2, method="predict_proba")
    assert probs.shape == (240, 3)
    assert np.mean(np.array(["high", "low", "middle"])[probs.argmax(axis=1)] == NAMES[3]) > 0.8
    grid = {"estimator__svc__C": [1e-3, 10.0], "calibrator": [TemperatureScaling(), PlattScaling()]}
    search = GridSearchCV(model, grid, cv=2, scoring="neg_log_loss").fit(X, NAMES[3])
    assert search.best_params_["estimator__svc__C"] == 10.0
    by_objective = GridSearchCV(model, {"calibrator__objective": ["nll", "ece"]}, cv=2, scoring="neg_log_loss")
    assert by_objective.fit(X, NAMES[3]).best_params_ == {"calibrator__objective": "nll"}
    assert not hasattr(clone(search.best_estimator_), "calibrator_")


# --- frames and texts

FRAME = pd.DataFrame({"width": X[:, 20], "height": X[:, 36], "ink": X.sum(axis=1)}).assign(
    corner=np.where(X[:, 10] > 0.5, "dark", "bright")
)


def test_frames_keep_their_names():
    columns = make_column_transformer((OneHotEncoder(), ["corner"]), (StandardScaler(), ["width", "height", "ink"]))
    pipeline = make_pipeline(columns, RandomForestClassifier(10, random_state=0))
    labels = pd.Series(NAMES[3], index=FRAME.index[::-1], dtype="category")
    model = Calibrated(pipeline, TemperatureScaling(), cv=2).fit(FRAME, labels)
    assert model.feature_names_in_.tolist() == ["width", "height", "ink", "corner"]
    assert model.n_features_in_ == 4
    shuffled = FRAME[["corner", "ink", "height", "width"]]
    np.testing.assert_array_equal(model.predict_proba(FRAME), model.predict_proba(shuffled))
    assert set(model.predict(FRAME)) <= {"low", "middle", "high"}
    plain = Calibrated(LinearSVC(), TemperatureScaling(), cv=2).fit(X, NAMES[3])
    assert plain.n_features_in_ == 64
    assert not hasattr(plain, "feature_names_in_")
    assert not hasattr(Calibrated(LinearSVC(), TemperatureScaling()), "n_features_in_")


def test_texts_go_through_a_pipeline():
    texts = ["good film", "bad film", "good acting", "bad plot", "so good", "so bad"] * 10
    labels = ["praise", "blame"] * 30
    for classifier in (LinearSVC(), KNeighborsClassifier()):
        model = Calibrated(make_pipeline(TfidfVectorizer(), classifier), TemperatureScaling(), cv=3).fit(texts, labels)
        assert model.predict(["good film", "bad film"]).tolist() == ["praise", "blame"]


# --- weights of classifiers that take none


def test_a_classifier_without_weights():
    model = Calibrated(make_pipeline(StandardScaler(), KNeighborsClassifier()), TemperatureScaling(), cv=2)
    with pytest.raises(ValueError, match="KNeighborsClassifier takes no sample_weight: fit without weights"):
        model.fit(X, NAMES[3], WEIGHTS)
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        routed = Calibrated(make_pipeline(scaler, KNeighborsClassifier()), TemperatureScaling(), cv=2)
        routed.fit(X, NAMES[3], WEIGHTS)
    scores = cross_val_predict(model.estimator, X, NAMES[3], cv=2, method=PROBS)
    expected = TemperatureScaling(input="probs").fit(scores, NAMES[3], WEIGHTS)
    assert routed.calibrator_.temperature_ == expected.temperature_
    assert expected.temperature_ != TemperatureScaling(input="probs").fit(scores, NAMES[3]).temperature_


def test_weights_are_routed_through_one_against_the_rest():
    with sklearn.config_context(enable_metadata_routing=True):
        inner = LogisticRegression().set_fit_request(sample_weight=True)
        model = Calibrated(OneVsRestClassifier(inner), TemperatureScaling(), cv=2).fit(X, NAMES[3], WEIGHTS)
        final = OneVsRestClassifier(inner).fit(X, NAMES[3], sample_weight=WEIGHTS)
    np.testing.assert_allclose(model.estimator_.decision_function(X), final.decision_function(X))
    unweighted = OneVsRestClassifier(LogisticRegression()).fit(X, NAMES[3])
    assert np.abs(final.decision_function(X) - unweighted.decision_function(X)).max() > 0.01
    with pytest.raises(ValueError, match="enable_metadata_routing"):
        Calibrated(OneVsRestClassifier(LogisticRegression()), TemperatureScaling(), cv=2).fit(X, NAMES[3], WEIGHTS)
