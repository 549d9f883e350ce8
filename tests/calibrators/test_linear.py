"""Linear maps of the logits, and the ensemble of temperature scaling."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import draw_calibrated, mean_nll
from scipy.special import log_softmax

from refocal.calibrators import (
    DirichletCalibration,
    EnsembleTemperatureScaling,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
)

WEAK = {"scale_penalty": 1e-6, "bias_penalty": 1e-6}


def draw_mixed_classes(rows=20_000):
    """Draw labels from softmax(W z + b) with a full W."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((rows, 3))
    logits -= logits.mean(axis=1, keepdims=True)
    weights, bias = np.array([[1.0, 0.3, 0.0], [0.0, 0.6, -0.2], [0.1, 0.0, 1.4]]), np.array([0.5, 0.0, -0.5])
    labels = np.argmax(logits @ weights.T + bias + rng.gumbel(size=logits.shape), axis=1)
    return logits, labels, weights, bias


def center(weights):
    """Remove the parts of a matrix that do not change the probabilities of centered logits."""
    weights = weights - weights.mean(axis=0)
    return weights - weights.mean(axis=1, keepdims=True)


def test_matrix_scaling_recovers_a_matrix():
    logits, labels, weights, bias = draw_mixed_classes()
    fitted = MatrixScaling(off_diagonal_penalty=1e-6, **WEAK).fit(logits, labels)
    np.testing.assert_allclose(center(fitted.weights_), center(weights), atol=0.08)
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
def test_the_fit_minimizes_the_penalized_objective(calibrator):
    logits, labels = draw_calibrated(400, 4)
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


def test_dirichlet_depends_only_on_log_probabilities():
    logits, labels = draw_calibrated(500, 4)
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
    logits, labels = draw_calibrated(5000, 100)
    test_logits, test_labels = draw_calibrated(5000, 100, seed=1)
    plain = TemperatureScaling().fit(2 * logits, labels)
    fitted = calibrator.fit(2 * logits, labels)
    assert mean_nll(fitted, 2 * test_logits, test_labels) < mean_nll(plain, 2 * test_logits, test_labels) + 0.05


@pytest.mark.parametrize("calibrator", [VectorScaling(), MatrixScaling(), DirichletCalibration()])
def test_few_data_give_finite_probabilities(calibrator):
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
    logits, labels = draw_calibrated(20, 3)
    for name in ("scale_penalty", "off_diagonal_penalty", "bias_penalty"):
        with pytest.raises(ValueError, match=f"{name} must be positive and finite, got 0"):
            MatrixScaling(**{name: 0.0}).fit(logits, labels)


# --- EnsembleTemperatureScaling


def test_ensemble_keeps_predicted_classes_of_useless_logits():
    """If labels are independent of the logits or contradict them, uniform probabilities are best."""
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
