"""Calibration errors of every class's probability, not of the top label alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from refocal import _check
from refocal.metrics.binned import BINNINGS, NORMS, event_error
from refocal.metrics.inputs import Events, Input, Sample, joined, read
from refocal.stats.binning import Bins, class_sums
from refocal.stats.gap_norms import calibration_error

Array = Any

_COLUMN_ELEMENTS = 1 << 22


def classwise_ece(
    scores: Array,
    labels: Array,
    *,
    bins: int = 15,
    binning: str = "equal_width",
    norm: str = "l1",
    reduction: str = "mean",
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """The ECE of each class's probability against its frequency, averaged over the classes.

    Args:
        scores: (N, K), (N, K, ...) with classes on axis 1; (N, L) for "multilabel".
        labels: As for `ece`. Classes that do not occur count too: their probabilities should be 0.
        bins: Number of bins of each class.
        binning: As for `ece`.
        norm: "l1", "l2" or "max", of each class.
        reduction: "mean" over the classes, or the "sum" that some papers print.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: "multiclass" or "multilabel".
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(classwise_ece(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0])), 6)
        0.333333

    Reference: Kull et al.: Beyond temperature scaling. NeurIPS 2019, section 2.
    """
    _check.one_of(reduction, "reduction", ("mean", "sum"))
    _check.one_of(norm, "norm", NORMS)
    _check.count(bins, "bins")
    _check.one_of(binning, "binning", BINNINGS)
    check_task(task)
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    if binning == "equal_width" and task == "multiclass":
        sums = _all_class_bins(sample, bins=bins)
        errors = calibration_error(sums.confidence - sums.correct, sums.samples, norm=norm)
    else:
        errors = np.array(
            [event_error([events], bins=bins, binning=binning, norm=norm) for events in class_events(sample)]
        )
    return float(np.mean(errors) if reduction == "mean" else np.sum(errors))


def thresholded_ece(
    scores: Array,
    labels: Array,
    *,
    threshold: float = 0.01,
    bins: int = 15,
    binning: str = "equal_mass",
    input: Input = "probs",
    sample_weight: Array = None,
    task: str = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """`classwise_ece` of the probabilities above a threshold only (TACE): small ones would hide the others' gaps.

    Args:
        scores: As for `classwise_ece`.
        labels: As for `classwise_ece`.
        threshold: Probabilities up to this one do not count.
        bins: Number of bins of each class.
        binning: As for `ece`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight for each label.
        task: "multiclass" or "multilabel".
        ignore_index: Labels with this value do not count.

    Returns:
        The mean over the classes that have a probability above the threshold; 0 where none has.

    Example:
        >>> import numpy as np
        >>> probs = np.array([[0.995, 0.005], [0.2, 0.8], [0.3, 0.7]])
        >>> round(thresholded_ece(probs, np.array([0, 1, 0]), bins=1), 6)
        0.209167

    Reference: Nixon et al.: Measuring calibration in deep learning. CVPR workshops 2019 (TACE).
    """
    threshold = _check.share(threshold, "threshold")
    errors = []
    check_task(task)
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    for events in class_events(sample):
        keep = events.confidence > threshold
        kept = Events(*(None if part is None else part[keep] for part in events))  # type: ignore[arg-type]
        if keep.any() if kept.weights is None else kept.weights.any():
            errors.append(event_error([kept], bins=bins, binning=binning))
    return float(np.mean(errors)) if errors else 0.0


def class_events(sample: Sample) -> Iterator[Events]:
    """The probability of each class in turn, and whether it was the label."""
    return (events for _, events in class_columns(sample))


def class_columns(sample: Sample) -> Iterator[tuple[np.ndarray, Events]]:
    """The same with the places of these events among the rows: all that count, or those of a label that do."""
    if sample.classes == 1:
        for column in range(sample.shape[1]):
            label = sample.column(column)
            counts = label.counts()
            if counts.any() if label.weights is None else label.weights[counts].any():  # else nobody gave this label
                yield np.flatnonzero(counts), label.all_events()
        return
    rows = np.arange(np.count_nonzero(sample.counts()))
    # a few columns at a time, so that there are neither many passes nor a second copy of the data
    step = max(1, _COLUMN_ELEMENTS // len(sample.labels))
    for first in range(0, sample.classes, step):
        blocks = [block._replace(scores=block.scores[:, first : first + step].copy()) for block in sample.prob_blocks()]
        for offset in range(min(step, sample.classes - first)):
            parts = [Events(part.scores[:, offset], part.labels == first + offset, part.weights) for part in blocks]
            yield rows, joined(parts)


def _all_class_bins(sample: Sample, *, bins: int) -> Bins:
    """Sums (K, bins) of every class in one pass."""
    total = np.zeros((3, sample.classes, bins))
    for block in sample.prob_blocks():
        total += class_sums(block.scores, block.labels, block.weights, bins=bins)
    return Bins(*total)


def check_task(task: str) -> None:
    """Reject "binary", which has no classes to average over."""
    _check.one_of(task, "task", ("multiclass", "multilabel"))
