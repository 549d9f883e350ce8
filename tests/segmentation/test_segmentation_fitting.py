"""Pixels as rows, calibrators fitted to batches of images, and calibrators applied to images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from segmentation_images import IGNORED, draw_images

import refocal
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling, VectorScaling
from refocal.predictions import Predictions
from refocal.segmentation import fit, predict_proba, to_rows


def halves(logits, labels):
    middle = len(logits) // 2
    return [(logits[:middle], labels[:middle]), (logits[middle:], labels[middle:])]


def test_rows_equal_a_loop_over_pixels():
    logits, labels = draw_images()
    rows = to_rows(logits, labels, ignore_index=IGNORED)
    places = [place for place in np.ndindex(labels.shape) if labels[place] != IGNORED]
    np.testing.assert_array_equal(rows.scores, [logits[i, :, y, x] for i, y, x in places])
    assert rows.labels.tolist() == [labels[place] for place in places]
    assert rows.images.tolist() == [image for image, _, _ in places]
    for again in (
        to_rows(np.moveaxis(logits, 1, -1), labels, axis=-1, ignore_index=IGNORED),
        to_rows(torch.tensor(logits), torch.tensor(labels), ignore_index=IGNORED),
    ):
        for one, other in zip(again, rows, strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(to_rows(logits, np.full_like(labels, IGNORED), ignore_index=IGNORED).labels) == 0


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.float16, np.float16), (torch.bfloat16, np.float32), (torch.float64, np.float64)],
)
def test_rows_keep_their_dtype(dtype, expected):
    """Probabilities in half precision may be off by more than those in float32, so the dtype has to stay."""
    logits, labels = draw_images()
    probs = torch.softmax(torch.tensor(logits), dim=1).to(dtype)
    rows = to_rows(probs, labels, ignore_index=IGNORED)
    assert rows.scores.dtype == expected
    if dtype is not torch.bfloat16:  # NumPy has no such dtype
        TemperatureScaling(input="probs").fit(rows.scores, rows.labels)


def test_a_sample_of_pixels_does_not_depend_on_batches():
    logits, labels = draw_images(6)
    labels[1] = IGNORED
    labels[2, 1:] = IGNORED  # at most 7 pixels are left
    whole = to_rows(logits, labels, ignore_index=IGNORED, per_image=10, seed=3)
    counts = np.bincount(whole.images, minlength=6)
    assert counts[[0, 3, 4, 5]].tolist() == [10] * 4
    assert counts[1] == 0
    assert counts[2] == np.sum(labels[2] != IGNORED) < 10
    rng = np.random.default_rng(3)
    parts = [to_rows(*batch, ignore_index=IGNORED, per_image=10, seed=rng) for batch in halves(logits, labels)]
    np.testing.assert_array_equal(np.concatenate([part.scores for part in parts]), whole.scores)
    other = to_rows(logits, labels, ignore_index=IGNORED, per_image=10, seed=4)
    assert not np.array_equal(other.scores, whole.scores)
    every = to_rows(logits, labels, ignore_index=IGNORED)
    assert {*map(tuple, whole.scores)} <= {*map(tuple, every.scores)}
    assert len({*map(tuple, whole.scores)}) == len(whole.scores)  # no pixel twice


def test_rows_go_where_rows_are_taken(tmp_path):
    logits, labels = draw_images(12, size=(10, 10))
    rows = to_rows(logits, labels, ignore_index=IGNORED)
    report = refocal.evaluate(rows.scores, rows.labels)
    assert report.samples == len(rows.labels)
    Predictions(rows.scores, input="logits", labels=rows.labels).write(tmp_path / "pixels.npz")
    assert VectorScaling().fit(rows.scores, rows.labels).n_features_in_ == 3


@pytest.mark.parametrize("calibrator", [TemperatureScaling(), FocalTemperatureScaling()])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_fit_to_batches_equals_a_fit_to_all_pixels(calibrator, channels):
    logits, labels = draw_images(8, max(2, channels), (20, 20))
    if channels == 1:
        logits = logits[:, 1:] - logits[:, :1]
    found = fit(calibrator, halves(logits, labels), ignore_index=IGNORED)
    rows = to_rows(logits, labels, ignore_index=IGNORED)
    expected = type(calibrator)().fit(rows.scores, rows.labels)
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-4)
    assert not hasattr(calibrator, "temperature_")
    assert found.n_features_in_ == channels
    assert found.classes_.tolist() == list(range(max(2, channels)))
    probs = predict_proba(found, logits)
    assert probs.shape == (8, max(2, channels), 20, 20)
    np.testing.assert_allclose(found.to_torch(axis=1)(torch.tensor(logits)).numpy(), probs, atol=1e-12)
    last = np.moveaxis(logits, 1, -1)
    np.testing.assert_array_equal(predict_proba(found, last, axis=-1), np.moveaxis(probs, 1, -1))
    other = fit(calibrator, halves(last, labels), axis=-1, ignore_index=IGNORED)
    assert other.temperature_ == pytest.approx(found.temperature_, rel=1e-12)


def test_probabilities_are_fitted():
    logits, labels = draw_images(8, size=(20, 20))
    probs = torch.softmax(torch.tensor(logits), dim=1)
    found = fit(TemperatureScaling(input="probs"), halves(probs, labels), ignore_index=IGNORED)
    expected = fit(TemperatureScaling(), halves(logits, labels), ignore_index=IGNORED)
    assert found.temperature_ == pytest.approx(expected.temperature_, rel=1e-4)
    with pytest.raises(ValueError, match="scores look like probabilities: every row sums to 1; pass input='probs'"):
        fit(TemperatureScaling(), halves(probs, labels), ignore_index=IGNORED)


def test_each_pass_reads_the_batches_again():
    """Only one batch is alive at a time, and there are at most ten passes."""
    logits, labels = draw_images(8, size=(20, 20))
    alive, most, passes = 0, 0, 0

    class Network:
        def __iter__(self):
            nonlocal alive, most, passes
            passes += 1
            for image in range(8):
                alive += 1
                most = max(most, alive)
                yield logits[image : image + 1].copy(), labels[image : image + 1]
                alive -= 1

    found = fit(FocalTemperatureScaling(), Network(), ignore_index=IGNORED)
    assert 1 < passes <= 10
    assert most == 1
    assert found.temperature_ > 0


@pytest.mark.parametrize(
    ("calibrator", "batches", "error", "message"),
    [
        (VectorScaling(), [], ValueError, "for batches, calibrator must be TemperatureScaling by NLL.*VectorScaling"),
        (FocalPosterior(gamma=2), [], ValueError, "calibrator must be TemperatureScaling by NLL"),
        (TemperatureScaling(objective="ece"), [], ValueError, "fit others to the pixels that `to_rows` draws"),
        (FocalTemperatureScaling(search="grid"), [], ValueError, "FocalTemperatureScaling by Newton's method"),
        (TemperatureScaling(classes=[1, 2, 3]), [], ValueError, "with classes=None"),
        (TemperatureScaling(), iter([]), TypeError, "batches must be iterable several times.*got a list_iterator"),
        (TemperatureScaling(), [], ValueError, "batches have no pixel that counts"),
    ],
)
def test_wrong_fits_are_rejected(calibrator, batches, error, message):
    with pytest.raises(error, match=message):
        fit(calibrator, batches)


def test_wrong_batches_are_rejected():
    logits, labels = draw_images(size=(10, 10), ignored=0.0)
    with pytest.raises(ValueError, match="batches have no pixel that counts"):
        fit(TemperatureScaling(), [(logits, np.full_like(labels, IGNORED))], ignore_index=IGNORED)
    with pytest.raises(ValueError, match="scores must have 3 classes in all batches, got 4"):
        fit(TemperatureScaling(), [(logits, labels), (np.zeros((1, 4, 2, 2)), np.zeros((1, 2, 2), int))])
    masked = logits.copy()
    masked[0, 1, labels[0] != 1] = -np.inf
    with pytest.raises(ValueError, match="scores must be finite for a fit to batches, got -inf"):
        fit(TemperatureScaling(), [(masked, labels)])
    with pytest.raises(ValueError, match="per_image must be"):
        to_rows(logits, labels, per_image=0)
    with pytest.raises(ValueError, match="labels must be from 0 to 2, got 255"):
        to_rows(logits, np.full_like(labels, IGNORED))

    class Once:
        batches = iter([(logits, labels)])

        def __iter__(self):
            return self.batches

    with pytest.raises(
        TypeError, match="batches must be iterable several times, such as a list, but pass 2 found none"
    ):
        fit(TemperatureScaling(), Once())

    class Shrinking:
        left = 3

        def __iter__(self):
            yield logits[: self.left], labels[: self.left]
            self.left -= 1

    with pytest.raises(RuntimeError, match="the data changed during the fit: a total weight of 300 at first, 200 now"):
        fit(TemperatureScaling(), Shrinking())
