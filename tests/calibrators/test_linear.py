from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import calibrated, mean_nll
from scipy.special import log_softmax

from refocal.calibrators import (
    DirichletCalibration,
    EnsembleTemperatureScaling,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
)
from refocal.calibrators.fit.logistic import fit_affine, fit_binary, fit_mixture

WEAK = {"scale_penalty": 1e-6, "bias_penalty": 1e-6}


def classes_mixed(rows=20_000):
    """Labels from softmax(W z + b) with a full W."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((rows, 3))
    logits -= logits.mean(axis=1, keepdims=True)
    weights, bias = np.array([[1.0, 0.3, 0.0], [0.0, 0.6, -0.2], [0.1, 0.0, 1.4]]), np.array([0.5, 0.0, -0.5])
    labels = np.argmax(logits @ weights.T + bias + rng.gumbel(size=logits.shape), axis=1)
    return logits, labels, weights, bias


def shared(weights):
    """Matrices that differ in these ways give the same probabilities of centerd logits."""
    weights = weights - weights.mean(axis=0)
    return weights - weights.mean(axis=1, keepdims=True)


def test_matrix_scaling_recovers_a_matrix():
    logits, labels, weights, bias = classes_mixed()
    fitted = MatrixScaling(off_diagonal_penalty=1e-6, **WEAK).fit(logits, labels)
    np.testing.assert_allclose(shared(fitted.weights_), shared(weights), atol=0.08)
    np.testing.assert_allclose(fitted.bias_ - fitted.bias_.mean(), bias - bias.mean(), atol=0.08)
    assert fitted.n_parameters_ == 12
    expected = np.exp(log_softmax(logits @ weights.T + bias, axis=1))
    np.testing.assert_allclose(fitted.predict_proba(logits), expected, atol=0.05)


def test_vector_scaling_recovers_factors_and_biases():
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((20_000, 3))
    logits -= logits.mean(axis=1, keepdims=True)
    weights, bias = np.array([0.5, 1.0, 1.5]), np.array([0.4, 0.0, -0.4])
    labels = np.argmax(logits * weights + bias + rng.gumbel(size=logits.shape), axis=1)
    fitted = VectorScaling(**WEAK).fit(logits, labels)
    np.testing.assert_allclose(fitted.weights_ - fitted.weights_.mean(), weights - weights.mean(), atol=0.1)
    np.testing.assert_allclose(fitted.bias_, bias, atol=0.1)
    assert fitted.n_parameters_ == 6


@pytest.mark.parametrize("calibrator", [VectorScaling(), MatrixScaling(), DirichletCalibration()])
def test_the_penalised_optimum_is_one(calibrator):
    logits, labels = calibrated(400, 4)
    logits = 1.5 * logits + [0.0, 0.3, 0.0, -0.3]
    calibrator.fit(logits, labels)
    full = calibrator.weights_.ndim == 2
    dirichlet = isinstance(calibrator, DirichletCalibration)
    x = log_softmax(logits, axis=1) if dirichlet else logits - logits.mean(axis=1, keepdims=True)
    beta = 1 / TemperatureScaling().fit(logits, labels).temperature_
    off = calibrator.off_diagonal_penalty if full else 0.0
    penalty = np.full((4, 4), off) - (off - calibrator.scale_penalty) * np.eye(4)

    def objective(weights, bias):
        matrix = weights if full else np.diag(weights)
        nll = -log_softmax(x @ matrix.T + bias, axis=1)[np.arange(400), labels].sum()
        change = (matrix - beta * np.eye(4)) @ x.mean(axis=0) + bias
        away = matrix / beta - np.eye(4)
        return nll + 0.5 * np.sum(penalty * away**2) + 0.5 * calibrator.bias_penalty * change @ change

    here = objective(calibrator.weights_, calibrator.bias_)
    rng = np.random.default_rng(0)
    for _ in range(60):
        weights = calibrator.weights_ + 1e-3 * rng.standard_normal(calibrator.weights_.shape)
        assert here <= objective(weights, calibrator.bias_ + 1e-3 * rng.standard_normal(4))


def test_dirichlet_sees_log_probabilities_only():
    logits, labels = calibrated(500, 4)
    shift = 5 * np.random.default_rng(1).standard_normal((500, 1))
    plain = DirichletCalibration().fit(logits, labels).predict_proba(logits)
    np.testing.assert_allclose(
        DirichletCalibration().fit(logits + shift, labels).predict_proba(logits), plain, atol=1e-5
    )
    np.testing.assert_allclose(
        MatrixScaling().fit(logits + shift, labels).predict_proba(logits + shift),
        MatrixScaling().fit(logits, labels).predict_proba(logits),
        atol=1e-5,
    )


@pytest.mark.parametrize("calibrator", [VectorScaling(), MatrixScaling(), DirichletCalibration()])
def test_many_classes_and_few_samples_do_not_break(calibrator):
    logits, labels = calibrated(5000, 100)
    test_logits, test_labels = calibrated(5000, 100, seed=1)
    plain = TemperatureScaling().fit(2 * logits, labels)
    fitted = calibrator.fit(2 * logits, labels)
    assert mean_nll(fitted, 2 * test_logits, test_labels) < mean_nll(plain, 2 * test_logits, test_labels) + 0.05


@pytest.mark.parametrize("calibrator", [VectorScaling(), MatrixScaling(), DirichletCalibration()])
def test_little_data_stay_finite(calibrator):
    for logits, labels in [
        (np.array([[2.0, 0.0, 1.0]]), [1]),
        (np.zeros((4, 3)), [0, 1, 2, 0]),
        (5 * np.eye(3), [0, 1, 2]),
        (5 * np.eye(3), [1, 2, 0]),
        (np.random.default_rng(0).standard_normal((50, 3)), [0] * 50),
    ]:
        probs = calibrator.fit(logits, labels).predict_proba(logits)
        assert np.all(np.isfinite(probs))
        np.testing.assert_allclose(probs.sum(axis=1), 1)


def test_penalties_are_checked():
    logits, labels = calibrated(20, 3)
    for name in ("scale_penalty", "off_diagonal_penalty", "bias_penalty"):
        with pytest.raises(ValueError, match=f"{name} must be positive and finite, got 0"):
            MatrixScaling(**{name: 0.0}).fit(logits, labels)


# --- the ensemble


def test_ensemble_keeps_decisions_that_say_nothing():
    """Labels that have nothing to do with the logits, or contradict them, ask for uniform probabilities."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((60, 4))
    for labels in (rng.integers(0, 4, 60), logits.argmin(axis=1)):
        fitted = EnsembleTemperatureScaling().fit(logits, labels)
        np.testing.assert_array_equal(fitted.predict(logits), logits.argmax(axis=1))
        np.testing.assert_array_equal(fitted.predict_proba(logits).argmax(axis=1), logits.argmax(axis=1))
        assert mean_nll(fitted, logits, labels) == pytest.approx(np.log(4), abs=1e-3)


def test_ensemble_recovers_a_mixture_and_beats_its_parts():
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((20_000, 4))
    probs = 0.7 * np.exp(log_softmax(logits, axis=1)) + 0.3 / 4
    labels = np.array([rng.choice(4, p=row) for row in probs])
    fitted = EnsembleTemperatureScaling().fit(logits, labels)
    plain = TemperatureScaling().fit(logits, labels)
    assert fitted.temperature_ == plain.temperature_
    assert np.all(fitted.weights_ >= 0)
    assert fitted.weights_.sum() == pytest.approx(1)
    assert fitted.weights_[2] > 0.15
    np.testing.assert_allclose(fitted.predict_proba(logits), probs, atol=0.03)
    assert mean_nll(fitted, logits, labels) < mean_nll(plain, logits, labels)
    assert np.array_equal(fitted.predict(logits), logits.argmax(axis=1))


def test_mixture_weights_against_a_fine_grid():
    rng = np.random.default_rng(0)
    likelihoods = rng.random((200, 3)) ** [1, 2, 0.5]
    share = rng.random(200)
    share /= share.sum()
    found = fit_mixture(likelihoods, share)
    here = share @ np.log(likelihoods @ found)
    grid = np.array([(a, b, 1 - a - b) for a in np.linspace(0, 1, 101) for b in np.linspace(0, 1 - a, 51)])
    assert here >= np.max(share @ np.log(likelihoods @ grid.T)) - 1e-12
    assert fit_mixture(np.array([[1.0, 0.0, 0.25]]), np.ones(1)).tolist() == pytest.approx([1, 0, 0])


# --- the solvers


def test_binary_regression_against_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 2))
    y = rng.random(500) < 1 / (1 + np.exp(-(1.5 * x[:, 0] - x[:, 1] + 0.5)))
    features = np.column_stack([x, np.ones(500)])
    found = fit_binary(features, y.astype(float), np.full(500, 1 / 500))
    theirs = LogisticRegression(C=1e12, tol=1e-10, max_iter=1000).fit(x, y)
    np.testing.assert_allclose(found, [*theirs.coef_[0], *theirs.intercept_], rtol=1e-4)


def test_solvers_say_when_they_fail(monkeypatch):
    from refocal.calibrators.fit import logistic

    rng = np.random.default_rng(0)
    x, labels, share = rng.standard_normal((50, 3)), rng.integers(0, 3, 50), np.full(50, 0.02)
    monkeypatch.setattr(logistic, "_MAX_ITERATIONS", 1)
    with pytest.raises(RuntimeError, match="no optimum found in 1 iterations"):
        fit_affine(x, labels, share, 1.0, diagonal=1e-3, off_diagonal=1e-3, bias=1e-3)
    monkeypatch.setattr(logistic, "_MAX_NEWTON_STEPS", 1)
    with pytest.raises(RuntimeError, match="no optimum found in 1 Newton steps"):
        fit_binary(x, (labels == 0).astype(float), share)
    with pytest.raises(RuntimeError, match="no optimum found in 1 Newton steps"):
        fit_mixture(rng.random((50, 3)), share)
