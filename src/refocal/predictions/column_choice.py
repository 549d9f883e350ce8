"""`ColumnChoice`: which columns of a file hold the labels and the scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ColumnChoice:
    """Says which columns of a file (npz: arrays) to read, if their names are not clear. All fields are optional.

    What is not given is taken from the names of the columns. If their meaning had to be guessed, a
    `PredictionsWarning` says so. The commands have options of the same names.

    Args:
        label: Column of the labels. Several columns, or a pattern such as "label_*", hold multi-label labels: 0 or 1
            for each class, matched to the scores by the names of the classes.
        prob: Column of probabilities. One column of numbers holds the probability of the second class of two; a pattern
            such as "p_*", or several columns, hold one class per column.
        logit: Like `prob`, for logits; one column of numbers holds the log-odds of the second class.
        ignore: Columns, or patterns, that are neither read nor written by `apply`.
        classes: The label of each class, in the order of the classes, such as ("no", "yes").
        task: "multilabel" if each class is a yes-or-no question of its own, so that rows of probabilities do not sum to
            1; by default if labels have one column per class. "multiclass" if each row has one class; then such labels
            must have one 1 per row.

    Example:
        >>> from refocal.predictions import ColumnChoice
        >>> ColumnChoice(label="churned", prob="churn_probability").prob
        ('churn_probability',)
    """

    label: str | Iterable[str] | None = None
    prob: str | Iterable[str] | None = None
    logit: str | Iterable[str] | None = None
    ignore: str | Iterable[str] = ()
    classes: Iterable[str] | None = None
    task: Literal["multiclass", "multilabel"] | None = None

    def __post_init__(self) -> None:
        for name in ("label", "prob", "logit", "ignore", "classes"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _to_names(value, name))
        if self.prob is not None and self.logit is not None:
            msg = f"scores are either prob or logit, got prob={self.prob!r} and logit={self.logit!r}"
            raise ValueError(msg)
        if self.task not in (None, "multiclass", "multilabel"):
            msg = f"task must be 'multiclass' or 'multilabel', got {self.task!r}"
            raise ValueError(msg)
        if self.task == "multilabel" and self.classes is not None:
            msg = f"classes are not for task='multilabel', whose columns name them, got {self.classes!r}"
            raise ValueError(msg)

    @property
    def scores(self) -> tuple[str, ...] | None:
        """The columns or patterns of `prob` or `logit`; None if neither is given."""
        given = self.logit if self.prob is None else self.prob
        return None if given is None else tuple(given)


def _to_names(value: object, name: str) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) and name != "classes" else value
    if isinstance(names, str) or not isinstance(names, Iterable):
        msg = f"{name} must be a sequence of names, got {value!r}"
        raise TypeError(msg)
    found = tuple(names)
    if not all(isinstance(each, str) for each in found) or (name != "ignore" and not found):
        msg = f"{name} must be names, got {value!r}"
        raise TypeError(msg)
    return found
