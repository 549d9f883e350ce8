"""What the commands do."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from refocal._documents import parse_json, read_document
from refocal.cli import compare, memory
from refocal.cli.output import Output, check_output, note, show, steps
from refocal.predictions import Predictions
from refocal.report import Report, build_table, words
from refocal.report import evaluate as measure

if TYPE_CHECKING:
    from refocal.report import Selection

_SUFFIXES = {
    "save": (".json",),
    "out": (".npz", ".parquet", ".csv"),
    "report": (".html", ".json"),
    "onnx": (".onnx",),
}


def evaluate(options: Namespace) -> None:
    """Measure files as they are; several side by side."""
    from refocal.cli import partitioned

    if partitioned.asked_for(options, options.files):
        partitioned.evaluate(options)
        return
    _check_outputs(options, options.files)
    if options.report and len(options.files) > 1:
        msg = f"--report takes one file, got {len(options.files)}"
        raise ValueError(msg)
    per_score = memory.FITTING if options.report else memory.MEASURING
    if why := memory.too_large(options, options.files, per_score=per_score):
        if options.report:
            msg = f"--report needs the whole file in memory, but {why}"
            raise ValueError(msg)
        note(f"reading block by block, without intervals: {why}")
        with partitioned.bar() as progress:
            reports = compare.streamed(options.files, split=options.split, progress=progress)
        _show_reports(options, reports, [])
        return
    with steps() as progress:
        several = []
        for file in options.files:
            progress(f"reading {file}")
            several.append(_labeled(_chosen(Predictions.read(file), options.split), file))
        reports = []
        for file, predictions in zip(options.files, several, strict=True):
            progress(f"measuring {file}")
            reports.append(_measured(predictions, file, by_class=bool(options.report)))
        tests = compare.paired(several, progress) if len(several) > 1 else []
    if len(reports) == 1:
        _save(reports[0], options)
    _show_reports(options, reports, tests)


def _show_reports(options: Namespace, reports: Sequence[Report], tests: Sequence[dict[str, Any]]) -> None:
    if len(reports) == 1:
        show(options, build_table(reports[0]), json.loads(reports[0].to_json()))
    else:
        content = {"files": [json.loads(report.to_json()) for report in reports], "paired": tests}
        show(options, compare.side_by_side(reports, tests), content)


def calibrate(options: Namespace) -> None:
    """Fit, compare, save and report."""
    from refocal.cli import partitioned

    if partitioned.asked_for(options, [file for file in (options.val, options.test) if file]):
        partitioned.calibrate(options, _loss_settings(options))
        return
    _check_outputs(options, [options.val, options.test])
    settings = _loss_settings(options)
    files = [file for file in (options.val, options.test) if file]
    if why := memory.too_large(options, files, per_score=memory.FITTING):
        partitioned.refuse_whole(options, why)
        note(f"{partitioned.way(options, settings)}: {why}")
        partitioned.calibrate(options, settings)
        return
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
    """Calibrate a file block by block, or many into a folder."""
    from refocal.calibrators import load
    from refocal.cli import partitioned
    from refocal.scale import ProgressUpdate
    from refocal.scale.application import calibrate_file

    folder = Path(options.out).is_dir() and Path(options.out).suffix not in _SUFFIXES["out"]
    if folder or len(options.files) > 1 or partitioned.asked_for(options, options.files):
        partitioned.apply(options)
        return
    _check_outputs(options, [options.calibrator, *options.files])
    with partitioned.bar() as progress:
        rows = calibrate_file(
            load(options.calibrator),
            options.files[0],
            options.out,
            overwrite=options.force,
            progress=lambda rows: progress(ProgressUpdate("calibrating", 0, 1, rows)),
        )
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


def _loss_settings(options: Namespace) -> dict[str, Any]:
    if options.loss is not None:
        return _loss(options.loss)
    return {} if options.gamma is None else {"gamma": options.gamma}


def _fitted(val: Predictions, settings: dict[str, Any], progress: Callable[[str], None]) -> Selection:
    from refocal.report import calibrate as fit

    return fit(val.scores, val.labels, input=val.input, sample_weight=val.sample_weight, progress=progress, **settings)


def _reported(calibration: Selection, test: Predictions, source: str, progress: Callable[[str], None]) -> Report:
    return calibration.report(
        test.scores,
        test.labels,
        sample_weight=test.sample_weight,
        class_names=test.class_names,
        source=source,
        progress=progress,
    )


def _measured(predictions: Predictions, file: str, *, by_class: bool) -> Report:
    return measure(
        predictions.scores,
        predictions.labels,
        input=predictions.input,
        sample_weight=predictions.sample_weight,
        class_names=predictions.class_names,
        by_class=by_class,
        source=Path(file).name,
    )


def _finish(options: Namespace, calibration: Selection, test: Predictions, report: Report) -> None:
    """Write what was asked for, and show the result."""
    written = {}
    if getattr(options, "save", None):
        calibration.save(options.save)
        written["calibrator"] = options.save
    if getattr(options, "out", None):
        from refocal.scale.application import with_probs

        probs = calibration.predict_proba(test.scores)
        with_probs(test, probs, options.out).write(options.out, overwrite=options.force)
        written["predictions"] = options.out
    if options.report:
        _save(report, options)
        written["report"] = options.report
    show(options, build_table(report), {**json.loads(report.to_json()), "written": written})
    if not options.json:
        for what, where in written.items():
            Output().print(Text(words.printable(f"{what}: {where}")), soft_wrap=True)


def _parts(options: Namespace) -> tuple[Predictions, Predictions]:
    """The predictions to fit to, and those to measure on."""
    from refocal.scale.parts import check_finite

    first = Predictions.read(options.val)
    if options.test is None and (first.split is None or not {"val", "test"} <= set(first.split.tolist())):
        msg = f"{options.val} has no column split with rows of val and of test: give the test predictions by --test"
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
    if test.input != first.input or test.scores.shape[1:] != first.scores.shape[1:]:
        msg = (
            f"{options.val} and {options.test} must hold the same kind of scores, got {first.input} of shape "
            f"{first.scores.shape} and {test.input} of shape {test.scores.shape}"
        )
        raise ValueError(msg)
    for predictions, file in ((first, options.val), (test, options.test or options.val)):
        _labeled(predictions, file)
        check_finite(predictions, file)
    return first, test


def _labeled(predictions: Predictions, file: str) -> Predictions:
    if predictions.labels is None:
        msg = f"{file} has no labels, which are needed to measure or fit"
        raise ValueError(msg)
    return predictions


def _chosen(predictions: Predictions, split: str | None) -> Predictions:
    return predictions if split is None else predictions.select(split)


def _loss(text: str) -> dict[str, Any]:
    """Settings of the training loss, from JSON or a file that holds it."""
    source = text.encode() if not text or text.lstrip().startswith("{") else read_document(text)
    what = f"--loss must be JSON, or a file that holds it, got {text!r:.200}"
    settings = parse_json(source, lambda reason: ValueError(f"{what}: {reason}"))
    allowed = {"gamma", "weight", "label_smoothing", "detached"}
    if not isinstance(settings, dict) or settings.get("gamma") is None or set(settings) - allowed:
        msg = f"--loss must be an object with gamma and perhaps {sorted(allowed - {'gamma'})}, got {settings!r:.200}"
        raise ValueError(msg)
    if not isinstance(settings.get("detached", False), bool):
        msg = f"detached in --loss must be true or false, got {settings['detached']!r}"
        raise TypeError(msg)
    return settings


def _check_outputs(options: Namespace, inputs: Sequence[str | None]) -> None:
    """Refuse names that cannot be written before any work is done."""
    taken = {Path(file).resolve() for file in inputs if file}
    for name, suffixes in _SUFFIXES.items():
        path = getattr(options, name, None)
        if path is None:
            continue
        if Path(path).resolve() in taken:
            msg = f"--{name} must be a file of its own, got {path!r}"
            raise ValueError(msg)
        taken.add(Path(path).resolve())
        check_output(path, name, suffixes, force=options.force)


def _save(report: Report, options: Namespace) -> None:
    if options.report:
        report.save(options.report, overwrite=options.force)
