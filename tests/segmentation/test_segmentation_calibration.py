"""The calibration of segmentation networks: values, layouts, odd input, batches and merges."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from rich.console import Console
from scipy.special import softmax
from segmentation_images import IGNORED, draw_images, slow_band, slow_measures

from refocal import metrics
from refocal.segmentation import SegmentationCalibration, boundary_band, to_rows

FIELDS = ("ece", "overconfidence", "nll", "brier", "accuracy")


def measure(scores, labels, classes=3, **settings):
    calibration = SegmentationCalibration(classes, **{"ignore_index": IGNORED, **settings})
    calibration.update(scores, labels)
    return calibration.compute(resamples=100)


def values(region):
    return {name: getattr(region, name).value for name in FIELDS}


@pytest.mark.parametrize("size", [(11,), (6, 7), (3, 4, 5)])
def test_values_equal_a_loop_over_pixels(size):
    logits, labels = draw_images(size=size)
    found = measure(logits, labels, boundary=1)
    counted, near = labels != IGNORED, slow_band(labels, 1, IGNORED)
    for region, chosen in (
        (found.overall, counted),
        (found.boundary, near),
        (found.interior, counted & ~near),
    ):
        assert region.pixels == chosen.sum()
        assert region.images == chosen.reshape(3, -1).any(axis=1).sum()
        assert values(region) == pytest.approx(slow_measures(logits, labels, chosen), rel=1e-9)


def test_values_equal_those_of_the_metrics():
    logits, labels = draw_images(8, 4, (9, 9))
    found = measure(logits, labels, 4)
    common = {"input": "logits", "ignore_index": IGNORED}
    assert found.overall.ece.value == pytest.approx(metrics.ece(logits, labels, **common))
    assert found.overall.nll.value == pytest.approx(metrics.nll(logits, labels, **common))
    assert found.overall.brier.value == pytest.approx(metrics.brier(logits, labels, **common))
    assert found.classwise_ece.value == pytest.approx(metrics.classwise_ece(logits, labels, **common))
    probs = softmax(logits, axis=1)
    for number, each in enumerate(found.classes):
        counted = labels != IGNORED
        own, hit = probs[:, number][counted], (labels[counted] == number).astype(int)
        assert each.ece.value == pytest.approx(metrics.ece(own, hit, task="binary"))
        assert (each.probability, each.frequency) == pytest.approx((own.mean(), hit.mean()))
    bins = found.overall.bins
    assert np.abs(bins.confidence - bins.correct).sum() / bins.samples.sum() == pytest.approx(found.overall.ece.value)


@pytest.mark.parametrize("distance", [1, 2, 3])
@pytest.mark.parametrize("ignore_index", [None, IGNORED])
def test_the_band_equals_a_loop_over_pairs_of_pixels(distance, ignore_index):
    rng = np.random.default_rng(distance)
    labels = rng.choice([0, 0, 0, 0, 0, 0, 0, 1, 2, IGNORED], (3, 8, 9))
    found = boundary_band(labels, distance=distance, ignore_index=ignore_index)
    np.testing.assert_array_equal(found, slow_band(labels, distance, ignore_index))
    for dtype in (np.uint8, np.int32, np.uint64):
        again = boundary_band(labels.astype(dtype), distance=distance, ignore_index=ignore_index)
        np.testing.assert_array_equal(again, found)
    tensor = torch.tensor(labels)
    np.testing.assert_array_equal(boundary_band(tensor, distance=distance, ignore_index=ignore_index), found)


def test_a_band_ends_at_the_image_and_at_ignored_pixels():
    one = np.zeros((2, 4, 4), dtype=int)
    one[1] = 1  # another image is no neighbor
    assert not boundary_band(one).any()
    between = np.array([[[0, 0, IGNORED, 1, 1]]])
    assert not boundary_band(between, distance=1, ignore_index=IGNORED).any()
    assert boundary_band(between, distance=2, ignore_index=IGNORED).tolist() == [[[False, True, False, True, False]]]
    negative = np.where(between == IGNORED, -100, between)
    assert boundary_band(negative, distance=2, ignore_index=-100).sum() == 2
    assert not boundary_band(np.full((1, 2, 2), IGNORED), ignore_index=IGNORED).any()
    assert boundary_band(np.array([[True, False, False]]), distance=1).tolist() == [[True, True, False]]


@pytest.mark.parametrize(
    ("labels", "settings", "error", "message"),
    [
        (np.zeros(3, int), {}, ValueError, r"labels must be whole numbers of shape \(N, ...\), got.*\(3,\)"),
        (np.zeros((2, 3)), {}, ValueError, "got dtype float64"),
        (np.zeros((2, 3), int), {"distance": 0}, ValueError, "distance must be"),
        (np.zeros((2, 3), int), {"ignore_index": 1.0}, TypeError, "ignore_index must be a whole number"),
    ],
)
def test_a_band_rejects(labels, settings, error, message):
    with pytest.raises(error, match=message):
        boundary_band(labels, **settings)


def test_layouts_and_libraries_agree():
    logits, labels = draw_images(3, 3, (6, 7))
    expected = measure(logits, labels)
    last = np.moveaxis(logits, 1, -1)
    tensor = torch.tensor(logits)
    for scores, answers, axis in (
        (last, labels, -1),
        (last, labels, 3),
        (np.moveaxis(logits, 1, 2), labels, 2),
        (tensor, torch.tensor(labels), 1),
        (tensor.requires_grad_(), labels.astype(np.uint8), -3),
        (tensor.to(memory_format=torch.channels_last), labels.astype(np.int16), 1),
        (logits.tolist(), labels.tolist(), 1),
    ):
        assert measure(scores, answers, axis=axis) == expected
    probs = measure(softmax(logits, axis=1), labels, input="probs")
    assert values(probs.overall) == pytest.approx(values(expected.overall))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_floats_are_measured_as_they_are(dtype):
    logits, labels = draw_images(4)
    narrow = torch.tensor(logits).to(dtype)
    found = measure(narrow, labels)
    assert values(found.overall) == pytest.approx(values(measure(narrow.double(), labels).overall), rel=1e-5)


def test_one_channel_is_class_1_of_two():
    logits, labels = draw_images(4, 2, (40, 1700))  # blocks of one channel reach over several images
    difference = logits[:, 1:] - logits[:, :1]
    two = measure(logits, labels, 2)
    one = measure(difference, labels, 2)
    assert values(one.overall) == pytest.approx(values(two.overall))
    assert values(one.boundary) == pytest.approx(values(two.boundary))
    assert one.classes[1].ece.value == pytest.approx(two.classes[1].ece.value)
    probs = measure(softmax(logits, axis=1)[:, 1:], labels, 2, input="probs")
    assert values(probs.interior) == pytest.approx(values(two.interior))
    masks = np.where(labels == IGNORED, 0, labels)
    assert measure(difference, masks == 1, 2, ignore_index=None) == measure(difference, masks, 2, ignore_index=None)


def test_batches_and_merges_do_not_matter():
    logits, labels = draw_images(7, seed=3)
    labels[4] = IGNORED  # an image without a pixel that counts
    whole = measure(logits, labels)
    assert whole.images == 6
    parts = [SegmentationCalibration(3, ignore_index=IGNORED) for _ in range(2)]
    for image in range(7):
        parts[image // 4].update(logits[image : image + 1], labels[image : image + 1])
    merged = parts[0].merge(parts[1])
    assert merged is parts[0]
    found = merged.compute(resamples=100)
    for one, other in zip(found.classes, whole.classes, strict=True):
        assert one.ece == pytest.approx(other.ece)
    for name in ("overall", "boundary", "interior"):
        for field in FIELDS:
            assert getattr(getattr(found, name), field) == pytest.approx(getattr(getattr(whole, name), field))
    twice = merged.merge(merged).compute(resamples=100)
    assert twice.images == 12
    assert twice.overall.ece.value == pytest.approx(whole.overall.ece.value)


def test_images_of_different_sizes_count_by_their_pixels():
    small, large = draw_images(1, size=(3, 3), seed=1), draw_images(1, size=(12, 9), seed=2)
    calibration = SegmentationCalibration(3, ignore_index=IGNORED)
    for logits, labels in (small, large):
        calibration.update(logits, labels)
    found = calibration.compute(resamples=100)
    pixels = [np.sum(labels != IGNORED) for _, labels in (small, large)]
    each = [metrics.nll(*part, input="logits", ignore_index=IGNORED) for part in (small, large)]
    assert found.overall.nll.value == pytest.approx(np.average(each, weights=pixels))


def test_the_state_does_not_grow_with_the_pixels():
    """The state of an image has (K + 2) bins + 10 numbers, for 9 pixels as for a million."""
    sizes = []
    for size in ((3, 3), (1000, 1000)):
        calibration = SegmentationCalibration(3, bins=10)
        calibration.update(np.zeros((1, 3, *size), dtype=np.float32), np.zeros((1, *size), dtype=np.uint8))
        kept = [*calibration._totals, *calibration._residuals, *calibration._class_residuals]
        sizes.append(sum(array.size for array in kept))
        assert all(array.base is None for array in kept)  # a view would keep more
    assert sizes == [(3 + 2) * 10 + 10] * 2


def test_settings_leave_parts_out():
    logits, labels = draw_images()
    found = measure(logits, labels, boundary=None, classwise=False)
    assert (found.boundary, found.interior, found.classwise_ece, found.classes) == (None, None, None, None)
    for field in FIELDS:
        assert getattr(found.overall, field) == pytest.approx(getattr(measure(logits, labels).overall, field))


def test_one_label_has_no_boundary():
    logits, _ = draw_images()
    found = measure(logits, np.zeros((3, 6, 7), dtype=int))
    assert found.boundary.pixels == found.boundary.images == 0
    assert all(np.isnan(getattr(found.boundary, name).value) for name in FIELDS)
    assert found.boundary.ece[1:] == (0.0, 1.0)
    assert found.boundary.overconfidence[1:] == (-1.0, 1.0)
    assert values(found.interior) == values(found.overall)
    assert found.classes[1].frequency == 0


def test_ignored_pixels_may_hold_anything():
    logits, labels = draw_images()
    spoiled = np.where((labels == IGNORED)[:, None], np.nan, logits)
    assert measure(spoiled, labels) == measure(logits, labels)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"scores": np.zeros((2, 3))}, ValueError, r"scores must have shape \(N, classes, ...\).*got \(2, 3\)"),
        ({"scores": "logits"}, ValueError, "one spatial axis or more"),
        ({"scores": np.zeros((2, 4, 5, 5))}, ValueError, "scores must have 3 classes on axis 1, got 4"),
        ({"scores": np.zeros((2, 1, 5, 5))}, ValueError, "labels must be from 0 to 1, got 2|3 classes on axis 1"),
        ({"scores": np.zeros((2, 3, 5, 4))}, ValueError, r"labels must have shape \(2, 5, 4\), got \(2, 5, 5\)"),
        ({"scores": np.zeros((2, 3, 5, 5), int)}, TypeError, "scores must have a floating-point dtype"),
        ({"labels": np.zeros((2, 1, 5, 5), int)}, ValueError, r"labels must have shape \(2, 5, 5\)"),
        ({"labels": np.full((2, 5, 5), 0.5)}, ValueError, "whole numbers from 0 to 2, got 0.5"),
        ({"labels": np.full((2, 5, 5), 3)}, ValueError, r"labels must be from 0 to 2, got 3 in row \(0, 0, 0\)"),
        ({"labels": np.full((2, 5, 5), -1)}, ValueError, "labels must be from 0 to 2, got -1"),
        ({"scores": np.zeros((0, 3, 5, 5)), "labels": np.zeros((0, 5, 5), int)}, ValueError, "at least one row"),
        ({"axis": 4}, ValueError, "axis must be an axis of scores"),
        ({"axis": 0}, ValueError, "axis must not be the axis of the images, 0, got 0"),
        ({"axis": 2}, ValueError, "labels must have shape"),
        ({"input": "probs"}, ValueError, "rows of scores must sum to 1|scores must be non-negative"),
    ],
)
def test_a_wrong_batch_is_rejected_and_changes_nothing(change, error, message):
    settings = {name: value for name, value in change.items() if name in ("axis", "input")}
    calibration = SegmentationCalibration(3, **settings)
    scores, labels = np.zeros((2, 3, 5, 5)), np.full((2, 5, 5), 2)
    with pytest.raises(error, match=message):
        calibration.update(change.get("scores", scores), change.get("labels", labels))
    with pytest.raises(ValueError, match=r"compute\(\) needs at least one pixel that counts: call update\(\) first"):
        calibration.compute()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_score_names_its_pixel_and_changes_nothing(value):
    logits, labels = draw_images(ignored=0.0)
    calibration = SegmentationCalibration(3)
    calibration.update(logits, labels)
    before = calibration.compute(resamples=100)
    logits[1, 2, 3, 4] = value
    with pytest.raises(ValueError, match=r"scores must be finite or -inf.* in row \(1, 3, 4\)"):
        calibration.update(logits, labels)
    assert calibration.compute(resamples=100) == before


@pytest.mark.parametrize("channels", [1, 2])
def test_probabilities_are_not_taken_for_logits(channels):
    logits, labels = draw_images(classes=2)
    probs = softmax(logits, axis=1)[:, 2 - channels :]
    calibration = SegmentationCalibration(2, ignore_index=IGNORED)
    with pytest.raises(ValueError, match=r"scores look like probabilities: .*; pass input='probs', or input='logits'"):
        calibration.update(probs, labels)
    assert measure(probs, labels, 2, input="logits").overall.ece.value > 0  # the caller insists


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"classes": 1}, ValueError, "classes must be"),
        ({"axis": None}, TypeError, "axis must be a whole number, got None"),
        ({"ignore_index": 0.5}, TypeError, "ignore_index must be a whole number"),
        ({"boundary": 0}, ValueError, "boundary must be"),
        ({"bins": 0}, ValueError, "bins must be"),
        ({"input": "scores"}, ValueError, "input must be one of 'logits', 'probs', got 'scores'"),
    ],
)
def test_wrong_settings_are_rejected(settings, error, message):
    with pytest.raises(error, match=message):
        SegmentationCalibration(**{"classes": 3, **settings})


def test_merges_and_computations_are_checked():
    logits, labels = draw_images()
    calibration = SegmentationCalibration(3, ignore_index=IGNORED)
    with pytest.raises(ValueError, match=r"other must have the same settings.*'bins': 15.*got.*'bins': 10"):
        calibration.merge(SegmentationCalibration(3, ignore_index=IGNORED, bins=10))
    calibration.update(logits, np.full_like(labels, IGNORED))
    with pytest.raises(TypeError, match="other must be a SegmentationCalibration, got int"):
        calibration.merge(3)
    with pytest.raises(ValueError, match="at least one pixel that counts: all pixels seen are ignored"):
        calibration.compute()
    calibration.update(logits, labels)
    with pytest.raises(ValueError, match="level must lie strictly between 0 and 1"):
        calibration.compute(level=95)
    with pytest.raises(ValueError, match="resamples must be"):
        calibration.compute(resamples=10)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        calibration.compute(seed=-1)
    with pytest.raises(TypeError, match="seed must be a whole number"):
        to_rows(logits, labels, seed="a", ignore_index=IGNORED)


def test_objects_with_other_axes_are_merged():
    logits, labels = draw_images()
    first, last = (SegmentationCalibration(3, axis=axis, ignore_index=IGNORED) for axis in (1, -1))
    first.update(logits, labels)
    last.update(np.moveaxis(logits, 1, -1), labels)
    both = first.merge(last).compute(resamples=100)
    assert both.images == 2 * len(logits)


def test_a_summary_is_shown_as_tables():
    logits, labels = draw_images()
    found = measure(logits, labels)
    shown = io.StringIO()
    Console(file=shown, width=120).print(found)
    text = shown.getvalue()
    for part in ("95% limits over 3 images", "boundary", "interior", "mean probability", "overconfidence"):
        assert part in text
    for interval in (found.overall.ece, found.interior.nll, found.classes[2].ece, found.classwise_ece):
        assert f"{interval.value:.4f}" in text
        assert f"{interval.low:.4f} to {interval.high:.4f}" in text
    shown.truncate(0)
    Console(file=shown, width=120).print(measure(logits, labels, classwise=False, boundary=None))
    assert "Each class" not in shown.getvalue()
    assert "boundary" not in shown.getvalue()
