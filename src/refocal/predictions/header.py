"""The header of a file: which of its columns or arrays hold scores, labels, splits and weights, by their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from refocal._check import Input
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place
from refocal.predictions.label_columns import find_columns, match_columns
from refocal.predictions.names import describe_names, find_names, name_option
from refocal.predictions.score_columns import choose_scores, describe_list, guess_scores

_LABELS = {
    *("label", "labels", "true_label", "class", "true_class", "y", "y_true", "y_test", "target", "outcome"),
    *("ground_truth", "truth", "actual", "obs", "observed"),
}


@dataclass(frozen=True)
class Header:
    """The columns of a file and their use.

    Attributes:
        input: Whether scores are logits or probs.
        columns: The columns of scores: one, or one per class in order.
        per_class: Whether each column holds one class. One such column is that of the second class, with shape (N, 1).
        label: Column of the labels.
        answers: Columns of multi-label labels, in the order of the classes; `label` is then None.
        split: Column of the splits.
        weight: Column of the weights.
        class_names: Names of the classes, if the names of the columns give them.
        positive: Name of the second class, if the name of a single column gives it.
        others: All other columns that are not ignored.
        replaced: Those of the others that hold older scores of the same classes.
        guesses: What was guessed about columns of labels and scores, in words.
    """

    input: Input
    columns: tuple[str, ...]
    per_class: bool
    label: str | None
    answers: tuple[str, ...]
    split: str | None
    weight: str | None
    class_names: tuple[str, ...] | None
    positive: str | None
    others: tuple[str, ...]
    replaced: tuple[str, ...]
    guesses: tuple[str, ...]

    @property
    def used(self) -> list[str]:
        """All columns that are read: scores, labels, split and weight."""
        beside = (self.label, *self.answers, self.split, self.weight)
        return [*self.columns, *(name for name in beside if name is not None)]

    def order_answers(self, names: tuple[str, ...] | None, place: Place) -> Header:
        """Put columns of multi-label labels into the order of the class names that refocal stored in the file."""
        if not self.answers or self.class_names is None or names in (None, self.class_names):
            return self
        answers, classes = match_columns(self.answers, self.class_names, names, names, place)
        return replace(self, answers=answers, class_names=classes)

    def find_carried(self, carry: bool | Collection[str]) -> tuple[str, ...]:
        """Find the other columns to carry: all, none or those with these names."""
        if isinstance(carry, bool):
            return tuple(name for name in self.others if carry and name not in self.replaced)
        return tuple(name for name in self.others if name in carry)

    def describe(self, choice: ColumnChoice, carry: bool | Collection[str] = False, *, width: int) -> tuple[str, ...]:
        """Say what was guessed, and what becomes of the other columns unless the caller chose all that are used.

        `width` is the number of scores per row.
        """
        carried = self.find_carried(carry)
        said = [describe_list(guess) if width > 1 else guess for guess in self.guesses]
        if choice.label is None or choice.scores is None:
            unused = [name for name in self.others if name not in carried]
            if carry is True and carried:
                said.append(f"kept as they are: {describe_names(carried)}")
            elif carry is not True and unused:
                said.append(f"not used: {describe_names(unused)}")
        if carry is True and self.replaced:
            said.append(f"not kept, because the new scores replace them: {describe_names(self.replaced)}")
        return tuple(said)


def parse_array_names(names: Sequence[str], choice: ColumnChoice, place: Place) -> Header:
    """Parse the header of an npz file."""
    known = {"label": "labels", "split": "split", "weight": "weights"}
    return _parse([name for name in names if name != "class_names"], choice, place, known, "array")


def parse_column_names(names: Sequence[str], choice: ColumnChoice, place: Place) -> Header:
    """Parse the header of a parquet or csv file."""
    return _parse(names, choice, place, {"label": "label", "split": "split", "weight": "weight"}, "column")


def _parse(names: Sequence[str], choice: ColumnChoice, place: Place, known: dict[str, str], what: str) -> Header:
    _check_twice(names, place, what)
    ignored = find_names(choice.ignore, names, "ignore", place, every=names)
    free = [name for name in names if name not in ignored]
    guesses = []
    chosen = find_names(choice.label or (), free, "label", place, every=names)
    label = None
    if len(chosen) == 1:
        label = chosen[0]
    elif not chosen and known["label"] in free:
        label = known["label"]
    elif not chosen and choice.task != "multilabel" and (label := _guess_label(free, place)):
        guesses.append(f"label {what}: {describe_names([label])}")
    if len(chosen) > 1 and what == "array":
        message = f"labels must be one array of shape (rows, classes), got {describe_names(chosen)}"
        raise place.error(message)
    rest = [name for name in free if name != label and name not in chosen]
    if choice.scores is None:
        scores = guess_scores(rest, names, place, what)
    else:
        scores = choose_scores(choice, rest, names, place)
    alone = len(scores.columns) == 1 and scores.columns[0].startswith(("logit_", "prob_"))
    if scores.guess is not None and not (alone and choice.task == "multilabel"):
        guesses.append(scores.guess)
    rest = [name for name in rest if name not in scores.columns]
    answers: tuple[str, ...] = ()
    if label is None and what == "column":
        answers, scores, guess = find_columns(chosen, rest, scores, choice, place)
        guesses += guess
    rest = [name for name in rest if name not in answers]
    split, weight = (known[use] if known[use] in rest else None for use in ("split", "weight"))
    others = [name for name in rest if name not in (split, weight)]
    return Header(
        scores.input,
        scores.columns,
        scores.per_class,
        label,
        answers,
        split,
        weight,
        scores.class_names,
        scores.positive,
        tuple(others),
        scores.find_replaced(others),
        tuple(guesses),
    )


def _guess_label(names: Sequence[str], place: Place) -> str | None:
    found = [name for name in names if _plain(name) in _LABELS]
    if len(found) > 1:
        message = f"the labels could be in {' or '.join(map(repr, found[:10]))}: choose with {name_option('label')}"
        raise place.error(message)
    return found[0] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[ .-]+", "_", name.strip().lower())


def name_outputs(columns: int, class_names: Sequence[str] | None, what: str, *, multilabel: bool = False) -> list[str]:
    """Name columns of scores or labels in a csv file: the second class for a single one, except if multilabel."""
    names = class_names or [str(index) for index in range(max(2, columns))]
    one = columns == 1 and not (multilabel and class_names)
    return [f"{what.removesuffix('s')}_{name}" for name in (names[1:] if one else names)]


def _check_twice(names: Sequence[str], place: Place, what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            message = f"{what} {name[:100]!r} appears twice: rename one of them"
            raise place.error(message)
        seen.add(name)
