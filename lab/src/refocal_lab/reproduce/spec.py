"""Specs of figures and tables: TOML files that are checked when they are read."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from refocal._documents import parse_toml, read_document
from refocal_lab.reproduce.kinds import KINDS

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
RELATIONS = ("about", "at most", "at least")
DIFFERENCES = ("network", "data", "schedule")  # what ours can have other than the paper's
_TEXTS = ("id", "paper", "title", "caption", "kind")
_OPTIONAL: dict[str, type] = {"finding": str, "differs": list, "unstated": str, "parameters": dict, "published": list}


@dataclass(frozen=True)
class PublishedNumber:
    """A number that a paper states.

    Attributes:
        number: Name of the computed value.
        says: What the number is, in words.
        where: Place in the paper.
        value: The published value.
        relation: Whether ours should be "about", "at most" or "at least" the value.
        tolerance: Allowed difference.
        note: Our comment on the difference.
        differs: What ours has other than the paper's, of `DIFFERENCES`; empty if the setting is the same. If a spec
            does not say it for a number, it is what the spec says for the figure.
        unstated: What of the setting the paper does not state, in words, so that ours may be another; empty if the
            paper states all. Like `differs`, it is what the spec says for the figure unless the number says it.
    """

    number: str
    says: str
    where: str
    value: float
    relation: str = "about"
    tolerance: float = 0.0
    note: str = ""
    differs: tuple[str, ...] = ()
    unstated: str = ""

    def holds(self, ours: float) -> bool:
        """Tell whether our number agrees with the published one."""
        excess = ours - self.value
        if self.relation == "about":
            return abs(excess) <= self.tolerance
        return (excess if self.relation == "at most" else -excess) <= self.tolerance


@dataclass(frozen=True)
class Spec:
    """The spec of a figure or table of a paper.

    Attributes:
        id: Paper and number, "003-fig-2"; also the name of its file.
        paper: Number of the paper.
        title: Title of a few words.
        caption: What the figure shows.
        finding: The result in words, with `{name:format}` for computed values; may be empty.
        differs: What the figure has other than the paper's, of `DIFFERENCES`; the caption explains it.
        unstated: What of the setting the paper does not state; the caption or the finding explains it.
        kind: The computation, one of `KINDS`.
        parameters: Parameters by scale: smoke (seconds), small (minutes), paper (as published).
        published: Published numbers to compare with.
    """

    id: str
    paper: str
    title: str
    caption: str
    finding: str
    kind: str
    parameters: Mapping[str, Any]
    published: tuple[PublishedNumber, ...]
    differs: tuple[str, ...] = ()
    unstated: str = ""


def read_spec(path: str | os.PathLike[str]) -> Spec:
    """Read and check a spec.

    Args:
        path: A TOML file.

    Raises:
        ValueError: If a key is missing, unknown or of the wrong type; the message names the file and the key.
    """
    path = Path(path)
    content = parse_toml(read_document(path), lambda reason: ValueError(f"{path}: not a TOML file: {reason}"))
    try:
        return _build_spec(content, path.stem)
    except (ValueError, TypeError) as error:
        msg = f"{path}: {error}"
        raise ValueError(msg) from error


def read_specs(folder: str | os.PathLike[str]) -> dict[str, Spec]:
    """Read all specs of a folder, in the order of their ids.

    Args:
        folder: Folder of TOML files.

    Raises:
        FileNotFoundError: If there are none.
    """
    specs = {spec.id: spec for spec in map(read_spec, sorted(Path(folder).glob("*.toml"), key=_natural_key))}
    if not specs:
        msg = f"no experiments in {os.fspath(folder)!r}: give the folder lab/experiments of a clone with --experiments"
        raise FileNotFoundError(msg)
    return specs


def _natural_key(path: Path) -> list[str]:
    """Sort key that puts 002-table-9 before 002-table-10."""
    return [part.zfill(4) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]


def _build_spec(content: dict[str, Any], stem: str) -> Spec:
    _check_keys(content, {*_TEXTS, "scales", *_OPTIONAL}, required={*_TEXTS, "scales"})
    for name in _TEXTS:
        _convert(content[name], str, name)
    for name, kind in _OPTIONAL.items():
        _convert(content.setdefault(name, kind()), kind, name)
    _convert(content["scales"], dict, "scales")
    if content["id"] != stem:
        msg = f"id must be the name of the file, {stem!r}, got {content['id']!r}"
        raise ValueError(msg)
    if not content["id"].startswith(f"{content['paper']}-"):
        msg = f"id must begin with the number of the paper, '{content['paper']}-', got {content['id']!r}"
        raise ValueError(msg)
    if content["kind"] not in KINDS:
        msg = f"kind must be one of {', '.join(sorted(KINDS))}, got {content['kind']!r}"
        raise ValueError(msg)
    _check_keys(content["scales"], set(SCALES), required=set(SCALES), of="scales")
    common, wanted = content["parameters"], KINDS[content["kind"]].parameters
    parameters: dict[str, Any] = {
        scale: _build_record(
            wanted, {**common, **_convert(content["scales"][scale], dict, f"scales.{scale}")}, f"scale {scale}"
        )
        for scale in SCALES
    }
    differs = _check_differences(_convert(content["differs"], tuple[str, ...], "differs"), "differs")
    published = tuple(
        _build_published(item, {"differs": list(differs), "unstated": content["unstated"]}, f"published {index}")
        for index, item in enumerate(content["published"], start=1)
    )
    texts = {name: content[name] for name in (*_TEXTS, "finding", "unstated")}
    return Spec(**texts, parameters=parameters, published=published, differs=differs)


def _build_published(content: Any, of_figure: dict[str, Any], where: str) -> PublishedNumber:
    given = {**of_figure, **_convert(content, dict, where)}
    made: PublishedNumber = _build_record(PublishedNumber, given, where)
    _check_differences(made.differs, f"{where}: differs")
    if made.relation not in RELATIONS:
        msg = f"{where}: relation must be one of {', '.join(map(repr, RELATIONS))}, got {made.relation!r}"
        raise ValueError(msg)
    if not made.tolerance >= 0 or (made.relation == "about" and "tolerance" not in content):
        msg = f"{where}: tolerance must be given and must not be negative"
        raise ValueError(msg)
    return made


def _check_differences(given: tuple[str, ...], name: str) -> tuple[str, ...]:
    if not set(given) <= set(DIFFERENCES) or len(set(given)) < len(given):
        msg = f"{name} must list some of {', '.join(map(repr, DIFFERENCES))}, each once, got {list(given)}"
        raise ValueError(msg)
    return given


def _build_record(wanted: type, given: dict[str, Any], where: str) -> Any:
    """Build a frozen dataclass from a TOML table; each field must have its declared type."""
    required = {field.name for field in fields(wanted) if field.default is MISSING}
    _check_keys(given, {field.name for field in fields(wanted)}, required=required, of=where)
    hints = get_type_hints(wanted)
    return wanted(**{name: _convert(value, hints[name], f"{where}: {name}") for name, value in given.items()})


def _convert(value: Any, wanted: Any, name: str) -> Any:
    """Convert a value to its declared type: a finite number, text, or a tuple of these."""
    if get_origin(wanted) is tuple:
        return tuple(_convert(item, get_args(wanted)[0], name) for item in _convert(value, list, name))
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        msg = f"{name} must be of type {wanted.__name__}, got {value!r}"
        raise TypeError(msg)
    if isinstance(value, float) and not math.isfinite(value):
        msg = f"{name} must be finite, got {value}"
        raise ValueError(msg)
    return value


def _check_keys(given: dict[str, Any], allowed: set[str], *, required: set[str], of: str = "the spec") -> None:
    unknown, missing = sorted(set(given) - allowed), sorted(required - set(given))
    if unknown:
        msg = f"{of}: keys must be among {', '.join(sorted(allowed))}, got {', '.join(unknown)}"
        raise ValueError(msg)
    if missing:
        msg = f"{of}: missing {', '.join(missing)}"
        raise ValueError(msg)
