"""The base of all calibrators: how they take scores, predict, and are saved and exported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import assert_all_finite, check_array, check_is_fitted, validate_data

from refocal import _check, _image_checks
from refocal._arrays import map_row_blocks, namespace
from refocal._check import Input
from refocal._containers import column_names, float_limits, is_frame, to_array, to_numpy
from refocal._extras import require
from refocal._probability_look import TO_SAY, optional_input_word, resolve_input
from refocal.calibrators.attributes import Check
from refocal.calibrators.conversion import check_probs, scores_to_logits
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits
from refocal.calibrators.floors import choose_floor, find_least
from refocal.calibrators.folded import FoldedLogits
from refocal.calibrators.training_data import (
    check_labels,
    check_sample_weight,
    choose_classes,
    encode_labels,
    find_present,
    list_classes,
)
from refocal.maps.heads import probability_edges, to_logits
from refocal.stats.sample_counts import count_samples

if TYPE_CHECKING:
    from torch import nn


class Head(NamedTuple):
    """A fitted map from logits to probabilities.

    Attributes:
        function: A function of `refocal.maps.heads`.
        arrays: Its array arguments, by name.
        settings: Its other arguments, by name. A float here is a fitted value, such as a temperature.
        wide: Whether to compute in float64 everywhere. A map with jumps or steep pieces needs this, because rounding
            of the logits would show there.
        of_scores: Whether the function takes scores and the arguments of `to_logits`, and returns one column for each.
        floor: The fitted floor of probabilities; None for the edges of their dtype.
        sets: Whether the function returns sets of classes, as booleans, instead of probabilities.
    """

    function: Callable[..., Any]
    arrays: dict[str, np.ndarray]
    settings: dict[str, Any]
    wide: bool = False
    of_scores: bool = False
    floor: float | None = None
    sets: bool = False

    def compute(self, scores: Any, arrays: dict[str, Any], *, probs: bool, limits: Any, log: bool, xp: Any) -> Any:
        """Map scores to probabilities, given the arrays in the library of the scores and the `finfo` of the scores."""
        floor = 0.0 if self.floor is None else self.floor
        least, gap = (max(floor, edge) for edge in probability_edges(limits))
        edges = {"probs": probs, "least": least, "gap": gap, "xp": xp}
        if self.of_scores:
            return self.function(scores, **arrays, **self.settings, **edges, log=log)
        return self.function(to_logits(scores, **edges), **arrays, **self.settings, log=log, xp=xp)

    def count_outputs(self, columns: int) -> int:
        """Count the columns of the result: one column of scores becomes two, unless each is a task of its own."""
        return columns if self.of_scores else max(2, columns)


class Calibrator(ClassifierMixin, BaseEstimator, ABC):
    """A scikit-learn classifier that turns the scores of another classifier into probabilities.

    This is the abstract base class. Choose one of its subclasses, or `AutoCalibrator`.

    Scores `X` are logits (N, K), or probabilities if the constructor is given `input="probs"`. Without `input` they are
    logits too, but scores that look like probabilities are rejected, in `fit` and in predictions. A single column (N,)
    or (N, 1) is for two classes: the log-odds log(p / (1 - p)) of the second class, or its probability.

    Probabilities below `floor_` are raised to it, because the logarithm of 0 is of no use. `fit` chooses between the
    smallest positive probability and 1 / (n + 1), which n samples cannot tell from 0: it takes the one with which
    temperature scaling fits better. Without a fit, as for `FocalPosterior`, a probability of 0 is read as the smallest
    normal number of its dtype (float16: the smallest number), and a probability of 1 as half a step below 1.

    A logit of -inf masks a class: it gets probability 0, and the others are fitted without it. `TemperatureScaling`,
    `FocalTemperatureScaling`, `FocalPosterior` and an `AutoCalibrator` of these take masks.

    Scores, labels and weights may be lists, arrays of any library, PyTorch tensors, frames or series of pandas or
    polars, or Arrow tables. Rows are samples.

    Columns are in the order of `classes_`. That is `classes` if given. Otherwise it is the names of a frame's columns
    if all labels of `y` are among them, else the sorted labels of `y`. If a class is missing from `y`, and no names
    tell the classes, its labels must be column numbers 0 ... K - 1, or `classes` must be given. A number K as `classes`
    stands for the labels 0 ... K - 1.
    """

    input: Input | None
    classes: ArrayLike | None
    classes_: np.ndarray
    n_features_in_: int
    floor_: float

    # The fitted attributes that `save` writes and `load` reads, each with its check.
    _learned: ClassVar[dict[str, Check]] = {}
    _has_floor: ClassVar[bool] = True  # whether `fit` chooses a floor of probabilities
    _takes_masks: ClassVar[bool] = False  # whether logits may be -inf
    # Parameters and fitted attributes that files of earlier versions lack, with the values they stand for there.
    _earlier: ClassVar[dict[str, Any]] = {}

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Fit to scores.

        Args:
            X: Scores (N, K), or (N,) or (N, 1) for two classes.
            y: Labels (N,).
            sample_weight: Weights (N,). Whole numbers count repetitions: a weight of 2 counts as two equal samples.
                Other weights are relative: they may be multiplied by any constant, unless the products are all whole
                numbers.

        Returns:
            The calibrator itself.
        """
        self._learn_from(*self._prepare(X, y, sample_weight))
        return self

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Calibrated probabilities (N, K) in float64."""
        return self._evaluate(X, log=False)

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Logarithms of the calibrated probabilities (N, K); they do not underflow if the map itself has no zeros."""
        return self._evaluate(X, log=True)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """The most probable class of each row (N,)."""
        probs = self._evaluate(X, log=True)
        return self._name_columns(probs.shape[1])[np.argmax(probs, axis=1)]

    @property
    def input_(self) -> Input:
        """What the scores are: "logits", also if nobody said so, or "probs"."""
        return "logits" if self.input is None else _check.input_word(self.input)

    @property
    def n_parameters_(self) -> int:
        """The number of fitted parameters."""
        check_is_fitted(self)
        return self._count_parameters()

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted calibrator as JSON; `refocal.calibrators.load` reads it.

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        from refocal.calibrators.files import save

        check_is_fitted(self)
        save(self, path, overwrite=overwrite)

    def to_torch(self, *, axis: int = -1) -> nn.Module:
        """Export a PyTorch module that maps scores (..., K) to probabilities of the same dtype. Needs torch.

        Args:
            axis: The axis of the classes: 1 for images (N, K, H, W).
        """
        require("torch", extra="torch", user="to_torch")
        from refocal.calibrators.torch_export import to_torch

        check_is_fitted(self)
        return to_torch(self, axis=axis)

    def to_onnx(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write an ONNX graph that maps float32 scores (batch, K) to float32 "probabilities". Needs onnx.

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        require("onnx", extra="onnx", user="to_onnx")
        from refocal.calibrators.onnx_export import to_onnx

        check_is_fitted(self)
        to_onnx(self, path, overwrite=overwrite)

    def _prepare(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool = True
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Check scores, labels and weights, and convert them to the arguments of `_learn_from`.

        The sum of the weights is then the number of samples.

        `reset` says whether to forget the classes of an earlier fit.
        """
        logits = self._read_scores(X, reset=reset)
        rows, columns = logits.shape
        labels = self._read_labels(y, rows, columns, column_names(X), classes=None if reset else self.classes_)
        weights = check_sample_weight(sample_weight, len(logits))
        # A sample of weight 0 counts as absent, unless a splitter counts it.
        if weights is not None and not np.all(weights) and isinstance(getattr(self, "cv", 0), int | np.integer):
            logits, labels, weights = logits[weights > 0], labels[weights > 0], weights[weights > 0]
        _reject_masked_labels(logits, labels)
        return logits, labels, None if weights is None else count_samples(weights)

    def _learn_from(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        """Choose the floor of probabilities, if the scores are probabilities, and fit."""
        self._choose_floor(logits, labels, weights)
        self._fit(self._raise_to_floor(logits), labels, weights)

    def _choose_floor(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        """Set `floor_`, which `_read_scores` has set to the least probability."""
        if hasattr(self, "floor_"):
            data = LabeledLogits.prepare(logits, labels, weights)
            self.floor_ = choose_floor(data, data.samples, self.floor_)

    def _raise_to_floor(self, logits: np.ndarray) -> np.ndarray:
        return np.maximum(logits, np.log(self.floor_)) if hasattr(self, "floor_") else logits

    @abstractmethod
    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        """Learn from checked logits (N, K), class indices (N,) and weights (N,)."""

    @abstractmethod
    def _head(self, classes: int) -> Head:
        """The fitted map for this number of classes."""

    @abstractmethod
    def _count_parameters(self) -> int:
        """The number of fitted parameters."""

    def _count_effective(self) -> float:
        """The number of parameters that the data determine: those that no penalty holds."""
        return float(self._count_parameters())

    def _fit_and_hold_out(self, folded: FoldedLogits) -> Iterator[np.ndarray]:
        """Fit to all rows, then predict log-probabilities of the held-out rows of each fold by a fit to the others."""
        self._number_classes(folded.logits)
        unfitted = clone(self)  # once, because it takes longer than a small fit
        unfitted.n_features_in_, unfitted.classes_ = self.n_features_in_, self.classes_
        self._learn_fold(folded, None)
        for fold, (_, held) in enumerate(folded.folds):
            other = copy(unfitted)
            other._learn_fold(folded, fold)
            yield other._map_logits(folded.logits[held], log=True)

    def _number_classes(self, logits: np.ndarray) -> None:
        """Check logits (N, K) that are fitted without a call of `fit`, and call the classes 0 ... K - 1."""
        self._check_finite(logits, reset=True)
        self.n_features_in_ = logits.shape[1]
        self.classes_ = np.arange(self.n_features_in_)

    def _learn_fold(self, folded: FoldedLogits, fold: int | None) -> None:
        """Learn from the rows of a fold that are not held out, or from all rows. Fits may be shared."""
        self._learn_from(*folded.take(fold))

    def _check_settings(self, classes: int | None) -> None:
        """Check the constructor's parameters as `fit` does; `classes` is None if their number is not known yet.

        `input` is checked elsewhere. A calibrator that has no other settings to check leaves this as it is.
        """

    def _evaluate(self, X: ArrayLike, *, log: bool) -> np.ndarray:
        check_is_fitted(self)
        return self._map_logits(self._read_scores(X, reset=False), log=log)

    def _map_logits(self, logits: np.ndarray, *, log: bool) -> np.ndarray:
        """Compute probabilities from checked logits (N, K)."""
        logits = logits.astype(np.float64, copy=False)
        head = self._head(logits.shape[1])
        xp = namespace(logits)

        def evaluate_rows(rows: np.ndarray) -> np.ndarray:
            probs: np.ndarray = head.function(rows, **head.arrays, **head.settings, log=log, xp=xp)
            return probs

        return map_row_blocks(evaluate_rows, np.ascontiguousarray(logits))

    def _read_scores(self, X: Any, *, reset: bool) -> np.ndarray:
        """Check scores and convert them to logits (N, K)."""
        optional_input_word(self.input)
        given = to_array(X, "X")
        limits = float_limits(given)
        one_column = reset or getattr(self, "n_features_in_", 1) == 1
        if one_column and getattr(given, "ndim", None) == 1:
            given = X = given.reshape(-1, 1)
        rows = to_numpy(given, "X")
        if rows.ndim > 2:
            hint = _image_checks.image_hint(rows.shape)
            msg = f"X must have shape (N, K), or (N,) for two classes, got {rows.shape}{hint}"
            raise ValueError(msg)
        scores = check_array(rows, dtype=(np.float64, np.float32), ensure_all_finite=False)
        self._check_finite(scores, reset=reset)
        if reset or hasattr(self, "n_features_in_"):
            validate_data(self, X if is_frame(X) else scores, reset=reset, skip_check_array=True)
        else:  # this calibrator needed no fit, so it has no number of columns to compare with
            self._check_columns(scores.shape[1])
        refit = f"this {type(self).__name__} takes logits: fit it with input='probs', or input='logits' if they are"
        input = resolve_input(self.input, scores, remedy=TO_SAY if reset else refit)
        if input == "probs":
            scores = check_probs(scores, bits=limits.bits)
        logits = scores_to_logits(scores, input=input, limits=limits)
        if reset:  # the least probability for now; the labels decide, see `_choose_floor`
            self.__dict__.pop("floor_", None)
            if input == "probs" and self._has_floor:
                self.floor_ = find_least(scores)
            return logits
        return self._raise_to_floor(logits)

    def _may_be_masked(self, *, reset: bool) -> bool:  # noqa: ARG002
        """Whether logits may be -inf; `reset` forgets an earlier fit."""
        return self._takes_masks

    def _check_finite(self, scores: np.ndarray, *, reset: bool) -> None:
        """Reject scores that are not finite, except masks that this calibrator can take."""
        if np.all(np.isfinite(scores)):
            return
        masked = np.isneginf(scores)
        if scores.shape[1] == 1 or self.input == "probs" or not np.all(np.isfinite(scores[~masked])):
            assert_all_finite(scores, input_name="X")
        if not self._may_be_masked(reset=reset):
            msg = (
                f"X has logits of -inf, which {'this ' * (not reset)}{type(self).__name__} cannot take: fit "
                "TemperatureScaling, FocalTemperatureScaling or AutoCalibrator to masked logits, or use finite ones"
            )
            raise ValueError(msg)
        _check.reject_rows(np.asarray(masked.all(axis=1)), scores, "X must have a finite logit in each row")

    def _export_head(self) -> tuple[Head, int]:
        """The fitted map with its floor, and the number of columns that it takes."""
        columns = self._count_columns()
        return self._head(max(2, columns))._replace(floor=getattr(self, "floor_", None)), columns

    def _read_labels(
        self, y: Any, rows: int, columns: int, names: tuple[str, ...] | None, classes: np.ndarray | None = None
    ) -> np.ndarray:
        """Check labels, set `classes_` unless given, and convert the labels to column numbers.

        A frame has names of its columns.
        """
        if y is None:
            msg = f"{type(self).__name__} requires y to be passed, but the target y is None"
            raise ValueError(msg)
        labels = check_labels(y, rows)
        present = find_present(labels)
        if classes is None:
            classes = choose_classes(self.classes, present, columns, names)
        indices = encode_labels(labels, classes, present)
        self.classes_ = classes
        return indices

    def _name_columns(self, columns: int) -> np.ndarray:
        """The label of each column."""
        if hasattr(self, "classes_"):
            return self.classes_
        return np.arange(columns) if self.classes is None else list_classes(self.classes)

    def _count_columns(self) -> int:
        """The number of columns of scores, which an export needs."""
        columns: int | None = getattr(self, "n_features_in_", None)
        if columns is None and self.classes is not None:
            columns = len(list_classes(self.classes))
        if columns is None:
            msg = f"fit this {type(self).__name__} or give it classes: an export needs the number of classes"
            raise NotFittedError(msg)
        return columns

    def _check_columns(self, columns: int) -> None:
        """Check the number of columns against `classes`, for a calibrator that was not fitted."""
        if self.classes is None:
            return
        classes = len(list_classes(self.classes))
        if columns != classes and not (columns == 1 and classes == 2):
            msg = f"X must have {classes} columns, one for each of classes, got {columns}"
            raise ValueError(msg)


def _reject_masked_labels(logits: np.ndarray, labels: np.ndarray) -> None:
    """Reject labels of classes that are masked with -inf."""
    masked = np.isneginf(logits[np.arange(len(labels)), labels])
    _check.reject_rows(masked, labels, "labels in y must not be classes that X masks with -inf")


def check_bool(value: Any, name: str) -> bool:
    """Check a setting that is True or False."""
    if not isinstance(value, bool | np.bool_) and value not in (0, 1):
        msg = f"{name} must be True or False, got {value!r}"
        raise ValueError(msg)
    return bool(value)
