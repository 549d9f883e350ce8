"""The header of a file: which of its columns or arrays hold scores, labels, splits and weights, by their names."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from refocal._check import Input
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place

# a column of one class: a stem, a separator and the class, such as prob_0, p_cat or "logit cat"
_CLASS_COLUMN = re.compile(r"((?:(logits?)|(?:probability|proba|probs?|p))[_. -])(.+)", re.IGNORECASE)
_OWN_STEMS = ("logit_", "prob_")  # of refocal's own files
_WORDS: dict[str, Input] = {"logit": "logits", "prob": "probs", "proba": "probs", "probability": "probs"}
_LABELS = {"label", "labels", "y", "y_true", "target", "class", "true_label", "true_class", "ground_truth", "outcome"}
_NUMBER = re.compile(r"0|[1-9][0-9]{0,6}")  # at most 7 digits: a name cannot ask for a huge number


@dataclass(frozen=True)
class Header:
    """The columns of a file and their use.

    Attributes:
        input: Whether scores are logits or probs.
        columns: The columns of scores: one, or one per class in order.
        per_class: Whether each column holds one class. One such column is that of the second class, with shape (N, 1).
        label: Column of the labels.
        split: Column of the splits.
        weight: Column of the weights.
        class_names: Names of the classes, if the names of the columns give them.
        positive: Name of the second class, if the name of a single column gives it.
        others: All other columns that are not ignored.
        guesses: What was guessed, in words.
    """

    input: Input
    columns: tuple[str, ...]
    per_class: bool
    label: str | None
    split: str | None
    weight: str | None
    class_names: tuple[str, ...] | None
    positive: str | None
    others: tuple[str, ...]
    guesses: tuple[str, ...]

    @property
    def is_one(self) -> bool:
        """Whether the scores may be a single number per row."""
        return len(self.columns) == 1


@dataclass(frozen=True)
class _Scores:
    input: Input
    columns: tuple[str, ...]
    per_class: bool = False
    class_names: tuple[str, ...] | None = None
    positive: str | None = None
    guess: str | None = None


def parse_array_names(names: Sequence[str], choice: ColumnChoice, place: Place) -> Header:
    """Parse the header of an npz file."""
    known = {"label": "labels", "split": "split", "weight": "weights"}
    return _parse([name for name in names if name != "class_names"], choice, place, known, "array")


def parse_column_names(names: Sequence[str], choice: ColumnChoice, place: Place) -> Header:
    """Parse the header of a parquet or csv file."""
    return _parse(names, choice, place, {"label": "label", "split": "split", "weight": "weight"}, "column")


def ask(option: str) -> str:
    """Name the option that settles a question, for error messages."""
    return f"--{option}, in Python ColumnChoice({option}=...)"


def describe_names(names: Sequence[str]) -> str:
    """List names of columns, at most ten."""
    listed = ["".join(c if c.isprintable() else "?" for c in name[:100]) or "(no name)" for name in names[:10]]
    return ", ".join([*listed, f"and {len(names) - 10} more"] if len(names) > 10 else listed)


def _parse(names: Sequence[str], choice: ColumnChoice, place: Place, known: dict[str, str], what: str) -> Header:
    _check_twice(names, place, what)
    ignored = {name for pattern in choice.ignore for name in _match(pattern, names, "ignore", place)}
    free = [name for name in names if name not in ignored]
    guesses = []
    label = choice.label
    if label is not None:
        _match(label, free, "label", place)
    elif known["label"] in free:
        label = known["label"]
    elif label := _guess_label(free, place):
        guesses.append(f"label {what}: {label}")
    rest = [name for name in free if name != label]
    scores = _guess_scores(rest, names, place, what) if choice.scores is None else _choose_scores(choice, rest, place)
    if scores.guess is not None:
        guesses.append(scores.guess)
    rest = [name for name in rest if name not in scores.columns]
    split, weight = (known[use] if known[use] in rest else None for use in ("split", "weight"))
    others = [name for name in rest if name not in (split, weight)]
    if others and (choice.label is None or choice.scores is None):
        guesses.append(f"not used: {describe_names(others)}")
    return Header(
        scores.input,
        scores.columns,
        scores.per_class,
        label,
        split,
        weight,
        scores.class_names,
        scores.positive,
        tuple(others),
        tuple(guesses),
    )


def _match(pattern: str, names: Sequence[str], option: str, place: Place) -> list[str]:
    """Find the columns that a name or pattern means; a name that exists is no pattern."""
    found = [pattern] if pattern in names else [name for name in names if fnmatch.fnmatchcase(name, pattern)]
    if not found or (option == "label" and found != [pattern]):
        message = f"there is no column {pattern!r}, which {option} names; the columns are {describe_names(names)}"
        raise place.error(message)
    return found


def _guess_label(names: Sequence[str], place: Place) -> str | None:
    found = [name for name in names if _plain(name) in _LABELS]
    if len(found) > 1:
        message = f"the labels could be in {' or '.join(map(repr, found[:10]))}: choose with {ask('label')}"
        raise place.error(message)
    return found[0] if found else None


def _plain(name: str) -> str:
    return re.sub(r"[ .-]+", "_", name.strip().lower())


def _choose_scores(choice: ColumnChoice, names: Sequence[str], place: Place) -> _Scores:
    option = "logit" if choice.prob is None else "prob"
    input: Input = "logits" if choice.prob is None else "probs"
    patterns = choice.scores or ()
    columns = list(dict.fromkeys(name for pattern in patterns for name in _match(pattern, names, option, place)))
    if len(columns) == 1:
        own = columns[0] in (f"{option}_1", f"{option}_2")
        two = ("1", "2") if columns[0] == f"{option}_2" else None
        return _Scores(input, tuple(columns), own, two, _positive(columns[0]))
    starts = [pattern.partition("*") for pattern in patterns]
    plain = len(patterns) == 1 and not re.search(r"[*?\[]", starts[0][0] + starts[0][2])
    head, tail = (len(starts[0][0]), len(starts[0][2])) if plain else (0, 0)
    return _by_class(input, columns, [name[head : len(name) - tail] for name in columns])


def _positive(column: str) -> str | None:
    """Return the class that a column is about, if its name is that of a class column."""
    found = _CLASS_COLUMN.fullmatch(column)
    return None if found is None or _NUMBER.fullmatch(found[3]) else found[3]


def _by_class(input: Input, columns: Sequence[str], classes: Sequence[str]) -> _Scores:
    """Order columns of classes: by number, or as in the file."""
    if not all(_NUMBER.fullmatch(each) for each in classes):
        return _Scores(input, tuple(columns), True, tuple(classes))
    pairs = sorted(zip(columns, classes, strict=True), key=lambda pair: int(pair[1]))
    numbers = tuple(number for _, number in pairs)
    names = None if numbers == tuple(map(str, range(len(pairs)))) else numbers
    return _Scores(input, tuple(column for column, _ in pairs), True, names)


def _guess_scores(names: Sequence[str], every: Sequence[str], place: Place, what: str) -> _Scores:
    groups: dict[str, list[tuple[str, str]]] = {}
    if what == "column":
        for name in names:
            if found := _CLASS_COLUMN.fullmatch(name):
                groups.setdefault(found[1], []).append((name, found[3]))
    whole: list[Input] = [input for input in ("logits", "probs") if input in names]
    inputs = {*whole, *("logits" if stem.lower().startswith("logit") else "probs" for stem in groups)}
    if len(inputs) > 1:
        message = f"scores must be logits or probs, got both: choose with {ask('prob')}, or with logit"
        raise place.error(message)
    if whole and groups:
        first = next(iter(groups.values()))[0][0]
        if any(stem in _OWN_STEMS for stem in groups):
            message = f"scores must be in one place, got columns {whole[0]} and {first}"
            raise place.error(message)
    if whole:
        return _Scores(whole[0], (whole[0],))
    if groups:
        return _guess_group(groups, place)
    ones = [(name, input) for name in names if (input := _find_word(name)) is not None]
    if len(ones) > 1:
        listed = " or ".join(repr(name) for name, _ in ones[:10])
        message = f"the scores could be in {listed}: choose with {ask('prob')}, or with logit"
        raise place.error(message)
    if not ones:
        listed = ", ".join(repr(name) for name in every[:10]) or "nothing"
        one = "columns logit_0 ... or prob_0 ..., or one column" if what == "column" else "an array"
        message = (
            f"scores are missing: the file must have {one} 'logits' or 'probs', got {listed}; choose others with "
            f"{ask('prob')}, or with logit"
        )
        raise place.error(message)
    name, input = ones[0]
    return _Scores(input, (name,), guess=f"{_KINDS[input]}: {name}")


_KINDS = {"probs": "probability of the second class", "logits": "log-odds of the second class"}


def _find_word(name: str) -> Input | None:
    words = re.split(r"[^a-z]+", name.lower())
    return "probs" if words == ["p"] else next((_WORDS[word] for word in words if word in _WORDS), None)


def _guess_group(groups: dict[str, list[tuple[str, str]]], place: Place) -> _Scores:
    """Take the columns with the same stem, such as p_cat and p_dog."""
    large = [stem for stem, members in groups.items() if len(members) > 1] or list(groups)
    option = "logit" if large[0].lower().startswith("logit") else "prob"
    if len(large) > 1:
        listed = " or ".join(f"{stem}..." for stem in large[:10])
        message = f"the scores could be in the columns {listed}: choose with {ask(option)}"
        raise place.error(message)
    stem = large[0]
    columns, classes = zip(*groups[stem], strict=True)
    input: Input = "logits" if option == "logit" else "probs"
    own = stem in _OWN_STEMS
    if len(columns) == 1:
        if _NUMBER.fullmatch(classes[0]) and classes[0] not in ("1", "2"):
            message = (
                f"{columns[0]} is alone, but scores of one column are those of class 1: call it {stem}1 if it is that, "
                "or add the other class"
            )
            raise place.error(message)
        guess = None if own else f"{_KINDS[input]}: {columns[0]}"
        names = ("1", "2") if classes[0] == "2" else None
        return _Scores(input, columns, own and classes[0] in ("1", "2"), names, _positive(columns[0]), guess)
    # a column too many or too few is noticed by the sum of probabilities, but by nothing if these are logits
    numbers = sorted(int(each) for each in classes if _NUMBER.fullmatch(each))
    if input == "logits" and 0 < len(numbers) < len(classes):
        other = next(column for column, each in groups[stem] if not _NUMBER.fullmatch(each))
        message = f"columns {stem}... are numbered, but {other} is not: choose with {ask(option)}, or leave it out"
        raise place.error(message)
    if numbers and input == "logits":
        start = 1 if numbers[0] == 1 else 0
        for index, number in enumerate(numbers, start):
            if number != index:
                message = (
                    f"columns must be numbered from 0 or 1 without gaps, but {stem}{index} is missing before "
                    f"{stem}{number}; to use them as they are, choose with {ask(option)}"
                )
                raise place.error(message)
    found = _by_class(input, columns, classes)
    kind = "logits" if input == "logits" else "probabilities"
    return found if own else replace(found, guess=f"{kind}: {describe_names(found.columns)}")


def name_outputs(columns: int, class_names: Sequence[str] | None, input: Input) -> list[str]:
    """Name the columns of scores in a csv file: the second class for a single one."""
    names = class_names or [str(index) for index in range(max(2, columns))]
    return [f"{input[:-1]}_{name}" for name in (names[1:] if columns == 1 else names)]


def _check_twice(names: Sequence[str], place: Place, what: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            message = f"{what} {name[:100]!r} appears twice"
            raise place.error(message)
        seen.add(name)
