"""Calibration measures of any amount of data, in one pass, with fixed memory, on any number of machines."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal._documents import check_regular, parse_json, read_document
from refocal._files import replacing
from refocal.metrics.defaults import BINS, CONFIDENT
from refocal.metrics.inputs import TASKS, ArrayLike, Block, Events, Sample, Task, concatenate_events, read
from refocal.stats.binning import Bins, bin_sums, class_sums, mass_index_of_counts, width_index
from refocal.stats.gap_norms import calibration_error
from refocal.stats.proper_scores import brier_scores, softmax, softmax_and_scores, truth_of_logits, truth_of_probs
from refocal.stats.top_label import top_label

_CELLS = 1024  # cells of the fine grid per bin
_PENDING_ROWS = 1 << 16
_SCHEMA = 1
# what NumPy and zipfile raise on files of other programs; a wrong length can be a MemoryError
_DAMAGE = (KeyError, TypeError, AttributeError, ArithmeticError, ValueError, EOFError, MemoryError, zipfile.BadZipFile)
_SUMS = ("samples", "nll", "brier", "wrong", "confident", "confident_right")


class CalibrationSummary(NamedTuple):
    """The measures of all data that an accumulator has seen.

    Attributes:
        samples: Number (or weight) of samples, or of events for "binary" and "multilabel".
        ece: Top-label ECE with equal-width bins and norm "l1".
        rms: The same with norm "l2".
        mce: The largest gap of an equal-width bin.
        adaptive_ece: ECE over equal-mass bins, from the fine grid.
        classwise_ece: Classwise ECE, the mean over classes; NaN without classwise bins.
        nll: Mean negative log-likelihood.
        brier: Mean Brier score.
        error: Error rate.
        confidence: Mean confidence of the top label (mean P(y = 1) for events).
        confidence_share: Share of decisions with a confidence at or above the threshold.
        share_accuracy: Accuracy of these decisions; NaN if there are none.
    """

    samples: float
    ece: float
    rms: float
    mce: float
    adaptive_ece: float
    classwise_ece: float
    nll: float
    brier: float
    error: float
    confidence: float
    confidence_share: float
    share_accuracy: float


class AccumulatorSettings(TypedDict):
    """The arguments of `CalibrationAccumulator`."""

    bins: int
    task: Task
    classwise: bool
    threshold: float
    ignore_index: int | None


class CalibrationAccumulator:
    """Calibration measures updated batch by batch and merged across machines.

    The accumulator holds sums of fixed size, 3 x bins x (1024 + classes) numbers. Equal-width measures and means are
    exact. Adaptive ECE comes from a grid of 1024 cells per bin and is within 1e-3 of the exact value for 10,000 samples
    or more.

    Args:
        bins: Number of bins.
        task: "multiclass", "binary" or "multilabel", as for `ece`.
        classwise: Keep bins for every class ("multiclass" only). With many classes, this takes most of the time.
        threshold: The least confidence that counts toward `confidence_share`.
        ignore_index: Labels with this value do not count.

    Example:
        >>> import numpy as np
        >>> first, second = CalibrationAccumulator(), CalibrationAccumulator()
        >>> first.update(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([0, 1]))
        >>> second.update(np.array([[0.3, 0.7]]), np.array([0]))
        >>> round(first.merge(second).compute().ece, 6)
        0.333333
    """

    def __init__(
        self,
        *,
        bins: int = BINS,
        task: Task = "multiclass",
        classwise: bool = True,
        threshold: float = CONFIDENT,
        ignore_index: int | None = None,
    ) -> None:
        self.bins = _check.count(bins, "bins")
        self.task: Task = _check.one_of(task, "task", TASKS)
        self.classwise = bool(classwise) and task == "multiclass"
        self.threshold = _check.share(threshold, "threshold")
        self.ignore_index = None if ignore_index is None else _check.whole(ignore_index, "ignore_index")
        self.sums = np.zeros(len(_SUMS))
        self.grid = np.zeros((3, self.bins * _CELLS))
        self.classes: np.ndarray | None = None  # (3, K, bins), once K is known

    def update(
        self, scores: ArrayLike, labels: ArrayLike, *, input: Input = "probs", sample_weight: ArrayLike | None = None
    ) -> None:
        """Add a batch; a batch that is rejected changes nothing.

        Args:
            scores: As for `ece`.
            labels: As for `ece`.
            input: Whether `scores` are "logits" or "probs".
            sample_weight: One weight per label.
        """
        task, ignore_index = self.task, self.ignore_index
        sample = read(scores, labels, sample_weight, input=input, task=task, ignore_index=ignore_index, batch=True)
        self._add(sample)

    def merge(self, other: CalibrationAccumulator) -> CalibrationAccumulator:
        """Add the sums of another accumulator with the same settings, in place."""
        if self.settings() != other.settings():
            msg = f"other must have the same settings {self.settings()}, got {other.settings()}"
            raise ValueError(msg)
        if self.classes is not None and other.classes is not None and self.classes.shape != other.classes.shape:
            msg = f"other must have {self.classes.shape[1]} classes, got {other.classes.shape[1]}"
            raise ValueError(msg)
        self.sums = self.sums + other.sums
        self.grid = self.grid + other.grid
        if other.classes is not None:
            self.classes = other.classes.copy() if self.classes is None else self.classes + other.classes
        return self

    def compute(self) -> CalibrationSummary:
        """The measures of everything seen so far."""
        samples, nll, brier, wrong, confident, confident_right = (float(value) for value in self.sums)
        if samples == 0:
            msg = "compute() needs at least one sample: call update() first"
            raise ValueError(msg)
        wide = Bins(*self.grid.reshape(3, self.bins, _CELLS).sum(axis=-1))
        gaps = wide.confidence - wide.correct
        cells = Bins(*self.grid)
        index = mass_index_of_counts(cells.samples, bins=self.bins)
        mass_gaps = np.bincount(index, weights=cells.confidence - cells.correct, minlength=self.bins)
        classwise = float("nan")
        if self.classes is not None:
            class_bins = Bins(*self.classes)
            errors = calibration_error(class_bins.confidence - class_bins.correct, class_bins.samples, norm="l1")
            classwise = float(np.mean(errors))
        return CalibrationSummary(
            samples=samples,
            ece=float(calibration_error(gaps, wide.samples, norm="l1")),
            rms=float(calibration_error(gaps, wide.samples, norm="l2")),
            mce=float(calibration_error(gaps, wide.samples, norm="max")),
            adaptive_ece=float(np.sum(np.abs(mass_gaps)) / samples),
            classwise_ece=classwise,
            nll=nll / samples,
            brier=brier / samples,
            error=wrong / samples,
            confidence=float(wide.confidence.sum() / samples),
            confidence_share=confident / samples,
            share_accuracy=confident_right / confident if confident else float("nan"),
        )

    def settings(self) -> AccumulatorSettings:
        """The arguments that the accumulator was created with."""
        return {
            "bins": self.bins,
            "task": self.task,
            "classwise": self.classwise,
            "threshold": self.threshold,
            "ignore_index": self.ignore_index,
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the state to a .npz or .json file.

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        path = _state_path(path)
        arrays = {"sums": self.sums, "grid": self.grid}
        if self.classes is not None:
            arrays["classes"] = self.classes
        header = {"schema": _SCHEMA, "settings": self.settings()}
        with replacing(path, overwrite=overwrite) as file:
            if path.suffix == ".npz":
                np.savez(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
            else:
                plain = {name: array.tolist() for name, array in arrays.items()}
                file.write(json.dumps({**header, **plain}).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CalibrationAccumulator:
        """Read a state that `save` wrote.

        Raises:
            ValueError: if the file is something else or is damaged.
        """
        path = _state_path(path)
        try:
            header, arrays = _read_state(path)
            if header["schema"] != _SCHEMA:
                msg = f"path must hold a state of schema {_SCHEMA}, got {header['schema']!r}"
                raise ValueError(msg)
            loaded = cls(**header["settings"])
        except _DAMAGE as error:
            msg = f"{path} is not a saved CalibrationAccumulator: {error!r}"
            raise ValueError(msg) from error
        shapes = {"sums": loaded.sums.shape, "grid": loaded.grid.shape}
        if loaded.classwise and "classes" in arrays:
            shapes["classes"] = (3, arrays["classes"].shape[1] if arrays["classes"].ndim == 3 else 0, loaded.bins)
        if {name: array.shape for name, array in arrays.items()} != shapes:
            msg = f"{path} is damaged: its arrays must have the shapes {shapes}"
            raise ValueError(msg)
        loaded.sums, loaded.grid, loaded.classes = arrays["sums"], arrays["grid"], arrays.get("classes")
        return loaded

    def _add(self, sample: Sample) -> None:
        if self.classes is not None and sample.classes != self.classes.shape[1]:
            msg = f"{sample.name} must have {self.classes.shape[1]} classes as before, got {sample.classes}"
            raise ValueError(msg)
        sums, grid = np.zeros_like(self.sums), np.zeros_like(self.grid)
        by_class = np.zeros((3, sample.classes, self.bins)) if self.classwise else None
        pending: list[Events] = []
        for block in sample.blocks():
            probs, log_p, squares = probs_and_scores(block, is_logits=sample.is_logits)
            events = _to_events(probs, block)
            sums += self._totals(events, -log_p, squares)
            if by_class is not None:
                by_class += class_sums(probs, block.labels, block.weights, bins=self.bins)
            pending.append(events)
            if sum(len(part.correct) for part in pending) >= _PENDING_ROWS:
                grid += self._cells(pending)
                pending = []
        if pending:
            grid += self._cells(pending)
        self.sums = self.sums + sums
        self.grid = self.grid + grid
        if by_class is not None:
            self.classes = by_class if self.classes is None else self.classes + by_class

    def _totals(self, events: Events, log_scores: np.ndarray, squares: np.ndarray) -> np.ndarray:
        confidence, correct, weights = events
        if self.task != "multiclass":
            confidence, correct = np.maximum(confidence, 1 - confidence), (confidence >= 0.5) == correct
        is_sure = confidence >= self.threshold
        others = (squares, ~correct, is_sure, is_sure & correct)
        if weights is None:
            return np.array([len(correct), *(values.sum() for values in (log_scores, *others))], dtype=np.float64)
        finite = np.where(weights > 0, log_scores, 0.0)  # a weight of 0 removes a sample, even if its score is infinite
        return np.array([weights.sum(), *((weights * values).sum() for values in (finite, *others))])

    def _cells(self, pending: list[Events]) -> np.ndarray:
        confidence, correct, weights = concatenate_events(pending)
        size = self.bins * _CELLS
        return np.array(bin_sums(width_index(confidence, bins=size), confidence, correct, weights, size=size))


def probs_and_scores(block: Block, *, is_logits: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The probabilities of a block, log p of the true class, and Brier scores."""
    scores, labels = block.scores, block.labels
    if not is_logits:
        return scores, truth_of_probs(scores, labels)[0], brier_scores(scores, labels)
    if scores.ndim == 1:
        probs = softmax(scores)
        return probs, truth_of_logits(scores, labels)[0], brier_scores(probs, labels)
    return softmax_and_scores(scores, labels)


def _to_events(probs: np.ndarray, block: Block) -> Events:
    if probs.ndim == 1:
        return Events(probs, block.labels == 1, block.weights)
    confidence, correct = top_label(probs, block.labels)
    return Events(confidence, correct, block.weights)


def _read_state(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the arrays of a file."""
    names = ("sums", "grid", "classes")
    if path.suffix == ".json":
        header = parse_json(read_document(path), ValueError)
        return header, {name: np.array(header[name], dtype=np.float64) for name in names if name in header}
    check_regular(path)
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        unpacked = sum(info.file_size for info in file.zip.infolist())
        if unpacked > os.fstat(stream.fileno()).st_size:  # a compressed array may be a thousand times its file
            msg = f"its arrays must not be compressed, got {unpacked:,} bytes unpacked"
            raise ValueError(msg)
        arrays = {name: file[name].astype(np.float64) for name in names if name in file.files}
        return parse_json(str(file["header"]), ValueError), arrays


def _state_path(path: str | os.PathLike[str]) -> Path:
    result = Path(path)
    if result.suffix not in {".npz", ".json"}:
        msg = f"path must end in .npz or .json, got {str(path)!r}"
        raise ValueError(msg)
    return result
