"""The arguments of the lab's commands. What they call is imported when it is called, so that help comes at once."""

from __future__ import annotations

import argparse
from typing import Any

import refocal
from refocal.cli import options

_DATA_FOLDER = "of the data files (default: $REFOCAL_DATA, or ~/.cache/refocal)"


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="refocal-lab",
        description="Train networks, keep their logits, and check the papers behind refocal.",
        epilog=options.EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"refocal-lab {refocal.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _train(commands)
    _curvature(commands)
    _zoo(commands)
    _claims(commands)
    _reproduce(commands)
    return top


def _claims(commands: Any) -> None:
    claims = options.add_command(
        commands,
        "claims",
        "check what the papers claim, and say which statements hold",
        "refocal-lab claims\nrefocal-lab claims --paper 003 --json\n"
        "refocal-lab claims show 003-prop-5 --plot counterexample.svg",
        module="refocal_lab.cli.claims",
    )
    claims.add_argument("--paper", help="001, 002, 003 or 004 alone")
    claims.add_argument("--markdown", metavar="FILE", help="write the page of the documentation: .md")
    options.add_force(claims)
    one = claims.add_subparsers(dest="action", metavar="[show]").add_parser(
        "show", help="one claim in full", description="One claim in full, with its verdict and evidence."
    )
    one.add_argument("id", metavar="ID", help="such as 003-prop-5")
    one.add_argument("--plot", metavar="FILE", help="draw it, where that helps: .svg or .png")
    for option, meaning in (("--json", "print JSON for machines"), ("--force", "replace files that exist")):
        # given before or after `show`, it counts
        one.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=meaning)


def _train(commands: Any) -> None:
    train = options.add_command(
        commands,
        "train",
        "train networks with any loss, several at once on a GPU",
        "refocal-lab train --data cifar10 --model resnet110 --loss focal --gamma 3 --epochs 200 --trials 4 --out runs\n"
        "refocal-lab train --data digits --model mlp --loss focal --gamma 0.5 1 2 3 --epochs 30 --out runs\n"
        "refocal-lab train --data sst --model tree-lstm --loss focal --gamma 3 --out runs\n"
        "refocal-lab train zoo/cifar10-resnet20.toml --out runs    # the same settings, by their names, from a file\n"
        "torchrun --nproc-per-node 2 -m refocal_lab train ...      # each step over two GPUs\n"
        "refocal-lab train zoo/cifar10-resnet20.toml --out runs --engine ray --address auto",
        module="refocal_lab.cli.train",
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
    how.add_argument("--optimizer", help="sgd, adam or adagrad (default: sgd; texts adam, trees adagrad)")
    how.add_argument("--keep", help="last or best-validation (default: last; texts and trees the best)")
    how.add_argument("--augmentation", help="crop-flip, crop or none (default: by the data)")
    how.add_argument("--sum-loss", action="store_true", default=None, help="sum the loss over the batch, as 002's code")
    how.add_argument("--clip-norm", type=float, help="largest norm of the gradient; 2 in 002's code")
    where = train.add_argument_group("where")
    where.add_argument("--data-folder", metavar="FOLDER", help=_DATA_FOLDER)
    where.add_argument("--download", action="store_true", help="fetch data that are not there from their publisher")
    options.add_engine(where, "here, or on a Ray cluster, a task a network")
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
    curvature = options.add_command(
        commands,
        "curvature",
        "measure how curved the loss is at a trained network, and note it on the run's card",
        "refocal-lab curvature --run runs/digits-mlp-focal-g3-s0\n"
        "refocal-lab curvature --run runs/digits-mlp-focal-g3-s0 --loss cross-entropy --part train --eigenvalues 5\n"
        "refocal-lab curvature --run runs/* --loss trained cross-entropy --probes 20",
        module="refocal_lab.cli.curvature",
    )
    curvature.add_argument(
        "--run", dest="folder", metavar="FOLDER", nargs="+", required=True, help="finished runs of refocal-lab train"
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
    examples = "refocal-lab zoo list\nrefocal-lab zoo table --markdown > zoo/README.md"
    top = commands.add_parser(
        "zoo",
        help="logits of trained networks, and every measure of them",
        description="Logits of trained networks, and every measure of them: a zoo is a folder, zoo in a clone.",
        epilog=f"examples:\n  {examples.replace(chr(10), chr(10) + '  ')}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = top.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = options.add_command(
        actions, "list", "say what a zoo holds", "refocal-lab zoo list", module="refocal_lab.cli.zoo", call="zoo_list"
    )
    table = options.add_command(
        actions,
        "table",
        "recompute every measure, before and after calibration, beside the papers' numbers",
        "refocal-lab zoo table\nrefocal-lab zoo table --human data --markdown",
        module="refocal_lab.cli.zoo",
        call="zoo_table",
    )
    add = options.add_command(
        actions,
        "add",
        "copy finished runs into a zoo",
        "refocal-lab zoo add runs/*",
        module="refocal_lab.cli.zoo",
        call="zoo_add",
    )
    add.add_argument("runs", nargs="+", metavar="RUN", help="a folder that train wrote")
    for action in (listing, table, add):
        action.add_argument("--zoo", metavar="DIR", default="zoo", help="the folder of cards and logits (default: zoo)")
    table.add_argument("--markdown", action="store_true", help="print Markdown")
    table.add_argument(
        "--human", metavar="DIR", help="the folder of CIFAR-10H (default: $REFOCAL_DATA, left out where there is none)"
    )


def _reproduce(commands: Any) -> None:
    reproduce = options.add_command(
        commands,
        "reproduce",
        "make the papers' figures and tables, and compare their numbers",
        "refocal-lab reproduce 003-fig-3                 # figure, numbers, and each published number beside ours\n"
        "refocal-lab reproduce --all --scale smoke       # everything, in a minute\n"
        "refocal-lab reproduce --all --engine ray        # a figure a task, on a cluster\n"
        "refocal-lab reproduce --list                    # what there is, what has results, how long it took\n"
        "refocal-lab reproduce --gallery docs/gallery.md # the page of all stored results",
        module="refocal_lab.cli.reproduce",
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
    options.add_engine(reproduce, "here, or on a Ray cluster, a task a figure")
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
