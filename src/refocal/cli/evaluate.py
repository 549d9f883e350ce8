"""`refocal evaluate`: measure predictions as they are."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from refocal.cli import detections, multilabel, segmentation
from refocal.cli.options import (
    MEASURING_ENGINE,
    Commands,
    add_columns,
    add_command,
    add_engine,
    add_force,
    add_memory,
    add_option,
    check_numbers,
)
from refocal.cli.questions import add_questions, check_slices, load_costs, read_questions, reject_questions

if TYPE_CHECKING:
    from refocal.cli.comparison import Column
    from refocal.cli.data_sets import Source
    from refocal.cli.progress import Tracker
    from refocal.report import Report

_EXAMPLES = """\
refocal evaluate test.npz
refocal evaluate customers.csv --label churned --prob churn_probability
refocal evaluate both.npz                # each of its splits; --split test for one
refocal evaluate first.npz second.npz    # side by side, with a paired test
refocal evaluate tags.csv --label 'label_*' --prob 'prob_*'    # multi-label
refocal evaluate boxes.json --annotations instances.json --iou 0.5    # of a detector, COCO files
refocal evaluate masks.npz --ignore-index 255    # of a segmentation network
refocal evaluate 'preds/*.parquet' --engine ray --address auto"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    command = add_command(commands, "evaluate", "measure how well calibrated predictions are", _EXAMPLES, run)
    command.add_argument(
        "files", nargs="+", metavar="FILE", help="predictions with labels: .npz, .parquet or .csv; or boxes: .json"
    )
    command.add_argument("--split", help="use only the rows of this split (default: each split separately)")
    command.add_argument("--report", metavar="FILE", help="write a report of one file: .html or .json")
    add_option(
        command,
        "--seed",
        type=int,
        owner="refocal.scale.measuring:evaluate",
        help="seed that chooses rows of files larger than --memory, and resamples images",
    )
    add_columns(command)
    detections.add_options(command, owner="refocal.detection.evaluation:evaluate")
    segmentation.add_options(command)
    add_questions(command)
    add_force(command)
    add_memory(command)
    add_engine(command, meaning=MEASURING_ENGINE, owner="refocal.scale.measuring:evaluate")


def run(options: Namespace) -> None:
    """Measure files: each alone, several side by side, or all as one data set."""
    from refocal.cli import comparison, data_sets, memory
    from refocal.cli.output import check_outputs, note
    from refocal.cli.progress import track
    from refocal.cli.workflow import record_command

    check_numbers(options)
    if detections.are_asked_for(options, options.files):
        detections.evaluate(options)
        return
    if segmentation.are_asked_for(options, options.files):
        segmentation.evaluate(options)
        return
    if options.task == "multilabel":
        multilabel.reject_options(options)
    sources = data_sets.find_sources(options, options.files)
    files = [file for source in sources for file in source.files]
    check_outputs(options, files)
    check_slices(options, files)
    if options.report and len(sources) > 1:
        msg = f"--report takes one file, got {len(sources)}"
        raise ValueError(msg)
    per_score = memory.FITTING if options.report else memory.MEASURING
    if options.engine is not None:
        reject_questions(options, "--engine reads block by block")
    costs = load_costs(options)
    why = None
    if options.engine is None:
        why, is_multilabel = memory.survey(options, files, per_score=per_score)
        if is_multilabel:
            multilabel.reject_options(options, why)
            _run_multilabel(options, sources, files)
            return
    if why:
        reject_questions(options, why)
        note(f"reading block by block: {why}")
    with track() as progress:
        if options.engine is not None or why:
            reports = [report for source in sources for report in _measure_blocks(options, source, progress)]
            tests = []
        else:
            columns = [column for source in sources for column in _read(options, source, files, progress.step)]
            _check_one(options, [column.name for column in columns])
            asked = [read_questions(options, costs, column.predictions) for column in columns]
            reports = [_measure(options, *each, progress.step) for each in zip(columns, asked, strict=True)]
            tests = comparison.test_pairs(columns, progress.step)
    if options.report:
        reports[0] = record_command(options, reports[0])
        reports[0].save(options.report, overwrite=options.force)
    _show(options, reports, tests)


def _run_multilabel(options: Namespace, sources: Sequence[Source], files: Sequence[str]) -> None:
    """Measure multi-label predictions: each file, and each split, separately."""
    import numpy as np
    from rich.console import Group

    from refocal.cli.output import show
    from refocal.cli.progress import track
    from refocal.cli.workflow import record_command
    from refocal.report import evaluate_multilabel
    from refocal.report.multilabel_table import build_multilabel_table

    with track() as progress:
        columns = [column for source in sources for column in _read(options, source, files, progress.step)]
        _check_one(options, [column.name for column in columns])
        reports = [
            evaluate_multilabel(
                predictions.scores,
                np.asarray(predictions.labels),
                input=predictions.input,
                sample_weight=predictions.sample_weight,
                class_names=predictions.class_names,
                source=name,
                progress=progress.step,
            )
            for name, _, predictions in columns
        ]
    if options.report:
        reports[0] = record_command(options, reports[0])
        reports[0].save(options.report, overwrite=options.force)
    contents = [json.loads(report.to_json()) for report in reports]
    tables = Group(*map(build_multilabel_table, reports))
    show(options, tables, contents[0] if len(contents) == 1 else {"files": contents, "paired": []})


def _read(options: Namespace, source: Source, files: Sequence[str], progress: Callable[[str], None]) -> list[Column]:
    """Read the predictions of a data set: one column of the table, or one per split."""
    from refocal.cli.comparison import Column
    from refocal.cli.inputs import choose_columns, list_splits, read_source

    progress(f"reading {source.name}")
    carry = options.slice or False
    predictions = read_source(source, choose_columns(options), split=options.split, carry=carry, data_set=files)
    splits = list_splits(predictions, source.name)
    if len(splits) < 2:
        return [Column(source.name, None, predictions)]
    return [Column(f"{source.name}: {split}", split, predictions.select(split)) for split in splits]


def _measure_blocks(options: Namespace, source: Source, progress: Tracker) -> Iterator[Report]:
    """Measure a data set block by block, and each split separately."""
    from refocal import scale
    from refocal.cli import inputs, memory
    from refocal.cli.data_sets import engine_settings, given
    from refocal.scale.engines import open_engine
    from refocal.scale.parts import RowReader, find_files, require_form, unchanged
    from refocal.scale.selecting import find_splits

    files = find_files(source.files)
    columns = inputs.choose_columns(options)
    engine: dict[str, Any] = {**engine_settings(options), "progress": progress.show_files}
    names = {options.split: source.name}
    with unchanged(files):
        form = require_form(files, columns)
        reader = RowReader(form)  # rejects multi-label files before an engine starts
        if options.split is None and form.split:
            with open_engine(**engine) as running:
                splits = find_splits(running, files, reader)
            inputs.check_splits(splits, source.name)
            if len(splits) > 1:
                names = {split: f"{source.name}: {split}" for split in splits}
        _check_one(options, list(names.values()))
        for split, name in names.items():
            yield scale.evaluate(
                files,
                split=split,
                columns=columns,
                source=name,
                sample=memory.choose_sample(options, form.classes),
                by_class=bool(options.report),
                **given(options, "seed"),
                **engine,
            )


def _check_one(options: Namespace, names: Sequence[str]) -> None:
    if options.report and len(names) > 1:
        msg = f"--report takes one split, got {', '.join(names)}: choose one with --split"
        raise ValueError(msg)


def _show(options: Namespace, reports: Sequence[Report], tests: Sequence[dict[str, Any]]) -> None:
    from refocal.cli import comparison
    from refocal.cli.output import show
    from refocal.report import build_table

    if len(reports) == 1:
        show(options, build_table(reports[0]), json.loads(reports[0].to_json()))
    else:
        content = {"files": [json.loads(report.to_json()) for report in reports], "paired": tests}
        show(options, comparison.build_table(reports, tests), content)


def _measure(options: Namespace, column: Column, asked: dict[str, Any], progress: Callable[[str], None]) -> Report:
    import numpy as np

    from refocal.report import evaluate

    progress(f"measuring {column.name}")
    predictions = column.predictions
    return evaluate(
        predictions.scores,
        np.asarray(predictions.labels),
        input=predictions.input,
        sample_weight=predictions.sample_weight,
        class_names=predictions.class_names,
        by_class=bool(options.report),
        source=column.name,
        **asked,
    )
