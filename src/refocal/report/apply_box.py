"""How to apply the result, and the settings that made the report: two sections of the page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from refocal.report import markup, words
from refocal.report.multilabel_record import MultilabelReport
from refocal.report.record import Report

AnyReport = Report | MultilabelReport
_FORMATS = (".npz", ".parquet", ".csv")
_LABELS = {
    "command": "Command",
    "calibrator": "Calibrator saved as",
    "input": "Scores",
    "columns": "Columns of scores",
    "named_columns": "Columns named",
    "weighted": "Sample weights",
    "method": "Method asked for",
    "gamma": "γ of the training loss",
    "alpha": "α of the training loss",
    "class_weights": "Class weights of the training loss",
    "label_smoothing": "Label smoothing of the training loss",
    "detached": "Focusing factor detached",
    "fitted_samples": "Samples fitted to",
    "level": "Confidence level",
    "resamples": "Resamples",
    "seed": "Seed of the resamples",
    "iou": "Least IoU of a right box",
    "min_score": "Least score of a box",
}
_WHOLE_LIST = 12  # a longer list of numbers is cut


def build_apply_box(report: Report) -> str:
    """Say how to use the recommended method, with commands that can be copied."""
    if report.chosen.given and len(report.methods) > 1:
        return f"<p>Nothing has to be applied. {_use_as_given(report)}"
    if "iou" in report.settings:  # the rows are boxes of a detector
        return _show_detections(report)
    if report.chosen.given:
        return _show_fit(report, "calibrate")
    return _show_use(report, report.chosen.title)


def build_multilabel_apply_box(report: MultilabelReport) -> str:
    """Say how to use the calibrators of all classes, with commands that can be copied."""
    if report.calibrator is None:
        return _show_fit(report, "calibrate_multilabel")
    if not report.is_changed:
        use = "probabilities as given" if _kind(report) == "probabilities" else "sigmoid of the scores"
        return f"<p>Nothing has to be applied. Use the {use}.</p>"
    return _show_use(report, "One calibrator, which holds those of all classes,")


def _show_fit(report: AnyReport, function: str) -> str:
    suffix = _suffix(report)
    fit = (
        f"refocal calibrate val{suffix} \\\n  --test test{suffix} --save cal.json \\\n"
        f"  --report report.html{_columns(report)}"
    )
    probs = ', input="probs"' if _kind(report) == "probabilities" else ""
    python = (
        "import refocal\n\n"
        f"selection = refocal.{function}(val_scores, val_labels{probs})\n"
        "report = selection.report(test_scores, test_labels)\n"
        "probs = selection.predict_proba(new_scores)"
    )
    return (
        "<p>Nothing was fitted for this page. To fit calibrators, give scores on data that the classifier was not "
        f"trained on:</p>{_boxes((('Command line', fit), ('Python', python)))}"
    )


def _show_detections(report: Report) -> str:
    """Say how to calibrate the scores of boxes, in COCO files."""
    saved = _saved(report.settings)
    iou = f"{report.settings['iou']:g}"
    fit = (
        f"refocal calibrate boxes.json \\\n  --annotations instances.json \\\n  --iou {iou} --save {shlex.quote(saved)}"
    )
    load = (
        "from refocal import detection\nfrom refocal.calibrators import load\n\n"
        f"scores = detection.apply(load({saved!r}), scores)"
    )
    if report.chosen.given:
        return (
            "<p>Nothing was fitted for this page. To fit calibrators, give boxes in images that the detector was not "
            f"trained on:</p>{_boxes((('Command line', fit),))}"
        )
    command = f"refocal apply {shlex.quote(saved)} new.json \\\n  --out calibrated.json"
    if "calibrator" not in report.settings:
        command = f"{fit}\n{command}"
    title = f"<p>{markup.isolate(report.chosen.title)} turns scores into the probability that a box is right.</p>"
    return title + _boxes((("Command line", command), ("Python", load)))


def _show_use(report: AnyReport, title: str) -> str:
    return f"<p>{markup.isolate(title)} turns {_kind(report)} into calibrated probabilities.</p>" + _boxes(
        (("Command line", _command(report)), ("Python", _python(report)), ("ONNX", _onnx(report)))
    )


def build_settings(report: AnyReport) -> str:
    """List what made the report."""
    known: dict[str, Any] = {"Data": f"{report.source}, {report.samples:,} samples, {report.classes:,} classes"}
    if report.protocol:
        known["Rows"] = report.protocol
    told = {name: value for name, value in report.settings.items() if value is not None and value is not False}
    known |= {_LABELS.get(name, name): value for name, value in told.items()}
    known["Versions"] = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    items = "".join(
        f"<dt>{markup.escape_text(label)}</dt><dd>{markup.isolate(_format(value))}</dd>"
        for label, value in known.items()
    )
    return f"<dl class='settings'>{items}</dl>"


def _command(report: AnyReport) -> str:
    suffix, saved = _suffix(report), shlex.quote(_saved(report.settings))
    lines = [f"refocal apply {saved} new{suffix} \\", f"  --out calibrated{suffix}{_columns(report)}"]
    made = report.settings.get("command")
    if made is not None and "calibrator" not in report.settings:
        force = "" if "--force" in shlex.split(made) else "--force "
        lines = [f"{made} \\", f"  {force}--save {saved}", *lines]
    return "\n".join(lines)


def _columns(report: AnyReport) -> str:
    """The columns that the user named: a command that reads such files needs them, too."""
    named = report.settings.get("named_columns")
    return f" \\\n  {named}" if named else ""


def _python(report: AnyReport) -> str:
    saved = _saved(report.settings)
    has_file = "calibrator" in report.settings or "command" in report.settings  # which the command line has saved
    save = "" if has_file else f"report.calibrator.save({saved!r})\n\n"
    return (
        f"{save}from refocal.calibrators import load\n"
        f"calibrator = load({saved!r})\nprobs = calibrator.predict_proba(scores)"
    )


def _onnx(report: AnyReport) -> str:
    saved = _saved(report.settings)
    graph = str(PurePath(saved).with_suffix(".onnx"))
    column = "scores = scores.reshape(-1, 1)\n" if report.settings.get("columns") == 1 else ""
    return (
        f"# refocal export {shlex.quote(saved)} --onnx {shlex.quote(graph)}\n\n"
        f"from onnxruntime import InferenceSession\nsession = InferenceSession({graph!r})\n"
        f'{column}scores = scores.astype("float32")\n'
        f'inputs = {{"{report.settings.get("input", "logits")}": scores}}\n'
        "probs = session.run(None, inputs)[0]"
    )


def _use_as_given(report: Report) -> str:
    if report.settings.get("input") == "probs":
        return "Use the probabilities as given.</p>"
    if report.settings.get("columns") == 1:
        name, python = "sigmoid", "from scipy.special import expit\nprobs = expit(scores)"
    else:
        name, python = "softmax", "from scipy.special import softmax\nprobs = softmax(scores, axis=-1)"
    return f"Use the {name} of the scores.</p>{_boxes((('Python', python),))}"


def _kind(report: AnyReport) -> str:
    return "probabilities" if report.settings.get("input") == "probs" else "logits"


def _saved(settings: Mapping[str, Any]) -> str:
    return str(settings.get("calibrator", "cal.json"))


def _suffix(report: AnyReport) -> str:
    """New predictions probably have the format of the measured ones."""
    suffix = PurePath(report.source).suffix
    return suffix if suffix in _FORMATS else _FORMATS[0]


def _boxes(parts: tuple[tuple[str, str], ...]) -> str:
    boxes = "".join(
        f"<div><h3>{title}</h3><pre tabindex='0'><code>{markup.escape_text(text)}</code></pre></div>"
        for title, text in parts
    )
    return f"<div class='boxes'>{boxes}</div>"


def _format(value: Any) -> str:
    if value is True:
        return "yes"
    if isinstance(value, list):
        shown = ", ".join(f"{each:.4g}" for each in value[:_WHOLE_LIST])
        return shown if len(value) <= _WHOLE_LIST else f"{shown}, … ({len(value):,} values)"
    if isinstance(value, int):
        return words.format_count(value)
    return f"{value:g}" if isinstance(value, float) else str(value)
