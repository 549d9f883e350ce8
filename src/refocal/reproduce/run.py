"""Run an experiment: compute, compare, draw, store; not again what is done."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from refocal import _check
from refocal.reproduce import store
from refocal.reproduce.base import Context, Numbers
from refocal.reproduce.kinds import KINDS
from refocal.reproduce.spec import SCALES, Spec
from refocal.reproduce.style import rendered

_EXTRA_OF = {"matplotlib": "plot", "torch": "torch"}


class Outcome(NamedTuple):
    """A result, what it says in words, where it is, and why it was computed or not."""

    result: store.Result
    finding: str
    folder: Path
    why: str


def reproduce(spec: Spec, *, scale: str, results: Path, force: bool = False, context: Context | None = None) -> Outcome:
    """Make a figure or table, unless it is there.

    Args:
        spec: What to make.
        scale: "smoke", "small" or "paper".
        results: Folder of all results; the result goes to `<results>/<id>/<scale>`.
        force: Run again what is there.
        context: Data folder and progress.

    Raises:
        ImportError: If a package is missing that drawing or computing needs; before any work.
    """
    _check.one_of(scale, "scale", SCALES)
    place = store.folder(results, spec, scale)
    parameters = spec.parameters[scale]
    why = "by --force"
    if not force:
        stored = store.load(results, spec, scale)
        if stored is not None and (stored.kind, stored.parameters) == (spec.kind, store.plain(parameters)):
            return _kept(spec, stored, results, place)
        why = "no result yet" if stored is None else "the spec has changed since the stored result"
    kind, context = KINDS[spec.kind], context or Context()
    packages = ("matplotlib", *kind.needs)
    _require(packages)
    context.progress(f"{spec.id}, scale {scale}: {why}")
    start = time.perf_counter()
    numbers = kind.compute(parameters, context)
    seconds = round(time.perf_counter() - start, 2)
    numbers = Numbers(numbers.values, store.rounded(numbers.curves))
    published, finding = store.compared(spec.published, numbers), store.found(spec.finding, numbers.values)
    versions = _versions(packages)
    result = store.Result(spec.id, scale, spec.kind, store.plain(parameters), versions, seconds, numbers, published)
    context.progress(f"{spec.id}: drawing")
    store.save(results, spec, result, rendered(kind.draw, parameters, numbers))
    return Outcome(result, finding, place, why)


def _kept(spec: Spec, stored: store.Result, results: Path, place: Path) -> Outcome:
    """What is stored; compared anew if the published numbers in the spec have changed."""
    published = store.compared(spec.published, stored.numbers)
    finding = store.found(spec.finding, stored.numbers.values)
    if published == stored.published:
        return Outcome(stored, finding, place, "already there")
    result = replace(stored, published=published)
    store.update(results, spec, result)
    return Outcome(result, finding, place, "already there; compared with the spec's new published numbers")


def _require(packages: tuple[str, ...]) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        extras = ",".join(_EXTRA_OF[package] for package in missing)
        msg = f"this needs {' and '.join(missing)}: pip install 'refocal[{extras}]'"
        raise ImportError(msg)


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in ("refocal", "numpy", "scipy", *packages)}
    return {"python": platform.python_version(), **found}
