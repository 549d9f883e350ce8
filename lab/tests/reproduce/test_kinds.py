"""The numbers of the experiments agree with values computed in other ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit

import refocal
from refocal_lab.reproduce import Context, read_specs
from refocal_lab.reproduce.kinds import (
    arrows,
    binary_map,
    bounds,
    derivative,
    isolines,
    linear_model,
    map_difference,
    minimizer,
    nearest_temperature,
    phi,
)
from refocal_lab.reproduce.simplex import from_plane, interior_grid, to_plane

SPECS = read_specs(Path(__file__).parents[2] / "experiments")


def given(name):
    return SPECS[name].parameters["smoke"]


def plain_phi(p, gamma):
    return (1 - p) ** gamma - gamma * (1 - p) ** (gamma - 1) * p * np.log(p)


def best_score(posterior, gamma):
    """Minimize the expected binary focal loss with a general optimizer."""

    def risk(q):
        return -posterior * (1 - q) ** gamma * np.log(q) - (1 - posterior) * q**gamma * np.log(1 - q)

    return minimize_scalar(risk, bounds=(1e-9, 1 - 1e-9), method="bounded", options={"xatol": 1e-12}).x


def test_phi():
    found = phi.compute(given("001-fig-1"), Context())
    for gamma, curve in zip(given("001-fig-1").gammas, found.curves["phi"], strict=True):
        inner = found.curves["p"][1:-1]
        np.testing.assert_allclose(curve[1:-1], plain_phi(inner, gamma), rtol=1e-12)
    edge = brentq(lambda p: plain_phi(p, 3) - 1, 0.1, 0.5)
    assert found.values["tau_uc(3)"] == pytest.approx(edge, abs=1e-12)
    top = minimize_scalar(lambda p: -plain_phi(p, 3), bounds=(0.01, 0.4), method="bounded", options={"xatol": 1e-10})
    assert found.values["tau_oc(3)"] == pytest.approx(top.x, abs=1e-6)


@pytest.mark.parametrize("name", ["001-fig-2", "002-fig-7"])
def test_minimizer(name):
    found = minimizer.compute(given(name), Context())
    for posterior in given(name).posteriors:
        for gamma in given(name).gammas:
            assert found.values[f"q({posterior:g}, {gamma:g})"] == pytest.approx(best_score(posterior, gamma), abs=1e-6)


def test_many_classes_can_be_overconfident_and_two_cannot():
    found = minimizer.compute(given("001-fig-2"), Context())
    assert found.values["excess(100, 0.5)"] > 1e-3
    assert max(found.values[f"excess(2, {gamma:g})"] for gamma in given("001-fig-2").gammas) <= 1e-12


def test_binary_map():
    found = binary_map.compute(given("003-fig-1"), Context())
    losses = found.curves["losses"]
    for gamma, focal, proper in zip(given("003-fig-1").loss_gammas, losses["focal"], losses["proper"], strict=True):
        scores = np.array([best_score(p, gamma) for p in losses["p"]])
        np.testing.assert_allclose(proper, -((1 - scores) ** gamma) * np.log(scores), rtol=1e-4)
        np.testing.assert_allclose(focal, -((1 - losses["p"]) ** gamma) * np.log(losses["p"]), rtol=1e-10)


def test_bounds_by_trying_every_temperature():
    """Repeat the procedure of the paper, which tries one temperature after another."""
    parameters = given("003-fig-3")
    s = np.arange(parameters.logit_step, parameters.logit_range, parameters.logit_step)
    mapped = refocal.posterior_from_logits(np.column_stack([-s, np.zeros_like(s)]), gamma=4)[:, 0]
    temperatures = np.arange(0.15, 0.3, parameters.temperature_step)
    below = [t for t in temperatures if np.all(expit(-s / t) <= mapped * (1 + 1e-9))]
    above = [t for t in temperatures if np.all(expit(-s / t) >= mapped * (1 - 1e-9))]
    assert bounds.find_bounds(4.0, parameters, logit_range=20.0) == pytest.approx((max(below), min(above)), abs=1e-9)


def test_nearest_temperature_by_grid():
    found = nearest_temperature.compute(given("003-fig-2"), Context())
    logits = np.linspace(-20, 20, 4001)
    pairs = np.column_stack([logits, np.zeros_like(logits)])
    mapped = refocal.posterior_from_logits(pairs, gamma=3)[:, 0]
    temperatures = np.arange(0.26, 0.3, 0.0001)
    errors = [np.max(np.abs(expit(logits / t) - mapped)) for t in temperatures]
    assert found.values["T(2, 3)"] == pytest.approx(temperatures[np.argmin(errors)], abs=2e-4)
    assert found.values["error(2, 3)"] == pytest.approx(min(errors), rel=0.2)
    line = found.values["slope(2, 10)"] * found.curves["gamma"] + found.values["intercept(2, 10)"]
    residuals = found.curves["inverse"][0] - line
    assert np.sum(residuals) == pytest.approx(0, abs=1e-9)
    assert residuals @ found.curves["gamma"] == pytest.approx(0, abs=1e-8)


def test_plane_coordinates_round_trip():
    grid = interior_grid(12)
    assert len(grid) == 11 * 10 // 2
    np.testing.assert_allclose(from_plane(to_plane(grid)), grid, atol=1e-14)
    distances = np.linalg.norm(np.diff(to_plane(np.vstack([np.eye(3), np.eye(3)[:1]])), axis=0), axis=1)
    np.testing.assert_allclose(distances, 1)


def test_isolines():
    truth, side = np.array([0.55, 0.3, 0.15]), 40
    for name, risk in isolines.risks(truth, (1.0, 3.0)).items():
        level = np.percentile(risk(interior_grid(side)), 3)
        radii = isolines.isoline(risk, level, truth, 36)
        angle = 2 * np.pi * np.arange(36) / 36
        around = to_plane(truth) + radii[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
        np.testing.assert_allclose(risk(from_plane(around)), level, rtol=1e-6, err_msg=name)
        if name == "Brier score":
            # The risk is |q - truth|^2 + 1 - |truth|^2; lengths in the plane are 1 / sqrt(2) of those in space.
            np.testing.assert_allclose(radii, np.sqrt((level - 1 + truth @ truth) / 2), rtol=1e-6)


def test_isolines_end_at_the_edge():
    truth = np.array([0.9, 0.05, 0.05])
    radii = isolines.isoline(isolines.risks(truth, ())["Brier score"], 0.5, truth, 36)
    assert np.isnan(radii).any()
    assert not np.isnan(radii).all()


def test_arrows_and_differences_use_the_same_maps():
    moved = arrows.compute(given("003-fig-5"), Context())
    apart = map_difference.compute(given("003-fig-7"), Context())
    assert moved.values["T(3)"] == apart.values["T(3)"]
    start = from_plane(np.asarray(moved.curves["start"]))
    ends = moved.curves["ends"]["3"]
    np.testing.assert_allclose(from_plane(ends["focal"]), refocal.posterior(start, gamma=3), atol=1e-12)
    powers = start ** (1 / moved.values["T(3)"])
    np.testing.assert_allclose(from_plane(ends["temperature"]), powers / powers.sum(axis=1, keepdims=True), atol=1e-12)
    nearest = refocal.closest_temperature(3, classes=3, logit_range=5)
    assert apart.values["largest(3)"] <= nearest.error * 1.001
    assert apart.values["at the center(3)"] == pytest.approx(0, abs=1e-15)


def test_derivative():
    p, step = np.linspace(0.05, 0.95, 19), 1e-6
    for gamma in (0.25, 1.0, 5.0):
        numeric = ((1 - p - step) ** gamma * np.log(p + step) - (1 - p + step) ** gamma * np.log(p - step)) / (2 * step)
        np.testing.assert_allclose(derivative.derivative_size(p, gamma), numeric, rtol=1e-6)
    found = derivative.compute(given("004-fig-1"), Context())
    assert found.values["gamma of cross-entropy"] == 0
    assert found.values["derivative at 1(0.5)"] < 1e-3
    assert found.values["printed at 1(0.5)"] == pytest.approx(0.5, abs=1e-4)


def test_linear_model_descends_to_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    parameters = given("002-fig-5")
    points = linear_model.draw_points(parameters, 1000, np.random.default_rng(3))
    long = type(parameters)(**{**vars(parameters), "iterations": 3000, "learning_rate": 1.0})
    weights = linear_model.descent(points, gammas=(0.0, 1.0), given=long)[-1]
    fitted = LogisticRegression(C=1e12, fit_intercept=False, tol=1e-10).fit(points.features, points.labels)
    np.testing.assert_allclose(weights[:, 0], fitted.coef_[0], rtol=1e-5)


def test_linear_model_follows_the_gradient_of_focal_loss():
    torch = pytest.importorskip("torch")
    from refocal.losses import focal_loss

    parameters = given("002-fig-5")
    points = linear_model.draw_points(parameters, 1000, np.random.default_rng(4))
    one_step = type(parameters)(**{**vars(parameters), "iterations": 1, "records": 1})
    path = linear_model.descent(points, gammas=(0.0, 1.0), given=one_step)
    weights = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    scores = torch.tensor(points.features) @ weights
    logits = torch.stack([torch.zeros_like(scores), scores], dim=1)
    focal_loss(logits, torch.tensor(points.labels > 0).long(), gamma=1.0).mean().backward()
    np.testing.assert_allclose(path[-1][:, 1], -one_step.learning_rate * weights.grad.numpy(), rtol=1e-10)


def test_a_tenth_of_the_labels_are_flipped():
    points = linear_model.draw_points(given("002-fig-6"), 1000, np.random.default_rng(0))
    wrong = np.mean(np.sign(points.features[:, 0]) != points.labels)
    assert wrong == pytest.approx(0.1 + 0.8 * 0.0228, abs=0.03)  # 2.3 % of a cluster lie across the boundary


def test_a_loss_has_one_color_in_all_panels():
    spec = given("002-fig-6")
    figure = Figure()
    linear_model.draw(figure, spec, linear_model.compute(spec, Context()))
    histogram, *maps = figure.axes
    drawn, filled = histogram.patches
    assert [ax.lines[-1].get_color() for ax in maps] == [to_hex(drawn.get_edgecolor()), to_hex(filled.get_facecolor())]


@pytest.mark.parametrize(
    ("name", "axis"), [("001-fig-1", "top score"), ("002-fig-4a", "probability of the true class")]
)
def test_regions_of_confidence_refer_to_the_top_score(name, axis):
    figure = Figure()
    phi.draw(figure, given(name), phi.compute(given(name), Context()))
    assert figure.axes[0].get_xlabel() == axis
