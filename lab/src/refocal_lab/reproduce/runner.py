"""Run an experiment: compute, compare, draw and store, unless a current result exists."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from refocal import _check
from refocal._extras import how_to_install
from refocal_lab.reproduce import result_files
from refocal_lab.reproduce.computation import Context
from refocal_lab.reproduce.kinds import KINDS
from refocal_lab.reproduce.spec import SCALES, Scale, Spec
from refocal_lab.reproduce.style import render

_EXTRA_OF = {"matplotlib": "plot", "torch": "torch"}


class Reproduction(NamedTuple):
    """A reproduced figure or table.

    Attributes:
        result: The numbers, as stored.
        finding: The finding in words.
        folder: Where the result is stored.
        why: Why it was computed, or why not.
    """

    result: result_files.StoredResult
    finding: str
    folder: Path
    why: str


def reproduce(
    spec: Spec, *, scale: Scale, results: Path, force: bool = False, context: Context | None = None
) -> Reproduction:
    """Make a figure or table, unless a current result is stored.

    Args:
        spec: The figure or table to make.
        scale: "smoke", "small" or "paper".
        results: Folder of all results; this one is stored in `<results>/<id>/<scale>`.
        force: Whether to run again even if a current result is stored.
        context: Data folders and progress.

    Raises:
        ImportError: If a required package is missing; raised before any work.
    """
    _check.one_of(scale, "scale", SCALES)
    place = result_files.result_folder(results, spec, scale)
    parameters = spec.parameters[scale]
    kind, context = KINDS[spec.kind], context or Context()
    made_from = kind.made_from(parameters, context)
    why = "forced"
    if not force:
        stored = result_files.load(results, spec, scale)
        why = "no result yet" if stored is None else explain_outdated(spec, stored, made_from)
        if stored is not None and not why:
            return _reuse(spec, stored, results, place)
    packages = ("matplotlib", *kind.needs)
    _require(packages)
    context.progress(f"{spec.id}, scale {scale}: {why}")
    start = time.perf_counter()
    numbers = kind.compute(parameters, context)
    seconds = round(time.perf_counter() - start, 2)
    numbers = replace(numbers, curves=result_files.round_curves(numbers.curves))
    published, finding = result_files.compare(spec.published, numbers), result_files.fill_finding(spec.finding, numbers)
    plain, versions = result_files.to_json(parameters), _versions(packages)
    result = result_files.StoredResult(
        spec.id, scale, spec.kind, plain, versions, seconds, numbers, published, made_from
    )
    context.progress(f"{spec.id}: drawing")
    result_files.save(results, spec, result, render(kind.draw, parameters, numbers))
    return Reproduction(result, finding, place, why)


def redraw(spec: Spec, *, scale: Scale, results: Path) -> Reproduction:
    """Draw a stored result again, without computing its numbers.

    Args:
        spec: The figure or table to draw.
        scale: "smoke", "small" or "paper".
        results: Folder of all results.

    Raises:
        ValueError: If there is no stored result for the parameters of the spec.
    """
    _check.one_of(scale, "scale", SCALES)
    stored = result_files.load(results, spec, scale)
    if stored is None or not _has_same_parameters(spec, stored):
        msg = f"{spec.id} has no result for its parameters at scale {scale}: make it without --redraw"
        raise ValueError(msg)
    published = result_files.compare(spec.published, stored.numbers)
    versions = {**stored.versions, **_find_versions("matplotlib")}
    result = replace(stored, published=published, versions=versions)
    figures = render(KINDS[spec.kind].draw, spec.parameters[scale], stored.numbers)
    folder = result_files.save(results, spec, result, figures)
    return Reproduction(result, result_files.fill_finding(spec.finding, stored.numbers), folder, "drawn again")


def explain_outdated(spec: Spec, stored: result_files.StoredResult, made_from: dict[str, str]) -> str:
    """Explain why a stored result is outdated; the empty string if it is current.

    Args:
        spec: The spec of the result.
        stored: The stored result.
        made_from: The digests of the current input files, from the kind's `made_from`.
    """
    if not _has_same_parameters(spec, stored):
        return "the spec has changed since the result was stored"
    return "" if stored.made_from == made_from else "the zoo has changed since the result was stored"


def _has_same_parameters(spec: Spec, stored: result_files.StoredResult) -> bool:
    return (stored.kind, stored.parameters) == (spec.kind, result_files.to_json(spec.parameters[stored.scale]))


def _reuse(spec: Spec, stored: result_files.StoredResult, results: Path, place: Path) -> Reproduction:
    """Reuse a stored result. If the spec has new published numbers, compare with them and store the comparison."""
    published = result_files.compare(spec.published, stored.numbers)
    finding = result_files.fill_finding(spec.finding, stored.numbers)
    if published == stored.published:
        return Reproduction(stored, finding, place, "already stored")
    result = replace(stored, published=published)
    result_files.update(results, spec, result)
    return Reproduction(result, finding, place, "already stored; compared with new published numbers in the spec")


def _require(packages: tuple[str, ...]) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        extras = ",".join(_EXTRA_OF[package] for package in missing)
        msg = f"this needs {' and '.join(missing)}: {how_to_install(extras)}"
        raise ImportError(msg)


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    return {"python": platform.python_version(), **_find_versions("refocal", "numpy", "scipy", *packages)}


def _find_versions(*packages: str) -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in packages}
