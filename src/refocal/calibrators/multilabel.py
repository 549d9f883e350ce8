"""A calibrator of several independent classes: one calibrator of two classes for each column of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self, final

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from refocal._check import Input
from refocal.calibrators.attributes import Check
from refocal.calibrators.auto import AutoCalibrator
from refocal.calibrators.base import Calibrator, Head
from refocal.calibrators.multilabel_data import name_columns, read_event_labels, read_event_scores
from refocal.calibrators.training_data import check_sample_weight
from refocal.maps.heads import columns_head


def _check_names(value: Any, name: str, _: Any) -> np.ndarray:
    """Check an array of different names."""
    ok = isinstance(value, np.ndarray) and value.ndim == 1 and len(value) >= 1 and value.dtype.kind in "iuU"
    if not ok or len(np.unique(value)) != len(value):
        msg = f"{name} must be an array of different numbers or texts, one per column, got {value!r:.100}"
        raise ValueError(msg)
    return np.asarray(value)


def _check_width(value: Any, name: str, calibrator: Any) -> int:
    """Check the number of columns: one per class."""
    if type(value) is not int or value != len(calibrator.classes_):
        msg = f"{name} must be {len(calibrator.classes_)}, the number of classes, got {value!r:.100}"
        raise ValueError(msg)
    return value


def _check_parts(value: Any, name: str, calibrator: Any) -> list[Calibrator]:
    """Check fitted calibrators of one column each, which take what the whole takes."""
    classes = len(calibrator.classes_)
    if not isinstance(value, list) or len(value) != classes:
        msg = f"{name} must be a list of {classes} calibrators, one per class, got {value!r:.100}"
        raise ValueError(msg)
    for index, part in enumerate(value):
        if not _takes_one_column(part):
            msg = f"{name}[{index}] must be a calibrator that is fitted to one column of scores, got {part!r:.100}"
            raise ValueError(msg)
        if part.input_ != calibrator.input_:
            msg = f"{name}[{index}] must take {calibrator.input_}, as all of them do, got one that takes {part.input_}"
            raise ValueError(msg)
    return value


def _takes_one_column(part: Any) -> bool:
    if not isinstance(part, Calibrator) or isinstance(part, MultilabelCalibrator):
        return False
    try:
        check_is_fitted(part)
    except NotFittedError:
        return False
    return getattr(part, "n_features_in_", None) == 1


@final
class MultilabelCalibrator(Calibrator):
    """Calibrate the scores of a multi-label classifier: each column is a task of its own, yes or no.

    Choose it if a row can have several labels, or none: tags, findings, sigmoid heads of detectors. Each column gets
    its own calibrator of two classes. Rows of probabilities do not sum to 1.

    Scores `X` are log-odds (N, K), one column per class, or probabilities P(y = 1) with `input="probs"`. Labels are
    (N, K), 0 or 1. `refocal.calibrate_multilabel` fits this calibrator and reports on it.

    Args:
        calibrator: An unfitted calibrator, which is copied for each class. None for an `AutoCalibrator`.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        classes: Names of the columns. None for those of a frame, or else numbers.

    Attributes:
        calibrators_: The fitted calibrators, one per class.
        classes_: Names of the columns (K,).

    Example:
        >>> import numpy as np
        >>> from refocal.calibrators import PlattScaling
        >>> rng = np.random.default_rng(0)
        >>> logits = rng.standard_normal((5000, 2))
        >>> labels = rng.random((5000, 2)) < 1 / (1 + np.exp(-logits))
        >>> calibrator = MultilabelCalibrator(PlattScaling()).fit(logits * [1, 3], labels)
        >>> calibrator.predict_proba([[1.0, 3.0]]).round(1).tolist()
        [[0.7, 0.7]]

    Reference: one calibrator per class, as in Zadrozny and Elkan, KDD 2002, without their normalization.
    """

    _learned: ClassVar[dict[str, Check]] = {
        "classes_": _check_names,
        "n_features_in_": _check_width,
        "calibrators_": _check_parts,
    }

    def __init__(
        self,
        calibrator: Calibrator | None = None,
        *,
        input: Input | None = None,
        classes: ArrayLike | None = None,
    ) -> None:
        self.calibrator = calibrator
        self.input = input
        self.classes = classes

    @classmethod
    def join(cls, calibrators: Sequence[Calibrator], *, input: Input, classes: Sequence[str] | None = None) -> Self:
        """Join calibrators that are fitted to one column each.

        Args:
            calibrators: One per class.
            input: What all of them take: "logits" or "probs".
            classes: One name per class. None for numbers.
        """
        joined = cls(input=input)
        joined._name(classes, len(calibrators))
        joined.calibrators_ = _check_parts(list(calibrators), "calibrators", joined)
        return joined

    def _prepare(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        reset: bool = True,  # noqa: ARG002
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Check scores (N, K), labels (N, K) and weights, and set the names of the columns."""
        self._check_settings(None)
        names = name_columns(None if self.classes is None else np.asarray(self.classes).tolist(), X, y)
        scores, _ = read_event_scores(X, "X", input=self.input, names=names)
        labels = read_event_labels(y, scores.shape, names, "y")
        weights = check_sample_weight(sample_weight, len(scores))
        self._name(names, scores.shape[1])
        return scores, labels, weights

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        """Fit a copy of the calibrator to each column; here scores stay what they are."""
        pattern = AutoCalibrator() if self.calibrator is None else self.calibrator
        self.calibrators_ = [
            clone(pattern).set_params(input=self.input_, classes=[0, 1]).fit(scores, own, weights)
            for scores, own in zip(logits.T, labels.T, strict=True)
        ]

    def _name(self, names: Sequence[Any] | None, columns: int) -> None:
        """Set the names of the columns, which are numbers without names."""
        given = np.asarray(range(columns) if names is None else names)
        self.classes_ = _check_names(given, "classes", None)
        if len(self.classes_) != columns:
            msg = f"classes must have one name for each of {columns} columns, got {len(self.classes_)}"
            raise ValueError(msg)
        self.n_features_in_ = columns

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Whether each class is at least as probable as not, (N, K) of 0 and 1."""
        return (self.predict_proba(X) >= 0.5).astype(np.int8)

    def _evaluate(self, X: ArrayLike, *, log: bool) -> np.ndarray:
        check_is_fitted(self)
        refit = "this MultilabelCalibrator takes logits: fit it with input='probs', or input='logits' if they are"
        names = tuple(self.classes_.tolist()) if self.classes_.dtype.kind == "U" else None
        scores, _ = read_event_scores(X, "X", input=self.input, names=names, remedy=refit)
        if scores.shape[1] != self.n_features_in_:
            msg = f"X must have {self.n_features_in_} columns, one per class, got {scores.shape[1]}"
            raise ValueError(msg)
        columns = (part._evaluate(scores[:, k], log=log)[:, 1] for k, part in enumerate(self.calibrators_))
        return np.stack(list(columns), axis=1)

    def _check_settings(self, classes: int | None) -> None:  # noqa: ARG002
        pattern = self.calibrator
        if pattern is not None and (not isinstance(pattern, Calibrator) or isinstance(pattern, MultilabelCalibrator)):
            msg = f"calibrator must be a calibrator of one column, or None, got {pattern!r:.100}"
            raise ValueError(msg)

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        heads = [part._export_head()[0] for part in self.calibrators_]
        arrays = {f"{name}_{k}": array for k, head in enumerate(heads) for name, array in head.arrays.items()}
        parts = tuple((head.function, tuple(head.arrays), head.settings, head.floor) for head in heads)
        return Head(columns_head, arrays, {"parts": parts}, wide=any(head.wide for head in heads), of_scores=True)

    def _count_parameters(self) -> int:
        return sum(part._count_parameters() for part in self.calibrators_)
