"""Fit, report, write and show: the steps that `calibrate` and `demo` share."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from refocal.cli.options import list_named_columns
from refocal.cli.output import show, show_line
from refocal.predictions import Predictions
from refocal.report import (
    MultilabelReport,
    MultilabelSelection,
    Report,
    Selection,
    build_table,
    calibrate,
    calibrate_multilabel,
    cross_calibrate,
    cross_calibrate_multilabel,
    hold_out,
)
from refocal.report.multilabel_table import build_multilabel_table

AnyReport = TypeVar("AnyReport", bound=Report | MultilabelReport)
Ask = Callable[[Predictions], dict[str, Any]]  # what else to ask about the measured predictions


class Outcome(NamedTuple):
    """Fitted calibrators, and what was measured.

    Attributes:
        selection: The calibrators, and the chosen one.
        test: The predictions that were measured.
        report: Their report.
        probs: The probabilities that were measured; None if they are those of the chosen calibrator.
    """

    selection: Selection | MultilabelSelection
    test: Predictions
    report: Report | MultilabelReport
    probs: np.ndarray | None = None


def fit(val: Predictions, settings: dict[str, Any], progress: Callable[[str], None]) -> Selection | MultilabelSelection:
    """Fit calibrators to predictions, and choose one; if they are multi-label, one for each class."""
    if val.task == "multilabel":
        return calibrate_multilabel(
            val.scores,
            np.asarray(val.labels),
            input=val.input,
            sample_weight=val.sample_weight,
            class_names=val.class_names,
            progress=progress,
            **settings,
        )
    return calibrate(
        val.scores,
        np.asarray(val.labels),
        input=val.input,
        sample_weight=val.sample_weight,
        class_names=val.class_names,
        progress=progress,
        **settings,
    )


def fit_and_measure(
    val: Predictions,
    test: Predictions,
    settings: dict[str, Any],
    source: str,
    progress: Callable[[str], None],
    *,
    ask: Ask = lambda _: {},
) -> Outcome:
    """Fit calibrators to predictions, and measure them on others."""
    asked = ask(test)  # which may be rejected: before the fit
    selection = fit(val, settings, progress)
    report = selection.report(
        test.scores,
        np.asarray(test.labels),
        sample_weight=test.sample_weight,
        class_names=test.class_names,
        source=source,
        progress=progress,
        **asked,
    )
    return Outcome(selection, test, report)


def hold_out_and_measure(
    whole: Predictions,
    settings: dict[str, Any],
    source: str,
    progress: Callable[[str], None],
    *,
    ask: Ask = lambda _: {},
    share: float,
    **seed: Any,
) -> Outcome:
    """Fit calibrators to a random part of the predictions, and measure them on the rest."""
    rows = hold_out(len(whole), share, **seed)
    found = fit_and_measure(whole.take(rows.fitted), whole.take(rows.measured), settings, source, progress, ask=ask)
    return found._replace(report=replace(found.report, protocol=rows.protocol))


def cross_fit(
    whole: Predictions,
    settings: dict[str, Any],
    source: str,
    progress: Callable[[str], None],
    *,
    ask: Ask = lambda _: {},
    **seed: Any,
) -> Outcome:
    """Fit calibrators to all predictions, and measure each row by fits to other rows."""
    cross: Callable[..., Any] = cross_calibrate_multilabel if whole.task == "multilabel" else cross_calibrate
    found = cross(
        whole.scores,
        np.asarray(whole.labels),
        input=whole.input,
        sample_weight=whole.sample_weight,
        class_names=whole.class_names,
        source=source,
        progress=progress,
        **ask(whole),
        **seed,
        **settings,
    )
    return Outcome(found.selection, whole, found.report, found.probs)


def finish(options: Namespace, outcome: Outcome) -> None:
    """Write the files that the options name, and show the report."""
    selection, test, report, probs = outcome
    written = {}
    if getattr(options, "out", None):
        from refocal.scale.application import with_probs

        probs = selection.predict_proba(test.scores) if probs is None else probs
        with_probs(test, probs).write(options.out, overwrite=options.force)
        written["predictions"] = options.out
    show_written(options, selection, report, written)


def show_written(
    options: Namespace,
    selection: Selection | MultilabelSelection,
    report: Report | MultilabelReport,
    already: Mapping[str, str] | None = None,
) -> None:
    """Write calibrator and report, and show the report and all files that were written."""
    report = record_command(options, report)
    written = {}
    if getattr(options, "save", None):
        selection.save(options.save, overwrite=options.force)
        written["calibrator"] = options.save
    written |= already or {}
    if options.report:
        report.save(options.report, overwrite=options.force)
        written["report"] = options.report
    table = build_multilabel_table(report) if isinstance(report, MultilabelReport) else build_table(report)
    show(options, table, {**json.loads(report.to_json()), "written": written})
    if not options.json:
        for what, where in written.items():
            show_line(f"{what}: {where}")


def record_command(options: Namespace, report: AnyReport) -> AnyReport:
    """Add the command, and the file of the calibrator, to the settings of a report."""
    made = {"command": shlex.join(options.words)}
    if named := list_named_columns(options):
        made["named_columns"] = shlex.join(named)
    made |= {"calibrator": options.save} if getattr(options, "save", None) else {}
    return replace(report, settings={**report.settings, **made})
