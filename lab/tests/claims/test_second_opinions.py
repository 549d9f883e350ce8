"""Second opinions: verdicts against the papers, confirmed by other means than the checks."""

from __future__ import annotations

from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import minimize

import reference
import refocal
import refocal.calibrators
from refocal_lab import zoo
from refocal_lab.claims.kimura2024 import bound_frequency
from refocal_lab.claims.kimura2024_curvature import trace_estimates
from refocal_lab.claims.komisarenko2024_map import _jacobian_violation
from refocal_lab.claims.komisarenko2024_numbers import nearest_on_grid
from refocal_lab.claims.mukhoti2020_linear import measure_flip_y, train_linear_models
from refocal_lab.claims.networks import choice_by_ece, confident_shares, norms_of_linear_model
from refocal_lab.zoo.measures import read_parts

ZOO = Path(__file__).parents[2] / "zoo"


@pytest.mark.parametrize(
    ("row", "gamma"), [((0.3, 0.3, 0.3, 0.1), 0.05), ((0.333, 0.333, 0.333, 0.001), 1.0), ((0.11,) * 9 + (0.01,), 0.5)]
)
def test_counterexamples_to_rising_confidence_in_sixty_digits(row, gamma):
    mapped = reference.mp_log_posterior([mp.log(mp.mpf(str(v))) for v in row], gamma=gamma)
    assert mp.exp(mapped[0]) < row[0] - 1e-6


def test_the_risk_minimizer_is_overconfident_there():
    """Minimize the focal risk with a general optimizer, without the map."""
    eta = refocal.posterior(np.array([0.333, 0.333, 0.333, 0.001]), gamma=1)

    def risk(z):
        log_p = z - np.logaddexp.reduce(z)
        return -np.sum(eta * -np.expm1(log_p) * log_p)

    found = minimize(risk, np.log(eta), method="BFGS", options={"gtol": 1e-12}).x
    scores = np.exp(found - np.logaddexp.reduce(found))
    assert scores.max() > eta.max() + 5e-6


def test_three_classes_never_lose_confidence_on_a_dense_grid():
    a, b = np.meshgrid(np.linspace(1 / 3, 1, 401), np.linspace(0, 0.5, 401))
    rows = np.stack([a, b, 1 - a - b], axis=-1).reshape(-1, 3)
    rows = rows[(rows.min(axis=1) > 1e-9) & (rows[:, 0] >= rows[:, 1:].max(axis=1))]
    for gamma in (0.001, 0.03, 0.3, 1.0, 3.0, 10.0):
        assert np.max(rows[:, 0] - refocal.posterior(rows, gamma=gamma)[:, 0]) < 1e-12


@pytest.mark.parametrize("gamma", [-0.95, -0.5])
def test_the_jacobian_of_the_map_has_the_sign_of_its_formula(gamma):
    rng = np.random.default_rng(0)
    for row in rng.dirichlet([0.5, 0.5, 0.5, 0.5], 50):
        if row.min() < 1e-4:
            continue
        step = 1e-6 * row.min()
        sides = [
            [refocal.posterior(row + sign * step * (np.eye(4)[i] - np.eye(4)[3]), gamma=gamma) for sign in (1, -1)]
            for i in range(3)
        ]
        jacobian = np.array([(up - down)[:3] / (2 * step) for up, down in sides])
        assert np.sign(np.linalg.det(jacobian)) == -np.sign(_jacobian_violation(row[None], gamma))[0] == 1


def test_negative_gamma_maps_distinct_scores_to_distinct_posteriors():
    p = np.linspace(1e-6, 1 - 1e-6, 100_001)
    for gamma in (-0.99, -0.9, -0.5, -0.1):
        assert np.all(np.diff(refocal.posterior(np.stack([p, 1 - p], axis=1), gamma=gamma)[:, 0]) > 0)


def test_the_entropy_bound_needs_every_bit_of_entropy():
    """For gamma near 0, two classes and a one-hot posterior, the bound approaches equality and never crosses it."""
    x = np.concatenate([np.geomspace(1e-12, 0.5, 400), 1 - np.geomspace(1e-12, 0.5, 400)])
    entropy = -x * np.log(x) - (1 - x) * np.log1p(-x)
    for gamma in (1e-3, 0.3, 0.7, 1.0, 4.0):
        assert np.all(-np.log(x) * np.expm1(gamma * np.log1p(-x)) + gamma * entropy > 0)


def test_the_gradient_of_focal_loss_vanishes_although_the_paper_says_it_diverges():
    p = 1 - np.geomspace(1e-12, 1e-3, 10)
    for gamma in (0.1, 0.25, 0.4):
        slope = refocal.phi(p, gamma=gamma) / p
        assert np.all(np.diff(slope) > 0) and slope[0] < 0.1


def test_nll_of_any_logits_has_one_minimum_in_the_temperature():
    rng = np.random.default_rng(0)
    t = np.geomspace(0.05, 50, 4000)
    for _ in range(20):
        logits, labels = 3 * rng.standard_normal((30, 4)), rng.integers(4, size=30)
        scaled = logits[None] / t[:, None, None]
        nll = np.mean(np.logaddexp.reduce(scaled, axis=2) - scaled[:, np.arange(30), labels], axis=1)
        signs = np.sign(np.diff(nll))
        assert np.count_nonzero(np.diff(signs[signs != 0])) <= 1


def test_simulations_repeat_and_depend_on_their_seed():
    one, two, other = (train_linear_models(trials=2, seed=seed).norms for seed in (0, 0, 1))
    assert np.array_equal(one, two) and not np.array_equal(one, other)
    assert bound_frequency(trials=500) == bound_frequency(trials=500)
    near, bias = trace_estimates(trials=50, probes=200, seed=3)
    assert 0 < near < 50 and abs(bias) < 2


def test_a_weak_bound_fails_often_enough_to_be_seen():
    """The simulation can detect failures: without the logarithm, the bound of Corollary 1 would fail."""
    assert bound_frequency(trials=2000, epsilon=2 * np.sqrt(50)) < 1990


def test_the_curvature_of_focal_loss_at_the_maximum_of_the_likelihood_of_a_data_set():
    """Logistic regression on three samples: finite differences against both terms, and against the printed factor."""
    signed, gamma = np.array([1.0, -2.0, -0.5]), 2.0  # features times labels

    def log_p(w):
        return -np.log1p(np.exp(-w * signed))

    best = minimize(lambda w: -np.sum(log_p(w)), [0.0], options={"gtol": 1e-12}).x[0]

    def focal(w):
        return np.sum(-((-np.expm1(log_p(w))) ** gamma) * log_p(w))

    step = 1e-4
    measured = (focal(best + step) - 2 * focal(best) + focal(best - step)) / step**2
    p = np.exp(log_p(best))
    slope, curvature = -signed * (1 - p), signed**2 * p * (1 - p)  # of -log p
    rate = (refocal.phi(p + 1e-6, gamma=gamma) - refocal.phi(p - 1e-6, gamma=gamma)) / 2e-6
    assert abs(slope.sum()) < 1e-6
    assert np.abs(slope).max() > 0.1
    assert measured == pytest.approx(np.sum(refocal.phi(p, gamma=gamma) * curvature - p * rate * slope**2), rel=1e-5)
    assert abs(measured - np.sum((1 - p) ** gamma * curvature)) > 0.3 * abs(measured)


def test_less_entropy_of_the_parameters_can_mean_less_entropy_of_the_label():
    """From the table of the joint distribution, whose rows are parameters."""

    def entropies(weight):
        joint = np.array([[weight / 2, weight / 2], [1 - weight, 0]])
        both, own = (-np.sum(v[v > 0] * np.log(v[v > 0])) for v in (joint.ravel(), joint.sum(axis=1)))
        return own, both - own

    assert np.all(np.array(entropies(0.1)) < np.array(entropies(0.5)))


def test_entropy_and_curvature_of_softmax_are_both_largest_at_the_uniform_vector():
    rows = np.random.default_rng(0).dirichlet(np.ones(4), 2_000)
    trace = 1 - np.sum(rows**2, axis=1)  # of the Hessian of cross-entropy in the logits
    entropy = -np.sum(rows * np.log(rows), axis=1)
    assert trace.max() < 0.75 and entropy.max() < np.log(4)
    assert np.corrcoef(trace, entropy)[0, 1] > 0.9


def test_the_nearest_temperature_on_a_fine_uniform_grid():
    ours, theirs = nearest_on_grid(3.0, classes=3, step=0.05), refocal.closest_temperature(3, classes=3, logit_range=5)
    assert ours == pytest.approx(theirs, rel=2e-3)


def test_the_linear_model_is_that_of_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    norms = []
    for _ in range(10):
        which = rng.integers(4, size=400)
        labels = (which < 2) ^ (rng.random(400) < 0.1)
        points = corners[which] + 0.3 * rng.standard_normal((400, 2))
        model = LogisticRegression(C=1e12, fit_intercept=False).fit(points, labels)
        norms.append(np.linalg.norm(model.coef_))
    ours = train_linear_models(trials=10, seed=1).norms[:, 0]
    assert np.mean(ours) == pytest.approx(np.mean(norms), abs=3 * np.std(norms) / np.sqrt(5))


def test_flip_y_flips_half_as_many_labels_as_it_says():
    assert measure_flip_y(0.0) == 0
    assert measure_flip_y(0.2) == pytest.approx(0.1, abs=0.005)


def test_temperature_scaling_of_one_network_of_the_zoo():
    """Against plain loops over the grids."""
    [entry] = [entry for entry in zoo.entries(ZOO) if entry.card.name == "newsgroups20-gp-cnn-fla-53-s0"]
    val, test = read_parts(entry)

    def scale(logits, temperature):
        return np.exp(logits / temperature - np.logaddexp.reduce(logits / temperature, axis=1, keepdims=True))

    best = min((refocal.metrics.ece(scale(val.logits, t), val.labels, bins=15), t) for t in 0.1 * np.arange(1, 41))[1]
    expected = [100 * np.mean(scale(test.logits, t).max(axis=1) >= 0.99) for t in (1.0, best)]
    assert confident_shares(entry) == pytest.approx(expected)
    by_loss, by_error = choice_by_ece(entry)
    assert by_error[0] <= by_loss[0]
    assert by_loss[1] == pytest.approx(
        refocal.metrics.adaptive_ece(
            scale(test.logits, refocal.calibrators.TemperatureScaling().fit(*val).temperature_), test.labels, bins=15
        )
    )


def test_focal_loss_has_the_larger_norm_only_at_first_whatever_the_learning_rate():
    for rate in (0.1, 0.5):
        (usual, _), (focal, means) = (norms_of_linear_model(gamma, steps=200, rate=rate) for gamma in (0.0, 3.0))
        larger = focal > usual
        last = np.flatnonzero(larger)[-1]
        assert larger[: last + 1].all() and 0.3 < means[last] < 0.4 and last < 150
