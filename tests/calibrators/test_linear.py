"""Linear maps of the logits, and the ensemble of temperature scaling."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_logits import draw_calibrated, mean_nll
from scipy.special import log_softmax
from sklearn.base import clone
from sklearn.model_selection import KFold

from refocal.calibrators import (
    DirichletCalibration,
    EnsembleTemperatureScaling,
    MatrixScaling,
    TemperatureScaling,
    VectorScaling,
)
from refocal.calibrators.fit.structured import Structured
from refocal.calibrators.penalty_path import PENALTIES, Path, Trial


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
    fitted = MatrixScaling(penalty=1e-6).fit(logits, labels)
    expected = np.exp(log_softmax(logits @ weights.T + bias, axis=1))
    assert np.mean(np.abs(fitted.predict_proba(logits) - expected)) < 0.01  # the base is not quite linear
    assert fitted.n_parameters_ == 12
    assert fitted.effective_parameters_ == pytest.approx(14, abs=1)  # the base has one or two more
    assert fitted.penalty_scores_.size == 0


def test_vector_scaling_recovers_factors_and_biases():
    rng = np.random.default_rng(0)
    logits = log_softmax(2 * rng.standard_normal((20_000, 3)), axis=1)
    weights, bias = np.array([0.5, 1.0, 1.5]), np.array([0.4, 0.0, -0.4])
    labels = np.argmax(logits * weights + bias + rng.gumbel(size=logits.shape), axis=1)
    fitted = VectorScaling(penalty=1e-6).fit(logits, labels)
    expected = np.exp(log_softmax(logits * weights + bias, axis=1))
    assert np.mean(np.abs(fitted.predict_proba(logits) - expected)) < 0.02  # the base is not quite linear
    assert fitted.n_parameters_ == 6


LINEAR = [VectorScaling(), MatrixScaling(), DirichletCalibration()]


@pytest.mark.parametrize("calibrator", LINEAR)
def test_the_penalty_is_the_best_of_a_cross_validated_path(calibrator):
    """Refits with each penalty and each fold, held out by hand, give the scores of the path."""
    logits, labels = draw_calibrated(400, 4)
    logits = 1.5 * logits + [0.0, 0.8, 0.0, -0.8]
    fitted = clone(calibrator).fit(logits, labels)
    scores = []
    for penalty in PENALTIES[: len(fitted.penalty_scores_)]:
        parts = [
            mean_nll(_refit(calibrator, penalty, logits[rows], labels[rows]), logits[held], labels[held])
            for rows, held in KFold(5, shuffle=True, random_state=0).split(logits)
        ]
        scores.append(np.mean(parts))
    np.testing.assert_allclose(fitted.penalty_scores_, scores, atol=2e-3)
    assert fitted.penalty_ == PENALTIES[np.argmin(fitted.penalty_scores_)]
    assert fitted.effective_parameters_ < fitted.n_parameters_ + 2


def test_of_equal_scores_the_stronger_penalty_is_taken_with_its_fits():
    """The held-out rows are certain and right with every penalty, so all scores are 0."""
    logits, labels = draw_calibrated(40, 3)
    log_probs = log_softmax(2 * logits, axis=1).astype(np.float32)
    problem = Structured.prepare(log_probs, labels, np.full(40, 1 / 40), 40.0, matrix=False)
    certain = np.where(np.eye(3), 0, -1e4).astype(np.float32)
    path = Path.follow([Trial(problem, certain, np.arange(3), np.full(3, 1 / 3))], None)
    np.testing.assert_array_equal(path.scores, np.zeros(len(PENALTIES)))
    assert path.penalty == PENALTIES[0]
    expected = problem.fit(PENALTIES[0], tolerance=1e-10).correction
    np.testing.assert_allclose(path.solutions[0].correction.factors, expected.factors, atol=5e-3)
    assert np.abs(problem.fit(PENALTIES[-1], tolerance=1e-10).correction.factors - expected.factors).max() > 0.05


def _refit(calibrator, penalty, logits, labels):
    """Fit with a given penalty. The base may differ a little from that of all rows, which the tolerance allows."""
    return clone(calibrator).set_params(penalty=float(penalty)).fit(logits, labels)


@pytest.mark.parametrize("calibrator", LINEAR)
def test_outliers_masks_and_separable_data_do_not_spoil_linear_maps(calibrator):
    logits, labels = draw_calibrated(1000, 4)
    others, wanted = draw_calibrated(1000, 4, seed=1)
    plain = mean_nll(clone(calibrator).fit(logits, labels), others, wanted)
    far = logits.copy()
    far[5, labels[5]] = 1e6
    hidden = np.arange(4) != labels[:300, None]
    far[:300] = np.where(hidden & (np.random.default_rng(0).random((300, 4)) < 0.5), -1e9, far[:300])
    assert mean_nll(clone(calibrator).fit(far, labels), others, wanted) < plain + 0.03
    right = clone(calibrator).fit(logits, logits.argmax(axis=1))  # no temperature is small enough
    probs = right.predict_proba(logits)
    assert np.mean(probs.argmax(axis=1) == logits.argmax(axis=1)) > 0.97
    assert np.isfinite(mean_nll(right, others, wanted))


@pytest.mark.parametrize("calibrator", LINEAR)
def test_weights_count_as_repetitions(calibrator):
    logits, labels = draw_calibrated(300, 3)
    times = np.random.default_rng(0).integers(1, 4, 300)
    weighted = clone(calibrator).set_params(penalty=1.0).fit(logits, labels, times)
    repeated = clone(calibrator).set_params(penalty=1.0).fit(logits.repeat(times, axis=0), labels.repeat(times))
    if (weighted.gamma_ == 0) == (repeated.gamma_ == 0):  # the folds that choose the base differ
        np.testing.assert_allclose(weighted.predict_proba(logits), repeated.predict_proba(logits), atol=1e-4)


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


@pytest.mark.parametrize("calibrator", LINEAR)
def test_many_classes_and_few_samples_do_not_break(calibrator):
    logits, labels = draw_calibrated(5000, 100)
    test_logits, test_labels = draw_calibrated(5000, 100, seed=1)
    plain = TemperatureScaling().fit(2 * logits, labels)
    fitted = calibrator.fit(2 * logits, labels)
    assert mean_nll(fitted, 2 * test_logits, test_labels) < mean_nll(plain, 2 * test_logits, test_labels) + 0.05


@pytest.mark.parametrize("calibrator", LINEAR)
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


@pytest.mark.parametrize(("seed", "penalty"), [(23, 1e-9), (85, 1e-8), (106, 1e-8), (120, 1e-8)])
def test_small_penalties_on_equal_columns_have_an_optimum(seed, penalty):
    """Almost nothing bounds some directions, so that first steps may be a billion times too long."""
    rng = np.random.default_rng(seed)
    rows, classes, spread = int(rng.integers(3, 80)), int(rng.integers(2, 6)), 10 ** rng.uniform(-2, 3)
    logits = rng.standard_normal((rows, classes)) * spread
    logits[:, 1:] = logits[:, 1:2]
    noise = rng.gumbel(size=logits.shape) * spread * 10 ** rng.uniform(-2, 1)
    labels = np.argmax(logits + noise, axis=1)
    fitted = [
        VectorScaling(input="logits", classes=classes, penalty=each).fit(logits, labels) for each in (penalty, 1.0)
    ]
    weak, strong = (mean_nll(calibrator, logits, labels) for calibrator in fitted)
    assert weak <= strong


def test_penalties_are_checked():
    logits, labels = draw_calibrated(20, 3)
    with pytest.raises(ValueError, match="penalty must be positive and finite, got 0"):
        MatrixScaling(penalty=0.0).fit(logits, labels)
    with pytest.raises(ValueError, match="cv must be at least 2, got 1"):
        VectorScaling(cv=1).fit(logits, labels)


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


@pytest.mark.parametrize("seed", [2, 8])
def test_ensemble_does_not_depend_on_rounding_where_sharper_is_as_likely(seed):
    """With few rows, the sharpest part may be certain, and every lower temperature is as likely."""
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((27, 30))
    labels = np.where(rng.random(27) < 0.3, logits.argmax(axis=1), rng.integers(0, 30, 27))
    labels[:2] = 0, 29
    order = rng.permutation(27)
    fitted, other = (
        EnsembleTemperatureScaling(classes=range(30)).fit(logits[rows], labels[rows]) for rows in (slice(None), order)
    )
    assert fitted.temperature_ == pytest.approx(other.temperature_, rel=1e-6)
    np.testing.assert_allclose(fitted.weights_, other.weights_, atol=1e-6)


def test_ensemble_recovers_a_mixture_and_beats_its_parts():
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((20_000, 4))
    probs = 0.7 * np.exp(log_softmax(logits, axis=1)) + 0.3 / 4
    labels = np.array([rng.choice(4, p=row) for row in probs])
    fitted = EnsembleTemperatureScaling().fit(logits, labels)
    plain = TemperatureScaling().fit(logits, labels)
    assert abs(fitted.temperature_ - 1) < abs(plain.temperature_ - 1)  # T is right once the noise has its own part
    assert np.all(fitted.weights_ >= 0)
    assert fitted.weights_.sum() == pytest.approx(1)
    assert fitted.weights_[2] > 0.25
    np.testing.assert_allclose(fitted.predict_proba(logits), probs, atol=0.02)
    assert mean_nll(fitted, logits, labels) < mean_nll(plain, logits, labels)
    assert np.array_equal(fitted.predict(logits), logits.argmax(axis=1))


def test_ensemble_fits_temperature_and_weights_together():
    """A few labels that seem impossible would make T alone far too large."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((4000, 10))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    wrong = rng.random(4000) < 0.03
    labels[wrong] = rng.integers(0, 10, wrong.sum())
    sharp = 30 * logits
    fitted = EnsembleTemperatureScaling().fit(sharp[:2000], labels[:2000])
    assert fitted.temperature_ == pytest.approx(30, rel=0.06)
    assert fitted.weights_[2] == pytest.approx(0.03, abs=0.015)
    apart = TemperatureScaling().fit(sharp[:2000], labels[:2000])
    assert mean_nll(fitted, sharp[2000:], labels[2000:]) < mean_nll(apart, sharp[2000:], labels[2000:])


def test_a_penalty_too_weak_for_separable_data_is_named():
    """The likelihood of few rows of many classes is almost flat far away from its start."""
    rng = np.random.default_rng(1)
    logits, labels = 10 * np.round(rng.standard_normal((5, 10))), rng.integers(0, 10, 5)
    message = r"no optimum found in 500 iterations with penalty=1e-09: .*; use a larger penalty"
    with pytest.raises(RuntimeError, match=message):
        VectorScaling(penalty=1e-9).fit(logits, labels)
    fits = [VectorScaling(penalty=1e-3).fit(logits, labels), TemperatureScaling().fit(logits, labels)]
    assert mean_nll(fits[0], logits, labels) < mean_nll(fits[1], logits, labels)
