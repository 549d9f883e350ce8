"""Which columns of a file hold scores, by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from refocal._check import Input
from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place, PredictionsError
from refocal.predictions.labels import NUMBER, OBVIOUS
from refocal.predictions.names import describe_names, find_names, name_option

# a column of one class: a stem, a separator and the class, such as prob_0, p_cat or "logit cat"; p0 as H2O writes it,
# and .pred_cat as tidymodels does, beside the decision .pred_class
_STEM = r"(?:logits?|probability|proba|probs?|p)(?:[_. -]|(?=[0-9]+$))|\.pred_(?!class$)"
_CLASS_COLUMN = re.compile(rf"({_STEM})(.+)", re.IGNORECASE)
_OWN_STEMS = ("logit_", "prob_")  # of refocal's own files
_WORDS: dict[str, Input] = {"logit": "logits", "prob": "probs", "proba": "probs", "probability": "probs"}
_KINDS = {"probs": "probability of the second class", "logits": "log-odds of the second class"}
_SEVERAL = {"probs": "probabilities", "logits": "logits"}
_PAIRED = {word: pair for pair in reversed(OBVIOUS) for word in pair}
_TARGET = "y"  # as in y_prob, the scores of a target y: not the class y of n and y
_NEGATIONS = {"no", "not", "non", "nein", "não"}
_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,6}")  # at most 7 digits: a name cannot ask for a huge number


@dataclass(frozen=True)
class ScoreColumns:
    """The columns of scores; for the attributes see `Header`."""

    input: Input
    columns: tuple[str, ...]
    per_class: bool = False
    class_names: tuple[str, ...] | None = None
    positive: str | None = None
    guess: str | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, numbers if there are none; that of the second class for a single column."""
        if len(self.columns) == 1:
            return (self.positive or "1",)
        return self.class_names or tuple(str(index) for index in range(len(self.columns)))

    def find_replaced(self, others: Sequence[str]) -> tuple[str, ...]:
        """Find columns that would contradict new probabilities: older scores of the same classes."""
        found = _CLASS_COLUMN.fullmatch(self.columns[0])
        stems = {"prob_", *([] if found is None else [found[1]])}
        classes = {str(index) for index in range(max(2, len(self.columns)))}
        if self.class_names is not None:
            classes = set(self.class_names)
        elif self.positive is not None:
            classes = {self.positive, *_PAIRED.get(self.positive.lower(), ())}
        names = {f"{stem}{each}".lower() for stem in stems for each in classes} | {"probs"}
        is_list = not self.per_class and self.positive is None  # of unknown length
        numbered = re.compile(r"prob_[0-9]+") if is_list else re.compile("(?!)")
        return tuple(name for name in others if name.lower() in names or numbered.fullmatch(name))


def describe_list(guess: str) -> str:
    """Correct the guess about a column or an array: its rows hold the scores of several classes."""
    for input, kind in _KINDS.items():
        guess = guess.replace(f"{kind}: ", f"{_SEVERAL[input]}: ")
    return guess


def choose_scores(choice: ColumnChoice, names: Sequence[str], every: Sequence[str], place: Place) -> ScoreColumns:
    """Take the columns that the caller names from those that are left, `names`; `every` lists all, for the error."""
    option = "logit" if choice.prob is None else "prob"
    input: Input = "logits" if choice.prob is None else "probs"
    patterns = choice.scores or ()
    columns = find_names(patterns, names, option, place, every=every)
    if len(columns) == 1:
        own = columns[0] in (f"{option}_1", f"{option}_2")
        two = ("1", "2") if columns[0] == f"{option}_2" else None
        return ScoreColumns(input, tuple(columns), own, two, _positive(columns[0]))
    parsed = [_CLASS_COLUMN.fullmatch(name) for name in columns]
    if len(patterns) > 1 and len({found and found[1] for found in parsed}) == 1 and parsed[0]:
        return order_classes(input, columns, [found[2] for found in parsed if found])
    return order_classes(input, columns, strip_pattern(columns, patterns))


def strip_pattern(columns: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Name the classes of columns by what the star of their pattern stands for, otherwise by their whole names."""
    starts = [pattern.partition("*") for pattern in patterns]
    plain = len(patterns) == 1 and not re.search(r"[*?\[]", starts[0][0] + starts[0][2])
    head, tail = (len(starts[0][0]), len(starts[0][2])) if plain else (0, 0)
    classes = [name[head : len(name) - tail] for name in columns]
    separated = plain and all(re.match(r"[_. -].", each) for each in classes)  # the pattern logit* for logit_0, logit_1
    return [each[1:] for each in classes] if separated else classes


def _positive(column: str) -> str | None:
    """Return the class that a single column is about, if its name says so: prob_spam or no_probability."""
    if found := _CLASS_COLUMN.fullmatch(column):
        return None if _NUMBER.fullmatch(found[2]) and found[2] != "0" else found[2]
    words = [word for word in re.split(r"[_. -]+", column) if word.lower() not in _WORDS]
    return words[0] if len(words) == 1 and words[0].lower() in _PAIRED.keys() - {_TARGET} else None


def find_label(column: str, labels: Sequence[str]) -> str | None:
    """Return the only label that is in the name of a column as whole words, such as churn in churn_prob.

    A name with a negation tells nothing: no_show_prob may be the probability of yes.
    """
    words = _split_words(column)
    if not _NEGATIONS.isdisjoint(words):
        return None
    text = f" {' '.join(word for word in words if word != 'p' and word not in _WORDS)} "
    found = [label for label in labels if f" {' '.join(_split_words(label))} " in text]
    return found[0] if len(found) == 1 else None


def _split_words(name: str) -> list[str]:
    """Split a name at everything but letters and digits, and at the capitals of camel case; in lower case."""
    return re.findall(r"[^\W_]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())


def order_classes(input: Input, columns: Sequence[str], classes: Sequence[str]) -> ScoreColumns:
    """Order columns of classes: by number, or as in the file."""
    if not all(_NUMBER.fullmatch(each) for each in classes):
        return ScoreColumns(input, tuple(columns), True, tuple(classes))
    pairs = sorted(zip(columns, classes, strict=True), key=lambda pair: int(pair[1]))
    numbers = tuple(number for _, number in pairs)
    names = None if numbers == tuple(map(str, range(len(pairs)))) else numbers
    return ScoreColumns(input, tuple(column for column, _ in pairs), True, names)


def guess_scores(names: Sequence[str], every: Sequence[str], place: Place, what: str) -> ScoreColumns:
    """Guess the columns from the names that are left, `names`; `every` lists all, for the error."""
    groups: dict[str, list[tuple[str, str]]] = {}
    if what == "column":
        for name in names:
            if found := _CLASS_COLUMN.fullmatch(name):
                groups.setdefault(found[1], []).append((name, found[2]))
    clear = {stem: members for stem, members in groups.items() if _is_clear(stem, members)}
    groups = {stem: members for stem, members in groups.items() if stem in clear or not stem[-1].isalpha()}
    if clear:
        clear = {stem: members for stem, members in groups.items() if stem in clear or len(members) > 1}
    whole: list[Input] = [input for input in ("logits", "probs") if input in names]
    if len({*whole, *map(_find_input, clear)}) > 1:
        message = f"scores must be logits or probs, got both: choose with {name_option('prob')}, or with logit"
        raise place.error(message)
    if whole and (own := next((members[0][0] for stem, members in clear.items() if stem in _OWN_STEMS), None)):
        message = f"scores must be in one place, got columns {whole[0]} and {own}"
        raise place.error(message)
    if whole:
        return ScoreColumns(whole[0], (whole[0],))
    if len(clear) > 1:
        listed = " or ".join(f"{stem}..." for stem in list(clear)[:10])
        option = name_option(_find_input(next(iter(clear)))[:-1])
        message = f"the scores could be in the columns {listed}: choose with {option}"
        raise place.error(message)
    if clear:
        return _take_group(*next(iter(clear.items())), place)
    grouped = {name for members in groups.values() for name, _ in members}
    ones = [(name, input) for name in names if name not in grouped and (input := _find_word(name)) is not None]
    if len(groups) + len(ones) > 1:
        # no name is clear enough to beat another: p_age and p_value may be anything
        stems = [repr(members[0][0]) if len(members) == 1 else f"{stem}..." for stem, members in groups.items()]
        listed = " or ".join([*stems, *(repr(name) for name, _ in ones)][:10])
        message = f"the scores could be in {listed}: choose with {name_option('prob')}, or with logit"
        raise place.error(message)
    if groups:
        return _take_group(*next(iter(groups.items())), place)
    if not ones:
        raise _refuse_missing(every, place, what)
    name, input = ones[0]
    return ScoreColumns(input, (name,), positive=_positive(name), guess=f"{_KINDS[input]}: {describe_names([name])}")


def _refuse_missing(names: Sequence[str], place: Place, what: str) -> PredictionsError:
    listed = ", ".join(repr(name) for name in names[:10]) or "nothing"
    one = "columns logit_0 ... or prob_0 ..., or one column" if what == "column" else "an array"
    numbers = "; --prob '[0-9]*' for columns that are numbers" if what == "column" and {"0", "1"} <= set(names) else ""
    if what == "column" and all(map(NUMBER.fullmatch, names)) and any("." in name for name in names):
        numbers = "; line 1 must be a header with the names of the columns"
    message = (
        f"scores are missing: the file must have {one} 'logits' or 'probs', got {listed}; choose others with "
        f"--prob or --logit, in Python ColumnChoice(prob=...) or ColumnChoice(logit=...){numbers}"
    )
    return place.error(message)


def _is_clear(stem: str, members: Sequence[tuple[str, str]]) -> bool:
    """Whether columns with the same stem are scores, whatever other columns there are."""
    numbered = all(_NUMBER.fullmatch(each) for _, each in members)
    if len(members) == 1:
        return numbered and stem in _OWN_STEMS
    if stem.strip("_. -").lower() != "p":
        return True
    numbers = sorted(int(each) for _, each in members) if numbered else []
    return numbered and numbers in (list(range(len(numbers))), list(range(1, len(numbers) + 1)))  # not p5 and p95


def _find_input(stem: str) -> Input:
    return "logits" if stem.lower().startswith("logit") else "probs"


def _find_word(name: str) -> Input | None:
    words = re.split(r"[^a-z]+", name.lower())
    return "probs" if words == ["p"] else next((_WORDS[word] for word in words if word in _WORDS), None)


def _take_group(stem: str, members: Sequence[tuple[str, str]], place: Place) -> ScoreColumns:
    """Take the columns with the same stem, such as p_cat and p_dog."""
    columns, classes = zip(*members, strict=True)
    input = _find_input(stem)
    option = input[:-1]
    own = stem in _OWN_STEMS
    if len(columns) == 1:
        if _NUMBER.fullmatch(classes[0]) and classes[0] not in ("1", "2"):
            message = (
                f"{columns[0]} is alone, but scores of one column are those of class 1: call it {stem}1 if it is that, "
                "or add the other class"
            )
            raise place.error(message)
        numbered = own and classes[0] in ("1", "2")
        guess = None if numbered else f"{_KINDS[input]}: {describe_names(columns)}"
        names = ("1", "2") if classes[0] == "2" else None
        return ScoreColumns(input, columns, numbered, names, _positive(columns[0]), guess)
    # a column too many or too few is noticed by the sum of probabilities, but by nothing if these are logits
    numbers = sorted(int(each) for each in classes if _NUMBER.fullmatch(each))
    if input == "logits" and 0 < len(numbers) < len(classes):
        other = next(column for column, each in members if not _NUMBER.fullmatch(each))
        message = (
            f"columns {stem}... are numbered, but {other} is not: choose with {name_option(option)}, or leave it out"
        )
        raise place.error(message)
    if numbers and numbers != [-1, 1] and input == "logits":
        start = 1 if numbers[0] == 1 else 0
        for index, number in enumerate(numbers, start):
            if number != index:
                message = (
                    f"columns must be numbered from 0 or 1 without gaps, but {stem}{index} is missing before "
                    f"{stem}{number}; to use them as they are, choose with {name_option(option)}"
                )
                raise place.error(message)
    found = order_classes(input, columns, classes)
    return found if own else replace(found, guess=f"{_SEVERAL[input]}: {describe_names(found.columns)}")
