"""`refocal calibrate`: fit calibrators, choose one, and report what it does."""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from refocal.cli import detections, multilabel, segmentation
from refocal.cli.data_sets import given
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
    from refocal.cli.data_sets import Source
    from refocal.scale.engines import Engine
    from refocal.scale.parts import RowReader
    from refocal.scale.selecting import Rows

_EXAMPLES = """\
refocal calibrate val.npz --test test.npz --gamma 3 --report report.html --save cal.json --out probs.npz
refocal calibrate both.npz               # one file whose column "split" holds val and test
refocal calibrate val.csv                # one file without splits: cross-fitting
refocal calibrate val.csv --holdout 0.3  # or a random part to measure on
refocal calibrate scores.csv --prob score --loss sigmoid-focal --gamma 2 --alpha 0.25
refocal calibrate tags.csv --label 'label_*' --prob 'prob_*'    # multi-label
refocal calibrate boxes.json --annotations instances.json --out calibrated.json    # of a detector, COCO files
refocal calibrate masks.npz --test others.npz --ignore-index 255 --save cal.json    # of a segmentation network
refocal calibrate 'val/*.parquet' --test 'test/*.parquet' --save cal.json --engine ray"""
_METHODS = (
    "auto, mixture, posterior, temperature, focal-temperature, ensemble, vector, matrix, dirichlet, platt, beta, "
    "quadratic, isotonic, histogram, venn-abers or top-isotonic"
)
_SIGMOID = multilabel.SIGMOID
_LOSSES = ("focal", _SIGMOID)
_NEAR = 0.4  # how similar a word must be to the name of a loss that it may mean
_HELD_OUT = 0.3  # of images, and of data that are too large to be cross-fitted


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "say whether scores can be trusted, and turn them into calibrated probabilities"
    command = add_command(commands, "calibrate", summary, _EXAMPLES, run)
    command.add_argument(
        "val", metavar="VAL", help="predictions to fit to, on data not used for training; or boxes: .json"
    )
    command.add_argument(
        "--test",
        metavar="FILE",
        help="predictions to measure on; if not given, the rows of the splits val and test of VAL are used; if VAL has "
        "no splits, each row is measured by calibrators that were fitted to other rows (cross-fitting in 5 folds)",
    )
    command.add_argument(
        "--holdout",
        type=float,
        metavar="SHARE",
        help="instead of cross-fitting, measure this part of VAL, such as 0.3, chosen at random, and fit to the rest",
    )
    add_option(
        command,
        "--seed",
        type=int,
        owner="refocal.report.cross_fitting:cross_calibrate",
        help="seed that divides VAL, that chooses rows of files larger than --memory, and that resamples images",
    )
    command.add_argument(
        "--gamma",
        type=float,
        help="gamma of the focal loss that the network was trained with; adds the closed-form posterior to the methods "
        "that are compared",
    )
    command.add_argument(
        "--loss",
        metavar="LOSS",
        help="the training loss: focal (the default with --gamma); sigmoid-focal, with --gamma and --alpha, for scores "
        'of one column or multi-label scores; or JSON with more settings, {"gamma": 3, "weight": [...], '
        '"label_smoothing": 0.1, "detached": true}, or a file that holds it',
    )
    command.add_argument(
        "--alpha",
        type=float,
        help="weight of the positives in sigmoid focal loss, between 0 and 1; 0.5 if it has none",
    )
    add_option(command, "--method", owner="refocal.report.selection:calibrate", help=_METHODS)
    command.add_argument("--save", metavar="FILE", help="write the calibrator: .json")
    command.add_argument(
        "--out", metavar="FILE", help="write the calibrated test predictions: .npz, .parquet or .csv; of boxes: .json"
    )
    command.add_argument("--report", metavar="FILE", help="write a report: .html or .json")
    add_columns(command)
    group = detections.add_options(command, owner="refocal.detection.calibration:calibrate")
    group.add_argument(
        "--test-annotations", metavar="FILE", help="COCO annotations of the images of --test (default: --annotations)"
    )
    segmentation.add_options(command, more=f"; without --test, {100 * _HELD_OUT:g}% of the images are held out")
    add_questions(command)
    add_force(command)
    add_memory(command)
    add_engine(command, meaning=MEASURING_ENGINE, owner="refocal.scale.fitting:calibrate")


def run(options: Namespace) -> None:
    """Fit and report: in memory, block by block, or on a cluster."""
    from refocal.cli import memory
    from refocal.cli.data_sets import find_source
    from refocal.cli.inputs import choose_columns, read_val_and_test
    from refocal.cli.output import check_outputs, note
    from refocal.cli.progress import track
    from refocal.cli.workflow import Ask, cross_fit, finish, fit_and_measure, hold_out_and_measure

    check_numbers(options)
    if options.test is not None:
        _reject_holdout(options)
    if detections.are_asked_for(options, [options.val, *filter(None, [options.test])]):
        detections.calibrate(options, _read_settings(options, is_multilabel=False))
        return
    if segmentation.are_asked_for(options, [options.val, *filter(None, [options.test])]):
        share = _HELD_OUT if options.holdout is None else options.holdout
        segmentation.calibrate(options, _read_settings(options, is_multilabel=False), share=share)
        return
    settings = _read_settings(options, is_multilabel=options.task == "multilabel")
    val = find_source([options.val])
    test = None if options.test is None else find_source([options.test])
    files = [*val.files, *([] if test is None else test.files)]
    check_outputs(options, files)
    check_slices(options, (test or val).files)
    if options.engine is not None:
        reject_questions(options, "--engine reads block by block")
        _run_blocks(options, val, test, settings)
        return
    costs = load_costs(options)
    why, is_multilabel = memory.survey(options, files, per_score=memory.FITTING)
    if is_multilabel:
        settings = _read_settings(options, is_multilabel=True, excess=why)
    if why:
        if options.out:
            msg = f"--out needs all rows in memory, but {why}"
            raise ValueError(msg)
        reject_questions(options, why)
        note(f"reading block by block: {why}")
        _run_blocks(options, val, test, settings)
        return
    source = (test or val).name
    ask: Ask = (lambda _: {}) if is_multilabel else partial(read_questions, options, costs)
    with track() as progress:
        progress.step(f"reading {val.name}")
        carry = bool(options.out) or options.slice or False
        first, second = read_val_and_test(val, test, choose_columns(options), carry=carry)
        multilabel.check_loss(options, 1 if is_multilabel else max([1, *first.scores.shape[1:]]))
        if second is not None:
            _reject_holdout(options)
            outcome = fit_and_measure(first, second, settings, source, progress.step, ask=ask)
        elif options.holdout is not None:
            outcome = hold_out_and_measure(
                first, settings, source, progress.step, ask=ask, share=options.holdout, **given(options, "seed")
            )
        else:
            outcome = cross_fit(first, settings, source, progress.step, ask=ask, **given(options, "seed"))
    finish(options, outcome)


def _run_blocks(options: Namespace, val: Source, test: Source | None, settings: dict[str, Any]) -> None:
    """Fit to files, and measure others before and after, without holding all rows in memory."""
    from refocal.cli import memory
    from refocal.cli.data_sets import engine_settings
    from refocal.cli.defaults import read_default
    from refocal.cli.progress import track
    from refocal.cli.workflow import show_written
    from refocal.scale.engines import open_engine
    from refocal.scale.parts import find_files, unchanged
    from refocal.scale.selecting import select_and_report

    if options.out:
        msg = "--out does not work with --engine: use apply to write calibrated files"
        raise ValueError(msg)
    default = read_default("refocal.report.cross_fitting:cross_calibrate", "seed")
    seed = default if options.seed is None else options.seed
    engine = engine_settings(options)
    files = find_files([*val.files, *([] if test is None else test.files)])
    with unchanged(files):
        reader = _open_val(options, val, test)
        with track() as progress, open_engine(**engine, progress=progress.show_files) as running:
            fitted, measured, protocol = _divide(options, running, reader, val, test, seed=seed)
            multilabel.check_loss(options, fitted.reader.form.columns)
            selection, report = select_and_report(
                running,
                fitted,
                measured,
                settings,
                most_rows=memory.choose_sample(options, fitted.reader.form.classes),
                seed=seed,
                source=(test or val).name,
                progress=progress.step,
            )
    show_written(options, selection, replace(report, protocol=" ".join(filter(None, (protocol, report.protocol)))))


def _open_val(options: Namespace, val: Source, test: Source | None) -> RowReader:
    """Find out how the files to fit to are read; this rejects multi-label files before an engine starts."""
    from refocal.cli.inputs import choose_columns
    from refocal.scale.parts import RowReader, find_files, require_form

    others = () if test is None else find_files(test.files)
    return RowReader(require_form(find_files(val.files), choose_columns(options), data_set=others), finite=True)


def _divide(
    options: Namespace, engine: Engine, reader: RowReader, val: Source, test: Source | None, *, seed: int
) -> tuple[Rows, Rows, str]:
    """Choose the rows to fit to and the rows to measure on; and say so if they are chosen at random."""
    from refocal.cli.inputs import choose_columns, needs_division
    from refocal.report.cross_fitting import check_holdout
    from refocal.scale.parts import RowReader, find_files, require_form
    from refocal.scale.selecting import Rows, find_splits

    files = find_files(val.files)
    if test is not None:
        others = find_files(test.files)
        form = require_form(others, choose_columns(options), data_set=files)
        reader.form.check(form._replace(weighted=reader.form.weighted))
        if not reader.form.split and set(files) & set(others):
            msg = f"{val.name} and {test.name} must not share files, both have {min(set(files) & set(others))}"
            raise ValueError(msg)
        measured = RowReader(form, split="test", optional=True, finite=True)
        return Rows(files, replace(reader, split="val", optional=True)), Rows(others, measured), ""
    splits = find_splits(engine, files, reader) if reader.form.split else ()
    if needs_division(splits, val.name):
        share = check_holdout(_HELD_OUT if options.holdout is None else options.holdout)
        whole = Rows(files, reader)
        protocol = (
            f"Measured on {100 * share:.3g}% of the rows, held out at random (seed {seed}); fitted to the others."
        )
        return whole.cut(share, 1.0, seed=seed), whole.cut(0.0, share, seed=seed), protocol
    _reject_holdout(options)
    return Rows(files, replace(reader, split="val")), Rows(files, replace(reader, split="test")), ""


def _reject_holdout(options: Namespace) -> None:
    if options.holdout is not None:
        msg = "--holdout is only for predictions without --test and without the splits val and test"
        raise ValueError(msg)


def _read_settings(options: Namespace, *, is_multilabel: bool, excess: str | None = None) -> dict[str, Any]:
    """Read the method and the training loss, and reject what does not fit the task; `excess` as in `reject_options`."""
    from refocal import _check
    from refocal.report import METHODS

    if options.method is not None:
        _check.one_of(options.method, "--method", METHODS)
    settings = _read_loss(options)
    if is_multilabel:
        multilabel.reject_options(options, excess)
        settings = multilabel.read_loss(options)
    return settings | given(options, "method")


def _read_loss(options: Namespace) -> dict[str, Any]:
    """Read the settings of the training loss, from --gamma, --alpha and --loss."""
    from refocal import _check
    from refocal._documents import parse_json, read_document

    text = options.loss
    if text == _SIGMOID:
        if options.gamma is None or options.alpha is None:
            msg = f"--loss {_SIGMOID} needs --gamma and --alpha (0.5 for a loss without balancing)"
            raise ValueError(msg)
        # Two classes with these weights have the same map: the weights divide the odds by alpha / (1 - alpha).
        alpha = _check.share(options.alpha, "alpha")
        return {"gamma": options.gamma, "weight": [1 - alpha, alpha]}
    if options.alpha is not None:
        msg = f"--alpha is only for --loss {_SIGMOID}"
        raise ValueError(msg)
    if text in (None, "focal"):
        if text and options.gamma is None:
            msg = "--loss focal needs --gamma"
            raise ValueError(msg)
        return given(options, "gamma")
    if options.gamma is not None:
        msg = "give --gamma or --loss with JSON, not both"
        raise ValueError(msg)
    what = (
        f'--loss must be {", ".join(_LOSSES)}, JSON such as {{"gamma": 3}}, or a file that holds it, got {text!r:.200}'
    )
    is_json = not text or text.lstrip().startswith("{")
    if not is_json and not os.path.lexists(text):
        near = get_close_matches(text.lower(), _LOSSES, n=1, cutoff=_NEAR)
        msg = f"{what}, and there is no such file{f': did you mean {near[0]}?' if near else ''}"
        raise ValueError(msg)
    source = text.encode() if is_json else read_document(text)
    settings: Any = parse_json(source, lambda reason: ValueError(f"{what}: {reason}"))
    allowed = {"gamma", "weight", "label_smoothing", "detached"}
    if not isinstance(settings, dict) or settings.get("gamma") is None or set(settings) - allowed:
        others = ", ".join(sorted(allowed - {"gamma"}))
        msg = f"--loss must be an object with gamma and, optionally, {others}, got {settings!r:.200}"
        raise ValueError(msg)
    if not isinstance(settings.get("detached", False), bool):
        msg = f"detached in --loss must be true or false, got {settings['detached']!r}"
        raise TypeError(msg)
    return settings
