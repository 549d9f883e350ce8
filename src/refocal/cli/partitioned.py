"""The commands over many files that are one data set, in this process or on a cluster."""

from __future__ import annotations

import glob
import json
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from refocal._check import Input
from refocal.calibrators import Calibrator, FocalPosterior, FocalTemperatureScaling, TemperatureScaling, load
from refocal.cli.commands import _SUFFIXES, _check_outputs
from refocal.cli.output import show, terminal
from refocal.report import build_table, words
from refocal.scale import ProgressUpdate
from refocal.scale import apply as apply_to_files
from refocal.scale import evaluate as evaluate_files
from refocal.scale.engines import Progress as Tell
from refocal.scale.engines import open_engine
from refocal.scale.fitting import fit
from refocal.scale.measuring import measure
from refocal.scale.parts import Rows, find_files, require_form

_METHODS = ("temperature", "focal-temperature", "posterior")
_DEFAULT_METHOD = "focal-temperature"


def asked_for(options: Namespace, files: Sequence[str]) -> bool:
    """Whether the files are parts of one data set: an engine was named, or one of them is a pattern."""
    patterns = any(glob.has_magic(file) and not os.path.lexists(file) for file in files)
    return options.engine is not None or patterns


def evaluate(options: Namespace) -> None:
    """Measure the files together."""
    _refuse(options, "report")
    with bar() as progress:
        report = evaluate_files(options.files, split=options.split, progress=progress, **_engine(options))
    show(options, build_table(report), json.loads(report.to_json()))


def calibrate(options: Namespace, loss: dict[str, Any]) -> None:
    """Fit to files, and measure on others before and after."""
    _refuse(options, "report", "out")
    _check_outputs(options, [])
    val = find_files(options.val)
    test = val if options.test is None else find_files(options.test)
    form = require_form(val)
    test_form = require_form(test)
    form.check(test_form._replace(weighted=form.weighted))
    method = options.method or _DEFAULT_METHOD
    calibrator = _chosen(method, loss, form.input)
    alone = options.test is None
    if not alone and set(val) & set(test):
        msg = f"{options.val} and {options.test} must be files of their own, both have {min(set(val) & set(test))}"
        raise ValueError(msg)
    engine = _engine(options)
    with bar() as progress, open_engine(engine.get("engine", "local"), engine.get("address"), progress) as running:
        result = fit(running, calibrator, val, Rows(form, split="val", optional=not alone, finite=True))
        rows = Rows(test_form, split="test", optional=not alone, finite=True)
        report = measure(running, test, rows, calibrator=result, source=options.test or options.val)
    if options.save:
        result.save(options.save)
    content = {**json.loads(report.to_json()), "written": {"calibrator": options.save} if options.save else {}}
    saved = [Text(words.printable(f"calibrator: {options.save}"))] if options.save else []
    show(options, Group(build_table(report), *saved), content)


def refuse_whole(options: Namespace, why: str) -> None:
    """Refuse what needs all rows in memory, saying why they cannot be there."""
    asked = [f"--{name}" for name in ("report", "out") if getattr(options, name) is not None]
    asked += [] if options.method in (None, *_METHODS) else [f"--method {options.method}"]
    if asked:
        msg = f"{asked[0]} needs all rows in memory, but {why}"
        raise ValueError(msg)


def way(options: Namespace, loss: dict[str, Any]) -> str:
    """How a fit to files that are too large for memory goes, in words."""
    if options.method is not None:
        return "reading block by block"
    ignored = "; gamma counts with --method posterior alone" if loss else ""
    return f"reading block by block: {_DEFAULT_METHOD} is fitted, and no other method is compared{ignored}"


def apply(options: Namespace) -> None:
    """Calibrate the files into a folder."""
    if Path(options.out).suffix in _SUFFIXES["out"]:
        msg = f"--out must be a folder where there are many files, got {options.out!r}"
        raise ValueError(msg)
    with bar() as progress:
        done = apply_to_files(
            load(options.calibrator),
            options.files,
            options.out,
            overwrite=options.force,
            progress=progress,
            **_engine(options),
        )
    files = "1 file" if done.written == 1 else f"{done.written:,} files"
    kept = f", {done.kept:,} {'was' if done.kept == 1 else 'were'} there already" if done.kept else ""
    told = f"{done.rows:,} rows of {files} calibrated{kept}: {options.out}"
    show(options, told, {**done._asdict(), "out": options.out})


@contextmanager
def bar() -> Iterator[Tell]:
    """A bar over files on a terminal, and how many rows were read."""
    console = terminal()
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("files, {task.fields[rows]:,} rows"),
    )
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("starting", rows=0)

        def tell(done: ProgressUpdate) -> None:
            shown.update(task, description=done.what, completed=done.files, total=done.of_files, rows=done.rows)

        yield tell


def _chosen(method: str, loss: dict[str, Any], input: Input) -> Calibrator:
    if method not in _METHODS:
        msg = f"over many files, --method must be one of {', '.join(_METHODS)}, got {method!r}"
        raise ValueError(msg)
    if method == "posterior":
        if not loss:
            msg = "--method posterior needs the gamma that the network was trained with"
            raise ValueError(msg)
        return FocalPosterior(**loss, input=input)
    return (TemperatureScaling if method == "temperature" else FocalTemperatureScaling)(input=input)


def _engine(options: Namespace) -> dict[str, Any]:
    """What the user said about the engine."""
    given = {"engine": options.engine, "address": options.address}
    return {name: value for name, value in given.items() if value is not None}


def _refuse(options: Namespace, *names: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            instead = "apply writes calibrated files" if name == "out" else "it needs all rows in memory"
            msg = f"--{name} is not for many files: {instead}"
            raise ValueError(msg)
