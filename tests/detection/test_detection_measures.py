"""D-ECE and LaECE against loops, and their intervals."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from scipy import stats

from drawn_boxes import draw_boxes, draw_scored, draw_truth
from refocal import metrics
from refocal.detection import d_ece, la_ece, match
from refocal.detection.intervals import error_interval, mean_interval
from refocal.detection.measures import BinnedDetections, bin_by_category, bin_detections


def bin_of(score, bins):
    """The right-closed bin of a score; 0 is in the first."""
    return next(number for number in range(1, bins + 1) if score <= number / bins)


def d_ece_slowly(matches, bins):
    """The definition of Küppers et al. (2020), one bin after the other."""
    boxes = [row for row in range(len(matches.matched)) if not matches.ignored[row]]
    scores, total = matches.detections.scores, 0.0
    for number in range(1, bins + 1):
        inside = [row for row in boxes if bin_of(scores[row], bins) == number]
        if inside:
            mean = sum(scores[row] for row in inside) / len(inside)
            precision = sum(matches.matched[row] for row in inside) / len(inside)
            total += len(inside) / len(boxes) * abs(mean - precision)
    return total


def la_ece_slowly(matches, bins):
    """The definition of Oksuz et al. (2023), with precision and mean IoU as two factors."""
    by_category = defaultdict(list)
    for row, category in enumerate(matches.detections.category_ids):
        if not matches.ignored[row]:
            by_category[category].append(row)
    errors = []
    scores = matches.detections.scores
    for boxes in by_category.values():
        error = 0.0
        for number in range(1, bins + 1):
            inside = [row for row in boxes if bin_of(scores[row], bins) == number]
            right = [row for row in inside if matches.matched[row]]
            if inside:
                mean = sum(scores[row] for row in inside) / len(inside)
                precision = len(right) / len(inside)
                iou = sum(matches.iou[row] for row in right) / len(right) if right else 0.0
                error += len(inside) / len(boxes) * abs(mean - precision * iou)
        errors.append(error)
    return sum(errors) / len(errors)


@pytest.mark.parametrize("iou", [0.0, 0.5, 0.75])
@pytest.mark.parametrize("seed", range(3))
def test_the_definitions(seed, iou):
    rng = np.random.default_rng(seed)
    truth = draw_truth(rng, crowds=0.2)
    matches = match(draw_boxes(rng, truth, decimals=2), truth, iou=iou)
    assert matches.ignored.any()
    assert d_ece(matches, bins=7) == pytest.approx(d_ece_slowly(matches, 7), abs=1e-12)
    assert la_ece(matches, bins=7) == pytest.approx(la_ece_slowly(matches, 7), abs=1e-12)
    assert d_ece(matches) == pytest.approx(d_ece_slowly(matches, 15), abs=1e-12)
    assert la_ece(matches) == pytest.approx(la_ece_slowly(matches, 25), abs=1e-12)


def test_d_ece_is_the_ece_of_right_boxes():
    boxes, truth = draw_scored(np.random.default_rng(0))
    matches = match(boxes, truth)
    expected = metrics.ece(matches.detections.scores, matches.matched, task="binary")
    assert d_ece(matches) == pytest.approx(expected, abs=1e-12)


def test_other_scores_take_the_place_of_the_own_ones():
    rng = np.random.default_rng(1)
    boxes, truth = draw_scored(rng, power=2)
    matches = match(boxes, truth)
    assert d_ece(matches, scores=np.sqrt(matches.detections.scores)) < 0.06
    assert d_ece(matches) > 0.15
    right_iou = 0.8 * np.sqrt(matches.detections.scores)
    assert la_ece(matches, scores=right_iou) < 0.09 < la_ece(matches, scores=right_iou + 0.2 * (right_iou < 0.8))
    with pytest.raises(ValueError, match=r"scores must have one value for each of 1,200 detections, got shape \(3,\)"):
        d_ece(matches, scores=np.zeros(3))
    for value in (np.nan, 1.5, -0.1, np.inf):
        with pytest.raises(ValueError, match=f"scores must be from 0 to 1, got {value} in row 2"):
            la_ece(matches, scores=np.where(np.arange(1200) == 2, value, 0.5))
    with pytest.raises(ValueError, match="there are no detections"):
        d_ece(match([], truth))
    with pytest.raises(ValueError, match="bins must be"):
        d_ece(matches, bins=0)


def test_only_ignored_detections():
    box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 5, 5]}
    truth = {"images": [{"id": 1}], "categories": [{"id": 1}], "annotations": [{**box, "iscrowd": 1}]}
    with pytest.raises(ValueError, match="no detections count: there are 1, and all of them are ignored"):
        d_ece(match([{**box, "score": 0.5}], truth))


@pytest.mark.parametrize("bin_boxes", [bin_detections, bin_by_category])
def test_the_interval_holds_the_truth_of_clear_cases(bin_boxes):
    """Scores p**2 of boxes that are right with probability p, and have IoU 0.8 then."""
    boxes, truth = draw_scored(np.random.default_rng(2), images=800, power=2)
    matches = match(boxes, truth)
    factor = 1.0 if bin_boxes is bin_detections else 0.8
    chance = np.random.default_rng(3).random(1_000_000)
    index = np.minimum((chance**2 * 15).astype(int), 14)
    expected = np.abs(np.bincount(index, weights=chance**2 - factor * chance)).sum() / len(chance)
    found = error_interval(bin_boxes(matches, bins=15), resamples=300)
    assert found.low < expected < found.high
    assert 0.01 < found.high - found.low < 0.1


def test_an_image_counts_once_however_often_it_is_repeated():
    """Boxes that are copied within their images tell nothing new; copied images would."""
    boxes, truth = draw_scored(np.random.default_rng(4), images=200, power=2)
    within = [{**box, "bbox": [box["bbox"][0] + 200 * copy, *box["bbox"][1:]]} for box in boxes for copy in range(5)]
    moved = [{**each, "bbox": [each["bbox"][0] + 200 * copy, *each["bbox"][1:]]} for each in truth["annotations"]
             for copy in range(5)]  # fmt: skip
    once = error_interval(bin_detections(match(boxes, truth), bins=15), resamples=500)
    often = error_interval(bin_detections(match(within, {**truth, "annotations": moved}), bins=15), resamples=500)
    assert often.value == pytest.approx(once.value, abs=1e-12)
    assert often.high - often.low > 0.75 * (once.high - once.low)
    independent = match(within, {**truth, "annotations": moved})
    naive = metrics.interval(metrics.ece, independent.detections.scores, independent.matched, task="binary")
    assert naive.high - naive.low < 0.6 * (once.high - once.low)


def test_intervals_are_reproducible_and_follow_the_level():
    boxes, truth = draw_scored(np.random.default_rng(5), images=60)
    binned = bin_detections(match(boxes, truth), bins=15)
    wide, narrow = (error_interval(binned, level=level, resamples=300, seed=1) for level in (0.99, 0.5))
    assert wide == error_interval(binned, level=0.99, resamples=300, seed=1)
    assert wide.low <= narrow.low <= narrow.high < wide.high
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1"):
        error_interval(binned, level=1.5)


def test_outcomes_that_did_not_occur_count():
    """All of 12 boxes are right, with scores of 0.9: a precision of 0.9 has to stay possible."""
    boxes = [{"image_id": i, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.9} for i in range(12)]
    truth = {"images": [{"id": i} for i in range(12)], "categories": [{"id": 1}], "annotations": boxes}
    found = error_interval(bin_detections(match(boxes, truth), bins=15))
    assert found.value == pytest.approx(0.1)
    assert found.low == 0
    assert found.high > 0.1


def test_one_image_tells_nothing_about_others():
    boxes, truth = draw_scored(np.random.default_rng(6), images=1, per_image=30)
    matches = match(boxes, truth)
    assert error_interval(bin_detections(matches, bins=15))[1:] == (0.0, 1.0)
    assert mean_interval(np.arange(30.0) / 30, matches, most=1.0)[1:] == (0.0, 1.0)


def test_means_take_images_for_samples():
    boxes, truth = draw_scored(np.random.default_rng(7), images=50, per_image=4)
    matches = match(boxes, truth)
    values = np.repeat(np.random.default_rng(8).random(50), 4)  # equal within an image
    found = mean_interval(values, matches, most=1.0)
    half = 2.009575 * values[::4].std(ddof=1) / np.sqrt(50)
    assert found == pytest.approx((values.mean(), values.mean() - half, values.mean() + half))
    assert mean_interval(np.where(values > 0.5, np.inf, 1.0), matches, most=np.inf) == (np.inf, np.inf, np.inf)


def test_right_decisions_alone_do_not_make_the_error_certain():
    """20 images, in which each decision is right: an error rate of 0 is not known exactly."""
    boxes = [{"image_id": i, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.9} for i in range(20)]
    truth = {"images": [{"id": i} for i in range(20)], "categories": [{"id": 1}], "annotations": boxes}
    found = mean_interval(np.zeros(20), match(boxes, truth), most=1.0, is_rate=True)
    square = stats.t.ppf(0.975, 19) ** 2
    assert found == pytest.approx((0.0, 0.0, square / (20 + square)))


@pytest.mark.parametrize("images", [2, 5])
def test_few_images_are_covered(images):
    """Images differ in difficulty, and scores are right on average. benchmarks/detection_intervals.py has more."""
    covered = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        image = np.repeat(np.arange(images), 20)
        chance = np.clip(0.5 + rng.normal(0, 0.25, images), 0, 1)[image]
        right = (rng.random(len(image)) < chance).astype(float)
        one_bin = np.zeros(len(image), dtype=int)
        binned = BinnedDetections(image, one_bin, np.full(len(image), 0.5), right, np.zeros(1, dtype=int))
        covered.append(error_interval(binned, resamples=200, seed=seed).low == 0)
    assert np.mean(covered) >= 0.95
