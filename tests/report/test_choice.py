"""Which method is chosen for two classes, and the sentence that says why."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console
from scipy.special import expit, log_expit

from refocal.report import build_table, calibrate, render_page
from refocal.report.choice import Choice, CrossValidated
from refocal.report.cross_fitting import cross_calibrate

GIVEN = CrossValidated("given", "As given", 0.42, 0.008, 0.01, 0, 0.212)
PLATT = CrossValidated("platt", "Platt scaling", 0.413, 0.001, 0.002, 2, 0.309)
BETA = CrossValidated("beta", "Beta calibration", 0.412, 0.0, 0.0, 3, 1.0)

# P(y = 1) by log-odds s, of which each method is the simplest that fits
TRUTHS = {
    "given": expit,
    "temperature": lambda s: expit(s / 2),
    "platt": lambda s: expit(s / 2 + 1),
    "beta": lambda s: expit(1.5 * log_expit(s) - 0.3 * log_expit(-s)),
    "quadratic": lambda s: expit(0.55 * s + 0.035 * s**2),
    "isotonic": lambda s: np.where(s > 2, 0.9, np.where(s > -2, 0.4, 0.05)),
}


def draw(truth, *, rows=10_000, seed=0):
    rng = np.random.default_rng(seed)
    log_odds = rng.uniform(-7, 7, rows)
    return log_odds, (rng.random(rows) < TRUTHS[truth](log_odds)).astype(int)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("truth", TRUTHS)
def test_each_method_is_chosen_where_it_is_right(truth, columns):
    log_odds, labels = draw(truth)
    scores = log_odds if columns == 1 else np.stack([-log_odds / 2, log_odds / 2], axis=1)
    calibration = calibrate(scores, labels)
    assert calibration.chosen.name == truth
    names = [candidate.name for candidate in calibration.candidates]
    assert names == ["given", "temperature", "focal-temperature", "platt", "beta", "quadratic", "isotonic", "mixture"]
    choice = calibration.choice
    assert choice.chosen.name == truth
    assert sorted(method.name for method in choice.methods) == sorted(names)
    nlls = [method.nll for method in choice.methods]
    assert nlls == sorted(nlls)
    assert choice.best.p_value == 1
    assert all(method.p_value > 0.15 for method in choice.methods if method.behind <= method.error)
    assert all(method.p_value < 0.16 for method in choice.methods if method.behind > method.error)
    eligible = [method for method in choice.methods if method.behind <= method.error]
    assert choice.chosen.parameters == min(method.parameters for method in eligible)


def test_few_samples_of_a_curve_get_the_simpler_line():
    log_odds, labels = draw("quadratic", rows=300, seed=1)
    assert calibrate(log_odds, labels).chosen.calibrator.n_parameters_ <= 2


def test_more_classes_keep_their_candidates():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((60, 3))
    names = [each.name for each in calibrate(logits, rng.integers(0, 3, 60)).candidates]
    always = ["given", "temperature", "focal-temperature"]
    assert names == [*always, "vector", "top-isotonic", "matrix", "isotonic", "mixture"]


@pytest.mark.parametrize(
    ("methods", "chosen", "rule"),
    [
        (
            (BETA, PLATT, GIVEN),
            PLATT,
            "Platt scaling was chosen: its cross-validated NLL is within one standard error of the lowest (beta "
            "calibration, 0.4120; difference 0.0010 ± 0.0020, p = 0.309), and of such methods it has the fewest "
            "parameters (2 instead of 3).",
        ),
        (
            (BETA, PLATT, GIVEN),
            GIVEN,
            "The scores as given were kept: their cross-validated NLL is within one standard error of the lowest (beta "
            "calibration, 0.4120; difference 0.0080 ± 0.0100, p = 0.212), and they need no fit.",
        ),
        (
            (BETA, PLATT),
            BETA,
            "Beta calibration was chosen: it has the lowest cross-validated NLL (0.4120; next, Platt scaling, "
            "0.0010 ± 0.0020 higher), and no method with fewer parameters is within one standard error.",
        ),
        (
            (CrossValidated("given", "As given", 0.41, 0.0, 0.0, 0, 1.0), PLATT),
            CrossValidated("given", "As given", 0.41, 0.0, 0.0, 0, 1.0),
            "The scores as given were kept: they have the lowest cross-validated NLL (0.4100; next, Platt scaling, "
            "0.0010 ± 0.0020 higher), and they need no fit.",
        ),
        (
            (BETA, CrossValidated("posterior", "Closed-form posterior", 0.412, 1e-6, 2e-6, 0, None)),
            CrossValidated("posterior", "Closed-form posterior", 0.412, 1e-6, 2e-6, 0, None),
            "Closed-form posterior was chosen: its cross-validated NLL is within one standard error of the lowest "
            "(beta calibration, 0.4120; difference less than 0.0001), and it needs no fit.",
        ),
        (
            (BETA,),
            BETA,
            "Beta calibration was chosen: it has the lowest cross-validated NLL (0.4120), and no method with fewer "
            "parameters is within one standard error.",
        ),
    ],
)
def test_the_rule_in_words(methods, chosen, rule):
    assert Choice(methods, chosen).rule == rule


def test_the_rule_stands_below_the_table_on_the_page_and_in_json():
    log_odds, labels = draw("platt", rows=2000)
    calibration = calibrate(log_odds[:1000], labels[:1000])
    report = calibration.report(log_odds[1000:], labels[1000:])
    assert report.rule == calibration.rule
    assert report.rule.startswith("Platt scaling was chosen: ")
    assert json.loads(report.to_json())["rule"] == report.rule
    shown = io.StringIO()
    Console(file=shown, width=1000).print(build_table(report))
    assert shown.getvalue().rstrip().endswith(report.rule)
    page = render_page(report)
    assert page.index("</table>") < page.index(f"<p>{report.rule}</p>") < page.index('id="reliability"')
    assert cross_calibrate(log_odds, labels).report.rule.startswith("Platt scaling was chosen: ")


def test_a_method_that_the_caller_named_has_no_rule():
    log_odds, labels = draw("platt", rows=200)
    calibration = calibrate(log_odds, labels, method="beta")
    assert calibration.choice is None
    assert calibration.rule is None
    report = calibration.report(log_odds, labels)
    assert report.rule is None
    assert "was chosen" not in render_page(report)


def test_a_small_difference_above_its_standard_error_is_written_out():
    best = CrossValidated("focal-temperature", "Focal temperature scaling", 0.4748, 0.0, 0.0, 2, 1.0)
    near = CrossValidated("temperature", "Temperature scaling", 0.47485, 5e-5, 3e-5, 1, 0.048)
    assert "next, temperature scaling, 5.0e−05 ± 3.0e−05 higher" in Choice((best, near), best).rule
