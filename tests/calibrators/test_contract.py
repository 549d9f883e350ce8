"""The contract that all calibrators share."""

from __future__ import annotations

from unittest import SkipTest

import numpy as np
import pytest
import torch
from labeled_logits import EVERY, draw_calibrated
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import estimator_checks_generator

from estimator_checks import EXCLUDED
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling, VectorScaling

every = pytest.mark.parametrize("name", list(EVERY))


@pytest.mark.parametrize(
    "name", ["temperature", "focal-temperature", "vector", "platt", "quadratic", "histogram", "ensemble", "venn-abers"]
)
def test_scikit_learn_checks(name):
    run, failed = 0, {}
    for estimator, check in estimator_checks_generator(clone(EVERY[name])):
        title = getattr(check, "func", check).__name__
        try:
            check(estimator)
            run += 1
        except Exception as error:
            if not isinstance(error, SkipTest):  # a skipped check needs an environment variable or a package
                failed[title] = error
    unexpected = {title: error for title, error in failed.items() if title not in EXCLUDED}
    assert not unexpected
    assert run >= 50


@every
def test_probabilities_of_all_classes(name):
    logits, labels = draw_calibrated(300, 4)
    calibrator = clone(EVERY[name])
    assert calibrator.fit(logits, labels) is calibrator
    probs, logs = calibrator.predict_proba(logits), calibrator.predict_log_proba(logits)
    assert probs.shape == logs.shape == (300, 4)
    assert probs.dtype == logs.dtype == np.float64
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-9)
    np.testing.assert_allclose(np.exp(logs), probs, rtol=1e-9, atol=1e-300)
    assert np.array_equal(calibrator.predict(logits), np.argmax(probs, axis=1))
    assert calibrator.predict_proba(logits.astype(np.float32)).dtype == np.float64
    assert calibrator.score(logits, labels) > 0.4
    assert calibrator.n_parameters_ >= 0
    blocks = np.concatenate([calibrator.predict_proba(part) for part in np.array_split(np.tile(logits, (40, 1)), 7)])
    np.testing.assert_array_equal(calibrator.predict_proba(np.tile(logits, (40, 1))), blocks)


@every
def test_clone_and_parameters(name):
    calibrator = EVERY[name]
    copy = clone(calibrator)
    assert repr(copy) == repr(calibrator)
    assert not [attribute for attribute in vars(copy) if attribute.endswith("_")]


@every
def test_labels_of_any_kind(name):
    logits, labels = draw_calibrated(200, 3)
    names = np.array(["cat", "dog", "eel"])
    plain = clone(EVERY[name]).fit(logits, labels)
    named = clone(EVERY[name]).fit(logits, names[labels])
    assert named.classes_.tolist() == names.tolist()
    np.testing.assert_allclose(named.predict_proba(logits), plain.predict_proba(logits))
    assert np.array_equal(named.predict(logits), names[plain.predict(logits)])
    order = np.array(["eel", "cat", "dog"])  # columns in another order than sorted
    moved = clone(EVERY[name]).set_params(classes=order).fit(logits, order[labels])
    np.testing.assert_allclose(moved.predict_proba(logits), plain.predict_proba(logits))


@every
def test_a_missing_class(name):
    logits, labels = draw_calibrated(200, 4)
    kept = labels != 2
    calibrator = clone(EVERY[name]).fit(logits[kept], labels[kept])
    assert calibrator.classes_.tolist() == [0, 1, 2, 3]
    assert np.all(np.isfinite(calibrator.predict_proba(logits)))


@every
@pytest.mark.parametrize("classes", [2, 3])
def test_labels_of_one_class(name, classes):
    logits, _ = draw_calibrated(60, classes)
    for label in (0, classes - 1):
        fitted = clone(EVERY[name]).fit(logits, np.full(60, label))
        probs = fitted.predict_proba(logits)
        np.testing.assert_allclose(probs.sum(axis=1), 1)
        assert ((probs >= 0) & (probs <= 1)).all()
        assert np.isfinite(fitted.predict_log_proba(logits)[:, label]).all()
        if name in {"vector", "matrix", "dirichlet", "platt", "beta", "quadratic", "isotonic", "auto"}:
            assert probs[:, label].mean() > 0.8


@every
def test_one_sample(name):
    if name == "auto":
        pytest.skip("cross-validation needs two samples")
    probs = clone(EVERY[name]).fit(np.array([[1.0, 2.0, 0.5]]), [2]).predict_proba(np.array([[1.0, 2.0, 0.5]]))
    assert np.all(np.isfinite(probs))


@every
def test_extreme_scores(name):
    logits, labels = draw_calibrated(300, 3)
    calibrator = clone(EVERY[name]).fit(logits, labels)
    far = np.array([[1e3, 0, -1e3], [1e-300, 0, 0], [0, 0, 0], [-1e6, 1e6, 0]])
    probs = calibrator.predict_proba(far)
    assert np.all(np.isfinite(probs))
    np.testing.assert_allclose(probs.sum(axis=1), 1, rtol=1e-9)


def test_float16_probabilities():
    """Rows of float16 probabilities sum to 1 within 1e-3, and the smallest number is 6e-8."""
    logits, labels = draw_calibrated(2000, 5, spread=4.0)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    half = probs.astype(np.float16)
    half[:200] = np.eye(5)[labels[:200]]
    fitted = TemperatureScaling(input="probs").fit(half, labels)
    assert fitted.temperature_ == pytest.approx(1, abs=0.2)
    given = FocalPosterior(gamma=0.0, input="probs").fit(half, labels)
    ones = given.predict_proba(half[:200])[np.arange(200), labels[:200]]
    np.testing.assert_allclose(ones, 1 / (1 + 4 * 2.0**-24), rtol=1e-12)
    shipped = given.to_torch()(torch.tensor(half)).double().numpy()
    np.testing.assert_allclose(shipped, given.predict_proba(half), rtol=1e-3, atol=1e-7)
    column = half[:, 1].copy()
    column[:3] = 0, 2.0**-24, 1
    found = FocalPosterior(gamma=0.0, input="probs").fit(column, labels == 1).predict_proba(column)[:3, 1]
    np.testing.assert_allclose(found, [2.0**-24, 2.0**-24, 1 - 2.0**-12], rtol=1e-6)
    with pytest.raises(ValueError, match="rows of probs must sum to 1"):
        TemperatureScaling(input="probs").fit(1.1 * half, labels)


def test_bad_labels_scores_and_weights_are_rejected():
    logits, labels = draw_calibrated(20, 3)
    calibrator = TemperatureScaling()
    for X, y, options, message in [
        (logits, labels + 1, {"classes": [0, 1, 2]}, "labels in y must be among classes, got"),
        (logits, labels, {"classes": [0, 1]}, "classes must be 3 different labels, one for each column of X"),
        (logits, np.minimum(labels, 1) + 4, {}, "X has scores of 3 classes, but y has 2 different labels"),
        (logits, np.arange(20) % 4, {}, "X has scores of 3 classes, but y has 4 different labels$"),
        (logits, np.minimum(labels, 1) * 1.0, {}, r"y has 2 different labels that are not all integers in 0 \.\.\. 2"),
        (logits, labels[:5], {}, "X and y must have one row per sample, got 20 and 5 rows"),
        (logits, None, {}, "requires y to be passed"),
        (logits[:, 0], labels, {}, "X has scores of 2 classes, but y has 3 different labels"),
        (np.where(logits > 3, np.nan, logits), labels, {}, "contains NaN"),
        (np.where(logits > 3, np.inf, logits), labels, {}, "contains infinity"),
        (
            np.where(logits > 3, -np.inf, logits),
            labels,
            {},
            "y must not be classes that X masks with -inf, got . in",
        ),
        (np.full((20, 3), -np.inf), labels, {}, "X must have a finite logit in each row, got .* in row 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            clone(calibrator).set_params(**options).fit(X, y)
    for weights, message in [
        (np.ones(3), r"sample_weight must have shape \(20,\)"),
        (np.zeros(20), "sample_weight must not be zero everywhere"),
        (-np.ones(20), "sample_weight must be finite and not negative, got -1.0 in row 0"),
        (np.where(labels == labels[0], np.nan, 1.0), "sample_weight must be finite .* got nan in row 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            clone(calibrator).fit(logits, labels, weights)
    with pytest.raises(NotFittedError):
        TemperatureScaling().predict_proba(logits)
    with pytest.raises(ValueError, match="expecting 3 features"):
        TemperatureScaling().fit(logits, labels).predict_proba(logits[:, :2])


def test_pipeline_and_grid_search():
    logits, labels = draw_calibrated(400, 3)
    pipeline = make_pipeline(FunctionTransformer(lambda z: 2 * z), FocalTemperatureScaling())
    assert pipeline.fit(logits, labels).predict_proba(logits).shape == (400, 3)
    search = GridSearchCV(VectorScaling(), {"penalty": [1.0, 100.0]}, scoring="neg_log_loss", cv=3)
    assert search.fit(logits, labels).best_params_["penalty"] in (1.0, 100.0)


def test_a_real_classifier_improves():
    X, y = load_digits(return_X_y=True)
    model = LogisticRegression(C=100.0, max_iter=300).fit(X[:600] / 16, y[:600])
    logits = model.decision_function(X[600:] / 16)
    raw, fitted = (
        calibrator.fit(logits[:600], y[600:1200])
        for calibrator in (EVERY["posterior"].set_params(gamma=0.0), FocalTemperatureScaling())
    )
    EVERY["posterior"].set_params(gamma=2.0)
    test, labels = logits[600:], y[1200:]
    nll = [-np.mean(c.predict_log_proba(test)[np.arange(len(labels)), labels]) for c in (raw, fitted)]
    assert nll[1] < nll[0]
