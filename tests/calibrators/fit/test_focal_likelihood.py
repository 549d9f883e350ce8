"""The likelihood of focal temperature scaling: derivatives, blocks, precision, saturated and masked logits."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from labeled_problems import draw_problem

from reference import mp_log_posterior
from refocal import posterior_from_logits
from refocal.calibrators.fit.focal_likelihood import focal_likelihood
from refocal.calibrators.fit.focal_masses import Parameters, RankedLogits, top_confidences
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits, temperature_likelihood

POINTS = [(0.0, 0.5), (1.5, 0.7), (-0.4, 0.8), (-0.9, 2.0), (10.0, 0.1)]


def compute_exact_nll(data, gamma, beta):
    """Compute the mean NLL in 60 digits."""
    with mp.workdps(60):
        terms = []
        for row, label, share in zip(data.logits, data.labels, data.share, strict=True):
            with mp.workdps(60):
                logs = mp_log_posterior(row, gamma=gamma, temperature=1 / beta)
            terms.append(-mp.mpf(float(share)) * logs[label])
        return mp.fsum(terms)


@pytest.mark.parametrize(("gamma", "beta"), POINTS)
def test_derivatives_against_exact_differences(gamma, beta):
    data = draw_problem(rows=12)
    ranked = RankedLogits.prepare(data)
    at = focal_likelihood(ranked, Parameters(gamma, beta))
    h = 1e-6
    values = {
        (i, j): compute_exact_nll(data, float(np.float64(gamma + i * h)), 1 / float(1 / np.float64(beta + j * h)))
        for i in (-1, 0, 1)
        for j in (-1, 0, 1)
    }
    gradient = [float((values[1, 0] - values[-1, 0]) / (2 * h)), float((values[0, 1] - values[0, -1]) / (2 * h))]
    cross = (values[1, 1] - values[1, -1] - values[-1, 1] + values[-1, -1]) / (4 * h * h)
    hessian = [
        [float((values[1, 0] - 2 * values[0, 0] + values[-1, 0]) / h**2), float(cross)],
        [float(cross), float((values[0, 1] - 2 * values[0, 0] + values[0, -1]) / h**2)],
    ]
    assert at.value == pytest.approx(float(values[0, 0]), rel=1e-13)
    np.testing.assert_allclose(at.gradient, gradient, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(at.hessian, hessian, rtol=2e-3, atol=2e-3)
    # The Hessian again, from the gradient.
    points = [(gamma + h, beta), (gamma - h, beta), (gamma, beta + h), (gamma, beta - h)]
    slopes = [focal_likelihood(ranked, Parameters(*point)).gradient for point in points]
    differences = [(slopes[0] - slopes[1]) / (2 * h), (slopes[2] - slopes[3]) / (2 * h)]
    np.testing.assert_allclose(at.hessian, differences, rtol=1e-5, atol=1e-6)
    assert focal_likelihood(ranked, Parameters(gamma, beta), curvature=False).hessian is None


def test_gamma_0_is_temperature_scaling():
    data = draw_problem(rows=3000, classes=7)  # several blocks
    focal, plain = focal_likelihood(RankedLogits.prepare(data), Parameters(0.0, 0.6)), temperature_likelihood(data, 0.6)
    assert (focal.value, focal.gradient[1], focal.hessian[1, 1]) == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 2.0, -0.6])
def test_blocks_and_precisions_agree(gamma):
    data = draw_problem(rows=20_000, classes=30)
    single = data._replace(logits=data.logits.astype(np.float32), top=data.top.astype(np.float32))
    exact = focal_likelihood(RankedLogits.prepare(data), Parameters(gamma, 0.7))
    coarse = focal_likelihood(RankedLogits.prepare(single), Parameters(gamma, 0.7), exact=False)
    logs = posterior_from_logits(data.logits, gamma=gamma, temperature=1 / 0.7, log=True)
    assert exact.value == pytest.approx(float(data.share @ -logs[np.arange(20_000), data.labels]), rel=1e-12)
    assert coarse.value == pytest.approx(exact.value, rel=1e-5)
    np.testing.assert_allclose(coarse.gradient, exact.gradient, atol=1e-5)
    np.testing.assert_allclose(coarse.hessian, exact.hessian, rtol=1e-4)


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.7, 20.0])
def test_confidence_agrees_with_the_map(gamma):
    data = draw_problem(rows=500)
    expected = posterior_from_logits(data.logits, gamma=gamma, temperature=2.0).max(axis=1)
    np.testing.assert_allclose(
        top_confidences(RankedLogits.prepare(data), Parameters(gamma, 0.5)), expected, rtol=1e-12
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_saturated_and_tied_logits(dtype):
    logits = np.array([[1000, 0, -5], [3, 2000, 1], [0, 0, 0], [7, 7, 5]], dtype=dtype)
    data = LabeledLogits.prepare(logits, np.array([1, 1, 0, 2]), None)
    for gamma, beta in POINTS:
        at = focal_likelihood(RankedLogits.prepare(data), Parameters(gamma, beta), exact=False)
        assert np.isfinite(at.value)
        assert np.all(np.isfinite(at.gradient))
        assert np.all(np.isfinite(at.hessian))
        logs = posterior_from_logits(logits.astype(np.float64), gamma=gamma, temperature=1 / beta, log=True)
        assert at.value == pytest.approx(-np.mean(logs[np.arange(4), data.labels]), rel=1e-5)


@pytest.mark.parametrize("depth", [1e3, 3e7, 1e38])
@pytest.mark.parametrize("exact", [False, True])
def test_masked_classes_have_no_mass(depth, exact):
    """A class far below the others changes neither the value, nor its derivatives, nor the confidence."""
    data = draw_problem(rows=30, dtype=np.float32)
    masked = np.insert(data.logits, 2, np.float32(-depth), axis=1)
    beside = LabeledLogits.prepare(masked, data.labels + (data.labels >= 2), data.share)
    for gamma, beta in [*POINTS, (2.0, 20.0), (0.0, 20.0)]:
        at, expected = (
            focal_likelihood(RankedLogits.prepare(d), Parameters(gamma, beta), exact=exact) for d in (beside, data)
        )
        assert at.value == pytest.approx(expected.value, rel=1e-6)
        np.testing.assert_allclose(at.gradient, expected.gradient, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(at.hessian, expected.hessian, rtol=1e-4, atol=1e-5)
        confidence = [top_confidences(RankedLogits.prepare(d), Parameters(gamma, beta)) for d in (beside, data)]
        np.testing.assert_allclose(*confidence, rtol=1e-6)
