"""`refocal calibrate`: fit calibrators, choose one, and report what it does."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.cli.options import Commands, add_columns, add_command, add_engine, add_force, add_memory, add_option

if TYPE_CHECKING:
    from refocal._check import Input
    from refocal.calibrators import Calibrator

_EXAMPLES = """\
refocal calibrate val.npz --test test.npz --gamma 3 --report report.html --save cal.json --out probs.npz
refocal calibrate both.npz               # one file with a column split of val and test
refocal calibrate val.csv                # one file without splits: cross-fitting
refocal calibrate val.csv --holdout 0.3  # or a random part to measure on
refocal calibrate 'val/*.parquet' --test 'test/*.parquet' --save cal.json --engine ray"""
_METHODS = (
    "auto, posterior, temperature, focal-temperature, ensemble, vector, matrix, dirichlet, platt, beta, quadratic, "
    "isotonic or histogram"
)
# methods that are fitted block by block, the first by default
_BLOCK_METHODS = ("focal-temperature", "temperature", "posterior")


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "say whether scores can be trusted, and turn them into calibrated probabilities"
    command = add_command(commands, "calibrate", summary, _EXAMPLES, run)
    command.add_argument("val", metavar="VAL", help="predictions to fit to, on data not used for training")
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
        help="seed that divides VAL, for cross-fitting and --holdout",
    )
    loss = command.add_mutually_exclusive_group()
    loss.add_argument(
        "--gamma",
        type=float,
        help="gamma of the focal loss that the network was trained with; adds the closed-form posterior to the methods "
        "that are compared; for many files, and for files larger than --memory, only --method posterior uses it",
    )
    loss.add_argument(
        "--loss",
        metavar="JSON",
        help='like --gamma, with more settings: {"gamma": 3, "weight": [...], "label_smoothing": 0.1, '
        '"detached": true}, or a file that holds them',
    )
    first, second, third = _BLOCK_METHODS
    add_option(
        command,
        "--method",
        owner="refocal.report.selection:calibrate",
        help=f"{_METHODS} (default: {{default}}); for many files, and for files larger than --memory, {first} (the "
        f"default there), {second} or {third}",
    )
    command.add_argument("--save", metavar="FILE", help="write the calibrator: .json")
    command.add_argument("--out", metavar="FILE", help="write the calibrated test predictions: .npz, .parquet or .csv")
    command.add_argument("--report", metavar="FILE", help="write a report: .html or .json")
    add_columns(command)
    add_force(command)
    add_memory(command)
    add_engine(command, owner="refocal.scale.fitting:calibrate")


def run(options: Namespace) -> None:
    """Fit and report: in memory, block by block, or on a cluster."""
    from refocal.cli import memory
    from refocal.cli.data_sets import is_data_set
    from refocal.cli.inputs import choose_columns, read_val_and_test
    from refocal.cli.output import check_outputs, note
    from refocal.cli.progress import track
    from refocal.cli.workflow import cross_fit, finish, fit_and_measure, hold_out_and_measure

    files = [file for file in (options.val, options.test) if file]
    if is_data_set(options, files):
        _run_data_set(options, _read_loss(options))
        return
    check_outputs(options, files)
    settings = _read_loss(options)
    if why := memory.find_excess(options, files, per_score=memory.FITTING):
        _reject_whole(options, why)
        note(f"{_describe_fit(options, settings)}: {why}")
        _run_data_set(options, settings)
        return
    settings |= _given(options, "method")
    with track() as progress:
        progress.step(f"reading {options.val}")
        columns = choose_columns(options)
        val, test = read_val_and_test(options.val, options.test, columns, carry=bool(options.out))
        source = Path(options.test or options.val).name
        if test is not None and options.holdout is not None:
            msg = "--holdout is only for predictions without --test and without the splits val and test"
            raise ValueError(msg)
        if test is not None:
            outcome = fit_and_measure(val, test, settings, source, progress.step)
        elif options.holdout is not None:
            outcome = hold_out_and_measure(
                val, settings, source, progress.step, share=options.holdout, **_given(options, "seed")
            )
        else:
            outcome = cross_fit(val, settings, source, progress.step, **_given(options, "seed"))
    finish(options, outcome)


def _run_data_set(options: Namespace, loss: dict[str, Any]) -> None:
    """Fit to files, and measure others before and after."""
    from refocal.cli import data_sets
    from refocal.cli.inputs import choose_columns
    from refocal.cli.output import check_outputs
    from refocal.cli.progress import track
    from refocal.cli.workflow import show_report
    from refocal.scale.engines import open_engine
    from refocal.scale.fitting import fit
    from refocal.scale.measuring import measure
    from refocal.scale.parts import RowReader, find_files, require_form

    data_sets.reject_options(options, "report", "out")
    check_outputs(options, [])
    val = find_files(options.val)
    test = val if options.test is None else find_files(options.test)
    columns = choose_columns(options)
    form = require_form(val, columns, data_set=test)
    test_form = form if test == val else require_form(test, columns, data_set=val)
    form.check(test_form._replace(weighted=form.weighted))
    method = options.method or _BLOCK_METHODS[0]
    calibrator = _make_calibrator(method, loss, form.input)
    alone = options.test is None
    if not alone and set(val) & set(test):
        msg = f"{options.val} and {options.test} must not share files, both have {min(set(val) & set(test))}"
        raise ValueError(msg)
    engine = data_sets.engine_settings(options)
    with track() as progress, open_engine(**engine, progress=progress.show_files) as running:
        result = fit(running, calibrator, val, RowReader(form, split="val", optional=not alone, finite=True))
        rows = RowReader(test_form, split="test", optional=not alone, finite=True)
        report = measure(running, test, rows, calibrator=result, source=options.test or options.val)
    written = {}
    if options.save:
        result.save(options.save)
        written["calibrator"] = options.save
    show_report(options, report, written)


def _reject_whole(options: Namespace, why: str) -> None:
    """Reject options that need all rows in memory, and say why the rows do not fit."""
    asked = [f"--{name}" for name in ("report", "out") if getattr(options, name) is not None]
    asked += [] if options.method in (None, *_BLOCK_METHODS) else [f"--method {options.method}"]
    if asked:
        msg = f"{asked[0]} needs all rows in memory, but {why}"
        raise ValueError(msg)


def _describe_fit(options: Namespace, loss: dict[str, Any]) -> str:
    """Say what is fitted block by block."""
    if options.method is not None:
        return "reading block by block"
    ignored = "; gamma is used only with --method posterior" if loss else ""
    return f"reading block by block: only {_BLOCK_METHODS[0]} is fitted, without comparing methods{ignored}"


def _make_calibrator(method: str, loss: dict[str, Any], input: Input) -> Calibrator:
    from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling

    if method not in _BLOCK_METHODS:
        msg = f"over many files, --method must be one of {', '.join(_BLOCK_METHODS)}, got {method!r}"
        raise ValueError(msg)
    if method == "posterior":
        if not loss:
            msg = "--method posterior needs the gamma that the network was trained with"
            raise ValueError(msg)
        return FocalPosterior(**loss, input=input)
    return (TemperatureScaling if method == "temperature" else FocalTemperatureScaling)(input=input)


def _given(options: Namespace, *names: str) -> dict[str, Any]:
    """Return the options that the user gave."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _read_loss(options: Namespace) -> dict[str, Any]:
    """Read the settings of the training loss, from --gamma or --loss."""
    from refocal._documents import parse_json, read_document

    text = options.loss
    if text is None:
        return {} if options.gamma is None else {"gamma": options.gamma}
    source = text.encode() if not text or text.lstrip().startswith("{") else read_document(text)
    what = f"--loss must be JSON, or a file that holds it, got {text!r:.200}"
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
