"""Results on disk: one folder per experiment and scale, written completely or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from refocal import _files
from refocal._documents import parse_json, read_document
from refocal_lab.reproduce.computation import NO_ENTRY, Numbers
from refocal_lab.reproduce.spec import PublishedNumber, Spec

_PLACE = re.compile(r"\{(?P<name>[^{}:]+):(?P<format>[^{}:]*)\}")
_DIGITS = 5  # significant digits of stored curves; no figure shows more


@dataclass(frozen=True)
class Comparison:
    """A published number and ours; `ours` and `within` are None if the zoo lacks the networks.

    `differs` lists what ours has other than the paper's: network, data or schedule. `unstated` is what of the setting
    the paper does not state.
    """

    says: str
    where: str
    relation: str
    paper: float
    tolerance: float
    ours: float | None
    within: bool | None
    note: str
    differs: tuple[str, ...] = ()
    unstated: str = ""

    @property
    def own_setting(self) -> bool:
        """Whether our setting is known to be the paper's."""
        return not (self.differs or self.unstated)

    @property
    def line(self) -> str:
        """The comparison in one line.

        Example:
            >>> Comparison("T", "Fig. 2", "about", 0.36, 0.005, 0.27634, False, "").line
            'T: paper: 0.36, ours: 0.2763, within: no'
            >>> Comparison("T", "Fig. 2", "about", 0.36, 0.005, 0.2, False, "", ("network", "schedule")).line
            'T: paper: 0.36, ours: 0.2, within: no, other network and schedule'
            >>> Comparison("T", "Fig. 2", "about", 0.36, 0.005, 0.2, False, "", ("data",), "schedule").line
            'T: paper: 0.36, ours: 0.2, within: no, other data, schedule not stated'
        """
        end = "" if self.within is None else f", within: {self.within_text}"
        return f"{self.says}: paper: {self.paper_text}, ours: {self.ours_text}{end}"

    @property
    def within_text(self) -> str:
        """Whether the numbers agree, and how our setting may not be the paper's; a dash if there is no entry."""
        if self.within is None:
            return "–"
        other = f", other {join_words(self.differs)}" if self.differs else ""
        unstated = f", {self.unstated} not stated" if self.unstated else ""
        return f"{'yes' if self.within else 'no'}{other}{unstated}"

    @property
    def ours_text(self) -> str:
        """Our number in four digits; zero has no sign."""
        return NO_ENTRY if self.ours is None else f"{self.ours + 0.0:.4g}"

    @property
    def paper_text(self) -> str:
        """The paper's number with its relation, such as "at most 0.5"."""
        return f"{'' if self.relation == 'about' else self.relation + ' '}{self.paper:g}"


def join_words(words: Sequence[str]) -> str:
    """Join words as in a sentence.

    Example:
        >>> join_words(["network", "data", "schedule"])
        'network, data and schedule'
    """
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


@dataclass(frozen=True)
class StoredResult:
    """The result of a run, with everything needed to repeat it.

    Attributes:
        id: Id of the spec.
        scale: Scale of the run.
        kind: Kind of the computation.
        parameters: Parameters of the computation, including seeds.
        versions: Versions of Python and of the packages used.
        seconds: Duration of the computation; None if it was not recorded.
        numbers: The numbers.
        published: Comparisons with the published numbers.
        made_from: Names and digests of the input files.
    """

    id: str
    scale: str
    kind: str
    parameters: dict[str, Any]
    versions: dict[str, str]
    seconds: float | None
    numbers: Numbers
    published: tuple[Comparison, ...]
    made_from: dict[str, str] = field(default_factory=dict)


def to_json(parameters: Any) -> dict[str, Any]:
    """Convert parameters to what JSON reads back."""
    return json.loads(json.dumps(asdict(parameters)))


def compare(published: tuple[PublishedNumber, ...], numbers: Numbers) -> tuple[Comparison, ...]:
    """Compare each published number with ours.

    Raises:
        ValueError: If a published number refers to a value that was not computed.
    """
    unknown = [item.number for item in published if item.number not in {*numbers.values, *numbers.absent}]
    if unknown:
        msg = f"published numbers must be among {', '.join(numbers.values)}, got {', '.join(unknown)}"
        raise ValueError(msg)
    return tuple(_compare_one(item, numbers.values.get(item.number)) for item in published)


def _compare_one(item: PublishedNumber, ours: float | None) -> Comparison:
    within = None if ours is None else item.holds(ours)
    return Comparison(
        item.says,
        item.where,
        item.relation,
        item.value,
        item.tolerance,
        ours,
        within,
        item.note,
        item.differs,
        item.unstated,
    )


def fill_finding(text: str, numbers: Numbers) -> str:
    """Fill the computed values into the finding of a spec; absent values become "no entry".

    Raises:
        ValueError: If the finding names a value that was not computed, or has a format other than .3f, .3e, .3g or .3%,
            with or without a sign (+.3f).

    Example:
        >>> fill_finding("T is {T(2):.2f}, {T(3):.2f}.", Numbers({"T(2)": 0.4646}, absent=("T(3)",)))
        'T is 0.46, no entry.'
        >>> fill_finding("ECE falls by {gain:+.1f} to {ECE:.2%}.", Numbers({"gain": 1.25, "ECE": 0.0089}))
        'ECE falls by +1.2 to 0.89 %.'
    """

    def value(place: re.Match[str]) -> str:
        if place["name"] not in {*numbers.values, *numbers.absent}:
            msg = f"finding must name values among {', '.join(numbers.values)}, got {place['name']}"
            raise ValueError(msg)
        if not re.fullmatch(r"\+?\.\d[efg%]", place["format"]):
            msg = f"finding must have formats such as .3f, got {place['format']!r}"
            raise ValueError(msg)
        ours = numbers.values.get(place["name"])
        return NO_ENTRY if ours is None else format(ours, place["format"]).replace("%", " %")

    return _PLACE.sub(value, " ".join(text.split()))


def result_folder(results: Path, spec: Spec, scale: str) -> Path:
    """Return the folder in which a result is stored."""
    return results / spec.id / scale


def load(results: Path, spec: Spec, scale: str) -> StoredResult | None:
    """Load a stored result; None if there is none.

    Raises:
        ValueError: If the file is damaged.
    """
    file = result_folder(results, spec, scale) / "numbers.json"
    if not file.is_file():
        return None
    try:
        content = parse_json(read_document(file), ValueError)
        kinds = {"seconds": int | float | None, "values": dict, "curves": dict}
        if content["scale"] != scale or not all(isinstance(content[name], kind) for name, kind in kinds.items()):
            msg = f"scale must be {scale!r}, seconds a number, values and curves objects"
            raise ValueError(msg)
        table = tuple(tuple(row) for row in content.pop("table", ()))
        numbers = Numbers(content.pop("values"), content.pop("curves"), table, tuple(content.pop("absent", ())))
        published = tuple(
            Comparison(**{**item, "differs": tuple(item.get("differs", ()))}) for item in content.pop("published")
        )
        return StoredResult(**content, numbers=numbers, published=published)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        msg = f"{file} is not a valid result ({error}): make it again with --force"
        raise ValueError(msg) from error


def save(results: Path, spec: Spec, result: StoredResult, figures: dict[str, bytes]) -> Path:
    """Write numbers and figures. An existing result is replaced only when the new one is complete."""
    target = result_folder(results, spec, result.scale)
    with _files.replacing_folder(target) as new:
        for name, content in figures.items():
            (new / name).write_bytes(content)
        (new / "numbers.json").write_text(_to_text(result), encoding="utf-8")
    return target


def update(results: Path, spec: Spec, result: StoredResult) -> None:
    """Write the numbers and keep the figures."""
    file = result_folder(results, spec, result.scale) / "numbers.json"
    _files.write_text(os.fspath(file), _to_text(result), overwrite=True)


def _to_text(result: StoredResult) -> str:
    """Write one line per entry, which keeps files short and diffs readable."""
    content = {field.name: getattr(result, field.name) for field in fields(result) if field.name != "numbers"}
    content["published"] = [asdict(item) for item in result.published]
    content |= asdict(result.numbers) | {"curves": round_curves(result.numbers.curves)}
    lines = ",\n".join(
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for name, value in content.items()
    )
    return f"{{\n{lines}\n}}\n"


def round_curves(curves: Any) -> Any:
    """Convert arrays to lists, rounded to the digits that a figure can show."""
    if isinstance(curves, (np.ndarray, np.generic)):
        curves = curves.tolist()
    if isinstance(curves, dict):
        return {name: round_curves(value) for name, value in curves.items()}
    if isinstance(curves, (list, tuple)):
        return [round_curves(value) for value in curves]
    return float(f"{curves:.{_DIGITS}g}") if isinstance(curves, float) else curves
