"""`refocal-lab train`: train networks with any loss."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.cli.options import Commands, add_command, add_engine, add_option
from refocal_lab.cli.options import add_data_folder, add_device
from refocal_lab.train.defaults import ARRAYS, DOCUMENTS, TREES, TRIALS

if TYPE_CHECKING:
    from refocal_lab.train.recipe import TrainingRecipe
    from refocal_lab.train.trial import Trial

_RECIPE = "refocal_lab.train.recipe:TrainingRecipe"
_EXAMPLES = """\
refocal-lab train --data cifar10 --model resnet110 --loss focal --gamma 3 --epochs 200 --trials 4 --out runs
refocal-lab train --data digits --model mlp --loss focal --gamma 0.5 1 2 3 --epochs 30 --out runs
refocal-lab train --data sst --model tree-lstm --loss focal --gamma 3 --out runs
refocal-lab train --data my_project.data:load --model my_project.networks:build --out runs
refocal-lab train lab/zoo/cifar10-resnet20.toml --out runs    # the same settings, by name, from a file
torchrun --nproc-per-node 2 -m refocal_lab train ...          # each step on two GPUs
refocal-lab train lab/zoo/cifar10-resnet20.toml --out runs --engine ray --address auto"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    command = add_command(commands, "train", "train networks with any loss, several at once on a GPU", _EXAMPLES, run)
    command.add_argument("recipe", nargs="?", metavar="TOML", help="file of settings; options given here override them")
    command.add_argument(
        "--out",
        metavar="FOLDER",
        default="runs",
        help="write the runs to this folder, one subfolder each (default: %(default)s)",
    )
    what = command.add_argument_group("what to train")
    what.add_argument(
        "--data",
        help="cifar10, svhn, tiny-imagenet, digits, newsgroups20, sst, ..., or your own: package.module:function",
    )
    what.add_argument(
        "--model", help="resnet20, resnet110, resnet50, vit-small, mlp, gp-cnn, tree-lstm, ..., or your own, likewise"
    )
    add_option(
        what,
        "--loss",
        owner=_RECIPE,
        help="cross-entropy (ce for short), focal, flsd-53, fls-532, adafocal, brier, mmce, ..., or your own, likewise",
    )
    what.add_argument("--gamma", type=float, nargs="+", help="focusing parameter; several train one network each")
    what.add_argument("--label-smoothing", type=float, help="mix the targets with the uniform distribution")
    what.add_argument("--factor", type=float, help="weight of MMCE, which is added to cross-entropy")
    what.add_argument("--curvature-penalty", type=float, metavar="TAU", help="add TAU times the trace of the Hessian")
    what.add_argument(
        "--word-vectors", help=f"for texts: glove, learned, or a file in GloVe's format {_by_data('word_vectors')}"
    )
    how = command.add_argument_group("how to train")
    how.add_argument("--epochs", type=int, help=f"passes over the training data {_by_data('epochs')}")
    how.add_argument("--trials", type=int, help=f"train this many networks, with consecutive seeds (default: {TRIALS})")
    add_option(how, "--seed", owner=_RECIPE, type=int, help="seed of the first trial")
    add_option(how, "--split-seed", owner=_RECIPE, type=int, help="seed that decides which samples are held out")
    how.add_argument("--batch-size", type=int, help=f"samples per step {_by_data('batch_size')}")
    how.add_argument("--learning-rate", type=float, help=f"learning rate at first {_by_data('learning_rate')}")
    how.add_argument(
        "--milestones",
        type=int,
        nargs="*",
        help="divide the learning rate by ten after these epochs (default: those of Charoenphakdee et al., 2021)",
    )
    how.add_argument("--momentum", type=float, help=f"momentum of sgd {_by_data('momentum')}")
    how.add_argument(
        "--weight-decay", type=float, help=f"weight decay, except of word vectors {_by_data('weight_decay')}"
    )
    how.add_argument("--optimizer", help=f"sgd, adam or adagrad {_by_data('optimizer')}")
    how.add_argument(
        "--keep", help=f"which network to keep: last, best-validation or best-refinement {_by_data('keep')}"
    )
    how.add_argument("--augmentation", help="crop-flip, crop or none (default: depends on the data)")
    how.add_argument(
        "--sum-loss",
        action="store_true",
        default=None,
        help="sum the loss over the batch, as the code of Mukhoti et al. (2020) does",
    )
    how.add_argument(
        "--clip-norm", type=float, help="largest norm of the gradient; 2 in the code of Mukhoti et al. (2020)"
    )
    where = command.add_argument_group("where to train")
    add_data_folder(where)
    where.add_argument("--download", action="store_true", help="download missing data from its publisher")
    add_engine(where, meaning="train here, or on a Ray cluster with one task per network")
    add_device(where)
    add_option(
        where,
        "--at-once",
        owner="refocal_lab.train.loop:train",
        type=int,
        help="networks that share a GPU; on a cluster each of them waits for its share of one",
    )
    where.add_argument("--no-compile", action="store_true", help="do not use torch.compile on a GPU")
    where.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="continue unfinished runs and skip finished ones; with --no-resume, start all again (default: --resume)",
    )
    where.add_argument(
        "--keep-logits", type=int, nargs="+", metavar="EPOCH", help="keep the training logits of these epochs"
    )


def _by_data(name: str) -> str:
    """Write the defaults of a setting that depends on the kind of data."""
    first = ARRAYS.get(name, DOCUMENTS[name])
    kinds: dict[Any, list[str]] = {}
    for kind, value in (("documents", DOCUMENTS[name]), ("trees", TREES[name])):
        if value != first:
            kinds.setdefault(value, []).append(kind)
    others = ", ".join(f"{value} for {' and '.join(some)}" for value, some in kinds.items())
    return f"(default: {first}; {others})" if others else f"(default: {first})"


def run(options: Namespace) -> None:
    """Train what the options and the file ask for, and show the results."""
    import torch

    from refocal_lab.cli.recipes import build_recipes
    from refocal_lab.train import loop
    from refocal_lab.train.data import load
    from refocal_lab.train.process import choose_device, join_processes

    recipes = build_recipes(options)
    if options.engine == "ray":
        _run_on_cluster(recipes, options)
        return
    if options.address is not None:
        msg = "--address needs --engine ray"
        raise ValueError(msg)
    process = join_processes(options.device)
    device = choose_device(options.device, process)
    out = Path(options.out)
    data = load(
        recipes[0].data,
        folder=options.data_folder,
        download=options.download,
        split_seed=recipes[0].split_seed,
        word_vectors=recipes[0].word_vectors,
    )
    if process.leads:
        out.mkdir(parents=True, exist_ok=True)
        _discard_unless_resumed(recipes, out, options)
    if not process.is_alone:
        torch.distributed.barrier()
    at_once = {} if options.at_once is None else {"at_once": options.at_once}
    with _report_epochs(out, recipes, visible=process.leads) as report:
        loop.train(
            recipes,
            data,
            out,
            device=device,
            report=report,
            compiled=not options.no_compile,
            keep_logits=tuple(options.keep_logits or ()),
            process=process,
            **(at_once if process.is_alone else {"at_once": 1}),
        )
    if not process.is_alone:
        torch.distributed.barrier()  # a process that leaves while another still sends may abort at its exit
        torch.distributed.destroy_process_group()
    if process.leads:
        show_cards(_read_cards(recipes, out), as_json=options.json)


def _run_on_cluster(recipes: list[TrainingRecipe], options: Namespace) -> None:
    from refocal_lab.train.on_ray import train

    if options.device is not None or options.download:
        msg = "--device and --download do not work with --engine ray: it uses the GPUs and the data of the cluster"
        raise ValueError(msg)
    out = Path(options.out)
    _discard_unless_resumed(recipes, out, options)
    train(
        recipes,
        out,
        address=options.address,
        data_folder=options.data_folder,
        compiled=not options.no_compile,
        keep_logits=tuple(options.keep_logits or ()),
        finished=lambda name: print(f"{name}  trained", file=sys.stderr),  # noqa: T201
        **({} if options.at_once is None else {"at_once": options.at_once}),
    )
    show_cards(_read_cards(recipes, out), as_json=options.json)


def show_cards(cards: list[dict[str, Any]], *, as_json: bool) -> None:
    """Print the main measures of finished runs, or their whole cards as JSON."""
    from rich.table import Table
    from rich.text import Text

    from refocal.cli.output import Output
    from refocal.report.words import printable

    if as_json:
        sys.stdout.write(json.dumps(cards, indent=1) + "\n")
        return
    table = Table(box=None, header_style="bold")
    table.add_column("run")
    for name in ("error, %", "NLL", "ECE, %", "seconds"):
        table.add_column(name, justify="right")
    for card in cards:
        values = (100 * card["error"], card["nll"], 100 * card["ece"])
        table.add_row(
            Text(printable(card["name"])),
            *(f"{value:.{digits}f}" for value, digits in zip(values, (2, 4, 2), strict=True)),
            f"{card['seconds']:.0f}",
        )
    Output().print(table)


def _read_cards(recipes: list[TrainingRecipe], out: Path) -> list[dict[str, Any]]:
    from refocal_lab.train.run_folder import RunFolder

    return [RunFolder(out / recipe.name).read_card() for recipe in recipes]


def _discard_unless_resumed(recipes: list[TrainingRecipe], out: Path, options: Namespace) -> None:
    from refocal_lab.train.run_folder import RunFolder

    if not options.resume:
        for recipe in recipes:
            RunFolder(out / recipe.name).discard()


@contextmanager
def _report_epochs(
    out: Path, recipes: list[TrainingRecipe], *, visible: bool
) -> Iterator[Callable[[Trial, dict[str, Any]], None]]:
    """Show one bar per run on a terminal; otherwise write a line after each epoch."""
    from refocal.cli.progress import track

    if not visible:
        yield lambda _trial, _record: None
        return
    lock = threading.Lock()
    with track(transient=False) as progress:

        def report(trial: Trial, record: dict[str, Any]) -> None:
            name, epoch, epochs = trial.recipe.name, record["epoch"], trial.recipe.epochs
            with lock:  # each network has a thread of its own
                if progress.visible:
                    progress.count_task(name, epoch, epochs, _describe_epoch(record))
                else:
                    sys.stderr.write(f"{name}  {epoch}/{epochs}  {_describe_epoch(record)}\n")

        progress.write(f"{len(recipes)} runs in {out}")
        yield report


def _describe_epoch(record: dict[str, Any]) -> str:
    test = record["test"]
    return f"loss {record['loss']:.3f}  test error {100 * test['error']:.2f} %  ECE {100 * test['ece']:.2f} %"
