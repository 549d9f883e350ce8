"""The likelihood of a data set of many files, as sums over blocks. Fits use it like that of rows in memory."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from refocal._check import Input
from refocal.calibrators.conversion import scores_to_logits
from refocal.calibrators.fit.descent import Quadratic, Slope
from refocal.calibrators.fit.focal_masses import Parameters, RankedLogits, top_confidences
from refocal.calibrators.fit.temperature_likelihood import FocalNLL, LabeledLogits
from refocal.calibrators.floors import choose_floor, find_least, raise_logits
from refocal.scale.engines import Folder
from refocal.scale.parts import Block
from refocal.stats.binning import Bins, bin_sums, width_index
from refocal.stats.sample_counts import WeightSums

MOST_PASSES = 10
NO_ROWS = "there are no rows to fit to: all weights are 0, or the files have no rows of this split"
_SAMPLE_SCORES = 1 << 20  # in the sample of rows that gives the first guess
_LEAST_SAMPLE_ROWS = 1024


class Sums(NamedTuple):
    """Sums over rows times their weights, and the sum of the weights."""

    weight: float
    values: np.ndarray

    def merge(self, other: Sums) -> Sums:
        """Add up both sums."""
        return Sums(self.weight + other.weight, self.values + other.values)

    @property
    def means(self) -> np.ndarray:
        """The weighted means of the values."""
        return self.values / self.weight


class Outline(NamedTuple):
    """What a fit needs before its first step: sums of the weights, and some rows for their scales and a guess."""

    weights: WeightSums
    least: float  # the smallest positive probability; 1 if the scores are logits
    sample: LabeledLogits

    def merge(self, other: Outline) -> Outline:
        """Combine both outlines. A sample that grows too large is thinned."""
        parts = (self.sample, other.sample)
        weights = np.concatenate([part.share * part.samples for part in parts])
        logits, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("logits", "labels"))
        step = 2 if len(labels) > 2 * _sample_rows(logits.shape[1]) else 1
        sample = LabeledLogits.prepare(logits[::step], labels[::step], weights[::step])
        return Outline(self.weights.merge(other.weights), min(self.least, other.least), sample)


class PartitionedLikelihood:
    """The `Likelihood` of rows that an engine reads. Each evaluation takes one pass.

    Args:
        engine: The engine that runs the passes.
        source: What the engine folds: for files the result of `engine.hold`.
        input: "logits" or "probs".
        files: Number of files, or 1 if the blocks come in one stream.
        most_passes: The most passes; one more is an error.

    Attributes:
        passes: The number of passes so far.
        floor: The floor of probabilities, chosen by the sample of rows; None if the scores are logits.
    """

    def __init__(
        self, engine: Folder, source: Any, *, input: Input, files: int, most_passes: int = MOST_PASSES
    ) -> None:
        self._engine, self._source = engine, source
        self.passes, self._most_passes = 0, most_passes
        found = self._pass(partial(outline_block, input=input, files=files), Outline.merge)
        if found is None:
            raise ValueError(NO_ROWS)
        self._sample: LabeledLogits = found.sample
        self.samples, self._weight = found.weights.samples, found.weights.total
        self.floor: float | None = None
        if input == "probs":
            self.floor = choose_floor(found.sample, self.samples, found.least)
            self._sample = raise_logits(found.sample, self.floor)
        self._reading: dict[str, Any] = {"input": input, "floor": self.floor}
        self.scales = self._sample.scales
        self.classes, self.single = self._sample.classes, self._sample.single

    def sample(self, size: int) -> LabeledLogits:  # noqa: ARG002 a pass over the data costs more than a better guess
        """Return the rows that were kept for a first guess."""
        return self._sample

    def temperature_nll(self, beta: float, *, exact: bool = True, curvature: bool = True) -> Slope:
        """`temperature_likelihood` of all rows."""
        run = partial(temperature_sums, **self._reading, beta=beta, exact=exact, curvature=curvature)
        value, slope, *bend = self._means(run)
        return Slope(float(value), float(slope), float(bend[0]) if curvature else None)

    def prepare_focal_nll(self) -> FocalNLL:
        """`focal_likelihood` of all rows."""
        return self._of_focal

    def _of_focal(self, gamma: float, beta: float, *, exact: bool = True, curvature: bool = True) -> Quadratic:
        run = partial(focal_sums, **self._reading, gamma=gamma, beta=beta, exact=exact, curvature=curvature)
        means = self._means(run)
        return Quadratic(float(means[0]), means[1:3], means[3:].reshape(2, 2) if curvature else None)

    def _means(self, run: Any) -> np.ndarray:
        found = self._pass(run, Sums.merge)
        weight = 0.0 if found is None else found.weight
        # allows for rounding in another order of summation, and is less than one row of the largest data sets
        if not math.isclose(weight, self._weight, rel_tol=1e-12):
            msg = (
                f"the data changed during the fit: a total weight of {self._weight:,.15g} at first, {weight:,.15g} now"
            )
            raise RuntimeError(msg)
        means: np.ndarray = found.means
        return means

    def _pass(self, run: Any, merge: Any) -> Any:
        if self.passes == self._most_passes:
            msg = f"no optimum found in {self._most_passes} passes over the data: fit to fewer rows in memory instead"
            raise RuntimeError(msg)
        self.passes += 1
        return self._engine.fold(self._source, run, merge, what=f"fitting, pass {self.passes}")


def read_labeled(block: Block, *, input: Input, floor: float | None = None) -> LabeledLogits:
    """Convert the rows of a block to logits; probabilities are raised to the floor, if there is one."""
    matrix = block.scores.reshape(len(block.labels), -1)
    logits = scores_to_logits(matrix, input=input)
    logits = logits if floor is None else np.maximum(logits, math.log(floor))
    return LabeledLogits.prepare(logits, block.labels, block.sample_weight)


def outline_block(block: Block, *, input: Input, files: int) -> Outline:
    """Outline a block. Its share of the sample is that of a file with one block."""
    data = read_labeled(block, input=input)
    wanted = -(-_sample_rows(data.classes) // files)
    least = find_least(block.scores.reshape(len(block.labels), -1)) if input == "probs" else 1.0
    weights = np.ones(len(data.labels)) if block.sample_weight is None else block.sample_weight
    return Outline(WeightSums.of(weights), least, _thin(data, max(1, len(data.labels) // wanted)))


def temperature_sums(
    block: Block, *, input: Input, floor: float | None, beta: float, exact: bool, curvature: bool
) -> Sums:
    """Sum value, slope and curvature of the NLL in 1/T over the samples of a block."""
    data = read_labeled(block, input=input, floor=floor)
    at = data.temperature_nll(beta, exact=exact, curvature=curvature)
    return Sums(data.samples, data.samples * np.array([value for value in at if value is not None]))


def focal_sums(
    block: Block, *, input: Input, floor: float | None, gamma: float, beta: float, exact: bool, curvature: bool
) -> Sums:
    """Sum value, gradient and Hessian of the NLL in (gamma, 1/T) over the samples of a block."""
    data = read_labeled(block, input=input, floor=floor)
    value, gradient, hessian = data.prepare_focal_nll()(gamma, beta, exact=exact, curvature=curvature)
    parts = [np.array([value]), gradient] + ([] if hessian is None else [hessian.ravel()])
    return Sums(data.samples, data.samples * np.concatenate(parts))


def cell_nlls(block: Block, *, input: Input, floor: float | None, cells: list[tuple[float, float]]) -> Sums:
    """Sum the NLL at every (gamma, T) over the samples of a block."""
    data = read_labeled(block, input=input, floor=floor)
    nll = data.prepare_focal_nll()
    values = [nll(gamma, 1 / T, exact=False, curvature=False).value for gamma, T in cells]
    return Sums(data.samples, data.samples * np.array(values))


def cell_bins(block: Block, *, input: Input, floor: float | None, cells: list[tuple[float, float]], bins: int) -> Sums:
    """Sum the reliability bins at every (gamma, T): (cells, 3, bins). Predicted classes are the same in all of them."""
    data = read_labeled(block, input=input, floor=floor)
    ranked = RankedLogits.prepare(data)
    correct = ranked.argmax == data.labels
    weights = data.share * data.samples

    def of_cell(gamma: float, temperature: float) -> Bins:
        confidence = top_confidences(ranked, Parameters(gamma, 1 / temperature))
        return bin_sums(width_index(confidence, bins=bins), confidence, correct, weights, size=bins)

    return Sums(data.samples, np.array([of_cell(*cell) for cell in cells]))


def _sample_rows(classes: int) -> int:
    return max(_LEAST_SAMPLE_ROWS, _SAMPLE_SCORES // classes)


def _thin(data: LabeledLogits, step: int) -> LabeledLogits:
    thin = data.thin(step)
    samples = data.samples * float(data.share[::step].sum())
    # copied, because a view would keep the whole block in memory
    return LabeledLogits.prepare(thin.logits.copy(), thin.labels.copy(), thin.share * samples)
