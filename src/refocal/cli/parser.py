"""The arguments of the commands. What they call is imported when it is called, so that help comes at once."""

from __future__ import annotations

import argparse

import refocal
from refocal.cli import options

_METHODS = (
    "auto, posterior, temperature, focal-temperature, ensemble, vector, matrix, dirichlet, platt, beta, isotonic, "
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="refocal",
        description="Class probabilities you can act on, from the scores of a classifier.",
        epilog=options.EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"refocal {refocal.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    evaluate = options.add_command(
        commands,
        "evaluate",
        "measure predictions as they are",
        "refocal evaluate test.npz\nrefocal evaluate first.npz second.npz    # side by side, with a paired test\n"
        "refocal evaluate 'preds/*.parquet' --engine ray --address auto",
        module="refocal.cli.commands",
    )
    evaluate.add_argument("files", nargs="+", metavar="FILE", help="predictions with labels: .npz, .parquet or .csv")
    options.add_engine(evaluate)
    evaluate.add_argument("--split", help="only the rows of this split")
    options.add_memory(evaluate)
    evaluate.add_argument("--report", metavar="FILE", help="write the page of one file: .html, or .json")
    options.add_force(evaluate)

    calibrate = options.add_command(
        commands,
        "calibrate",
        "say whether scores can be trusted, and make them so",
        "refocal calibrate val.npz --test test.npz --gamma 3 --report report.html --save cal.json --out probs.npz\n"
        "refocal calibrate both.npz               # with a column split of val and test\n"
        "refocal calibrate 'val/*.parquet' --test 'test/*.parquet' --save cal.json --engine ray",
        module="refocal.cli.commands",
    )
    calibrate.add_argument("val", metavar="VAL", help="predictions to fit to, of data not trained on")
    calibrate.add_argument(
        "--test", help="predictions to measure on; without it, VAL must have the splits val and test"
    )
    loss = calibrate.add_mutually_exclusive_group()
    loss.add_argument(
        "--gamma",
        type=float,
        help="the network was trained with focal loss of this gamma: the closed-form posterior is one of the methods; "
        "over many files, and over files beyond --memory, it counts with --method posterior alone",
    )
    loss.add_argument(
        "--loss",
        metavar="JSON",
        help='the same with more settings: {"gamma": 3, "weight": [...], "label_smoothing": 0.1, "detached": true}, '
        "or a file that holds it",
    )
    calibrate.add_argument(
        "--method",
        default=None,
        help=f"{_METHODS}histogram (default: auto); over many files, and over files beyond --memory, temperature, "
        "posterior or, by default, focal-temperature",
    )
    options.add_engine(calibrate)
    options.add_memory(calibrate)
    calibrate.add_argument("--save", metavar="FILE", help="write the calibrator: .json")
    calibrate.add_argument("--out", metavar="FILE", help="write the calibrated test predictions")
    calibrate.add_argument("--report", metavar="FILE", help="write the report: .html, or .json")
    options.add_force(calibrate)

    apply = options.add_command(
        commands,
        "apply",
        "calibrate predictions with a saved calibrator",
        "refocal apply cal.json new.parquet --out probs.parquet\n"
        "refocal apply cal.json 'new/*.parquet' --out probs --engine ray    # again does what is missing",
        module="refocal.cli.commands",
    )
    apply.add_argument("calibrator", metavar="CALIBRATOR", help="a file that calibrate --save wrote")
    apply.add_argument("files", nargs="+", metavar="FILE", help="predictions, with or without labels")
    apply.add_argument(
        "--out", metavar="FILE", required=True, help="where the probabilities go: a file, or a folder for many files"
    )
    options.add_engine(apply)
    options.add_force(apply)

    export = options.add_command(
        commands,
        "export",
        "turn a saved calibrator into an ONNX graph",
        "refocal export cal.json --onnx head.onnx",
        module="refocal.cli.commands",
    )
    export.add_argument("calibrator", metavar="CALIBRATOR", help="a file that calibrate --save wrote")
    export.add_argument("--onnx", metavar="FILE", required=True, help="where the graph goes")
    options.add_force(export)

    explain = options.add_command(
        commands,
        "explain",
        "what focal loss does to confidence",
        "refocal explain --gamma 3 --classes 10",
        module="refocal.cli.commands",
    )
    explain.add_argument("--gamma", type=float, required=True, help="the focusing parameter")
    explain.add_argument("--classes", type=int, help="number of classes (default: 2)")

    demo = options.add_command(
        commands,
        "demo",
        "the main job on predictions that ship with the package",
        "refocal demo --report report.html",
        module="refocal.cli.commands",
    )
    demo.add_argument("--report", metavar="FILE", help="write the report: .html, or .json")
    options.add_force(demo)
    return top
