"""Labeled logits and the likelihood of temperature scaling."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_problems import draw_problem
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from refocal.calibrators.fit.focal_likelihood import focal_likelihood
from refocal.calibrators.fit.focal_masses import Parameters, RankedLogits
from refocal.calibrators.fit.maximum_likelihood import fit_focal_temperature, fit_temperature
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits, temperature_likelihood


@pytest.mark.parametrize(("classes", "rows"), [(2, 50), (63, 50), (64, 50), (150, 50), (40_000, 3)])
def test_temperature_likelihood_is_the_textbook_formula(classes, rows):
    data = draw_problem(rows=rows, classes=classes, dtype=np.float32)
    at, logits, rows = data.temperature_nll(0.6), data.logits.astype(float), np.arange(rows)
    np.testing.assert_array_equal(data.top, data.logits.max(axis=1))
    logs = log_softmax(0.6 * logits, axis=1)
    mean = np.sum(np.exp(logs) * logits, axis=1)
    variance = np.sum(np.exp(logs) * logits**2, axis=1) - mean**2
    expected = [-logs[rows, data.labels], mean - logits[rows, data.labels], variance]
    assert at == pytest.approx([float(data.share @ each) for each in expected], rel=1e-9)
    assert at == temperature_likelihood(data, 0.6)
    coarse = data.temperature_nll(0.6, exact=False, curvature=False)
    assert coarse.value == pytest.approx(at.value, rel=1e-5)
    assert coarse.curvature is None


def distances(logits):
    """Distances below the largest logit of each row, without that logit."""
    return np.sort(logits.max(axis=1, keepdims=True) - logits)[:, 1:]


def test_scales_are_medians_of_sampled_rows_or_of_all_if_those_are_constant():
    logits = np.random.default_rng(0).standard_normal((1000, 3))
    labels = np.zeros(1000, int)
    some = distances(logits[::3])
    found = LabeledLogits.prepare(logits, labels, None).scales
    assert found == (np.median(some[:, 0]), np.median(some))
    logits[::3] = 0.5
    rest = distances(np.delete(logits, np.s_[::3], axis=0))
    found = LabeledLogits.prepare(logits, labels, None).scales
    assert found == (np.median(rest[:, 0]), np.median(rest))
    assert LabeledLogits.prepare(np.ones((9, 3)), labels[:9], None).scales == (0.0, 0.0)


@pytest.mark.parametrize("share", [0.3, 0.8])
@pytest.mark.parametrize("mask", [-2e3, -1e4, -1e6, -1e9, -1e30, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mask_changes_nothing_but_its_class(share, mask, dtype):
    """Masked logits give the fit of a model in which the masked classes do not exist."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((2000, 10))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    hidden = rng.random(logits.shape) < share
    hidden[np.arange(2000), labels] = False
    given = np.where(hidden, mask, 2 * logits).astype(dtype)
    found = fit_temperature(LabeledLogits.prepare(given, labels, None))
    visible = np.where(hidden, -np.inf, 2 * logits)

    def nll(beta):
        return np.mean(logsumexp(beta * visible, axis=1) - beta * visible[np.arange(2000), labels])

    oracle = minimize_scalar(nll, bounds=(0.1, 3), method="bounded", options={"xatol": 1e-8})
    assert found.beta == pytest.approx(oracle.x, rel=1e-5)
    focal = fit_focal_temperature(LabeledLogits.prepare(given, labels, None))
    assert abs(focal.gamma) < 4 * focal.gamma_error
    assert focal.nll <= found.nll + 1e-6


def test_one_outlier_does_not_spoil_the_fit():
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((2000, 10))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    plain = fit_temperature(LabeledLogits.prepare(logits, labels, None))
    logits[7, labels[7]] = 1e6
    assert fit_temperature(LabeledLogits.prepare(logits, labels, None)).beta == pytest.approx(plain.beta, rel=0.01)


def test_a_sample_needs_four_times_as_many_rows():
    assert len(draw_problem(rows=40).sample(10).logits) == 10
    assert draw_problem(rows=39).sample(10) is None


def test_thinning_keeps_rows_together():
    data = draw_problem(rows=100)
    thin = data.thin(7)
    assert len(thin.logits) == len(thin.labels) == len(thin.top) == 15
    assert thin.share.sum() == pytest.approx(1)
    rebuilt = LabeledLogits.prepare(data.logits[::7], data.labels[::7], data.share[::7])
    assert temperature_likelihood(thin, 0.5) == pytest.approx(temperature_likelihood(rebuilt, 0.5))
    ranked = RankedLogits.prepare(data).thin(7)
    np.testing.assert_array_equal(ranked.argmax, RankedLogits.prepare(rebuilt).argmax)
    assert focal_likelihood(ranked, Parameters(1.0, 0.5)).value == pytest.approx(
        focal_likelihood(RankedLogits.prepare(rebuilt), Parameters(1.0, 0.5)).value
    )
