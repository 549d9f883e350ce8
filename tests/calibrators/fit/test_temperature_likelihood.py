from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from scipy.special import log_softmax

from reference import mp_log_posterior
from refocal import posterior_from_logits
from refocal.calibrators.fit.descent import Quadratic, Slope, minimize_convex, minimize_in_trust_region
from refocal.calibrators.fit.focal_likelihood import focal_likelihood
from refocal.calibrators.fit.focal_masses import Parameters, RankedLogits, top_confidences
from refocal.calibrators.fit.maximum_likelihood import fit_focal_temperature, fit_temperature
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits, temperature_likelihood

POINTS = [(0.0, 0.5), (1.5, 0.7), (-0.4, 0.8), (-0.9, 2.0), (10.0, 0.1)]


def problem(rows=40, classes=5, *, spread=3.0, dtype=np.float64, weighted=True):
    rng = np.random.default_rng(1)
    logits = (spread * rng.standard_normal((rows, classes))).astype(dtype)
    weights = rng.random(rows) if weighted else None
    return LabeledLogits.prepare(logits, rng.integers(0, classes, rows), weights)


def exact_nll(data, gamma, beta):
    """The mean NLL in 60 digits."""
    with mp.workdps(60):
        terms = []
        for row, label, share in zip(data.logits, data.labels, data.share, strict=True):
            with mp.workdps(60):
                logs = mp_log_posterior(row, gamma=gamma, temperature=1 / beta)
            terms.append(-mp.mpf(float(share)) * logs[label])
        return mp.fsum(terms)


@pytest.mark.parametrize(("gamma", "beta"), POINTS)
def test_derivatives_against_exact_differences(gamma, beta):
    data = problem(rows=12)
    ranked = RankedLogits.prepare(data)
    at = focal_likelihood(ranked, Parameters(gamma, beta))
    h = 1e-6
    values = {
        (i, j): exact_nll(data, float(np.float64(gamma + i * h)), 1 / float(1 / np.float64(beta + j * h)))
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
    # the Hessian once more, from the gradient
    points = [(gamma + h, beta), (gamma - h, beta), (gamma, beta + h), (gamma, beta - h)]
    slopes = [focal_likelihood(ranked, Parameters(*point)).gradient for point in points]
    differences = [(slopes[0] - slopes[1]) / (2 * h), (slopes[2] - slopes[3]) / (2 * h)]
    np.testing.assert_allclose(at.hessian, differences, rtol=1e-5, atol=1e-6)
    assert focal_likelihood(ranked, Parameters(gamma, beta), curvature=False).hessian is None


def test_gamma_0_is_temperature_scaling():
    data = problem(rows=3000, classes=7)  # several blocks
    focal, plain = focal_likelihood(RankedLogits.prepare(data), Parameters(0.0, 0.6)), temperature_likelihood(data, 0.6)
    assert (focal.value, focal.gradient[1], focal.hessian[1, 1]) == pytest.approx(plain, rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 2.0, -0.6])
def test_blocks_and_precisions_agree(gamma):
    data = problem(rows=20_000, classes=30)
    single = data._replace(logits=data.logits.astype(np.float32), top=data.top.astype(np.float32))
    exact = focal_likelihood(RankedLogits.prepare(data), Parameters(gamma, 0.7))
    coarse = focal_likelihood(RankedLogits.prepare(single), Parameters(gamma, 0.7), exact=False)
    logs = posterior_from_logits(data.logits, gamma=gamma, temperature=1 / 0.7, log=True)
    assert exact.value == pytest.approx(float(data.share @ -logs[np.arange(20_000), data.labels]), rel=1e-12)
    assert coarse.value == pytest.approx(exact.value, rel=1e-5)
    np.testing.assert_allclose(coarse.gradient, exact.gradient, atol=1e-5)
    np.testing.assert_allclose(coarse.hessian, exact.hessian, rtol=1e-4)


@pytest.mark.parametrize("gamma", [0.0, 1.0, -0.7, 20.0])
def test_confidence_is_that_of_the_map(gamma):
    data = problem(rows=500)
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
    """A class far below the others changes nothing: value, derivatives and confidence are those without it."""
    data = problem(rows=30, dtype=np.float32)
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


@pytest.mark.parametrize(("classes", "rows"), [(2, 50), (63, 50), (64, 50), (150, 50), (40_000, 3)])
def test_temperature_likelihood_is_the_textbook_formula(classes, rows):
    data = problem(rows=rows, classes=classes, dtype=np.float32)
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


def test_scale_looks_at_all_rows_where_those_it_samples_are_constant():
    logits = np.random.default_rng(0).standard_normal((1000, 3))
    labels = np.zeros(1000, int)
    every_third = (logits.max(axis=1, keepdims=True) - logits)[::3]
    assert LabeledLogits.prepare(logits, labels, None).scale == pytest.approx(every_third.mean(), rel=1e-12)
    logits[::3] = 0.5
    expected = (logits.max(axis=1, keepdims=True) - logits).mean()
    assert LabeledLogits.prepare(logits, labels, None).scale == pytest.approx(expected, rel=1e-12)


def test_a_sample_is_drawn_from_four_times_as_many_rows():
    assert len(problem(rows=40).sample(10).logits) == 10
    assert problem(rows=39).sample(10) is None


def test_thinning_keeps_rows_together():
    data = problem(rows=100)
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


@pytest.mark.parametrize("root", [1e-3, 0.5, 1.0, 7.0, 300.0])
@pytest.mark.parametrize("start", [0.01, 1.0, 90.0])
def test_convex_minimum_finds_any_root(root, start):
    def function(x, *_):
        return Slope(1.0, np.tanh(x - root), 1 - np.tanh(x - root) ** 2)

    found = minimize_convex(function, start, low=1e-6, high=1e4)
    assert found.x == pytest.approx(root, rel=1e-6)
    assert not found.at_bound


def test_convex_minimum_at_a_bound():
    assert minimize_convex(lambda *_: Slope(1.0, 1.0, 0.0), 1.0, low=0.1, high=9.0)[::3] == (0.1, True)
    assert minimize_convex(lambda *_: Slope(1.0, -1.0, 1.0), 1.0, low=0.1, high=9.0)[::3] == (9.0, True)


def test_minimisers_say_when_they_fail():
    with pytest.raises(RuntimeError, match="the function to be minimized is not finite at 1"):
        minimize_convex(lambda *_: Slope(1.0, np.nan, np.nan), 1.0, low=0.1, high=9.0)
    with pytest.raises(RuntimeError, match="no minimum found in 100 evaluations; it lies between"):
        minimize_convex(lambda *_: Slope(1.0, -1.0, 100.0), 1.0, low=0.1, high=1e9)

    def wrong(x, *_):
        """Values that rise where the gradient says they fall."""
        return Quadratic(1 + float(np.sum(x)), -np.ones(2), np.eye(2))

    with pytest.raises(RuntimeError, match=r"no minimum found in .* evaluations; the last step had size"):
        minimize_in_trust_region(wrong, np.zeros(2), low=np.full(2, -9.0), high=np.full(2, 9.0))


def test_trust_region_on_a_curved_valley_and_at_a_bound():
    def rosenbrock(x, *_):
        a, b = x
        value = (1 - a) ** 2 + 100 * (b - a * a) ** 2
        gradient = np.array([-2 * (1 - a) - 400 * a * (b - a * a), 200 * (b - a * a)])
        return Quadratic(value, gradient, np.array([[2 - 400 * (b - 3 * a * a), -400 * a], [-400 * a, 200.0]]))

    start = np.array([-1.2, 1.0])
    free = minimize_in_trust_region(rosenbrock, start, low=np.full(2, -9.0), high=np.full(2, 9.0))
    np.testing.assert_allclose(free.x, 1, rtol=1e-6)
    assert not free.at_bound
    held = minimize_in_trust_region(rosenbrock, start, low=np.full(2, -9.0), high=np.array([0.5, 9.0]))
    np.testing.assert_allclose(held.x, [0.5, 0.25], rtol=1e-6)
    assert held.at_bound


def test_a_large_problem_has_the_same_optimum_as_all_its_rows():
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((20_000, 120))
    data = LabeledLogits.prepare(1.5 * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1), None)
    fitted = fit_temperature(data)
    assert abs(temperature_likelihood(data, fitted.beta).slope) < 1e-6
    assert abs(temperature_likelihood(data, fit_temperature(data, exact=True).beta).slope) < 1e-8
    focal = fit_focal_temperature(data)
    assert focal.nll <= fitted.nll


def test_an_optimum_that_is_hit_exactly_ends_the_search():
    found = minimize_convex(lambda x, *_: Slope(1.0, x - 2.0, 1.0), 2.0, low=0.1, high=9.0)
    assert found.x == 2.0
    assert found.evaluations <= 3
    flat = minimize_convex(lambda *_: Slope(1.0, 0.0, 1.0), 0.3, low=0.1, high=9.0)
    assert flat.x == 0.3


@pytest.mark.parametrize("seed", range(5))
def test_a_search_that_ends_early_ends_at_the_optimum(seed):
    """In single precision the optimum, and the Hessian there, are those of a search that goes on in double."""
    rng = np.random.default_rng(seed)
    logits = (2 * rng.standard_normal((3000, 20))).astype(np.float32)
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    single, double = (
        fit_focal_temperature(LabeledLogits.prepare(logits.astype(t), labels, None)) for t in (np.float32, float)
    )
    assert single.gamma == pytest.approx(double.gamma, abs=5e-5)
    assert single.beta == pytest.approx(double.beta, rel=2e-5)
    assert single.gamma_error == pytest.approx(double.gamma_error, rel=5e-3)
    assert single.relative_error == pytest.approx(double.relative_error, rel=5e-3)
    slope = focal_likelihood(
        RankedLogits.prepare(LabeledLogits.prepare(logits, labels, None)), Parameters(single.gamma, single.beta)
    ).gradient
    assert np.max(np.abs(slope)) < 1e-5
