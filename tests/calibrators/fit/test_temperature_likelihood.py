"""Labeled logits and the likelihood of temperature scaling."""

from __future__ import annotations

import numpy as np
import pytest
from labeled_problems import draw_problem
from scipy.special import log_softmax

from refocal.calibrators.fit.focal_likelihood import focal_likelihood
from refocal.calibrators.fit.focal_masses import Parameters, RankedLogits
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


def test_scale_uses_all_rows_if_the_sampled_ones_are_constant():
    logits = np.random.default_rng(0).standard_normal((1000, 3))
    labels = np.zeros(1000, int)
    every_third = (logits.max(axis=1, keepdims=True) - logits)[::3]
    assert LabeledLogits.prepare(logits, labels, None).scale == pytest.approx(every_third.mean(), rel=1e-12)
    logits[::3] = 0.5
    expected = (logits.max(axis=1, keepdims=True) - logits).mean()
    assert LabeledLogits.prepare(logits, labels, None).scale == pytest.approx(expected, rel=1e-12)


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
