"""Intervals cover the truth, and paired tests have uniform p-values for equal models."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from scipy.stats import binomtest, kstest, norm, ttest_rel

from arrays import draw_calibrated, sharpen
from refocal import metrics
from refocal.metrics import brier_intervals, inputs

# Every measure with an interval, and the settings that it needs.
MEASURES = [
    (metrics.ece, {}),
    (metrics.ece, {"norm": "l2", "debias": True}),
    (metrics.ece, {"binning": "mukhoti2020"}),
    (metrics.adaptive_ece, {}),
    (metrics.mce, {"bins": 5, "binning": "equal_mass"}),
    (metrics.top_k_ece, {"k": 2}),
    (metrics.classwise_ece, {"reduction": "sum"}),
    (metrics.classwise_ece, {"binning": "equal_mass", "norm": "l2"}),
    (metrics.thresholded_ece, {"threshold": 0.1}),
    (metrics.smooth_ece, {}),
    (metrics.kernel_calibration_error, {}),
    (metrics.kernel_calibration_error, {"unbiased": True}),
    (metrics.brier_decomposition, {"part": "brier"}),
    (metrics.brier_decomposition, {"part": "calibration"}),
    (metrics.brier_decomposition, {"part": "refinement"}),
    (metrics.brier_decomposition, {"part": "resolution"}),
    (metrics.confidence_share, {"part": "share", "threshold": 0.8}),
    (metrics.confidence_share, {"part": "accuracy", "threshold": 0.8}),
    (metrics.nll, {}),
    (metrics.brier, {}),
    (metrics.focal_score, {"gamma": 2}),
    (metrics.error, {}),
    (metrics.auroc, {}),
    (metrics.aurc, {}),
]


def compute_value(measure, probs, labels, *, part=None, **settings):
    found = measure(probs, labels, **settings)
    return found if part is None else getattr(found, part)


def draw_overconfident(seed, count, gap):
    """Confidences in [1/2, 1] and outcomes whose probability is lower by `gap`."""
    rng = np.random.default_rng(seed)
    p = 0.5 + 0.5 * rng.beta(2, 1, count)
    return p, (rng.random(count) < p - gap).astype(int)


@pytest.mark.parametrize(("measure", "settings"), MEASURES)
def test_every_scalar_has_an_interval_around_it(measure, settings):
    probs, labels = draw_calibrated(np.random.default_rng(0), (3000, 3))
    probs = sharpen(probs, power=2)
    found = metrics.interval(measure, probs, labels, resamples=200, **settings)
    assert found.value == pytest.approx(compute_value(measure, probs, labels, **settings), rel=1e-12)
    assert 0 <= found.low < found.value < found.high
    weighted = metrics.interval(measure, probs, labels, resamples=200, sample_weight=np.full(3000, 3.0), **settings)
    assert weighted.value == pytest.approx(found.value, rel=1e-9)
    assert weighted.high - weighted.low == pytest.approx(found.high - found.low, rel=0.35)
    assert metrics.interval(measure, probs, labels, resamples=200, seed=0, **settings) == found
    wide = metrics.interval(measure, probs, labels, resamples=200, level=0.999, **settings)
    assert wide.high - wide.low > found.high - found.low


@pytest.mark.parametrize(
    ("name", "settings"), [("ece", {}), ("nll", {}), ("brier", {}), ("focal_score", {"gamma": 1.0})]
)
def test_intervals_from_logits(name, settings):
    probs, labels = draw_calibrated(np.random.default_rng(1), (500, 3))
    from_logits = metrics.interval(getattr(metrics, name), np.log(probs), labels, input="logits", **settings)
    from_probs = metrics.interval(getattr(metrics, name), probs, labels, **settings)
    assert from_logits.value == pytest.approx(from_probs.value, rel=1e-6)
    # Rounding may change single outcomes that are drawn.
    assert from_logits[1:] == pytest.approx(from_probs[1:], rel=0.03 if name == "ece" else 1e-6)


# The number of samples, and the least number of 95 % intervals that must cover.
often = pytest.mark.parametrize(("repeats", "least"), [(100, 87), pytest.param(200, 176, marks=pytest.mark.slow)])


@often
@pytest.mark.parametrize("gap", [0.0, 0.02, 0.05, 0.15])
def test_ece_interval_covers_the_truth(gap, repeats, least):
    """The 95 % interval covers at least 87 times in 100 samples of 1,000, and at least 176 times in 200.

    For a true coverage of 0.93 or more, which larger simulations show, fewer have a probability below 1e-2. The plain
    percentile interval of a calibrated model never covers.
    """
    hits = plain = 0
    for seed in range(repeats):
        p, y = draw_overconfident(seed, 1000, gap)
        _, low, high = metrics.interval(metrics.ece, p, y, task="binary", resamples=300, seed=seed)
        hits += low <= gap <= high
        if gap == 0.0 and seed < 0.15 * repeats:
            rng = np.random.default_rng(seed)
            draws = [rng.integers(0, 1000, 1000) for _ in range(100)]
            plain += np.quantile([metrics.ece(p[draw], y[draw], task="binary") for draw in draws], 0.025) <= 0
    assert hits >= least
    assert plain == 0


@often
def test_interval_covers_if_one_bin_is_wrong_and_the_others_are_noise(repeats, least):
    """As often as above. The truth is the mean gap: 0.2 for confidences above 14/15, 0 below."""
    grid = 0.5 + 0.5 * np.random.default_rng(99).beta(2, 1, 1_000_000)
    truth = 0.2 * np.mean(grid > 14 / 15)
    hits = 0
    for seed in range(repeats):
        rng = np.random.default_rng(seed)
        p = 0.5 + 0.5 * rng.beta(2, 1, 1000)
        y = (rng.random(1000) < np.where(p > 14 / 15, p - 0.2, p)).astype(int)
        _, low, high = metrics.interval(metrics.ece, p, y, task="binary", resamples=300, seed=seed)
        hits += low <= truth <= high
    assert hits >= least


@pytest.mark.parametrize(
    ("repeats", "least", "resamples"), [(60, 53, 100), pytest.param(100, 88, 200, marks=pytest.mark.slow)]
)
@pytest.mark.thorough
def test_smooth_interval_covers_zero_gap_and_constant_gap(repeats, least, resamples):
    """At least 53 of 60, or 88 of 100, for each gap (fewer: below 1e-2 at a coverage of 0.95)."""
    for gap in (0.0, 0.1):
        hits = 0
        for seed in range(repeats):
            p, y = draw_overconfident(seed, 1000, gap)
            _, low, high = metrics.interval(metrics.smooth_ece, p, y, task="binary", resamples=resamples, seed=seed)
            hits += low <= gap <= high
        assert hits >= least


def count_covered(truth, sample, measure, *, repeats=60, **settings):
    """How often the 95 % interval of `sample(seed)` covers the truth."""
    hits = 0
    for seed in range(repeats):
        _, low, high = metrics.interval(measure, *sample(seed), resamples=200, seed=seed, **settings)
        hits += low <= truth <= high
    return hits


# Fewer than 49 of 60 have probability 8e-4 at a true coverage of 0.93, and 4e-5 at 0.95 (binomial).
LEAST_OF_60 = 49


@functools.cache
def mean_kernel(width):
    """The mean of the kernel over pairs of 2,000 confidences of `draw_overconfident`."""
    x = 0.5 + 0.5 * np.random.default_rng(99).beta(2, 1, 2000)
    return np.exp(-np.abs(x[:, None] - x) / width).mean()


@pytest.mark.parametrize("gap", [0.0, 0.1])
@pytest.mark.parametrize("settings", [{"unbiased": True}, {"unbiased": True, "kernel_width": 0.1}])
@pytest.mark.thorough
def test_unbiased_kernel_interval_covers(gap, settings):
    """The truth is the square of a constant gap times the mean of the kernel over pairs of confidences."""
    hits = count_covered(
        gap**2 * mean_kernel(settings.get("kernel_width", 0.4)),
        lambda seed: draw_overconfident(seed, 500, gap),
        metrics.kernel_calibration_error,
        task="binary",
        **settings,
    )
    assert hits >= LEAST_OF_60


@functools.cache
def true_vector_error(power):
    """E r . r' k(p, p') of a sharpened model, with r = p - posterior, from 200,000 pairs."""
    posterior, _ = draw_calibrated(np.random.default_rng(99), (400_000, 3))
    probs = sharpen(posterior, power=power)
    residual = probs - posterior
    near = np.exp(-np.linalg.norm(probs[::2] - probs[1::2], axis=1) / 0.4)
    return max(0.0, float(np.mean(near * np.sum(residual[::2] * residual[1::2], axis=1))))


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("power", [1, 3])
def test_vector_kernel_interval_covers(power, unbiased):
    def sample(seed, count=150):
        posterior, labels = draw_calibrated(np.random.default_rng(seed), (count, 3))
        return sharpen(posterior, power=power), labels

    square = true_vector_error(power)
    truth = square if unbiased else np.sqrt(square)
    hits = count_covered(truth, sample, metrics.kernel_calibration_error, classes="all", unbiased=unbiased)
    assert hits >= LEAST_OF_60


@pytest.mark.parametrize("part", ["calibration", "refinement", "uncertainty", "resolution"])
@pytest.mark.parametrize("slope", [1.0, 0.5])
@pytest.mark.parametrize(("repeats", "least"), [(60, LEAST_OF_60), pytest.param(400, 360, marks=pytest.mark.slow)])
@pytest.mark.thorough
def test_brier_part_intervals_cover(part, slope, repeats, least):
    """P(y = 1) is 1/2 + slope (p - 1/2) for uniform p, so every part has a closed form.

    At least 49 of 60 intervals from samples of 500 cover it. Of 400, 368 cover the refinement of slope 1 and 387 that
    of slope 0.5.
    """

    def sample(seed):
        rng = np.random.default_rng(seed)
        p = rng.random(500)
        return p, (rng.random(500) < 0.5 + slope * (p - 0.5)).astype(int)

    spread = 1 / 12  # the variance of p
    truth = {"calibration": (1 - slope) ** 2 * spread, "uncertainty": 0.25, "resolution": slope**2 * spread}
    truth["refinement"] = truth["uncertainty"] - truth["resolution"]
    hits = count_covered(truth[part], sample, metrics.brier_decomposition, repeats=repeats, task="binary", part=part)
    assert hits >= least


@pytest.mark.parametrize("count", [1, 10, 1000, 5000])
@pytest.mark.parametrize("classes", [1, 3])
def test_separable_data_have_no_refinement(count, classes):
    """Nor have they errors that could be relative to it."""
    rng = np.random.default_rng(0)
    probs = rng.random(count) if classes == 1 else rng.dirichlet(np.ones(classes), count)
    labels = (probs > 0.5).astype(int) if classes == 1 else probs.argmax(axis=1)
    settings = {"task": "binary" if classes == 1 else "multiclass", "part": "refinement", "resamples": 200}
    value, low, high = metrics.interval(metrics.brier_decomposition, probs, labels, **settings)
    assert low <= value + 1e-6
    assert high < max(0.01, 3 * value)


@pytest.mark.parametrize(
    ("task", "spread", "most"), [("binary", 0.02, 0.25), ("binary", 2.0, 0.25), ("multiclass", 2.0, 2 / 3)]
)
def test_limits_of_the_refinement_divide_by_its_relative_error(monkeypatch, task, spread, most):
    """On the log scale. If some resamples show no refinement, the largest possible one is the upper limit."""
    errors = np.linspace(-spread, spread, 2001) - 0.01
    monkeypatch.setattr(brier_intervals.BrierPartMethod, "_errors", lambda *_: errors)
    probs, labels = draw_calibrated(np.random.default_rng(0), (200, 3))
    if task == "binary":
        probs, labels = probs[:, 0], (labels == 0).astype(int)
    settings = {"task": task, "resamples": 100}
    value, low, high = metrics.interval(metrics.brier_decomposition, probs, labels, part="refinement", **settings)
    center, relative = value + 0.01, 0.95 * spread / (value + 0.01)
    assert low == pytest.approx(center * np.exp(-np.log1p(relative)))
    assert high == pytest.approx(most if relative > 1 else center * np.exp(-np.log1p(-relative)))
    value, low, high = metrics.interval(metrics.brier_decomposition, probs, labels, part="resolution", **settings)
    assert (low, high) == pytest.approx((max(0, value + 0.01 - 0.95 * spread), value + 0.01 + 0.95 * spread))


@pytest.mark.parametrize(("part", "truth"), [("share", 0.19), ("accuracy", (0.9**2 + 0.9 + 1) / (1.9 * 1.5) - 0.05)])
def test_intervals_of_confident_shares_cover(part, truth):
    """Confidence c has density 2c and is right with probability c - 0.05: at least 49 of 60."""

    def sample(seed):
        rng = np.random.default_rng(seed)
        confidence = np.sqrt(rng.random(400))
        confidence = np.maximum(confidence, 1 - confidence)
        right = rng.random(400) < confidence - 0.05
        return np.stack([1 - confidence, confidence], axis=1), right.astype(int)

    assert count_covered(truth, sample, metrics.confidence_share, part=part, threshold=0.9) >= LEAST_OF_60


@pytest.mark.parametrize("measure", [metrics.classwise_ece, metrics.thresholded_ece])
@pytest.mark.parametrize("gap", [0.0, 0.1])
def test_multilabel_intervals_cover(measure, gap):
    """The three labels of a row are right together or wrong together, each off by the same gap: at least 49 of 60."""

    def sample(seed):
        rng = np.random.default_rng(seed)
        p = np.repeat(rng.uniform(0.2, 0.8, (400, 1)), 3, axis=1)
        return p + gap, (rng.random((400, 1)) < p).astype(int)

    assert count_covered(gap, sample, measure, task="multilabel", bins=5) >= LEAST_OF_60


def test_multilabel_columns_of_different_rows():
    """Ignored labels and labels of weight 0 change nothing."""
    rng = np.random.default_rng(0)
    probs, labels = rng.random((200, 3)), rng.integers(0, 2, (200, 3))
    labels[::3, 1] = -1
    weights = np.where(labels < 0, 0.0, 1.0)
    ignored = metrics.interval(metrics.classwise_ece, probs, labels, task="multilabel", ignore_index=-1)
    unweighted = metrics.interval(
        metrics.classwise_ece, probs, np.maximum(labels, 0), task="multilabel", sample_weight=weights
    )
    assert ignored == pytest.approx(unweighted, rel=1e-9)
    labels[:, 2] = -1
    without = metrics.interval(metrics.classwise_ece, probs[:, :2], labels[:, :2], task="multilabel", ignore_index=-1)
    assert metrics.interval(metrics.classwise_ece, probs, labels, task="multilabel", ignore_index=-1) == pytest.approx(
        without
    )


def test_infinite_means_and_shares_of_nothing():
    probs, labels = np.array([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]]), [0, 1, 0]
    assert metrics.interval(metrics.nll, probs, labels) == (np.inf, np.inf, np.inf)
    flat = np.full((3, 2), 0.5)
    assert metrics.paired_test(metrics.nll, probs, flat, labels).p_value == 0
    assert metrics.paired_test(metrics.nll, probs, probs, labels, sample_weight=[1.0, 2.0, 1.0]).p_value == 1
    value, low, high = metrics.interval(metrics.confidence_share, flat, labels, part="accuracy")
    assert np.isnan(value)
    assert (low, high) == (0, 1)


def test_a_ranking_of_only_right_decisions_is_unknown():
    probs, labels = draw_calibrated(np.random.default_rng(1), (50, 3))
    right = probs.argmax(axis=1)
    value, low, high = metrics.interval(metrics.auroc, probs, right, resamples=100)
    assert np.isnan(value)
    assert (low, high) == (0, 1)
    for pair in ((probs, probs[::-1]), (probs[::-1], probs)):
        test = metrics.paired_test(metrics.auroc, *pair, right, resamples=100)
        assert np.isnan(test.p_value)
    assert 0 < metrics.paired_test(metrics.auroc, probs, probs**2 / (probs**2).sum(1)[:, None], labels).p_value <= 1


@pytest.mark.parametrize("part", ["calibration", "refinement", "uncertainty", "resolution"])
def test_few_samples_of_any_weight_have_brier_parts(part):
    probs, labels = draw_calibrated(np.random.default_rng(0), (50, 3))
    weights = np.zeros(50)
    weights[:3] = 1
    found = metrics.interval(
        metrics.brier_decomposition, probs, labels, part=part, sample_weight=weights, resamples=100
    )
    assert 0 <= found.low <= found.high
    for count in (1, 2):
        found = metrics.interval(metrics.brier_decomposition, probs[:count], labels[:count], part=part, resamples=100)
        assert 0 <= found.low <= found.high


def test_claims_of_0_that_came_true_are_wrong():
    sure, came_true = np.array([0.0, 0.0, 1.0]), np.array([1, 1, 1])
    found = metrics.interval(
        metrics.brier_decomposition, sure, came_true, task="binary", part="calibration", resamples=100
    )
    assert found.value == pytest.approx(2 / 3)
    assert 0 < found.low < 0.1
    assert found.high == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("claim", "label", "most"), [(0.9, 1, 0.875**2), (0.9, 0, 1.0), (0.6, 1, 0.575**2), (0.3, 0, 0.675**2)]
)
def test_the_calibration_part_of_one_row_is_nearly_unknown(claim, label, most):
    """A label contradicts only truths that give it less than 2.5 %; if there are none, all errors are possible."""
    settings = {"task": "binary", "part": "calibration", "resamples": 2000}
    value, low, high = metrics.interval(metrics.brier_decomposition, np.array([claim]), np.array([label]), **settings)
    assert value == pytest.approx((claim - label) ** 2)
    assert low == 0
    assert high == pytest.approx(most, rel=0.05)


@pytest.mark.parametrize("count", [2, 5, 20, 100])
def test_few_right_answers_do_not_contradict_calibration(count):
    """Bootstrap resamples of right answers are all right; labels drawn from the predictions are not."""
    claims = np.linspace(0.95, 0.99, count)
    settings = {"task": "binary", "part": "calibration", "resamples": 500}
    found = metrics.interval(metrics.brier_decomposition, claims, np.ones(count, dtype=int), **settings)
    assert found.low == 0
    gap = claims.mean() - 0.025 ** (1 / count)  # all right with 2.5 %, if all claims exceed their frequency by this
    assert 0.6 * gap**2 <= found.high <= 1.4 * gap**2 + 5e-3


@pytest.mark.parametrize("part", ["calibration", "refinement"])
def test_brier_parts_that_are_only_rounding(part):
    rng = np.random.default_rng(0)
    sure = rng.integers(0, 2, (8, 6)).astype(np.float64)
    settings = {"task": "multilabel", "sample_weight": rng.random((8, 6)), "part": part, "resamples": 100}
    test = metrics.paired_test(metrics.brier_decomposition, sure, sure, sure.astype(int), **settings)
    assert test == (0, 0, 1)
    found = metrics.interval(metrics.brier_decomposition, sure, sure.astype(int), **settings)
    assert found[:2] == pytest.approx((0, 0), abs=1e-12)
    # Right claims do not rule out errors that did not occur.
    assert 0.1 < found.high < 0.5 if part == "calibration" else found.high == pytest.approx(0, abs=1e-12)


def mean_of_chosen(values, chosen, draws):
    """The mean of the chosen values in each draw of rows."""
    return (values & chosen)[draws].sum(axis=1) / chosen[draws].sum(axis=1)


def test_paired_accuracy_of_different_samples_agrees_with_a_bootstrap():
    """Each model has its own confident decisions; the p-value agrees with 2,000 bootstrap resamples of rows (z < 4)."""
    rng = np.random.default_rng(0)
    first, labels = draw_calibrated(rng, (1500, 3), spread=3)
    second = sharpen(first, power=2)
    test = metrics.paired_test(metrics.confidence_share, first, second, labels, part="accuracy", threshold=0.9)
    draws = rng.integers(0, 1500, (2000, 1500))
    a, b = (mean_of_chosen(p.argmax(axis=1) == labels, p.max(axis=1) >= 0.9, draws) for p in (first, second))
    expected = 2 * norm.sf(abs(test.first - test.second) / np.std(a - b))
    assert norm.isf(test.p_value / 2) == pytest.approx(norm.isf(expected / 2), rel=4 / np.sqrt(2 * 2000))


@pytest.mark.parametrize("measure", [metrics.ece, metrics.mce, metrics.smooth_ece, metrics.aurc, metrics.error])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_samples_have_an_interval(measure, count):
    probs, labels = draw_calibrated(np.random.default_rng(0), (count, 3))
    value, low, high = metrics.interval(measure, probs, labels, resamples=200)
    assert 0 <= low <= high <= 1
    assert 0 <= value <= 1


@pytest.mark.parametrize(
    "measure", [metrics.ece, metrics.adaptive_ece, metrics.mce, metrics.smooth_ece, metrics.kernel_calibration_error]
)
@pytest.mark.parametrize("count", [20, 100])
def test_right_answers_at_confidence_1_leave_room_for_errors(measure, count):
    """If errors have probability u, none occur with probability (1 - u)^count: the limit is where that is .025."""
    value, low, high = metrics.interval(measure, np.ones(count), np.ones(count, dtype=int), task="binary")
    assert (value, low) == pytest.approx((0, 0), abs=1e-12)
    assert high == pytest.approx(1 - 0.025 ** (1 / count), rel=0.2)


@pytest.mark.parametrize("measure", [metrics.classwise_ece, metrics.thresholded_ece])
def test_certain_rows_leave_room_for_errors(measure):
    labels = np.arange(100) % 2
    value, low, high = metrics.interval(measure, np.eye(2)[labels], labels)
    assert (value, low) == (0, 0)
    assert 0.01 < high < 0.2


@pytest.mark.parametrize("measure", [*(each for each, _ in MEASURES[:4:3]), metrics.mce, metrics.smooth_ece])
@pytest.mark.parametrize("label", [0, 1])
def test_one_sample_says_little(measure, label):
    """One claim of .7 is compatible with every frequency from .025 on (if it came true), or up to .975."""
    value, low, high = metrics.interval(measure, np.array([0.7]), np.array([label]), task="binary")
    assert low == 0
    assert value <= high <= 1
    assert high >= 0.65


@pytest.mark.parametrize("measure", [metrics.ece, metrics.mce, metrics.smooth_ece, metrics.kernel_calibration_error])
def test_a_gap_of_zero_has_an_interval(measure):
    """Exactly half of 100 claims of 1/2 came true: luck, so the limit is that of the median gap of such samples."""
    found = metrics.interval(measure, np.full(100, 0.5), np.arange(100) % 2, task="binary")
    assert (found.value, found.low) == pytest.approx((0, 0), abs=1e-12)
    assert found.high == pytest.approx((norm.ppf(0.975) + norm.ppf(0.75)) * 0.05, rel=0.12)


def draw_classes(seed, count, classes, *, power=1.0):
    """Predictions of `classes` classes whose posterior is their root of order `power`, and labels."""
    rng = np.random.default_rng(seed)
    posterior = np.exp(2 * rng.standard_normal((count, classes)))
    posterior /= posterior.sum(axis=1, keepdims=True)
    labels = (posterior.cumsum(axis=1) < rng.random((count, 1))).sum(axis=1).clip(0, classes - 1)
    return sharpen(posterior, power=power), labels


@pytest.mark.parametrize("measure", [metrics.classwise_ece, metrics.thresholded_ece])
@pytest.mark.parametrize(("classes", "count", "repeats", "least"), [(10, 300, 30, 25), (100, 1000, 8, 6)])
def test_many_classes_of_a_calibrated_model_may_be_calibrated(measure, classes, count, repeats, least):
    """The lower limit is 0 for 97.5 % of calibrated models; fewer than `least` have a probability below 1e-3."""
    hits = 0
    for seed in range(repeats):
        hits += metrics.interval(measure, *draw_classes(seed, count, classes), resamples=120, seed=seed).low == 0
    assert hits >= least


@pytest.mark.parametrize("measure", [metrics.adaptive_ece, metrics.smooth_ece])
@pytest.mark.thorough
def test_intervals_of_unsure_scores_cover(measure):
    """Confidence c is right with probability min(1, c + .1): 49 of 60 samples of 300 or more cover."""
    claims = 0.5 + 0.5 * np.random.default_rng(99).beta(2, 1, 1_000_000)
    truth = np.mean(np.minimum(0.1, 1 - claims))

    def sample(seed):
        rng = np.random.default_rng(seed)
        claim = 0.5 + 0.5 * rng.beta(2, 1, 300)
        return claim, (rng.random(300) < claim + 0.1).astype(int)

    assert count_covered(truth, sample, measure, task="binary") >= LEAST_OF_60


def test_analytic_intervals_agree_with_the_textbook():
    probs, labels = draw_calibrated(np.random.default_rng(2), (400, 3))
    wrong = int(np.sum(probs.argmax(axis=1) != labels))
    wilson = binomtest(wrong, 400).proportion_ci(0.9, method="wilson")
    found = metrics.interval(metrics.error, probs, labels, level=0.9)
    assert (found.low, found.high) == pytest.approx((wilson.low, wilson.high), rel=1e-9)
    scores = -np.log(probs[np.arange(400), labels])
    half = norm.ppf(0.975) * scores.std(ddof=1) / 20
    found = metrics.interval(metrics.nll, probs, labels)
    assert (found.low, found.high) == pytest.approx((scores.mean() - half, scores.mean() + half), rel=1e-9)
    posterior, _ = draw_calibrated(np.random.default_rng(3), (400, 3))
    for refused, message in (
        ({"ignore_index": 0}, "ignore_index must be None for kl_to_posterior, got 0"),
        ({"task": "binary"}, "task must be one of 'multiclass', got 'binary'"),
    ):
        with pytest.raises(ValueError, match=message):
            metrics.interval(metrics.kl_to_posterior, probs, posterior, **refused)
    assert metrics.interval(metrics.kl_to_posterior, probs, posterior).value == metrics.kl_to_posterior(
        probs, posterior
    )


def test_grouped_samples_give_the_same_interval():
    """More than 2,048 samples are grouped; single samples give the same interval."""
    p, y = draw_overconfident(0, 6000, 0.03)
    grouped = metrics.interval(metrics.ece, p, y, task="binary", resamples=2000)
    single = metrics.interval(metrics.ece, p, y, task="binary", resamples=2000, sample_weight=np.ones(6000))
    assert single == pytest.approx(grouped, abs=2e-3)


@pytest.mark.parametrize("measure", [metrics.ece, metrics.nll, metrics.auroc])
def test_paired_p_values_are_uniform_for_equal_models(measure):
    """60 pairs of two noisy copies of one calibrated model, 600 samples each (Kolmogorov-Smirnov test at 1e-3)."""
    values = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        score = rng.standard_normal(600) * 2
        y = (rng.random(600) < 1 / (1 + np.exp(-score))).astype(int)
        first, second = (1 / (1 + np.exp(-(score + rng.standard_normal(600)))) for _ in range(2))
        values.append(metrics.paired_test(measure, first, second, y, task="binary", resamples=200, seed=seed).p_value)
    assert kstest(values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("gap", [0.0, 0.05])
def test_a_difference_of_biases_is_no_difference(gap):
    """A sharp and a constant model are off by the same gap. The sharp one uses more bins, so its ECE is larger.

    Of 60 tests at .05 more than 9 reject with a probability of 1e-3.
    """
    rejected = larger = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p = rng.uniform(0.1, 0.9, 1000)
        y = (rng.random(1000) < p).astype(int)
        constant = np.full(1000, 0.5 + gap)
        test = metrics.paired_test(metrics.ece, p + gap, constant, y, task="binary", resamples=200, seed=seed)
        larger += test.first > test.second
        rejected += test.p_value < 0.05
    assert larger > 40
    assert rejected <= 9


@pytest.mark.parametrize("measure", [metrics.ece, metrics.adaptive_ece])
def test_opposite_gaps_are_equal_errors(measure):
    """One model is .1 too high, the other .1 too low: of 60 tests at .05, more than 9 reject with probability 1e-3."""
    rejected = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        p = rng.uniform(0.2, 0.8, 300)
        y = (rng.random(300) < p).astype(int)
        test = metrics.paired_test(measure, p + 0.1, p - 0.1, y, task="binary", resamples=100, seed=seed)
        rejected += test.p_value <= 0.05
    assert rejected <= 9


def test_the_uncertainty_of_two_models_is_not_tested():
    probs, labels = draw_calibrated(np.random.default_rng(1), (50, 3))
    with pytest.raises(ValueError, match="part must not be 'uncertainty' in a paired test: it depends on the labels"):
        metrics.paired_test(metrics.brier_decomposition, probs, probs, labels, part="uncertainty")


@pytest.mark.parametrize("measure", [metrics.ece, metrics.nll, metrics.auroc])
@pytest.mark.parametrize("convert", [np.asarray, np.ndarray.tolist])
def test_paired_test_of_different_rows_names_the_scores(measure, convert):
    probs, labels = draw_calibrated(np.random.default_rng(0), (50, 3))
    message = "first and second must have equally many rows, got 50 and 49 rows"
    with pytest.raises(ValueError, match=message):
        metrics.paired_test(measure, convert(probs), convert(probs[:-1]), labels)
    with pytest.raises(ValueError, match=r"labels must have shape \(50,\), got \(49,\)"):
        metrics.paired_test(measure, convert(probs), convert(probs), labels[:-1])


@pytest.mark.parametrize(("measure", "settings"), MEASURES)
def test_paired_test_finds_the_worse_model(measure, settings):
    probs, labels = draw_calibrated(np.random.default_rng(4), (4000, 3), spread=3)
    worse = sharpen(probs, power=3)
    if measure in (metrics.error, metrics.auroc, metrics.aurc) or settings.get("part") in (
        "refinement",
        "resolution",
    ):  # measures that an increasing map hardly changes
        worse = 0.2 * probs + 0.8 * np.random.default_rng(5).dirichlet(np.ones(3), 4000)
    test = metrics.paired_test(measure, probs, worse, labels, resamples=200, **settings)
    expected = [compute_value(measure, p, labels, **settings) for p in (probs, worse)]
    assert [test.first, test.second] == pytest.approx(expected, rel=1e-12)
    assert test.p_value < 0.01
    same = metrics.paired_test(measure, probs, probs, labels, resamples=200, **settings)
    assert same.first == same.second
    assert same.p_value == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(
    ("measure", "settings"), [*MEASURES[:12], (metrics.brier_decomposition, {"part": "calibration"})]
)
def test_a_model_without_any_gap_differs_from_a_worse_one(measure, settings):
    """If all residuals are 0, there is no direction in which the truth could lie."""
    rng = np.random.default_rng(6)
    labels = rng.integers(0, 3, 500)
    perfect = np.eye(3)[labels]
    sure = rng.uniform(0.8, 0.95, (500, 1))
    worse = sure * np.eye(3)[rng.integers(0, 3, 500)] + (1 - sure) / 3
    for pair in ((perfect, worse), (worse, perfect)):
        test = metrics.paired_test(measure, *pair, labels, resamples=200, **settings)
        assert abs(test.first - test.second) > 0.1
        assert test.p_value < 0.01


def test_paired_means_agree_with_the_paired_t_test():
    probs, labels = draw_calibrated(np.random.default_rng(6), (2000, 3))
    other = sharpen(probs, power=1.1)
    losses = [-np.log(rows[np.arange(2000), labels]) for rows in (probs, other)]
    found = metrics.paired_test(metrics.nll, probs, other, labels)
    assert found.p_value == pytest.approx(ttest_rel(*losses).pvalue, rel=0.02)


def test_bad_requests(monkeypatch):
    monkeypatch.setattr(inputs, "_BLOCK_ELEMENTS", 1 << 17)
    probs, labels = np.array([[0.5, 0.5], [0.2, 0.8]]), [0, 1]
    for function in (metrics.interval, lambda measure, p, y, **rest: metrics.paired_test(measure, p, p, y, **rest)):
        with pytest.raises(ValueError, match=r"measure must be one of refocal.metrics' functions nll, .*got <built-in"):
            function(max, probs, labels)
        with pytest.raises(ValueError, match=r"measure must be one of .*got \[\]"):
            function([], probs, labels)
        with pytest.raises(TypeError, match="auroc has no setting 'bins'"):
            function(metrics.auroc, probs, labels, bins=3)
        with pytest.raises(ValueError, match="resamples must be at least 100, got 5"):
            function(metrics.ece, probs, labels, resamples=5)
        with pytest.raises(ValueError, match="part must be one of 'share', 'accuracy', got None"):
            function(metrics.confidence_share, probs, labels)
        with pytest.raises(ValueError, match="part must be None for a measure that is one number, got 'share'"):
            function(metrics.ece, probs, labels, part="share")
        with pytest.raises(TypeError, match="brier_decomposition has no setting 'bins'"):
            function(metrics.brier_decomposition, probs, labels, part="calibration", bins=3)
        with pytest.raises(TypeError, match="top_k_ece needs the setting 'k'"):
            function(metrics.top_k_ece, probs, labels)
        with pytest.raises(ValueError, match="task must be one of 'multiclass', 'multilabel', got 'binary'"):
            function(metrics.classwise_ece, probs[:, 0], labels, task="binary")
        with pytest.raises(ValueError, match=r"some probability must be above the threshold 0.9, got none"):
            function(metrics.thresholded_ece, probs, labels, threshold=0.9)
        with pytest.raises(ValueError, match="needs two samples or more, got 1"):
            function(metrics.nll, probs[:1], labels[:1])
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1, got 95"):
        metrics.interval(metrics.ece, probs, labels, level=95)


def test_sums_of_many_rows_agree_with_those_of_few(monkeypatch):
    """Gaussian sums have the covariance of resampled ones, within the error of 4,000 resamples (z < 5)."""
    from refocal.metrics.inputs import read
    from refocal.metrics.residuals import classwise_residuals
    from refocal.stats import resampling

    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(4), 3000)
    labels = rng.integers(0, 4, 3000)
    weights = rng.uniform(0.5, 2.0, 3000)
    settings = {"bins": 5, "binning": "equal_width", "norm": "l1", "reduction": "mean"}
    samples = [read(scores, labels, weights) for scores in (probs, probs[:, ::-1])]
    both = [classwise_residuals(sample, by_row=True, **settings) for sample in samples]
    drawn = {}
    for many in (10**6, 0):
        monkeypatch.setattr(resampling, "_MANY_CELLS", many)
        parts = resampling.bootstrap_sums(
            [gaps.residuals for gaps in both], both[0].weight, resamples=4000, rng=np.random.default_rng(4)
        )
        drawn[many] = np.cov(np.concatenate(parts, axis=1).T)
    scale = np.sqrt(np.diag(drawn[0]))
    correlations = [drawn[many] / np.outer(scale, scale) for many in drawn]
    assert np.nanmax(np.abs(correlations[0] - correlations[1])) < 5 * np.sqrt(2 * 2 / 4000)


@pytest.mark.parametrize("measure", [metrics.ece, metrics.adaptive_ece])
def test_the_interval_of_a_calibrated_model_holds_its_value(measure):
    """Even the luckiest of 40 samples, whose error is smaller than noise usually makes it."""
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        p = rng.random(500)
        found.append(metrics.interval(measure, p, (rng.random(500) < p).astype(int), task="binary", resamples=200))
    luckiest = min(found, key=lambda each: each.value)
    assert luckiest.low == 0
    assert luckiest.high > luckiest.value
