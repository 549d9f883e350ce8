"""Batches of images against plain loops."""

import numpy as np
import pytest
import torch

from refocal_lab.train.batches import PADDING, ArrayBatches
from refocal_lab.train.process import Process

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(1, 256, (22, 6, 5, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 4, 22)
MEAN, STD = np.array([100.0, 120.0, 140.0]), np.array([50.0, 60.0, 70.0])


def batches(augmentation="crop-flip", **settings):
    defaults = {"mean": MEAN, "std": STD, "batch_size": 4, "seed": 3, "device": torch.device("cpu")}
    return ArrayBatches(IMAGES, LABELS, augmentation=augmentation, dtype=torch.float32, **(defaults | settings))


def epoch(batch, number=0):
    batch.draw(number)
    steps = []
    for _ in range(batch.steps):
        steps.append([tensor.numpy() for tensor in batch.next()])
        batch.advance()
    return [np.concatenate(parts) for parts in zip(*steps, strict=True)]


def windows(image, *, flips):
    """All windows of an image with a black border, mirrored or not, as inputs of a network."""
    padded = np.zeros((6 + 2 * PADDING, 5 + 2 * PADDING, 3))
    padded[PADDING:-PADDING, PADDING:-PADDING] = image
    for top in range(2 * PADDING + 1):
        for left in range(2 * PADDING + 1):
            window = padded[top : top + 6, left : left + 5]
            for seen in (window, window[:, ::-1])[: 1 + flips]:
                yield ((seen - MEAN) / STD).transpose(2, 0, 1)


@pytest.mark.parametrize("augmentation", ["crop-flip", "crop"])
def test_each_input_is_a_window_of_an_image_with_its_label(augmentation):
    inputs, labels = epoch(batches(augmentation))
    assert inputs.shape == (20, 3, 6, 5)
    found = []
    every_window = [np.stack(list(windows(image, flips=augmentation == "crop-flip"))) for image in IMAGES]
    for seen, label in zip(inputs, labels, strict=True):
        candidates = [
            index
            for index, some in enumerate(every_window)
            if np.isclose(seen, some, atol=1e-5).all(axis=(1, 2, 3)).any()
        ]
        assert any(LABELS[index] == label for index in candidates)
        found += candidates[:1]
    assert len(set(found)) > 15  # a black window could come from any image


def test_without_augmentation_each_sample_comes_at_most_once():
    inputs, labels = epoch(batches("none"))
    plain = ((IMAGES - MEAN) / STD).transpose(0, 3, 1, 2)
    places = [int(np.flatnonzero([np.allclose(seen, image, atol=1e-5) for image in plain])[0]) for seen in inputs]
    assert len(set(places)) == 20
    assert np.array_equal(labels, LABELS[places])


def test_an_epoch_follows_from_seed_and_number():
    assert np.array_equal(epoch(batches(), 5)[0], epoch(batches(), 5)[0])
    assert not np.array_equal(epoch(batches(), 5)[0], epoch(batches(), 6)[0])
    assert not np.array_equal(epoch(batches(), 5)[0], epoch(batches(seed=4), 5)[0])


def test_windows_and_reflections_are_evenly_drawn():
    drawn = batches()
    seen = []
    for number in range(400):
        drawn.draw(number)
        seen.append(drawn._choices[:, :, 1:].reshape(-1, 3).numpy().copy())
    values = np.concatenate(seen)
    for column, count in ((0, 9), (1, 9), (2, 2)):
        shares = np.bincount(values[:, column], minlength=count) / len(values)
        # 8,000 draws; chance exceeds five standard deviations with probability below 1e-5
        assert np.all(np.abs(shares - 1 / count) < 5 * np.sqrt(1 / count / len(values)))


def test_processes_share_each_batch():
    whole = batches()
    parts = [batches(process=Process(rank, 2)) for rank in range(2)]
    for each in (whole, *parts):
        each.draw(1)
    inputs, labels = whole.next()
    for rank, part in enumerate(parts):
        shared, named = part.next()
        assert torch.equal(shared, inputs[rank::2])
        assert torch.equal(named, labels[rank::2])
    with pytest.raises(ValueError, match="batch_size must be a multiple of the number of processes 3, got 4"):
        batches(process=Process(0, 3))


def test_a_batch_is_no_larger_than_the_data():
    inputs, _ = epoch(batches("none", batch_size=100))
    assert len(inputs) == 22
