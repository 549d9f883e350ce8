"""`CalibrationAccumulator` as a torchmetrics metric; distributed training adds up its sums."""

from __future__ import annotations

from typing import Any

import torch
from torchmetrics import Metric

from refocal import _check
from refocal._check import Input
from refocal.metrics.accumulator import CalibrationAccumulator
from refocal.metrics.defaults import BINS, CONFIDENT
from refocal.metrics.inputs import Task

__all__ = ["CalibrationMetric"]


class CalibrationMetric(Metric):
    """Calibration measures for torchmetrics and Lightning; memory does not grow with the data.

    Args:
        classes: Number of classes (1 for "binary" and "multilabel").
        input: Whether `update` takes "logits" or "probs".
        bins: Number of bins.
        task: "multiclass", "binary" or "multilabel", as for `ece`.
        classwise: Keep bins for every class.
        threshold: The least confidence that counts toward `confidence_share`.
        ignore_index: Labels with this value do not count.
        **metric_settings: Arguments of torchmetrics' `Metric`.

    Example:
        >>> metric = CalibrationMetric(classes=2)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), torch.tensor([0, 1, 0]))
        >>> round(metric.compute()["ece"].item(), 6)
        0.333333
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False

    sums: torch.Tensor
    grid: torch.Tensor
    by_class: torch.Tensor

    def __init__(
        self,
        *,
        classes: int,
        input: Input = "probs",
        bins: int = BINS,
        task: Task = "multiclass",
        classwise: bool = True,
        threshold: float = CONFIDENT,
        ignore_index: int | None = None,
        **metric_settings: Any,
    ) -> None:
        super().__init__(**metric_settings)
        self.input = _check.input_word(input)
        empty = CalibrationAccumulator(
            bins=bins, task=task, classwise=classwise, threshold=threshold, ignore_index=ignore_index
        )
        self.settings = empty.settings()
        self.classes = classes
        for name, array in (("sums", empty.sums), ("grid", empty.grid)):
            self.add_state(name, torch.from_numpy(array), dist_reduce_fx="sum")
        shape = (3, classes, empty.bins) if empty.classwise else (0,)
        self.add_state("by_class", torch.zeros(shape, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, scores: torch.Tensor, target: torch.Tensor) -> None:
        """Add a batch. Its sums are computed on the CPU."""
        batch = CalibrationAccumulator(**self.settings)
        if batch.classwise and scores.shape[1:2] != (self.classes,):
            msg = f"scores must have {self.classes} classes on axis 1, got shape {tuple(scores.shape)}"
            raise ValueError(msg)
        batch.update(scores, target, input=self.input)
        self.sums = self.sums + torch.from_numpy(batch.sums).to(self.sums.device)
        self.grid = self.grid + torch.from_numpy(batch.grid).to(self.grid.device)
        if batch.classes is not None:
            self.by_class = self.by_class + torch.from_numpy(batch.classes).to(self.by_class.device)

    def compute(self) -> dict[str, torch.Tensor]:
        """The fields of `CalibrationSummary` as tensors, by name."""
        total = CalibrationAccumulator(**self.settings)
        total.sums, total.grid = self.sums.cpu().numpy(), self.grid.cpu().numpy()
        total.classes = self.by_class.cpu().numpy() if total.classwise else None
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in total.compute()._asdict().items()}
