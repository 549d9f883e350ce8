"""What every calibrator shares: its input, its classes, prediction, and the ways to ship it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from refocal import _check
from refocal._arrays import map_row_blocks, namespace
from refocal.calibrators.attributes import Check
from refocal.calibrators.conversion import check_input, check_probs, scores_to_logits

if TYPE_CHECKING:
    from torch import nn


class Head(NamedTuple):
    """A map from logits to probabilities: a function of `core.heads`, its parameters, and its settings.

    `wide` heads are computed in float64 wherever they run: they have jumps or steep pieces, at which rounding of
    the logits would show.
    """

    function: Callable[..., Any]
    arrays: dict[str, np.ndarray]
    settings: dict[str, Any]
    wide: bool = False


class Calibrator(ClassifierMixin, BaseEstimator, ABC):
    """A scikit-learn classifier on the scores of another one.

    Scores, `X`, are logits (N, K), or probabilities where the constructor says `input="probs"`; the kind is never
    guessed. A single column (N,) or (N, 1) is for two classes: the log-odds log(p / (1 - p)) of the second class, or
    its probability. A probability of 0 or 1 is taken as the nearest number that its dtype can tell from it.

    Columns are in the order of `classes_`: `classes` if given, else the sorted labels of `y`. If `y` lacks a class,
    its labels must be column numbers 0 ... K - 1, or `classes` must be given.
    """

    input: str
    classes: Any
    classes_: np.ndarray
    n_features_in_: int

    # what `save` writes beside the constructor's parameters, and the rule that each value keeps
    _learned: ClassVar[dict[str, Check]] = {}

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to scores `X` and labels `y` (N,); weights count as repeated samples. Returns self."""
        self._fit(*self._prepare(X, y, sample_weight))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities (N, K), float64."""
        return self._evaluate(X, log=False)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Their logarithms, without underflow where the method has none."""
        return self._evaluate(X, log=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        probs = self._evaluate(X, log=True)
        return self._classes_of(probs.shape[1])[np.argmax(probs, axis=1)]

    @property
    def n_parameters_(self) -> int:
        """How many numbers were fitted."""
        check_is_fitted(self)
        return self._count_parameters()

    def save(self, path: str | Path) -> None:
        """Write the fitted calibrator as JSON; `refocal.calibrators.load` reads it."""
        from refocal.calibrators.files import save

        check_is_fitted(self)
        save(self, path)

    def to_torch(self) -> nn.Module:
        """A module that maps scores (..., K) to calibrated probabilities of the same dtype; needs torch."""
        from refocal.calibrators.torch_export import to_torch

        check_is_fitted(self)
        return to_torch(self)

    def to_onnx(self, path: str | Path) -> None:
        """Write an ONNX graph from float32 scores (batch, K) to float32 "probabilities"; needs onnx."""
        from refocal.calibrators.onnx_export import to_onnx

        check_is_fitted(self)
        to_onnx(self, path)

    def _prepare(self, X: Any, y: Any, sample_weight: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Check scores, labels and weights, as `_fit` takes them."""
        logits = self._logits(X, reset=True)
        labels = self._encode(y, len(logits), logits.shape[1])
        weights = _weights(sample_weight, len(logits))
        if weights is not None and not np.all(weights):  # a sample of weight 0 is none
            logits, labels, weights = logits[weights > 0], labels[weights > 0], weights[weights > 0]
        return logits, labels, weights

    @abstractmethod
    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        """Learn from checked logits (N, K), class indices and weights (N,)."""

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        """Check the constructor's parameters as `fit` does; before a fit, `classes` may be unknown."""
        check_input(self.input)

    @abstractmethod
    def _head(self, classes: int) -> Head:
        """The fitted map, for that many classes."""

    @abstractmethod
    def _count_parameters(self) -> int:
        """The number of fitted parameters."""

    def _evaluate(self, X: Any, *, log: bool) -> np.ndarray:
        check_is_fitted(self)
        logits = self._logits(X, reset=False).astype(np.float64, copy=False)
        head = self._head(logits.shape[1])
        xp = namespace(logits)

        def block(rows: np.ndarray) -> np.ndarray:
            return head.function(rows, **head.arrays, **head.settings, log=log, xp=xp)

        return map_row_blocks(block, np.ascontiguousarray(logits))

    def _logits(self, X: Any, *, reset: bool) -> np.ndarray:
        """Checked scores as logits (N, K)."""
        input = check_input(self.input)
        _check.unmasked(X, "X")
        one_column = reset or getattr(self, "n_features_in_", 1) == 1
        if one_column and (getattr(X, "ndim", None) == 1 or (isinstance(X, list | tuple) and X and np.ndim(X[0]) == 0)):
            X = np.asarray(X).reshape(-1, 1)
        is_half = str(getattr(X, "dtype", "")) in {"float16", "torch.float16"}
        dtypes = (np.float64, np.float32)
        if reset or hasattr(self, "n_features_in_"):
            X = validate_data(self, X, reset=reset, dtype=dtypes)
        else:  # nothing had to be fitted
            X = check_array(X, dtype=dtypes)
        X = X.astype(np.float16) if is_half else X
        if input == "probs":
            check_probs(X)
        return scores_to_logits(X, input=input)

    def _encode(self, y: Any, rows: int, columns: int) -> np.ndarray:
        """Class indices of the labels; sets `classes_`."""
        if y is None:
            msg = f"{type(self).__name__} requires y to be passed, but the target y is None"
            raise ValueError(msg)
        y = column_or_1d(_check.unmasked(y, "y"), warn=True)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        if len(y) != rows:
            msg = f"X and y must have one row a sample, got {rows} and {len(y)}"
            raise ValueError(msg)
        present = _present(y)
        if self.classes is not None:
            classes = np.asarray(self.classes)
            if classes.ndim != 1 or len(np.unique(classes)) != len(classes) or len(classes) != columns:
                msg = f"classes must be {columns} different labels, one for each column of X, got {self.classes!r}"
                raise ValueError(msg)
        elif len(present) == columns:
            classes = present
        elif y.dtype.kind in "iu" and present[0] >= 0 and present[-1] < columns:
            classes = np.arange(columns)
        else:
            check_classification_targets(y)
            msg = (
                f"X has scores of {columns} classes, but y has {len(present)} different labels that are not all "
                f"integers in 0 ... {columns - 1}: name the columns by classes="
            )
            raise ValueError(msg)
        order = np.argsort(classes)
        position = np.minimum(np.searchsorted(classes, present, sorter=order), columns - 1)
        missing = classes[order[position]] != present
        if np.any(missing):
            msg = f"labels in y must be among classes, got {present[missing][0]!r}"
            raise ValueError(msg)
        self.classes_ = classes
        if classes.dtype.kind in "iu" and np.array_equal(classes, np.arange(columns)):
            return y.astype(np.intp, copy=False)
        return order[np.searchsorted(classes, y, sorter=order)]

    def _classes_of(self, columns: int) -> np.ndarray:  # noqa: ARG002
        return self.classes_

    def _columns(self) -> int:
        """How many columns of scores there are, for an export."""
        columns: int | None = getattr(self, "n_features_in_", None)
        if columns is None:
            msg = f"fit this {type(self).__name__} first: an export needs the number of classes"
            raise NotFittedError(msg)
        return columns


def _present(y: np.ndarray) -> np.ndarray:
    """The sorted distinct labels; small integers are counted, which is faster than sorting them."""
    if y.dtype.kind in "iu" and len(y) and int(y.max()) - (low := int(y.min())) < 1 << 16:
        return (np.flatnonzero(np.bincount(y.astype(np.int64) - low)) + low).astype(y.dtype)
    check_classification_targets(y)
    return np.unique(y)


def _weights(sample_weight: Any, rows: int) -> np.ndarray | None:
    if sample_weight is None:
        return None
    weights = np.asarray(_check.unmasked(sample_weight, "sample_weight"), dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.shape != (rows,):
        msg = f"sample_weight must have shape ({rows},), one weight a row, got {weights.shape}"
        raise ValueError(msg)
    if not (np.all(np.isfinite(weights)) and np.all(weights >= 0) and np.any(weights)):
        msg = "sample_weight must be finite, non-negative and not zero everywhere"
        raise ValueError(msg)
    _check.sample_weights(weights, "sample_weight")
    return weights


def check_bool(value: Any, name: str) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_) and value not in (0, 1):
        msg = f"{name} must be True or False, got {value!r}"
        raise ValueError(msg)
    return bool(value)
