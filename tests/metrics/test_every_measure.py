"""Properties of every measure: logits, ignored labels, integer weights, and the error that its intervals start from."""

from __future__ import annotations

import functools
import inspect

import numpy as np
import pytest

from arrays import draw_calibrated, sharpen
from refocal import metrics
from refocal.metrics import residuals
from refocal.metrics.brier_intervals import brier_residuals, resample_brier
from refocal.metrics.inputs import read
from refocal.metrics.measure_record import Request
from refocal.metrics.norm_intervals import NormMethod, _quadratic_direction, kernel_evidence
from refocal.metrics.registry import MEASURES as RECORDS
from refocal.metrics.registry import find_measure
from refocal.metrics.smooth_error import bandwidth_error, find_smooth_error
from refocal.stats.inverted_tests import two_sided_p_value
from refocal.stats.isotonic import calibration_part

NEEDED = {"top_k_ece": {"k": 2}, "focal_score": {"gamma": 2.0}}
MEASURES = [
    name
    for name in metrics.__all__
    if inspect.isfunction(getattr(metrics, name))
    and "ignore_index" in inspect.signature(getattr(metrics, name)).parameters
    and name not in ("diagnose", "interval", "paired_test")
]
DRAWN = ("calibration_test", "reliability_diagram")
INPUTS = pytest.mark.parametrize("input", ["logits", "probs"])
RANKED = ("aurc",)  # it orders repeated samples at random


def sample(count=300):
    probs, labels = draw_calibrated(np.random.default_rng(0), (count, 4))
    return sharpen(probs, power=1.5), labels


def value(name, probs, labels, *, input="probs", **options):
    """The value of a measure, as a flat list of numbers."""
    scores = np.log(probs) if input == "logits" else probs
    found = getattr(metrics, name)(scores, labels, input=input, **NEEDED.get(name, {}), **options)
    return np.concatenate([np.ravel(part) for part in found]) if isinstance(found, tuple) else found


@pytest.mark.parametrize("name", MEASURES)
def test_logits_give_the_same_as_their_probabilities(name):
    probs, labels = sample()
    found = value(name, probs, labels, input="logits")
    np.testing.assert_allclose(found, value(name, probs, labels), rtol=1e-9)


@INPUTS
@pytest.mark.parametrize("name", MEASURES)
def test_ignored_labels_do_not_count(name, input):
    probs, labels = sample()
    ignored = np.where(np.arange(300) % 3 == 0, 7, labels)
    kept = ignored != 7
    for weights in (None, np.random.default_rng(1).random(300)):
        found = value(name, probs, ignored, input=input, ignore_index=7, sample_weight=weights)
        kept_weights = None if weights is None else weights[kept]
        alone = value(name, probs[kept], labels[kept], input=input, sample_weight=kept_weights)
        np.testing.assert_allclose(found, alone, rtol=1e-9)


@INPUTS
@pytest.mark.parametrize("name", [name for name in MEASURES if name not in DRAWN + RANKED])
def test_integer_weights_are_repeated_samples(name, input):
    probs, labels = sample()
    times = np.random.default_rng(2).integers(1, 4, 300)
    found = value(name, probs, labels, input=input, sample_weight=times)
    repeated = value(name, np.repeat(probs, times, axis=0), np.repeat(labels, times), input=input)
    np.testing.assert_allclose(found, repeated, rtol=2e-3 if name == "smooth_ece" else 1e-9)


SETTINGS = {
    metrics.ece: [
        {},
        {"bins": 7, "norm": "l2"},
        {"bins": 9, "binning": "equal_mass"},
        {"binning": "guo2017"},
        {"binning": "mukhoti2020", "norm": "max"},
    ],
    metrics.adaptive_ece: [{}, {"bins": 5}, {"binning": "mukhoti2020"}],
    metrics.mce: [{}, {"bins": 4}],
    metrics.top_k_ece: [{"k": 2}, {"k": 1, "bins": 6, "norm": "l2"}],
    metrics.classwise_ece: [{}, {"reduction": "sum"}, {"bins": 6, "norm": "l2"}, {"binning": "mukhoti2020"}],
    metrics.thresholded_ece: [{}, {"threshold": 0.25}, {"bins": 4, "binning": "equal_width"}],
    metrics.smooth_ece: [{}],
    metrics.kernel_calibration_error: [{}, {"kernel_width": 0.1}, {"unbiased": True}],
}


RESIDUALS = {
    metrics.ece: residuals.binned_residuals,
    metrics.adaptive_ece: residuals.binned_residuals,
    metrics.mce: functools.partial(residuals.binned_residuals, norm="max"),
    metrics.top_k_ece: residuals.top_k_residuals,
    metrics.classwise_ece: residuals.classwise_residuals,
    metrics.thresholded_ece: residuals.thresholded_residuals,
    metrics.smooth_ece: residuals.smooth_residuals,
    metrics.kernel_calibration_error: residuals.kernel_residuals,
}


def build_residuals(measure, scores, labels, settings, *, by_row, **common):
    complete = find_measure(measure).complete_settings(settings)
    return RESIDUALS[measure](read(scores, labels, **common), by_row=by_row, **complete)


def test_every_norm_is_tested_here():
    norms = {record.function for record in RECORDS if isinstance(record.methods.get(None), NormMethod)}
    assert norms == set(RESIDUALS) == set(SETTINGS)


def test_every_measure_has_a_record():
    without = {"calibration_test", "reliability_diagram"}
    assert {record.name for record in RECORDS} == {*MEASURES, "kl_to_posterior"} - without


@INPUTS
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("measure", RESIDUALS, ids=lambda measure: measure.__name__)
def test_intervals_start_from_the_measure_itself(measure, weighted, input):
    """The norm of the summed residuals is the measure, for its defaults and its settings, with the right bound.

    A smooth or kernel error is a sum over levels of confidence, which include the pair of each sample with itself.
    """
    probs, labels = sample()
    probs[:3] = [[1, 0, 0, 0], [0.01, 0.01, 0.01, 0.97], [0.25, 0.25, 0.25, 0.25]]
    scores = np.log(np.maximum(probs, 1e-30)) if input == "logits" else probs
    weights = np.random.default_rng(3).random(300) if weighted else None
    common = {"input": input, "sample_weight": weights}
    for settings in SETTINGS[measure]:
        gaps = build_residuals(measure, scores, labels, settings, by_row=True, **common)
        biased = {**settings, "unbiased": False} if "unbiased" in settings else settings
        expected = measure(scores, labels, **common, **biased) ** gaps.power
        coarse = measure in (metrics.smooth_ece, metrics.kernel_calibration_error)
        for sums in (gaps.columns.residual, gaps.residuals.sum(axis=0) / gaps.weight.sum()):
            found = float(gaps.norm(sums)) ** gaps.power
            assert found == pytest.approx(expected, rel=5e-3 if coarse else 1e-9), settings
        assert gaps.most == (4.0 if settings.get("reduction") == "sum" else 1.0)


@pytest.mark.parametrize("count", [20, 1000, 5000])
@pytest.mark.parametrize("power", [0.8, 1.0, 1.5])
def test_intervals_of_the_smooth_error_find_its_bandwidth(count, power):
    """The measure rounds its bandwidth up to a multiple of 1/1024; here rounding may end one step away."""
    probs, labels = draw_calibrated(np.random.default_rng(count), (count, 10))
    probs = sharpen(probs, power=power)
    for weights in (None, np.random.default_rng(1).random(count)):
        common = {"input": "probs", "sample_weight": weights}
        gaps = build_residuals(metrics.smooth_ece, probs, labels, {}, by_row=False, **common)
        events = read(probs, labels, **common).all_events()
        bandwidth = find_smooth_error(events).bandwidth
        most, least = (bandwidth_error(events, bandwidth + step) for step in (-1 / 1024, 1 / 1024))
        assert least * (1 - 5e-3) <= float(gaps.norm(gaps.columns.residual)) <= most * (1 + 5e-3)


@pytest.mark.parametrize("exponent", [-2.0, -0.5, 0.0])
def test_the_fixed_point_of_a_power(exponent):
    """The error a w^b equals the width at w = a^(1 / (1 - b)); the measure takes the next multiple of 1/1024."""
    widths = np.geomspace(0.01, 0.3, 9)
    factors = np.geomspace(0.02, 0.2, 30) ** (1 - exponent)  # the fixed points lie between 0.02 and 0.2
    calls = []

    def error(number, rows):
        calls.append(len(rows))
        return factors[rows] * widths[number] ** exponent

    found = residuals._fixed_point(widths, error, 30)
    rounded = np.ceil(1024 * np.geomspace(0.02, 0.2, 30)) / 1024
    np.testing.assert_allclose(found, factors * rounded**exponent, rtol=1e-9)
    assert sum(calls) <= 5 * 30  # a bisection
    outside = residuals._fixed_point(widths, lambda _, rows: np.full(len(rows), 1e-9), 2)
    assert np.all(outside == pytest.approx(1e-9))
    beyond = residuals._fixed_point(widths, lambda number, rows: np.full(len(rows), 9 / (1 + widths[number])), 2)
    assert np.all(beyond == pytest.approx(9 / 1.3))


def test_the_fixed_point_between_widths_that_are_closer_than_those_of_the_measure():
    """The next multiple of 1/1024 lies beyond the nearest neighbors. Between the others, the error is a power, too."""
    widths = np.geomspace(0.0005, 0.003, 9)
    errors = 0.0011 * np.exp(-(((widths - 0.0005) / 0.0015) ** 2))
    found = residuals._fixed_point(widths, lambda number, rows: np.full(len(rows), errors[number]), 1)
    assert np.interp(1 / 1024, widths, errors) > 1 / 1024  # so the measure takes 2 / 1024
    assert found == pytest.approx(np.exp(np.interp(np.log(2 / 1024), np.log(widths), np.log(errors))))


def find_directions(measure, scores, labels, **options):
    common = {"input": "probs", "sample_weight": None, "task": "multiclass", "ignore_index": None}
    record = find_measure(measure)
    settings = record.complete_settings({"bins": 10})
    request = Request(record, labels, {**common, **options}, settings, None, 100, np.random.default_rng(0))
    (evidence,) = record.methods[None].evidence(request, scores)
    return evidence.directions


def test_gaps_that_may_be_noise_are_left_out_of_some_directions():
    """Claims of 0.5 have a standard error of 0.05 here; the gaps are 5, 2.4 and 1 of them, in three bins."""
    claims = np.repeat([0.38, 0.5, 0.62], 100)
    labels = np.concatenate([np.arange(100) < count for count in (38 - 25, 50 - 12, 62 - 5)]).astype(int)
    every, two, three, _ = find_directions(metrics.ece, claims, labels, task="binary")
    assert every.truth(1.0) == pytest.approx((0.25 + 0.12 + 0.05) / 3)
    assert two.truth(1.0) == pytest.approx((0.25 + 0.12) / 3)
    assert three.truth(1.0) == pytest.approx(0.25 / 3)


def test_the_mean_gap_of_the_classes_is_a_direction():
    probs, labels = sample()
    *_, mean = find_directions(metrics.classwise_ece, probs, labels)
    gaps = build_residuals(metrics.classwise_ece, probs, labels, {"bins": 10}, by_row=True, input="probs")
    residual, weight = (part.reshape(4, 10).sum(axis=0) for part in (gaps.columns.residual, gaps.columns.weight))
    gap = np.divide(residual, weight, out=np.zeros(10), where=weight > 0)
    assert mean.truth(1.0) == pytest.approx(float(np.sum(weight * np.abs(gap))), rel=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", ["binary", "multiclass", "multilabel"])
def test_intervals_of_the_calibration_part_start_from_it(task, weighted):
    """Without weights, each row has its own cell here. A true gap has the part that the same hits would show."""
    probs, labels = sample(100)
    if task == "binary":
        probs, labels = probs[:, 1], (labels == 1).astype(int)
    elif task == "multilabel":
        labels = np.eye(4, dtype=int)[labels]
    weights = np.random.default_rng(3).random(labels.shape) if weighted else None
    common = {"sample_weight": weights, "task": task}
    gaps = brier_residuals(read(probs, labels, input="probs", **common), by_row=False, task=task)
    part = metrics.brier_decomposition(probs, labels, **common).calibration
    assert float(gaps.norm(gaps.columns.residual)) == pytest.approx(part, rel=1e-2 if weighted else 1e-9)
    for gap in (gaps.columns.possible_gaps().bound(np.full(len(gaps.columns.weight), 0.05)), gaps.columns.gap):
        weight = gaps.columns.weight
        assert weight @ gaps.row_losses(gap) == pytest.approx(float(gaps.norm(weight * gap)), rel=1e-9)
    assert gaps.most == (2.0 if task == "multiclass" else 1.0)


@pytest.mark.parametrize("power", [1, 2])
def test_a_quadratic_form_along_a_direction(power):
    """(t w + v) M (t w + v), or its root, from w M w, v M w and v M v."""
    rng = np.random.default_rng(4)
    root = rng.normal(size=(5, 5))
    form, w, noise = root @ root.T, rng.random(5), rng.normal(size=(7, 5))
    squares = np.einsum("ij,jk,ik->i", noise, form, noise)
    direction = _quadratic_direction(w @ form @ w, noise @ form @ w, squares, power=power)
    for t in (0.0, 0.5, 3.0):
        moved = t * w + noise
        expected = np.sqrt(np.einsum("ij,jk,ik->i", moved, form, moved)) ** power
        np.testing.assert_allclose(direction.simulate(t), expected, rtol=1e-9)
    assert direction.truth(1.0) == pytest.approx(np.sqrt(w @ form @ w) ** power)
    rounded = _quadratic_direction(1.0, np.array([-1.0]), np.array([1.0 - 1e-16]), power=power)
    assert rounded.simulate(1.0) == pytest.approx(0, abs=1e-7)


def test_a_probability_at_the_threshold_is_not_above_it():
    probs, labels = np.array([[0.25, 0.75], [0.25, 0.75], [0.5, 0.5]]), np.array([0, 0, 1])
    # Of the first class only 0.5 is left, which is wrong; of the second class all are left, in one bin.
    found = metrics.thresholded_ece(probs, labels, threshold=0.25, bins=1)
    assert found == pytest.approx((0.5 + (0.75 + 0.75 + 0.5 - 1) / 3) / 2)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(("unbiased", "most"), [(False, np.sqrt(2)), (True, 2.0)])
def test_the_kernel_error_of_rows_is_at_most_the_distance_of_two_corners(unbiased, most, classes):
    probs, labels = draw_calibrated(np.random.default_rng(0), (50, classes))
    common = {"input": "probs", "sample_weight": None, "task": "multiclass", "ignore_index": None}
    settings = {"classes": "all", "unbiased": unbiased}
    measure = find_measure(metrics.kernel_calibration_error)
    complete = measure.complete_settings(settings)
    request = Request(measure, labels, common, complete, None, 100, np.random.default_rng(0))
    (evidence,) = kernel_evidence(request, probs)
    assert evidence.most == pytest.approx(most)
    biased = metrics.kernel_calibration_error(probs, labels, classes="all")
    assert evidence.value == pytest.approx(biased**2 if unbiased else biased, rel=1e-9)


def test_a_p_value_counts_values_as_far_from_the_mean():
    null = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    assert two_sided_p_value(1.0, null) == pytest.approx(5 / 6)
    assert two_sided_p_value(-1.5, null) == pytest.approx(3 / 6)
    assert two_sided_p_value(9.0, null + 7) == pytest.approx(3 / 6)
    assert two_sided_p_value(3.0, null) == pytest.approx(1 / 6)


@pytest.mark.parametrize("measure", [metrics.nll, metrics.brier, metrics.error, metrics.ece, metrics.auroc])
def test_a_model_does_not_differ_from_itself(measure):
    probs, labels = sample()
    found = metrics.paired_test(measure, probs, probs, labels, resamples=100)
    assert found.first == found.second
    assert found.p_value == 1


def test_predictions_move_from_recalibrated_to_given():
    """At t = 0 the model is calibrated; at t = 1 its mean squared error against the truth is that of p - pi."""
    probs, labels = sample()
    common = {"input": "probs", "sample_weight": None, "task": "multiclass", "ignore_index": None}
    measure = find_measure(metrics.brier_decomposition)
    request = Request(measure, labels, common, {}, None, 2000, np.random.default_rng(0))
    (resampled,) = resample_brier(request, probs)
    assert resampled.truth(0.0, calibration_part) == pytest.approx(0, abs=1e-12)
    squares = resampled.mass * (resampled.places - resampled.fitted) ** 2
    assert resampled.truth(1.0, calibration_part) == pytest.approx(squares.sum() / 300, rel=1e-6)
    for drawn, mean in ((resampled.deviations, 0.0), (resampled.resampled_mass, resampled.mass)):
        used = resampled.mass > 0.5
        away = np.abs(drawn.mean(axis=0) - mean)[used]
        assert np.all(away <= 5 * drawn.std(axis=0)[used] / np.sqrt(2000) + 1e-9)


def test_defaults_are_the_documented_ones():
    probs, labels = sample()
    for stated in (
        {"measure": metrics.kernel_calibration_error, "kernel_width": 0.4, "classes": "top", "unbiased": False},
        {"measure": metrics.thresholded_ece, "threshold": 0.01, "bins": 15, "binning": "equal_mass"},
        {"measure": metrics.classwise_ece, "bins": 15, "binning": "equal_width", "reduction": "mean"},
        {"measure": metrics.confidence_share, "threshold": 0.99},
        {"measure": metrics.mce, "bins": 15},
    ):
        measure = stated.pop("measure")
        assert measure(probs, labels) == measure(probs, labels, **stated)
