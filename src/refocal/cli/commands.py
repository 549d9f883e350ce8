"""What the commands do."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from refocal.cli import compare
from refocal.cli.output import Output, show, steps, terminal
from refocal.predictions import Predictions, PredictionsReader, PredictionsWriter
from refocal.report import Report, table, words
from refocal.report import evaluate as measure

if TYPE_CHECKING:
    from refocal.report import Calibration

_SUFFIXES = {
    "save": (".json",),
    "out": (".npz", ".parquet", ".csv"),
    "report": (".html", ".json"),
    "onnx": (".onnx",),
}
_WHOLE_BYTES = 1 << 30  # larger files are measured block by block, without intervals


def evaluate(options: Namespace) -> None:
    """Measure files as they are; several side by side."""
    _check_outputs(options, options.files)
    if options.report and len(options.files) > 1:
        msg = f"--report takes one file, got {len(options.files)}"
        raise ValueError(msg)
    if any(os.path.getsize(file) > _WHOLE_BYTES for file in options.files):
        if options.report:
            msg = f"--report needs the whole file in memory, and files above {_WHOLE_BYTES:,} bytes are streamed"
            raise ValueError(msg)
        with steps() as progress:
            found = compare.streamed(options.files, split=options.split, progress=progress)
        show(options, *found)
        return
    with steps() as progress:
        several = []
        for file in options.files:
            progress(f"reading {file}")
            several.append(_labelled(_chosen(Predictions.read(file), options.split), file))
        reports = []
        for file, predictions in zip(options.files, several, strict=True):
            progress(f"measuring {file}")
            reports.append(_measured(predictions, file, by_class=bool(options.json or options.report)))
        tests = compare.paired(several, progress) if len(several) > 1 else []
    if len(reports) == 1:
        _save(reports[0], options)
        show(options, table(reports[0]), json.loads(reports[0].to_json()))
    else:
        content = {"files": [json.loads(report.to_json()) for report in reports], "paired": tests}
        show(options, compare.side_by_side(reports, tests), content)


def calibrate(options: Namespace) -> None:
    """Fit, compare, save and report."""
    _check_outputs(options, [options.val, options.test])
    settings = _loss(options.loss) if options.loss else {} if options.gamma is None else {"gamma": options.gamma}
    settings |= {} if options.method is None else {"method": options.method}
    with steps() as progress:
        progress(f"reading {options.val}")
        val, test = _parts(options)
        calibration = _fitted(val, settings, progress)
        report = _reported(calibration, test, Path(options.test or options.val).name, progress)
    _finish(options, calibration, test, report)


def demo(options: Namespace) -> None:
    """The main job on predictions that ship with the package."""
    from refocal import demo as shipped

    _check_outputs(options, [])
    with steps() as progress:
        data = shipped.load()
        val, test = data.select("val"), data.select("test")
        calibration = _fitted(val, {"gamma": shipped.GAMMA}, progress)
        report = _reported(calibration, test, shipped.SOURCE, progress)
    _finish(options, calibration, test, report)


def apply(options: Namespace) -> None:
    """Calibrate a file block by block."""
    from rich.progress import Progress

    from refocal.calibrators import load

    _check_outputs(options, [options.calibrator])
    calibrator = load(options.calibrator)
    rows = 0
    with (
        PredictionsReader(options.file) as blocks,
        PredictionsWriter(options.out, overwrite=options.force) as writer,
        Progress(console=terminal(), transient=True, disable=not terminal().is_terminal) as bar,
    ):
        if blocks.kind != calibrator.input:
            msg = f"{options.calibrator} was fitted to {calibrator.input}, but {options.file} holds {blocks.kind}"
            raise ValueError(msg)
        task = bar.add_task("calibrating", total=blocks.rows)
        for block in blocks:
            _check_scores(block, options.file, columns=calibrator.n_features_in_)
            writer.write(_writable(block, calibrator.predict_proba(block.scores), options.out))
            rows += len(block)
            bar.advance(task, len(block))
    show(options, f"{rows:,} rows calibrated: {options.out}", {"rows": rows, "out": options.out})


def export(options: Namespace) -> None:
    """Write an ONNX graph."""
    from refocal.calibrators import load

    _check_outputs(options, [options.calibrator])
    calibrator = load(options.calibrator)
    try:
        calibrator.to_onnx(options.onnx)
    except ModuleNotFoundError as error:
        msg = "the export needs onnx: pip install 'refocal[onnx]'"
        raise ImportError(msg) from error
    show(options, f"from {calibrator.input} to probabilities: {options.onnx}", {"onnx": options.onnx})


def explain(options: Namespace) -> None:
    """Say what gamma does to confidence."""
    from refocal.cli import explanation

    found = explanation.explain(options.gamma, **({} if options.classes is None else {"classes": options.classes}))
    show(options, explanation.shown(found), found._asdict())


def _fitted(val: Predictions, settings: dict[str, Any], progress: Callable[[str], None]) -> Calibration:
    from refocal.report import calibrate as fit

    return fit(val.scores, val.labels, input=val.kind, sample_weight=val.weights, progress=progress, **settings)


def _reported(calibration: Calibration, test: Predictions, source: str, progress: Callable[[str], None]) -> Report:
    return calibration.report(
        test.scores,
        test.labels,
        weights=test.weights,
        class_names=test.class_names,
        source=source,
        progress=progress,
    )


def _measured(predictions: Predictions, file: str, *, by_class: bool) -> Report:
    return measure(
        predictions.scores,
        predictions.labels,
        input=predictions.kind,
        weights=predictions.weights,
        class_names=predictions.class_names,
        by_class=by_class,
        source=Path(file).name,
    )


def _finish(options: Namespace, calibration: Calibration, test: Predictions, report: Report) -> None:
    """Write what was asked for, and show the result."""
    written = {}
    if getattr(options, "save", None):
        calibration.save(options.save)
        written["calibrator"] = options.save
    if getattr(options, "out", None):
        probs = calibration.predict_proba(test.scores)
        _writable(test, probs, options.out).write(options.out, overwrite=options.force)
        written["predictions"] = options.out
    if options.report:
        _save(report, options)
        written["report"] = options.report
    show(options, table(report), {**json.loads(report.to_json()), "written": written})
    if not options.json:
        for what, where in written.items():
            Output().print(Text(words.printable(f"{what}: {where}")), soft_wrap=True)


def _parts(options: Namespace) -> tuple[Predictions, Predictions]:
    """The predictions to fit to, and those to measure on."""
    first = Predictions.read(options.val)
    if options.test is None and first.split is None:
        msg = f"{options.val} has no column split of val and test: give the test predictions by --test"
        raise ValueError(msg)
    test = first if options.test is None else Predictions.read(options.test)
    if first.split is None and options.test is not None and Path(options.val).samefile(options.test):
        msg = f"{options.val} would be both fitted to and measured on: give other test predictions"
        raise ValueError(msg)
    first = first if first.split is None else first.select("val")
    test = test if test.split is None else test.select("test")
    names = (first.class_names, test.class_names)
    if None not in names and names[0] != names[1]:
        msg = f"{options.val} and {options.test} must have the same class names in the same order"
        raise ValueError(msg)
    if test.kind != first.kind or test.scores.shape[1:] != first.scores.shape[1:]:
        msg = (
            f"{options.val} and {options.test} must hold the same kind of scores, got {first.kind} of shape "
            f"{first.scores.shape} and {test.kind} of shape {test.scores.shape}"
        )
        raise ValueError(msg)
    for predictions, file in ((first, options.val), (test, options.test or options.val)):
        _labelled(predictions, file)
        _check_scores(predictions, file)
    return first, test


def _labelled(predictions: Predictions, file: str) -> Predictions:
    if predictions.labels is None:
        msg = f"{file} has no labels, which are needed to measure or fit"
        raise ValueError(msg)
    return predictions


def _chosen(predictions: Predictions, split: str | None) -> Predictions:
    return predictions if split is None else predictions.select(split)


def _writable(block: Predictions, probs: np.ndarray, out: str) -> Predictions:
    """Probabilities in place of the scores, in what the format of the file has room for."""
    names = None if Path(out).suffix == ".csv" else block.class_names
    return replace(block, scores=probs, kind="probs", class_names=names, source=None)


def _loss(text: str) -> dict[str, Any]:
    """Settings of the training loss, from JSON or a file that holds it."""
    source = text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8")
    try:
        settings = json.loads(source)
    except json.JSONDecodeError as error:
        msg = f"--loss must be JSON, or a file that holds it: {error}"
        raise ValueError(msg) from error
    allowed = {"gamma", "weight", "label_smoothing", "detached"}
    if not isinstance(settings, dict) or "gamma" not in settings or set(settings) - allowed:
        msg = f"--loss must be an object with gamma and perhaps {sorted(allowed - {'gamma'})}, got {source.strip()}"
        raise ValueError(msg)
    return settings


def _check_outputs(options: Namespace, inputs: Sequence[str | None]) -> None:
    """Refuse names that cannot be written before any work is done."""
    taken = {Path(file).resolve() for file in inputs if file}
    for name, suffixes in _SUFFIXES.items():
        path = getattr(options, name, None)
        if path is None:
            continue
        if Path(path).suffix not in suffixes:
            msg = f"--{name} must end in {' or '.join(suffixes)}, got {path!r}"
            raise ValueError(msg)
        if not Path(path).parent.is_dir():
            msg = f"--{name} must be in a folder that exists, got {path!r}"
            raise FileNotFoundError(msg)
        if Path(path).resolve() in taken:
            msg = f"--{name} must be a file of its own, got {path!r}"
            raise ValueError(msg)
        taken.add(Path(path).resolve())
        if os.path.lexists(path) and not options.force:
            msg = f"{path} exists: choose another name, or replace it by --force"
            raise FileExistsError(msg)


def _check_scores(predictions: Predictions, file: str, *, columns: int | None = None) -> None:
    """Refuse what a calibrator cannot take."""
    given = 1 if predictions.scores.ndim == 1 else predictions.scores.shape[1]
    if columns is not None and given != columns:
        msg = f"{file} has scores of {given} columns, but the calibrator was fitted to {columns}"
        raise ValueError(msg)
    finite = np.isfinite(predictions.scores.reshape(len(predictions), -1)).all(axis=1)
    if not finite.all():
        msg = f"{file} has -inf logits, first in row {int(np.argmin(finite))} of a block: calibrators take finite ones"
        raise ValueError(msg)


def _save(report: Report, options: Namespace) -> None:
    if options.report:
        report.save(options.report, overwrite=options.force)
