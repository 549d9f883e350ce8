"""Columns of multi-label labels, one per class: finding them, and matching them to the columns of scores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import Place, find_prefix
from refocal.predictions.names import describe_names, name_option
from refocal.predictions.score_columns import ScoreColumns, order_classes, strip_pattern

# a column of labels of one class, such as label_cat, y_true.cat or is_cat
_LABEL_COLUMN = re.compile(r"((?:labels?|y_true|y|targets?|true|truth|gt|is|has)[_. -])(.+)", re.IGNORECASE)
_SCORE_COLUMN = re.compile(r"((?:logits?|probability|proba|probs?|p|scores?)[_. -])(.+)", re.IGNORECASE)


def find_columns(
    chosen: Sequence[str], names: Sequence[str], scores: ScoreColumns, choice: ColumnChoice, place: Place
) -> tuple[tuple[str, ...], ScoreColumns, list[str]]:
    """Find the columns of multi-label labels.

    Args:
        chosen: The columns that the caller names; none if they must be guessed.
        names: The columns that are free.
        scores: The columns of scores.
        choice: What the caller names.
        place: The file, for errors.

    Returns:
        The columns in the order of the classes, none if there are none; the scores with the names of the classes; and
        what was guessed, in words.
    """
    least = 1 if choice.task == "multilabel" else 2
    found = chosen or _guess_columns(names, scores.classes, least=least, place=place)
    if not found:
        return (), scores, []
    own = choice.task == "multilabel" and all(name.startswith("label_") for name in found)
    given = strip_pattern(found, tuple(choice.label or ()))
    if len(scores.columns) > 1:
        answers, classes = match_columns(found, given, scores.columns, scores.classes, place)
        numbered = classes == tuple(map(str, range(len(classes))))
        scores = replace(scores, class_names=None if numbered else classes)
    elif len(found) > 1:  # beside one column of lists
        ordered = order_classes(scores.input, found, _name_classes(found, given))
        answers, scores = ordered.columns, replace(scores, class_names=ordered.class_names)
    else:
        answers = tuple(found)
    return answers, scores, [] if chosen or own else [f"label columns: {describe_names(answers)}"]


def _guess_columns(names: Sequence[str], classes: Sequence[str], *, least: int, place: Place) -> list[str]:
    """Find columns of labels with one stem and one column for each class of the scores; none if there are none.

    Args:
        names: The columns that are free.
        classes: The classes of the scores.
        least: The smallest number of columns that are taken for multi-label labels.
        place: The file, for errors.
    """
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        if found := _LABEL_COLUMN.fullmatch(name):
            groups.setdefault(found[1], {})[found[2]] = name
    complete = [group for group in groups.values() if set(group) == set(classes)]
    if len(complete) > 1:
        listed = " or ".join(describe_names(list(group.values())) for group in complete)
        message = f"the labels could be in {listed}: choose with {name_option('label')}"
        raise place.error(message)
    if complete and len(classes) >= least:
        return list(complete[0].values())
    for group in groups.values():
        words = [name for name in group if not name.isdecimal()]
        if len(group) > 1 and set(words) & set(classes):
            raise _refuse(list(group), classes, place)
    return []


def match_columns(
    labels: Sequence[str],
    label_classes: Sequence[str],
    scores: Sequence[str],
    score_classes: Sequence[str],
    place: Place,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Put columns of labels into the order of the columns of scores, by the names of the classes.

    Args:
        labels: Columns of labels.
        label_classes: What their pattern, or their whole names, say about their classes.
        scores: Columns of scores.
        score_classes: Their classes, likewise.
        place: The file, for errors.

    Returns:
        The columns of labels, and the classes, both in the order of the scores.
    """
    for classes in _namings(scores, score_classes, _SCORE_COLUMN):
        for found in _namings(labels, label_classes, _LABEL_COLUMN):
            if set(found) == set(classes) and len(set(classes)) == len(classes) == len(found):
                column = dict(zip(found, labels, strict=True))
                return tuple(column[name] for name in classes), tuple(classes)
    classes = list(_namings(scores, score_classes, _SCORE_COLUMN))[1]
    raise _refuse(_name_classes(labels, label_classes), classes, place)


def _name_classes(labels: Sequence[str], given: Sequence[str]) -> Sequence[str]:
    """Name the classes of columns of labels that stand beside one column of scores."""
    return list(_namings(labels, given, _LABEL_COLUMN))[1]


def _namings(columns: Sequence[str], given: Sequence[str], stem: re.Pattern[str]) -> Iterator[Sequence[str]]:
    """Give the names that columns may have for their classes."""
    yield given
    found = [stem.fullmatch(name) for name in columns]
    if len({each and each[1] for each in found}) == 1 and found[0] is not None:
        yield [each[2] for each in found if each is not None]
    # what all names share, up to a separator: score_cat and score_car are about cat and car
    start = _count_shared(columns)
    end = _count_shared([name[start:][::-1] for name in columns])
    yield [name[start : len(name) - end] for name in columns]


def _count_shared(names: Sequence[str]) -> int:
    return max((found.end() for found in re.finditer(r"[_. -]", find_prefix(names))), default=0)


def _refuse(found: Sequence[str], classes: Sequence[str], place: Place) -> Exception:
    message = (
        f"labels and scores must have the same classes, got labels of {describe_names(found)} and scores of "
        f"{describe_names(classes)}: name each class alike, as in label_cat and prob_cat; choose columns with "
        f"{name_option('label')}, or leave them out with --ignore"
    )
    return place.error(message)
