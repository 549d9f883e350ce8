"""Fit, report, write and show: the steps that `calibrate` and `demo` share."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import numpy as np

from refocal.cli.output import show, show_line
from refocal.predictions import Predictions
from refocal.report import Report, Selection, build_table, calibrate


def fit(val: Predictions, settings: dict[str, Any], progress: Callable[[str], None]) -> Selection:
    """Fit calibrators to predictions, and choose one."""
    return calibrate(
        val.scores,
        np.asarray(val.labels),
        input=val.input,
        sample_weight=val.sample_weight,
        progress=progress,
        **settings,
    )


def report_on(selection: Selection, test: Predictions, source: str, progress: Callable[[str], None]) -> Report:
    """Measure the fitted calibrators on other predictions."""
    return selection.report(
        test.scores,
        np.asarray(test.labels),
        sample_weight=test.sample_weight,
        class_names=test.class_names,
        source=source,
        progress=progress,
    )


def finish(options: Namespace, selection: Selection, test: Predictions, report: Report) -> None:
    """Write the files that the options name, and show the report."""
    written = {}
    if getattr(options, "save", None):
        selection.save(options.save)
        written["calibrator"] = options.save
    if getattr(options, "out", None):
        from refocal.scale.application import with_probs

        probs = selection.predict_proba(test.scores)
        with_probs(test, probs, options.out).write(options.out, overwrite=options.force)
        written["predictions"] = options.out
    if options.report:
        report.save(options.report, overwrite=options.force)
        written["report"] = options.report
    show_report(options, report, written)


def show_report(options: Namespace, report: Report, written: dict[str, str]) -> None:
    """Show a report, and the files that were written."""
    show(options, build_table(report), {**json.loads(report.to_json()), "written": written})
    if not options.json:
        for what, where in written.items():
            show_line(f"{what}: {where}")
