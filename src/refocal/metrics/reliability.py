"""Reliability diagrams as numbers, with consistency bands, and a test of ECE."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal.metrics.defaults import BINS, LEVEL, RESAMPLES
from refocal.metrics.inputs import ArrayLike, Events, Task, read
from refocal.stats.binning import BINNINGS, Binning, Bins, bin_index, dropped_bin
from refocal.stats.gap_norms import calibration_error
from refocal.stats.resampling import calibrated_hits, group_cells


class ReliabilityDiagram(NamedTuple):
    """The bins that have samples, from low to high confidence.

    Attributes:
        samples: Number (or weight) of samples.
        confidence: Mean confidence.
        accuracy: Share of correct samples (frequency of 1 for events).
        low: Lower limit of the consistency band.
        high: Upper limit. In each bin, the accuracy of a calibrated model lies in the band with probability `level`, or
            a little more, since the number of correct samples is whole.
    """

    samples: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray
    low: np.ndarray
    high: np.ndarray


def reliability_diagram(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = BINS,
    binning: Binning = "equal_width",
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int | np.random.Generator = 0,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> ReliabilityDiagram:
    """Accuracy against confidence, with consistency bands.

    The bands show the noise: where the accuracies of a perfectly calibrated model lie in a sample of this size.

    Args:
        scores: As for `ece`.
        labels: As for `ece`.
        bins: As for `ece`.
        binning: As for `ece`.
        level: Probability of the band of each bin.
        resamples: Number of simulated label sets.
        seed: Seed or generator of the simulation.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: As for `ece`.
        task: As for `ece`.
        ignore_index: As for `ece`.

    Example:
        >>> import numpy as np
        >>> diagram = reliability_diagram(np.array([0.2] * 50 + [0.8] * 50), np.array([0, 1] * 50), task="binary")
        >>> diagram.accuracy.tolist(), bool(diagram.high[0] < 0.5)
        ([0.5, 0.5], True)

    Reference: Bröcker, Smith: Increasing the reliability of reliability diagrams. Weather and Forecasting 22, 2007.
    """
    level = _check.share(level, "level")
    _check.count(bins, "bins")
    _check.one_of(binning, "binning", BINNINGS)
    _check.count(resamples, "resamples", least=100)
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    sums, hits = _simulate(sample.all_events(), bins=bins, binning=binning, resamples=resamples, seed=seed)
    used = sums.samples > 0
    drop = dropped_bin(bins=bins, binning=binning)
    if drop is not None:
        used[drop] = False
    samples = sums.samples[used]
    low, high = np.quantile(hits[:, used] / samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ReliabilityDiagram(samples, sums.confidence[used] / samples, sums.correct[used] / samples, low, high)


def find_ece_p_value(events: Events, *, resamples: int = RESAMPLES, seed: int | np.random.Generator = 0) -> float:
    """The p-value of ECE among those of labels that are drawn with the confidences as probabilities."""
    sums, hits = _simulate(events, bins=BINS, binning="equal_width", resamples=resamples, seed=seed)
    errors = calibration_error(sums.confidence - np.concatenate([sums.correct[None], hits]), sums.samples, norm="l1")
    # Simulated errors that differ from the observed one by rounding count as equal.
    above = int(np.count_nonzero(errors[1:] >= errors[0] * (1 - 1e-12)))
    return (1 + above) / (resamples + 1)


def _simulate(
    events: Events, *, bins: int, binning: Binning, resamples: int, seed: int | np.random.Generator
) -> tuple[Bins, np.ndarray]:
    """Sums over bins, and hits (resamples, bins) of labels simulated with the confidences as probabilities."""
    confidence, correct, weights = events
    index, size = bin_index(confidence, weights, bins=bins, binning=binning)
    cells = group_cells(confidence, correct, weights, index)
    mass = cells.copies * cells.weight
    parts = (mass, mass * cells.confidence, mass * cells.correct)
    sums = Bins(*(np.bincount(cells.bin, weights=part, minlength=size) for part in parts))
    return sums, calibrated_hits(cells, resamples=resamples, bins=size, rng=np.random.default_rng(seed))
