"""The test of calibration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy

from refocal import _check
from refocal._check import Input
from refocal.metrics.defaults import BINS, RESAMPLES
from refocal.metrics.inputs import ArrayLike, Block, Events, Sample, Task, read
from refocal.stats import calibrated_sums, omnibus
from refocal.stats.binning import BINNINGS, Binning, bin_index, bin_sums, dropped_bin
from refocal.stats.gap_norms import NORMS, GapNorm, calibration_error
from refocal.stats.label_sums import LabelSums, PredictedRows, sum_labels
from refocal.stats.omnibus import CalibrationTestParts
from refocal.stats.proper_scores import log_softmax

__all__ = ["CalibrationTest", "CalibrationTestParts", "calibration_test"]


class CalibrationTest(NamedTuple):
    """What a test of calibration found.

    Attributes:
        value: The observed calibration error.
        expected: Its mean for a calibrated model.
        p_value: The probability of labels that contradict a calibrated model as much as these do.
        parts: The p-values of the parts of the test, each on its own. `p_value` is that of all of them together.
    """

    value: float
    expected: float
    p_value: float
    parts: CalibrationTestParts

    @property
    def strongest(self) -> str:
        """The name of the part with the smallest p-value; the first one if several have it."""
        return min(zip(self.parts, CalibrationTestParts._fields, strict=True), key=lambda pair: pair[0])[1]


def calibration_test(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    bins: int = BINS,
    binning: Binning = "equal_width",
    norm: GapNorm = "l1",
    resamples: int = RESAMPLES,
    seed: int | np.random.Generator = 0,
    input: Input = "probs",
    sample_weight: ArrayLike | None = None,
    task: Task = "multiclass",
    ignore_index: int | None = None,
) -> CalibrationTest:
    """Test the hypothesis that labels occur with the predicted probabilities, against errors of many kinds.

    If it holds, labels drawn from the predictions look like the observed ones. Five statistics compare them, each
    sensitive to one kind of error. In the model with logits beta z + b, the scores of beta and b at beta = 1 and b = 0
    are sums over samples of log p_y - E log p and of [y = k] - p_k:

    - temperature: the score of beta, |S| / sd(S).
    - frequencies: the scores of b, the sum over classes of |S_k / sd(S_k)|^4.
    - classes: the scores of one beta for each predicted class, the sum of (S_g / sd(S_g))^2. For the task "multilabel"
      there is one beta for each label and prediction.
    - bins: the sum of (gap / sd(gap))^2 over the bins of the confidence, of the given kind and with equal mass.
    - cumulative: the largest |gap / sd(gap)| of all claims below, or above, any confidence.

    Claims are those of `ece`: the top label's confidence, or P(y = 1). The p-value of each part is the rank of its
    statistic among those of drawn labels. The Cauchy combination test joins the parts, and the p-value is the rank of
    the observed combination. So the test has its level for any number of samples and classes, and with any weights.

    Data with very many uncertain predictions are drawn in pieces, and the level is then approximate; see
    `refocal.stats.label_sums`.

    Args:
        scores: As for `ece`.
        labels: As for `ece`.
        bins: As for `ece`.
        binning: As for `ece`.
        norm: As for `ece`; for `value` and `expected`.
        resamples: Number of simulated label sets; the smallest p-value is 1 / (resamples + 1). Only if a label has the
            predicted probability 0 is the p-value 0.
        seed: Seed or generator of the simulation.
        input: Whether `scores` are "logits" or "probs".
        sample_weight: As for `ece`. Labels are drawn for each row, and the weights enter the statistics.
        task: As for `ece`.
        ignore_index: As for `ece`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(1)
        >>> p = rng.random(1000)
        >>> calibration_test(p, rng.random(1000) < p, task="binary").p_value > 0.05
        True
        >>> found = calibration_test(p, rng.random(1000) < p**1.5, task="binary")
        >>> found.p_value < 0.01, found.parts.frequencies < 0.01
        (True, True)

    Reference: Bröcker, Smith: Increasing the reliability of reliability diagrams. Weather and Forecasting 22, 2007.
    Cox: Two further applications of a model for binary regression. Biometrika 45, 1958. Liu, Xie: Cauchy combination
    test. J. Am. Stat. Assoc. 115, 2020.
    """
    _check.one_of(norm, "norm", NORMS)
    _check.count(bins, "bins")
    _check.one_of(binning, "binning", BINNINGS)
    _check.count(resamples, "resamples", least=100)
    sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index)
    events = sample.all_events()
    index, size = bin_index(events.confidence, events.weights, bins=bins, binning=binning)
    masses, _ = bin_index(events.confidence, events.weights, bins=bins, binning="equal_mass")
    # log-odds come first, so that cells are in the order of their confidence
    levels = calibrated_sums.find_levels(events.confidence.astype(np.float64))
    cells, cell = np.unique((levels * bins + masses) * size + index, return_inverse=True)
    bin_of_cell, mass_of_cell = cells % size, cells // size % bins
    columns = sample.shape[1] if task == "multilabel" else 1
    sums = _draw(sample, events, cell, columns=columns, resamples=resamples, rng=np.random.default_rng(seed))
    statistics = omnibus.measure_parts(sums, [bin_of_cell, mass_of_cell])
    parts, p_value = omnibus.rank_parts(statistics, possible=sums.possible)

    observed = bin_sums(index, events.confidence, events.correct, events.weights, size=size)
    drawn = events.scale.max() * omnibus.add_cells(sums.simulated[:, sums.hits], bin_of_cell, size=size)
    gaps = np.concatenate([(observed.confidence - observed.correct)[None], -drawn])
    drop = dropped_bin(bins=bins, binning=binning)
    if drop is not None:
        gaps[:, drop] = 0.0
    errors = calibration_error(gaps, observed.samples, norm=norm)
    return CalibrationTest(float(errors[0]), float(errors[1:].mean()), p_value, parts)


def _draw(
    sample: Sample, events: Events, cell: np.ndarray, *, columns: int, resamples: int, rng: np.random.Generator
) -> LabelSums:
    """Sum the residuals of the labels, and of labels drawn from the predictions."""
    is_event = sample.classes == 1
    claims = events.confidence.astype(np.float64)
    misses = np.minimum(claims, 1 - claims) if is_event else 1 - claims
    weights = events.scale / events.scale.max()  # whose fourth powers neither overflow nor vanish
    column = np.flatnonzero(sample.counts()) % columns

    def blocks() -> Iterator[PredictedRows]:
        start = 0
        for block in sample.blocks():
            rows = slice(start, start + len(block.labels))
            start = rows.stop
            log_probs = _log_probs(block, is_logits=sample.is_logits)
            probs = np.exp(log_probs)
            claimed = np.ones(len(probs), dtype=np.intp) if is_event else block.scores.argmax(axis=1)
            yield PredictedRows(probs, log_probs, block.labels, weights[rows], claimed, column[rows], cell[rows])

    return sum_labels(
        blocks(),
        groups=columns * (2 if is_event else sample.classes),
        cells=int(cell.max()) + 1,
        resamples=resamples,
        rng=rng,
        misses=float(misses.sum()),
        effective=float(weights.sum() ** 2 / (weights**2).sum()),
        count=len(claims),
    )


def _log_probs(block: Block, *, is_logits: bool) -> np.ndarray:
    """Logarithms of the probabilities of the classes, or of y = 0 and y = 1, (n, K)."""
    wide = block.scores.astype(np.float64)
    if is_logits:
        if wide.ndim == 2:
            return log_softmax(wide)
        return np.stack([scipy.special.log_expit(-wide), scipy.special.log_expit(wide)], axis=1)
    with np.errstate(divide="ignore"):
        if wide.ndim == 1:
            return np.stack([np.log1p(-wide), np.log(wide)], axis=1)
        return np.log(wide / wide.sum(axis=1, keepdims=True))
