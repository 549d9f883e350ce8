"""Expected calibration error and its relatives: gaps between confidence and frequency, over bins."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal.metrics.defaults import BINS
from refocal.metrics.inputs import ArrayLike, Events, Sample, Task, concatenate_events, read
from refocal.stats.binning import (
    ADAPTIVE,
    BINNINGS,
    FIXED,
    AdaptiveBinning,
    Binning,
    Bins,
    PairSums,
    bin_index,
    bin_sums,
    dropped_bin,
    pair_sums,
)
from refocal.stats.gap_norms import NORMS, GapNorm, calibration_error, debiased_error


def ece(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = BINS,
    binning: Binning = "equal_width",
    norm: GapNorm = "l1",
    debias: bool = False,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Expected calibration error of the top label.

    With n_b of n samples in bin b, mean confidence c_b and accuracy a_b,

        l1: sum_b (n_b / n) |c_b - a_b|,    l2: sqrt(sum_b (n_b / n) (c_b - a_b)^2),    max: max_b |c_b - a_b|.

    Args:
        scores: (N, K), or (N, K, ...) with classes on axis 1; one score for P(y = 1) for "binary"; (N, L) for
            "multilabel".
        labels: (N,) or (N, ...) class indices; 0 or 1 for the other tasks, with the shape of `scores`.
        bins: Number of bins.
        binning: "equal_width": bins (a, b], with 0 in the first; no sample is dropped. "equal_mass": equally many
            samples per bin, with equal confidences in one bin. "guo2017", "torchmetrics" and "mukhoti2020" reproduce
            the conventions behind published numbers, with their faults: see docs/how-to/metrics.md.
        norm: "l1", "l2" or "max".
        debias: Subtract the plug-in estimate of the bias that noise in a_b causes ("l1" and "l2" only). The square of
            "l2" becomes unbiased; "l1" becomes less biased and can be slightly negative.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        task: "multiclass" compares the probability of the top label with accuracy. "binary" and "multilabel" compare
            P(y = 1) with the frequency of 1, over all events together.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(ece(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0])), 6)
        0.333333
        >>> ece(np.zeros((4, 2)), np.array([0, 1, 0, 1]), input="logits")
        0.0

    Reference: Mukhoti et al. (2020), Eqs. 1-3; Naeini, Cooper, Hauskrecht: Obtaining well calibrated probabilities
        using Bayesian binning. AAAI 2015. Debiasing: Kumar, Liang, Ma: Verified uncertainty calibration. NeurIPS 2019.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    return _sample_error(sample, bins=bins, binning=binning, norm=norm, debias=debias)


def adaptive_ece(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = BINS,
    binning: AdaptiveBinning = "equal_mass",
    norm: GapNorm = "l1",
    debias: bool = False,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Adaptive ECE (AdaECE): `ece` with equally many samples per bin.

    binning="mukhoti2020" reproduces the numbers of Mukhoti et al. (2020). The other arguments are those of `ece`.

    Example:
        >>> import numpy as np
        >>> round(adaptive_ece(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0]), bins=3), 6)
        0.333333

    Reference: Mukhoti et al. (2020), Eq. 3.
    """
    _check.one_of(binning, "binning", ADAPTIVE)
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    return _sample_error(sample, bins=bins, binning=binning, norm=norm, debias=debias)


def mce(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = BINS,
    binning: Binning = "equal_width",
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> float:
    """Maximum calibration error: the largest gap of a bin, `ece` with norm="max".

    Example:
        >>> import numpy as np
        >>> round(mce(np.array([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 1, 0])), 6)
        0.7

    Reference: Mukhoti et al. (2020), Eq. 2.
    """
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    return _sample_error(sample, bins=bins, binning=binning, norm="max", debias=False)


def top_k_ece(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    k: int,
    bins: int = BINS,
    binning: Binning = "equal_width",
    norm: GapNorm = "l1",
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> float:
    """`ece` of the claim that the label is among the k most probable classes.

    The confidence of this claim is the sum of their probabilities.

    Args:
        scores: (N, K), or (N, K, ...) with classes on axis 1.
        labels: (N,) or (N, ...), class indices.
        k: How many classes; 1 gives `ece`. Of equal probabilities, the first classes count as the more probable.
        bins: Number of bins.
        binning: As for `ece`.
        norm: "l1", "l2" or "max".
        input: Whether `scores` are "logits" or "probs".
        sample_weight: One weight per label.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> round(top_k_ece(np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]]), np.array([1, 0]), k=2), 6)
        0.55
    """
    sample = read(scores, labels, sample_weight, input=input, ignore_index=ignore_index)
    k = _check.count(k, "k", most=sample.classes)
    return event_error([top_k_events(sample, k=k)], bins=bins, binning=binning, norm=norm)


def _sample_error(sample: Sample, *, bins: int, binning: Binning, norm: GapNorm, debias: bool) -> float:
    _check.one_of(binning, "binning", BINNINGS)
    events: Iterable[Events] = sample.events() if binning in FIXED else [sample.all_events()]
    return event_error(events, bins=bins, binning=binning, norm=norm, debias=debias)


def event_error(
    events: Iterable[Events], *, bins: int, binning: Binning, norm: GapNorm = "l1", debias: bool = False
) -> float:
    """The calibration error of events. Bins that depend on the data need all events in one part."""
    check_bins(bins, binning, norm)
    if debias and norm == "max":
        msg = "debias must be False for norm='max', got True: its bias has no plug-in estimate"
        raise ValueError(msg)
    total: list[np.ndarray] = []
    for confidence, correct, weights in events:
        index, size = bin_index(confidence, weights, bins=bins, binning=binning)
        sums = [*bin_sums(index, confidence, correct, weights, size=size)]
        if debias:
            sums += pair_sums(index, confidence, correct, weights, size=size)
        total = [a + b for a, b in zip(total, sums, strict=True)] if total else sums
    drop = dropped_bin(bins=bins, binning=binning)
    if drop is not None:  # samples that a convention drops still count in its denominator
        total[2][drop] = total[1][drop]
    if debias:
        pairs = PairSums(*total[3:])
        if drop is not None:
            pairs.residual[drop] = 0.0
        return debiased_error(Bins(*total[:3]), pairs, norm=norm)
    return float(calibration_error(total[1] - total[2], total[0], norm=norm))


def check_bins(bins: int, binning: Binning, norm: GapNorm) -> None:
    """Check the settings of a binned measure."""
    _check.count(bins, "bins")
    _check.one_of(binning, "binning", BINNINGS)
    _check.one_of(norm, "norm", NORMS)


def top_k_events(sample: Sample, *, k: int) -> Events:
    """The summed probability of the k most probable classes of each row, and whether the label is one of them."""
    parts = []
    for block in sample.prob_blocks():
        order = np.argsort(-block.scores, axis=1, kind="stable")[:, :k]
        largest = np.take_along_axis(block.scores, order, axis=1).astype(np.float64)
        inside = np.any(order == block.labels[:, None], axis=1)
        parts.append(Events(np.minimum(1.0, largest.sum(axis=1)), inside, block.weights))
    return concatenate_events(parts)
