"""Maximum-likelihood temperatures and focal temperatures: optima by other means, and standard errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

from refocal import posterior_from_logits
from refocal.calibrators.fit.descent import Minimum
from refocal.calibrators.fit.focal_likelihood import focal_likelihood
from refocal.calibrators.fit.focal_masses import Parameters, RankedLogits
from refocal.calibrators.fit.maximum_likelihood import (
    GAMMA_BOUNDS,
    Temperature,
    _is_better,
    fit_focal_temperature,
    fit_temperature,
)
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits, temperature_likelihood


def draw_overconfident(seed, rows, classes, *, spread=1.0):
    """Draw labels from the softmax of logits, and return the logits times 2."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((rows, classes))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return LabeledLogits.prepare(2 * logits, labels, None)


def mean_nll(data, gamma, beta):
    """Compute the mean NLL with the posterior map, which shares no code with the likelihood."""
    logs = posterior_from_logits(data.logits, gamma=float(gamma), temperature=1 / float(beta), log=True)
    return float(-data.share @ logs[np.arange(len(data.labels)), data.labels])


class Counted:
    """Labeled logits that count their evaluations and have no sample for a first guess."""

    def __init__(self, data):
        self.data, self.calls = data, 0
        self.classes, self.single, self.samples, self.scales = data.classes, data.single, data.samples, data.scales

    def sample(self, _):
        return None

    def temperature_nll(self, beta, **options):
        self.calls += 1
        return self.data.temperature_nll(beta, **options)

    def prepare_focal_nll(self):
        inner = self.data.prepare_focal_nll()

        def focal(*args, **options):
            self.calls += 1
            return inner(*args, **options)

        return focal


@pytest.mark.parametrize("classes", [2, 7])
def test_constant_rows_teach_nothing(classes):
    data = LabeledLogits.prepare(np.full((5, classes), 3.0), np.zeros(5, int), None)
    assert fit_temperature(data) == Temperature(1.0, math.log(classes), math.inf, False, 0)
    found = fit_focal_temperature(data)
    assert found[:3] == (0.0, 1.0, math.log(classes))
    assert (found.gamma_error, found.relative_error, found.evaluations) == (math.inf, math.inf, 0)


@pytest.mark.parametrize(("seed", "rows"), [(13, 20), (24, 20), (0, 300)])
def test_no_other_start_finds_a_better_focal_temperature(seed, rows):
    """For seeds 13 and 24, the descent from gamma = 0 ends at the lower bound, and the other side is better."""
    data = draw_overconfident(seed, rows, 10)
    counted = Counted(data)
    found = fit_focal_temperature(counted)
    bounds = [np.log1p(GAMMA_BOUNDS), (-9.0, 2.0)]
    others = [
        minimize(
            lambda x: mean_nll(data, math.expm1(x[0]), math.exp(x[1])),
            [start, -1.0],
            method="Nelder-Mead",
            bounds=bounds,
            options={"xatol": 1e-6, "fatol": 1e-11, "maxiter": 400},
        ).fun
        for start in (-2.5, 0.5, 2.5)
    ]
    assert found.nll <= min(others) + 1e-9
    assert found.nll == pytest.approx(mean_nll(data, found.gamma, found.beta), rel=1e-9)
    assert not found.at_bound
    assert found.gamma > 5 or rows > 20
    assert found.evaluations == counted.calls


@pytest.mark.parametrize("seed", range(3))
def test_standard_errors_come_from_the_inverse_hessian(seed):
    data = draw_overconfident(seed, 400, 5)
    found = fit_focal_temperature(data)
    h = 1e-3

    def at(i, j):
        return mean_nll(data, found.gamma + i * h, found.beta * math.exp(j * h))

    hessian = np.array(
        [
            [at(1, 0) - 2 * at(0, 0) + at(-1, 0), (at(1, 1) - at(1, -1) - at(-1, 1) + at(-1, -1)) / 4],
            [0.0, at(0, 1) - 2 * at(0, 0) + at(0, -1)],
        ]
    )
    hessian[1, 0] = hessian[0, 1]
    errors = np.sqrt(np.diag(np.linalg.inv(hessian / h**2)) / 400)
    assert [found.gamma_error, found.relative_error] == pytest.approx(errors, rel=5e-3)
    plain = fit_temperature(data)
    second = (
        mean_nll(data, 0, plain.beta * math.exp(h))
        - 2 * mean_nll(data, 0, plain.beta)
        + mean_nll(data, 0, plain.beta * math.exp(-h))
    ) / h**2
    assert plain.relative_error == pytest.approx(1 / math.sqrt(400 * second), rel=5e-3)


def test_temperatures_that_the_data_do_not_determine_have_no_finite_error():
    """Every label is the arg max, so the likelihood always rises with 1/T."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((50, 4))
    data = LabeledLogits.prepare(logits, logits.argmax(axis=1), None)
    plain = fit_temperature(data)
    assert plain.at_bound
    assert plain.relative_error == math.inf
    assert plain.beta * data.scales.lead == pytest.approx(1e4)
    focal = fit_focal_temperature(data)
    assert (focal.gamma, focal.beta, focal.gamma_error) == (0.0, plain.beta, math.inf)
    assert focal.at_bound


@pytest.mark.parametrize(("rows", "classes"), [(300, 3), (5000, 20)])
def test_the_last_step_determines_the_accuracy(rows, classes):
    """Newton's error is about the square of its last step, which is 1e-3 or 1e-5."""
    data = draw_overconfident(1, rows, classes)
    for exact, limit in ((False, 1e-5), (True, 1e-9)):
        fitted = fit_temperature(data, exact=exact)
        slope = data.temperature_nll(fitted.beta)
        assert abs(slope.slope / (slope.curvature * fitted.beta)) < limit
    counted = Counted(data)
    assert fit_temperature(counted).evaluations == counted.calls <= 5


@pytest.mark.parametrize("spread", [1.0, 8.0])
def test_a_gain_that_could_be_rounding_is_computed_again(spread):
    """Test an NLL of about 1 and one below 0.1."""
    data = draw_overconfident(2, 400, 4, spread=spread)
    plain = fit_temperature(data, exact=True)
    best = fit_focal_temperature(data)
    other = np.array([math.log1p(best.gamma), math.log(best.beta)])
    worse = np.array([0.3, math.log(plain.beta)])
    assert mean_nll(data, math.expm1(worse[0]), plain.beta) > plain.nll > best.nll
    counted = Counted(data)

    def judge(x, claimed_gain):
        found = Minimum(x, plain.nll * (1 - claimed_gain), np.eye(2), False, 1)
        counted.calls = 0
        return _is_better(counted, counted.prepare_focal_nll(), found, plain), counted.calls

    assert judge(worse, 1e-7) == (False, 2)  # the claimed gain is within rounding: both are evaluated
    assert judge(other, -1e-7) == (True, 2)
    assert judge(worse, 1e-5) == (True, 0)
    assert judge(other, -1e-5) == (False, 0)


def test_a_large_problem_has_the_same_optimum_as_all_its_rows():
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((20_000, 120))
    data = LabeledLogits.prepare(1.5 * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1), None)
    fitted = fit_temperature(data)
    assert abs(temperature_likelihood(data, fitted.beta).slope) < 1e-6
    assert abs(temperature_likelihood(data, fit_temperature(data, exact=True).beta).slope) < 1e-8
    focal = fit_focal_temperature(data)
    assert focal.nll <= fitted.nll


@pytest.mark.parametrize("seed", range(5))
def test_a_search_that_ends_early_ends_at_the_optimum(seed):
    """In float32, the optimum and its Hessian agree with a search that continues in float64."""
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
