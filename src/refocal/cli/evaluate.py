"""`refocal evaluate`: measure predictions as they are."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.cli.options import Commands, add_columns, add_command, add_engine, add_force, add_memory

if TYPE_CHECKING:
    from refocal.predictions import Predictions
    from refocal.report import Report

_EXAMPLES = """\
refocal evaluate test.npz
refocal evaluate customers.csv --label churned --prob churn_probability
refocal evaluate first.npz second.npz    # side by side, with a paired test
refocal evaluate 'preds/*.parquet' --engine ray --address auto"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    command = add_command(commands, "evaluate", "measure how well calibrated predictions are", _EXAMPLES, run)
    command.add_argument("files", nargs="+", metavar="FILE", help="predictions with labels: .npz, .parquet or .csv")
    command.add_argument("--split", help="use only the rows of this split")
    command.add_argument("--report", metavar="FILE", help="write a report of one file: .html or .json")
    add_columns(command)
    add_force(command)
    add_memory(command)
    add_engine(command, owner="refocal.scale.measuring:evaluate")


def run(options: Namespace) -> None:
    """Measure files: each alone, several side by side, or all as one data set."""
    from refocal import scale
    from refocal.cli import comparison, data_sets, memory
    from refocal.cli.inputs import choose_columns, read_labeled
    from refocal.cli.output import check_outputs, note
    from refocal.cli.progress import track

    files, split, columns = options.files, options.split, choose_columns(options)
    if data_sets.is_data_set(options, files):
        data_sets.reject_options(options, "report")
        engine = data_sets.engine_settings(options)
        with track() as progress:
            report = scale.evaluate(files, split=split, columns=columns, progress=progress.show_files, **engine)
        _show(options, [report], [])
        return
    check_outputs(options, files)
    if options.report and len(files) > 1:
        msg = f"--report takes one file, got {len(files)}"
        raise ValueError(msg)
    per_score = memory.FITTING if options.report else memory.MEASURING
    if why := memory.find_excess(options, files, per_score=per_score):
        if options.report:
            msg = f"--report needs the whole file in memory, but {why}"
            raise ValueError(msg)
        note(f"reading block by block, without intervals: {why}")
        with track() as progress:
            settings = {"split": split, "columns": columns, "progress": progress.show_files}
            reports = [scale.evaluate(file, source=Path(file).name, **settings) for file in files]
        _show(options, reports, [])
        return
    with track() as progress:
        several, reports = [], []
        for file in files:
            progress.step(f"reading {file}")
            several.append(read_labeled(file, split, columns, files))
        for file, predictions in zip(files, several, strict=True):
            progress.step(f"measuring {file}")
            reports.append(_measure(predictions, file, by_class=bool(options.report)))
        tests = comparison.test_pairs(several, progress.step) if len(several) > 1 else []
    if options.report:
        reports[0].save(options.report, overwrite=options.force)
    _show(options, reports, tests)


def _show(options: Namespace, reports: Sequence[Report], tests: Sequence[dict[str, Any]]) -> None:
    from refocal.cli import comparison
    from refocal.cli.output import show
    from refocal.report import build_table

    if len(reports) == 1:
        show(options, build_table(reports[0]), json.loads(reports[0].to_json()))
    else:
        content = {"files": [json.loads(report.to_json()) for report in reports], "paired": tests}
        show(options, comparison.build_table(reports, tests), content)


def _measure(predictions: Predictions, file: str, *, by_class: bool) -> Report:
    import numpy as np

    from refocal.report import evaluate

    return evaluate(
        predictions.scores,
        np.asarray(predictions.labels),
        input=predictions.input,
        sample_weight=predictions.sample_weight,
        class_names=predictions.class_names,
        by_class=by_class,
        source=Path(file).name,
    )
