"""Reading the input of metrics: arrays of any library become checked blocks of NumPy rows.

A block is small enough to stay in a core's cache while it is checked and summed. So the data leave main memory once,
and no temporary array grows with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from refocal import _check
from refocal._arrays import Array, is_torch
from refocal._check import Input
from refocal._containers import check_order, column_names, encode_labels, float_limits, to_array, to_numpy
from refocal._rounding import normalize_and_warn
from refocal.stats.proper_scores import softmax
from refocal.stats.top_label import top_label, top_label_of_logits

ArrayLike = Array | Sequence[Any]  # an array of any library, or nested lists
Task = Literal["multiclass", "binary", "multilabel"]

TASKS: tuple[Task, ...] = get_args(Task)

_BLOCK_ELEMENTS = 1 << 17
_NAMING = "pass indices, or scores in a frame whose columns are the names of the classes"
_EVENT_ROWS = 1 << 16  # (confidence, correct) pairs that are binned at once


class Block(NamedTuple):
    """Rows in float32 or float64: (n, K) for classes, (n,) for events with probability P(y = 1)."""

    scores: np.ndarray
    labels: np.ndarray  # (n,) in 0 ... K - 1; 0 or 1 for events
    weights: np.ndarray | None  # (n,) float64
    rows: np.ndarray | None  # positions of these rows in the input; None for all rows, in order


class Events(NamedTuple):
    """Claimed probabilities, and whether the claims came true."""

    confidence: np.ndarray
    correct: np.ndarray
    weights: np.ndarray | None

    @property
    def scale(self) -> np.ndarray:
        """The weights, or ones if there are none."""
        return np.ones(len(self.correct)) if self.weights is None else self.weights


@dataclass(frozen=True)
class Sample:
    """Scores, labels and weights of matching shapes. Values are checked as blocks are read."""

    scores: Any  # a NumPy array or a PyTorch tensor: (N, K) or (N, K, S) for classes, (N,) for events
    labels: np.ndarray  # (N * S,)
    weights: np.ndarray | None
    name: str
    is_logits: bool
    ignore_index: int | None
    shape: tuple[int, ...]  # of the labels, to name rows
    bits: int

    @property
    def classes(self) -> int:
        """The number of classes; 1 for events."""
        return int(self.scores.shape[1]) if self.scores.ndim > 1 else 1

    def counts(self) -> np.ndarray:
        """Whether each label counts, (N * S,)."""
        if self.ignore_index is None:
            return np.ones(len(self.labels), dtype=bool)
        return self.labels != self.ignore_index

    def used_weights(self) -> np.ndarray | None:
        """The weights of the rows that count."""
        if self.weights is None or self.ignore_index is None:
            return self.weights
        return self.weights[self.labels != self.ignore_index]

    def blocks(self) -> Iterator[Block]:
        """The rows that count, in order, checked."""
        for start, block in self._raw_blocks():
            yield block._replace(scores=self._check(block.scores, start, block.rows))

    def prob_blocks(self) -> Iterator[Block]:
        """The same blocks, with probabilities as their scores."""
        for block in self.blocks():
            yield block._replace(scores=softmax(block.scores)) if self.is_logits else block

    def _raw_blocks(self) -> Iterator[tuple[int, Block]]:
        for start, part in self._slices():
            scores, stop = part, start + len(part)
            labels = self.labels[start:stop]
            weights = None if self.weights is None else self.weights[start:stop]
            rows = None
            if self.ignore_index is not None and not (keep := labels != self.ignore_index).all():
                rows = start + np.flatnonzero(keep)
                scores, labels = scores[keep], labels[keep]
                weights = None if weights is None else weights[keep]
            if len(labels):
                # Labels become indices, which would overflow in uint8.
                yield start, Block(scores, labels.astype(np.intp, copy=False), weights, rows)

    def events(self) -> Iterator[Events]:
        """Confidence and correctness of the top label (P(y = 1) and y for events), many rows at a time."""
        pending: list[Events] = []
        size = 0
        for start, block in self._raw_blocks():
            if self.is_logits:
                self._check(block.scores, start, block.rows)
                pending.append(self._to_events(block))
            else:  # the arg max brings the block into the cache faster than the checks do
                events = self._to_events(block)
                checked = self._check(block.scores, start, block.rows)
                same = checked is block.scores
                pending.append(events if same else self._to_events(block._replace(scores=checked)))
            size += len(block.labels)
            if size >= _EVENT_ROWS:
                yield concatenate_events(pending)
                pending, size = [], 0
        if pending:
            yield concatenate_events(pending)

    def all_events(self) -> Events:
        """All of `events` at once."""
        return concatenate_events(list(self.events()))

    def column(self, index: int) -> Sample:
        """The events of one label of a multi-label task."""
        width = self.shape[1]
        weights = None if self.weights is None else self.weights[index::width]
        return replace(
            self,
            scores=self.scores[index::width],
            labels=self.labels[index::width],
            weights=weights,
            shape=self.shape[:1],
        )

    def _to_events(self, block: Block) -> Events:
        if block.scores.ndim == 1:
            probs = _sigmoid(block.scores) if self.is_logits else block.scores
            return Events(probs, block.labels == 1, block.weights)
        top = top_label_of_logits if self.is_logits else top_label
        confidence, correct = top(block.scores, block.labels)
        return Events(confidence, correct, block.weights)

    def _slices(self) -> Iterator[tuple[int, np.ndarray]]:
        """Slices of rows (n, K) or (n,), with the flat index of their first row."""
        if self.scores.ndim == 1:
            for start in range(0, self.scores.shape[0], _BLOCK_ELEMENTS):
                yield start, _as_numpy(self.scores[start : start + _BLOCK_ELEMENTS])
            return
        count, classes = int(self.scores.shape[0]), int(self.scores.shape[1])
        step = max(1, _BLOCK_ELEMENTS // classes)
        if self.scores.ndim == 2:
            for start in range(0, count, step):
                yield start, _as_numpy(self.scores[start : start + step])
            return
        places = int(self.scores.shape[2])
        for image in range(count):
            for start in range(0, places, step):
                part = _as_numpy(self.scores[image, :, start : start + step])
                yield image * places + start, np.ascontiguousarray(part.T)

    def _check(self, scores: np.ndarray, start: int, rows: np.ndarray | None) -> np.ndarray:
        """Check a block, row by row only if something is wrong, and return it with rounded rows normalized."""
        if self.is_logits:
            if np.isfinite(scores.max()) and np.isfinite(scores.min()):
                return scores
            if scores.ndim == 1:
                self._reject(np.isnan(scores), scores, f"{self.name} must not be NaN", start, rows)
                return scores
            largest = scores.max(axis=1)
            message = f"{self.name} must be finite or -inf (masked), with at least one finite value per row"
            self._reject(~np.isfinite(largest), largest, message, start, rows)
        elif scores.ndim == 1:
            if not (scores.min() >= 0 and scores.max() <= 1):
                bad = ~((scores >= 0) & (scores <= 1))
                message = f"{self.name} must lie in [0, 1] ({_check.FOR_LOGITS})"
                self._reject(bad, scores, message, start, rows)
        else:
            sums = scores @ np.ones(scores.shape[1], dtype=scores.dtype)
            tolerance = _check.sum_tolerance(self.bits)
            if scores.min() >= 0 and max(sums.max() - 1, 1 - sums.min()) <= tolerance:
                return scores
            smallest = scores.min(axis=1)
            message = f"{self.name} must be non-negative and not NaN ({_check.FOR_LOGITS})"
            self._reject(~(smallest >= 0), smallest, message, start, rows)
            scores = normalize_and_warn(scores, self.name)
            sums = scores.sum(axis=1)
            message = f"rows of {self.name} must sum to 1 ({_check.FOR_LOGITS})"
            self._reject(~(np.abs(sums - 1) <= tolerance), sums, message, start, rows)
        return scores

    def _reject(self, bad: np.ndarray, values: np.ndarray, message: str, start: int, rows: np.ndarray | None) -> None:
        _check.reject_rows(bad, values, message, shape=self.shape, rows=start if rows is None else rows)


def read(
    scores: ArrayLike,
    labels: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    input: Input = "probs",
    task: Task = "multiclass",
    ignore_index: int | None = None,
    name: str = "scores",
    batch: bool = False,
) -> Sample:
    """Check the shapes and dtypes of the arguments of a metric.

    Args:
        scores: multiclass: (N, K), or (N, K, ...) with the classes on axis 1. binary: one score for P(y = 1), with the
            shape of `labels` or with one more axis of length 1. multilabel: (N, L). An array of any library, a list, or
            a frame or series of pandas, polars or Arrow.
        labels: multiclass: (N,) or (N, ...), class indices; if `scores` are a frame, also the names of its columns.
            binary: 0 or 1. multilabel: (N, L) of 0 or 1.
        sample_weight: None, or one weight per label; for multilabel also one per row, (N,).
        input: Whether `scores` are "logits" or "probs". It is never guessed.
        task: How to read `scores`. It is never guessed.
        ignore_index: Labels with this value do not count.
        name: The name of `scores` in messages.
        batch: Whether this is one of several batches. Then it may have no row that counts.
    """
    _check.input_word(input)
    _check.one_of(task, "task", TASKS)
    if ignore_index is not None:
        _check.whole(ignore_index, "ignore_index")
    array, bits = read_floats(scores, name)
    view = _view(array)
    names = column_names(scores)
    if task == "multilabel":
        check_order(column_names(labels), names, "labels")
    classes = int(view.shape[1]) if task == "multiclass" and view.ndim > 1 else 2
    answers = _to_integers(labels, names if task == "multiclass" else None, classes, column=task != "multilabel")
    if task == "multiclass":
        if view.ndim < 2 or view.shape[1] < 2:
            msg = f"{name} must have shape (N, classes) or (N, classes, ...), two classes or more, got {_shape(view)}"
            raise ValueError(msg + (" (task='binary' takes P(y = 1))" if view.ndim < 2 or view.shape[1] == 1 else ""))
        shape = (view.shape[0], *view.shape[2:])
        if view.ndim > 3:
            view = view.reshape(view.shape[0], view.shape[1], math.prod(view.shape[2:]))
    else:
        if view.ndim == answers.ndim + 1 and view.shape[-1] == 1 and task == "binary":
            view = view[..., 0]
        if task == "multilabel" and view.ndim != 2:
            msg = f"{name} must have shape (N, labels) for task='multilabel', got {_shape(view)}"
            raise ValueError(msg)
        shape = tuple(view.shape)
        view = view.reshape(math.prod(shape))
    if answers.shape != shape:
        msg = f"labels must have shape {tuple(map(int, shape))}, got {answers.shape}"
        raise ValueError(msg)
    if math.prod(shape) == 0:
        msg = f"{name} must have at least one row, got shape {_shape(array)}"
        raise ValueError(msg)
    flat = answers.reshape(-1)
    counts: Any = slice(None) if ignore_index is None else flat != ignore_index
    if len(flat[counts]) == 0 and not batch:
        msg = f"labels must not all be ignore_index={ignore_index}"
        raise ValueError(msg)
    _check_labels(flat, view.shape[1] if view.ndim > 1 else 2, ignore_index, answers.shape)
    weights = _flat_weights(sample_weight, answers.shape, task)
    if weights is not None and not batch and not weights[counts].any():
        msg = "sample_weight must not all be 0"
        raise ValueError(msg)
    return Sample(view, flat, weights, name, input == "logits", ignore_index, answers.shape, bits)


def read_floats(values: Any, name: str) -> tuple[Any, int]:
    """Floating-point numbers of any container, as an array, and the number of bits of each."""
    array = to_array(values, name)
    bits = float_limits(array).bits
    if bits == 16 and not is_torch(array):  # NumPy does not know bfloat16 as a floating-point dtype
        array = to_numpy(array, name)
    return _check.floating(array, name)[1], bits


def concatenate_events(parts: list[Events]) -> Events:
    """Events of several blocks, one after another."""
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    return Events(
        np.concatenate([part.confidence for part in parts]),
        np.concatenate([part.correct for part in parts]),
        np.concatenate(weights) if weights else None,
    )


def _to_integers(labels: Any, names: tuple[str, ...] | None, classes: int, *, column: bool) -> np.ndarray:
    """Labels as NumPy integers; `names` are those of the classes."""
    array = to_numpy(labels, "labels", column=column)
    if array.size == 0:  # NumPy reads an empty list as floats
        return array.astype(np.int8)
    array = encode_labels(array, names, classes, how=_NAMING)
    if not np.issubdtype(array.dtype, np.integer):
        msg = f"labels must have an integer dtype, got {array.dtype}"
        raise TypeError(msg)
    return array


def _check_labels(labels: np.ndarray, classes: int, ignore_index: int | None, shape: tuple[int, ...]) -> None:
    if labels.min() >= 0 and labels.max() < classes:
        return
    bad = (labels < 0) | (labels >= classes)
    if ignore_index is not None:
        bad &= labels != ignore_index
    _check.reject_rows(bad, labels, f"labels must be from 0 to {classes - 1}", shape=shape)


def _flat_weights(weights: Any, shape: tuple[int, ...], task: Task) -> np.ndarray | None:
    if weights is None:
        return None
    array = to_numpy(weights, "sample_weight", column=shape[1:] != (1,))
    if not np.can_cast(array.dtype, np.float64, "same_kind"):
        msg = f"sample_weight must hold real numbers, got dtype {array.dtype}"
        raise TypeError(msg)
    if task == "multilabel" and array.shape == shape[:1]:
        array = np.broadcast_to(array[:, None], shape)
    if array.shape != tuple(shape):
        msg = f"sample_weight must have shape {tuple(map(int, shape))}, one weight per label, got {array.shape}"
        raise ValueError(msg)
    flat = array.reshape(-1).astype(np.float64, copy=False)
    bad = ~((flat >= 0) & (flat < np.inf))
    _check.reject_rows(bad, flat, "sample_weight must be finite and not negative", shape=shape)
    _check.sample_weights(flat, "sample_weight")
    return flat


def _view(array: Any) -> Any:
    """A NumPy array without a copy if the memory allows it; otherwise a PyTorch tensor, to be copied block by block."""
    if is_torch(array):
        array = array.detach()
        in_memory = array.device.type == "cpu" and str(array.dtype) != "torch.bfloat16"
        return array.numpy() if in_memory else array
    if isinstance(array, np.ndarray):
        return array
    return np.from_dlpack(array) if type(array).__module__.startswith("array_api_strict") else np.asarray(array)


def _as_numpy(part: Any) -> np.ndarray:
    """A block in NumPy; floats become float32, or float64 if they are at least as wide."""
    if is_torch(part):
        part = (part.float() if str(part.dtype) == "torch.bfloat16" else part).cpu().numpy()
    if part.dtype in (np.float32, np.float64):
        return part
    return part.astype(np.float64 if part.dtype.itemsize >= 8 else np.float32)  # float64 of the other byte order


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-logits))


def _shape(array: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in array.shape)
