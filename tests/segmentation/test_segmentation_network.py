"""A small network trained with focal loss on noisy images: its pixels, and those of its boundaries, are repaired."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import refocal
from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.losses import FocalLoss
from refocal.segmentation import SegmentationCalibration, fit

UNLABELED = -100
SIZE = 20


def draw_shapes(count, seed):
    """Draw discs (class 1) and squares (class 2) of different gray, with noise; two rows have no labels."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIZE, :SIZE]
    labels = np.zeros((count, SIZE, SIZE), dtype=np.int64)
    for image in labels:
        for label in (1, 2, 1, 2):
            down, right = abs(y - rng.uniform(0, SIZE)), abs(x - rng.uniform(0, SIZE))
            image[(np.hypot(down, right) if label == 1 else np.maximum(down, right)) < rng.uniform(3, 6)] = label
    pixels = np.array([0.0, 1.0, 1.6])[labels] + rng.normal(0, 0.8, labels.shape)
    labels[:, :2] = UNLABELED
    return torch.tensor(pixels[:, None], dtype=torch.float32), torch.tensor(labels)


@pytest.fixture(scope="module")
def trained():
    """The loss, and batches of held-out logits and labels: to fit, and to measure."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, 8, 5, padding=2), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Conv2d(8, 3, 5, padding=2))
    criterion = FocalLoss(gamma=3, ignore_index=UNLABELED)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for step in range(150):
        images, labels = draw_shapes(12, [0, step])
        optimizer.zero_grad()
        criterion(network(images), labels).backward()
        optimizer.step()
    held_out = []
    for part in (1, 2):
        drawn = (draw_shapes(20, [part, batch]) for batch in range(5))
        with torch.no_grad():
            held_out.append([(network(images), labels) for images, labels in drawn])
    return criterion, *held_out


def measure(batches, to_probs):
    calibration = SegmentationCalibration(3, ignore_index=UNLABELED, input="probs")
    for logits, labels in batches:
        calibration.update(to_probs(logits), labels)
    return calibration.compute(resamples=300)


def test_the_posterior_map_and_temperatures_repair_the_pixels(trained):
    criterion, val, test = trained
    softmax = measure(test, lambda logits: torch.softmax(logits, dim=1))
    assert softmax.overall.accuracy.low > 0.85
    assert softmax.overall.ece.low > 0.1
    assert softmax.boundary.ece.low > 0.1
    assert softmax.overall.overconfidence.high < 0  # focal loss makes it unsure
    maps = {
        "posterior": criterion.posterior,
        "numpy": lambda logits: refocal.posterior_from_logits(logits.numpy(), gamma=3, axis=1),
        **{
            name: fit(calibrator, val, ignore_index=UNLABELED).to_torch(axis=1)
            for name, calibrator in {"temperature": TemperatureScaling(), "both": FocalTemperatureScaling()}.items()
        },
    }
    for name, to_probs in maps.items():
        repaired = measure(test, to_probs)
        assert repaired.overall.ece.high < softmax.overall.ece.low / 3, name
        assert repaired.boundary.ece.high < softmax.boundary.ece.low / 2, name
        assert repaired.classwise_ece.high < softmax.classwise_ece.low / 2, name
        assert repaired.overall.nll.high < softmax.overall.nll.low, name
        assert repaired.overall.accuracy == softmax.overall.accuracy, name
