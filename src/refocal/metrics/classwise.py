"""Calibration errors of the probability of every class, not only of the top label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal.metrics.binned import check_bins, event_error
from refocal.metrics.defaults import BINS
from refocal.metrics.inputs import ArrayLike, Events, Sample, Task, concatenate_events, read
from refocal.stats.binning import Binning, Bins, class_sums
from refocal.stats.gap_norms import GapNorm, calibration_error

Reduction = Literal["mean", "sum"]

CLASS_TASKS: tuple[Task, ...] = ("multiclass", "multilabel")  # "binary" has no classes to average over
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)

_COLUMN_ELEMENTS = 1 << 22


def classwise_ece(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = BINS,
    binning: Binning = "equal_width",
    norm: GapNorm = "l1",
    reduction: Reduction = "mean",
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Classwise ECE: the ECE of the probability of each class against its frequency, averaged over the classes.

    Args:
        scores: (N, K), or (N, K, ...) with classes on axis 1; (N, L) for "multilabel".
        labels: As for `ece`. Classes that do not occur count too: their probabilities should be 0.
        bins: Number of bins per class.
        binning: As for `ece`.
        norm: "l1", "l2" or "max", for each class.
        reduction: "mean" over the classes, or "sum", which some papers report.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass" or "multilabel".
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(classwise_ece(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0])), 6)
        0.333333

    Reference: Kull et al.: Beyond temperature scaling. NeurIPS 2019, section 2.
    """
    _check.one_of(reduction, "reduction", REDUCTIONS)
    check_bins(bins, binning, norm)
    _check.one_of(task, "task", CLASS_TASKS)
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
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    threshold: float = 0.01,
    bins: int = BINS,
    binning: Binning = "equal_mass",
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Thresholded adaptive calibration error (TACE): `classwise_ece` of the probabilities above a threshold.

    With many classes, most probabilities are tiny, and their small gaps would hide the gaps of the others.

    Args:
        scores: As for `classwise_ece`.
        labels: As for `classwise_ece`.
        threshold: Only probabilities above this value count.
        bins: Number of bins per class.
        binning: As for `ece`.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass" or "multilabel".
        ignore_index: Labels with this value do not count.

    Returns:
        The mean over the classes that have a probability above the threshold; 0 if none has.

    Example:
        >>> import numpy as np
        >>> probs = np.array([[0.995, 0.005], [0.2, 0.8], [0.3, 0.7]])
        >>> round(thresholded_ece(probs, np.array([0, 1, 0]), bins=1), 6)
        0.209167

    Reference: Nixon et al.: Measuring calibration in deep learning. CVPR workshops 2019 (TACE).
    """
    threshold = _check.share(threshold, "threshold")
    check_bins(bins, binning, "l1")
    _check.one_of(task, "task", CLASS_TASKS)
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    errors = []
    for confidence, correct, weights in class_events(sample):
        above = confidence > threshold
        events = Events(confidence[above], correct[above], None if weights is None else weights[above])
        if above.any() if events.weights is None else events.weights.any():
            errors.append(event_error([events], bins=bins, binning=binning))
    return float(np.mean(errors)) if errors else 0.0


def class_events(sample: Sample) -> Iterator[Events]:
    """The probability of each class in turn, and whether it was the label."""
    return (events for _, events in class_columns(sample))


def class_columns(sample: Sample) -> Iterator[tuple[np.ndarray, Events]]:
    """`class_events` with the row of each event, counted among the rows that count (multi-label: among all rows)."""
    if sample.classes == 1:
        for column in range(sample.shape[1]):
            label = sample.column(column)
            counts = label.counts()
            if counts.any() if label.weights is None else label.weights[counts].any():  # skip labels without samples
                yield np.flatnonzero(counts), label.all_events()
        return
    rows = np.arange(np.count_nonzero(sample.counts()))
    # A few columns at a time: this needs neither many passes nor a second copy of the data.
    step = max(1, _COLUMN_ELEMENTS // len(sample.labels))
    for first in range(0, sample.classes, step):
        blocks = [block._replace(scores=block.scores[:, first : first + step].copy()) for block in sample.prob_blocks()]
        for offset in range(min(step, sample.classes - first)):
            parts = [Events(part.scores[:, offset], part.labels == first + offset, part.weights) for part in blocks]
            yield rows, concatenate_events(parts)


def _all_class_bins(sample: Sample, *, bins: int) -> Bins:
    """Sums (K, bins) over all classes, in one pass."""
    total = np.zeros((3, sample.classes, bins))
    for block in sample.prob_blocks():
        total += class_sums(block.scores, block.labels, block.weights, bins=bins)
    return Bins(*total)
