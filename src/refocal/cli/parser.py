"""The arguments of the commands. What they call is imported when it is called, so that help comes at once."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import refocal
from refocal.cli import memory

_METHODS = (
    "auto, posterior, temperature, focal-temperature, ensemble, vector, matrix, dirichlet, platt, beta, isotonic, "
)
_WHERE = (
    "take all files together as one data set, as a pattern in quotes does: in this process, block by block (local, the "
    "default), or on a Ray cluster"
)
_DATA_FOLDER = "of the data files (default: $REFOCAL_DATA, or ~/.cache/refocal)"
_EXITS = "exit status: 0 done, 1 input was refused (the message says why), 2 wrong usage, 130 interrupted"


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="refocal",
        description="Class probabilities you can act on, from the scores of a classifier.",
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"refocal {refocal.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    evaluate = _command(
        commands,
        "evaluate",
        "measure predictions as they are",
        "refocal evaluate test.npz\nrefocal evaluate first.npz second.npz    # side by side, with a paired test\n"
        "refocal evaluate 'preds/*.parquet' --engine ray --address auto",
    )
    evaluate.add_argument("files", nargs="+", metavar="FILE", help="predictions with labels: .npz, .parquet or .csv")
    _engine(evaluate)
    evaluate.add_argument("--split", help="only the rows of this split")
    _memory(evaluate)
    evaluate.add_argument("--report", metavar="FILE", help="write the page of one file: .html, or .json")
    _force(evaluate)

    calibrate = _command(
        commands,
        "calibrate",
        "say whether scores can be trusted, and make them so",
        "refocal calibrate val.npz --test test.npz --gamma 3 --report report.html --save cal.json --out probs.npz\n"
        "refocal calibrate both.npz               # with a column split of val and test\n"
        "refocal calibrate 'val/*.parquet' --test 'test/*.parquet' --save cal.json --engine ray",
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
    _engine(calibrate)
    _memory(calibrate)
    calibrate.add_argument("--save", metavar="FILE", help="write the calibrator: .json")
    calibrate.add_argument("--out", metavar="FILE", help="write the calibrated test predictions")
    calibrate.add_argument("--report", metavar="FILE", help="write the report: .html, or .json")
    _force(calibrate)

    apply = _command(
        commands,
        "apply",
        "calibrate predictions with a saved calibrator",
        "refocal apply cal.json new.parquet --out probs.parquet\n"
        "refocal apply cal.json 'new/*.parquet' --out probs --engine ray    # again does what is missing",
    )
    apply.add_argument("calibrator", metavar="CALIBRATOR", help="a file that calibrate --save wrote")
    apply.add_argument("files", nargs="+", metavar="FILE", help="predictions, with or without labels")
    apply.add_argument(
        "--out", metavar="FILE", required=True, help="where the probabilities go: a file, or a folder for many files"
    )
    _engine(apply)
    _force(apply)

    export = _command(
        commands, "export", "turn a saved calibrator into an ONNX graph", "refocal export cal.json --onnx head.onnx"
    )
    export.add_argument("calibrator", metavar="CALIBRATOR", help="a file that calibrate --save wrote")
    export.add_argument("--onnx", metavar="FILE", required=True, help="where the graph goes")
    _force(export)

    explain = _command(
        commands, "explain", "what focal loss does to confidence", "refocal explain --gamma 3 --classes 10"
    )
    explain.add_argument("--gamma", type=float, required=True, help="the focusing parameter")
    explain.add_argument("--classes", type=int, help="number of classes (default: 2)")

    demo = _command(
        commands,
        "demo",
        "the main job on predictions that ship with the package",
        "refocal demo --report report.html",
    )
    demo.add_argument("--report", metavar="FILE", help="write the report: .html, or .json")
    _force(demo)
    _train(commands)
    _curvature(commands)
    _zoo(commands)
    _claims(commands)
    _reproduce(commands)
    return top


def _claims(commands: Any) -> None:
    claims = _command(
        commands,
        "claims",
        "check what the papers claim, and say which statements hold",
        "refocal claims\nrefocal claims --paper 003 --json\nrefocal claims show 003-prop-5 --plot counterexample.svg",
        module="claims",
    )
    claims.add_argument("--paper", help="001, 002, 003 or 004 alone")
    claims.add_argument("--markdown", metavar="FILE", help="write the page of the documentation: .md")
    _force(claims)
    one = claims.add_subparsers(dest="action", metavar="[show]").add_parser(
        "show", help="one claim in full", description="One claim in full, with its verdict and evidence."
    )
    one.add_argument("id", metavar="ID", help="such as 003-prop-5")
    one.add_argument("--plot", metavar="FILE", help="draw it, where that helps: .svg or .png")
    for option, meaning in (("--json", "print JSON for machines"), ("--force", "replace files that exist")):
        # given before or after `show`, it counts
        one.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=meaning)


def _train(commands: Any) -> None:
    train = _command(
        commands,
        "train",
        "train networks with any loss, several at once on a GPU",
        "refocal train --data cifar10 --model resnet110 --loss focal --gamma 3 --epochs 200 --trials 4 --out runs\n"
        "refocal train --data digits --model mlp --loss focal --gamma 0.5 1 2 3 --epochs 30 --out runs\n"
        "refocal train --data sst --model tree-lstm --loss focal --gamma 3 --out runs\n"
        "refocal train zoo/cifar10-resnet20.toml --out runs    # the same settings, by their names, from a file\n"
        "torchrun --nproc-per-node 2 -m refocal train ...      # each step over two GPUs\n"
        "refocal train zoo/cifar10-resnet20.toml --out runs --engine ray --address auto",
        module="train",
    )
    train.add_argument("recipe", nargs="?", metavar="TOML", help="settings; those given here as options come first")
    train.add_argument("--out", metavar="FOLDER", help="where the runs go, a folder each (default: runs)")
    what = train.add_argument_group("what to train")
    what.add_argument("--data", help="cifar10, svhn, tiny-imagenet, digits, newsgroups20, sst, ...")
    what.add_argument("--model", help="resnet20, resnet110, resnet50, vit-small, mlp, gp-cnn, tree-lstm, ...")
    what.add_argument(
        "--loss", help="cross-entropy or ce (default), focal, flsd-53, fls-532, adafocal, brier, mmce, ..."
    )
    what.add_argument("--gamma", type=float, nargs="+", help="focusing parameter; of several, each is trained")
    what.add_argument("--label-smoothing", type=float, help="mix the targets with the uniform distribution")
    what.add_argument("--factor", type=float, help="weight of MMCE beside cross-entropy")
    what.add_argument("--curvature-penalty", type=float, metavar="TAU", help="add TAU times the trace of the Hessian")
    what.add_argument("--word-vectors", help="of texts: glove (default), learned, or a file of GloVe's format")
    how = train.add_argument_group("how")
    how.add_argument("--epochs", type=int, help="passes over the training part (default: 200; texts 50, trees 25)")
    how.add_argument("--trials", type=int, help="networks with seeds that follow each other (default: 1)")
    how.add_argument("--seed", type=int, help="of the first trial (default: 0)")
    how.add_argument("--split-seed", type=int, help="which samples are held out (default: 0)")
    how.add_argument("--batch-size", type=int, help="samples a step (default: 128; trees 25)")
    how.add_argument("--learning-rate", type=float, help="at first (default: 0.1; texts 0.001, trees 0.05)")
    how.add_argument("--milestones", type=int, nargs="*", help="epochs after which it is a tenth (default: 001's)")
    how.add_argument("--momentum", type=float, help="of sgd (default: 0.9)")
    how.add_argument("--weight-decay", type=float, help="not on word vectors (default: 0.0005; texts 0, trees 0.0001)")
    how.add_argument("--optimiser", help="sgd, adam or adagrad (default: sgd; texts adam, trees adagrad)")
    how.add_argument("--keep", help="last or best-validation (default: last; texts and trees the best)")
    how.add_argument("--augmentation", help="crop-flip, crop or none (default: by the data)")
    how.add_argument("--sum-loss", action="store_true", default=None, help="sum the loss over the batch, as 002's code")
    how.add_argument("--clip-norm", type=float, help="largest norm of the gradient; 2 in 002's code")
    where = train.add_argument_group("where")
    where.add_argument("--data-folder", metavar="FOLDER", help=_DATA_FOLDER)
    where.add_argument("--download", action="store_true", help="fetch data that are not there from their publisher")
    _engine(where, "here, or on a Ray cluster, a task a network")
    where.add_argument("--device", help="cpu or cuda (default: a GPU where there is one)")
    where.add_argument(
        "--at-once",
        type=int,
        default=4,
        help="networks that share a GPU; on a cluster each takes that part of one, and waits for it (default: 4)",
    )
    where.add_argument("--no-compile", action="store_true", help="do without torch.compile on a GPU")
    where.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="go on with runs that are there, and leave finished ones alone; else begin them anew",
    )
    where.add_argument(
        "--keep-logits", type=int, nargs="+", metavar="EPOCH", help="keep the training logits of these epochs"
    )


def _curvature(commands: Any) -> None:
    curvature = _command(
        commands,
        "curvature",
        "measure how curved the loss is at a trained network, and note it on the run's card",
        "refocal curvature --run runs/digits-mlp-focal-g3-s0\n"
        "refocal curvature --run runs/digits-mlp-focal-g3-s0 --loss cross-entropy --part train --eigenvalues 5\n"
        "refocal curvature --run runs/* --loss trained cross-entropy --probes 20",
        module="curvature",
    )
    curvature.add_argument(
        "--run", dest="folder", metavar="FOLDER", nargs="+", required=True, help="finished runs of refocal train"
    )
    curvature.add_argument("--part", help="train, val or test (default: val)")
    curvature.add_argument("--samples", type=int, help="how many of them, the first ones (default: 1000)")
    curvature.add_argument(
        "--loss", nargs="+", help="trained (default): the run's own loss; cross-entropy or ce; or both"
    )
    curvature.add_argument("--matrix", help="hessian (default), or ggn for the Gauss-Newton matrix")
    curvature.add_argument("--eigenvalues", type=int, metavar="K", help="how many (default: 1)")
    curvature.add_argument(
        "--probes", type=int, help="random vectors of the trace, for each 128 samples (default: 100)"
    )
    curvature.add_argument("--seed", type=int, help="of the random vectors (default: 0)")
    curvature.add_argument("--data-folder", metavar="FOLDER", help=_DATA_FOLDER)
    curvature.add_argument("--device", help="cpu or cuda (default: a GPU where there is one)")


def _zoo(commands: Any) -> None:
    examples = "refocal zoo list\nrefocal zoo table --markdown > zoo/README.md"
    top = commands.add_parser(
        "zoo",
        help="logits of trained networks, and every measure of them",
        description="Logits of trained networks, and every measure of them: a zoo is a folder, zoo in a clone.",
        epilog=f"examples:\n  {examples.replace(chr(10), chr(10) + '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = _command(actions, "list", "say what a zoo holds", "refocal zoo list", module="zoo", call="zoo_list")
    table = _command(
        actions,
        "table",
        "recompute every measure, before and after calibration, beside the papers' numbers",
        "refocal zoo table\nrefocal zoo table --human data --markdown",
        module="zoo",
        call="zoo_table",
    )
    add = _command(
        actions, "add", "copy finished runs into a zoo", "refocal zoo add runs/*", module="zoo", call="zoo_add"
    )
    add.add_argument("runs", nargs="+", metavar="RUN", help="a folder that train wrote")
    for action in (listing, table, add):
        action.add_argument("--zoo", metavar="DIR", default="zoo", help="the folder of cards and logits (default: zoo)")
    table.add_argument("--markdown", action="store_true", help="print Markdown")
    table.add_argument(
        "--human", metavar="DIR", help="the folder of CIFAR-10H (default: $REFOCAL_DATA, left out where there is none)"
    )


def _reproduce(commands: Any) -> None:
    reproduce = _command(
        commands,
        "reproduce",
        "make the papers' figures and tables, and compare their numbers",
        "refocal reproduce 003-fig-3                 # figure, numbers, and each published number beside ours\n"
        "refocal reproduce --all --scale smoke       # everything, in a minute\n"
        "refocal reproduce --all --engine ray        # a figure a task, on a cluster\n"
        "refocal reproduce --list                    # what there is, what has results, how long it took\n"
        "refocal reproduce --gallery docs/gallery.md # the page of all stored results",
        module="reproduce",
    )
    reproduce.add_argument("ids", nargs="*", metavar="ID", help="a figure or table, such as 003-fig-3")
    reproduce.add_argument("--all", action="store_true", help="every figure and table")
    reproduce.add_argument("--list", action="store_true", help="show what there is")
    reproduce.add_argument("--gallery", metavar="FILE", help="write the page of all stored results: .md")
    reproduce.add_argument(
        "--scale",
        choices=("smoke", "small", "paper"),
        default="small",
        help="smoke takes seconds, small minutes, paper is as published (default: small)",
    )
    reproduce.add_argument(
        "--experiments", metavar="DIR", default="experiments", help="folder of the specs (default: experiments)"
    )
    _engine(reproduce, "here, or on a Ray cluster, a task a figure")
    reproduce.add_argument(
        "--results", metavar="DIR", help="folder of the results (default: results in the folder of the specs)"
    )
    reproduce.add_argument(
        "--data", metavar="DIR", help="folder of the data files, where some figures need them (default: $REFOCAL_DATA)"
    )
    reproduce.add_argument(
        "--zoo", metavar="DIR", default="zoo", help="the folder of trained networks' logits (default: zoo)"
    )
    reproduce.add_argument("--force", action="store_true", help="run again what has a result")


def _command(
    commands: Any, name: str, summary: str, examples: str, *, module: str = "commands", call: str | None = None
) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n  {examples.replace(chr(10), chr(10) + '  ')}\n\n{_EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--json", action="store_true", help="print JSON for machines")
    made.set_defaults(run=_later(call or name, module))
    return made


def _engine(command: Any, where: str = _WHERE) -> None:
    command.add_argument("--engine", choices=("local", "ray"), help=where)
    command.add_argument(
        "--address",
        action=_Address,
        help="of the Ray cluster, auto or host:port (default: one on this machine); means --engine ray",
    )


def _memory(command: Any) -> None:
    command.add_argument(
        "--memory",
        type=memory.size,
        default=memory.DEFAULT,
        metavar="SIZE",
        help="files whose rows would take more memory than this, whatever they weigh on disk, are read block by block, "
        f"without intervals: a number of bytes, or such as 500M or 16G (default: {memory.DEFAULT})",
    )


class _Address(argparse.Action):
    """The address of a cluster is a wish for Ray, where no engine is named."""

    def __call__(self, _parser: object, options: argparse.Namespace, value: Any, _flag: str | None = None) -> None:
        options.address, options.engine = value, options.engine or "ray"


def _force(command: argparse.ArgumentParser) -> None:
    command.add_argument("--force", action="store_true", help="replace files that exist")


def _later(name: str, module: str) -> Callable[[argparse.Namespace], None]:
    def run(options: argparse.Namespace) -> None:
        getattr(importlib.import_module(f"refocal.cli.{module}"), name)(options)

    return run
