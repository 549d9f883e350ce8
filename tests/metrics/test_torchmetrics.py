"""The torchmetrics metric agrees with the accumulator, across processes too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchmetrics import MetricCollection
from torchmetrics.utilities import dim_zero_sum

from arrays import draw_calibrated
from refocal.metrics import CalibrationAccumulator
from refocal.metrics.torchmetrics import CalibrationMetric


def test_it_agrees_with_the_accumulator():
    probs, labels = draw_calibrated(np.random.default_rng(0), (300, 4))
    accumulator = CalibrationAccumulator()
    accumulator.update(probs, labels)
    metric = CalibrationMetric(classes=4)
    for piece in (slice(0, 100), slice(100, 300)):
        metric.update(torch.tensor(probs[piece]), torch.tensor(labels[piece]))
    found = metric.compute()
    assert {name: value.item() for name, value in found.items()} == pytest.approx(
        accumulator.compute()._asdict(), rel=1e-12
    )
    metric.reset()
    metric.update(torch.tensor(probs[:10]), torch.tensor(labels[:10]))
    assert metric.compute()["samples"] == 10


def test_states_are_summed_across_processes():
    """States are reduced by "sum", and the sum over processes is the state of all batches."""
    probs, labels = draw_calibrated(np.random.default_rng(1), (200, 3))
    parts = []
    for piece in (slice(0, 50), slice(50, 200)):
        metric = CalibrationMetric(classes=3)
        metric.update(torch.tensor(probs[piece]), torch.tensor(labels[piece]))
        parts.append(metric)
    whole = CalibrationMetric(classes=3)
    whole.update(torch.tensor(probs), torch.tensor(labels))
    total = CalibrationMetric(classes=3)
    for name in ("sums", "grid", "by_class"):
        assert total._reductions[name] is dim_zero_sum
        stacked = torch.stack([getattr(part, name) for part in parts])
        setattr(total, name, total._reductions[name](stacked))
    total._update_count = 1
    expected = {name: value.item() for name, value in whole.compute().items()}
    assert {name: value.item() for name, value in total.compute().items()} == pytest.approx(expected, rel=1e-12)


def test_logits_binary_and_collections():
    rng = np.random.default_rng(2)
    logits, labels = torch.tensor(rng.standard_normal((50, 3))), torch.tensor(rng.integers(0, 3, 50))
    collection = MetricCollection([CalibrationMetric(classes=3, input="logits", classwise=False)])
    collection.update(logits, labels)
    accumulator = CalibrationAccumulator(classwise=False)
    accumulator.update(logits, labels, input="logits")
    assert collection.compute()["ece"].item() == accumulator.compute().ece
    binary = CalibrationMetric(classes=1, task="binary")
    assert binary(torch.tensor([0.2, 0.9]), torch.tensor([0, 1]))["ece"].item() == pytest.approx(0.15)
    with pytest.raises(ValueError, match=r"scores must have 4 classes on axis 1, got shape \(50, 3\)"):
        CalibrationMetric(classes=4).update(logits, labels)
    with pytest.raises(ValueError, match=r"scores must have 2 classes on axis 1, got shape \(50,\)"):
        CalibrationMetric(classes=2).update(logits[:, 0], labels)
