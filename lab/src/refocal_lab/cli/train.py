"""The command that trains networks."""

from __future__ import annotations

import json
import sys
import threading
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from refocal import _check
from refocal.cli.output import terminal
from refocal.report.words import printable

if TYPE_CHECKING:
    from refocal_lab.train.recipe import TrainingRecipe
    from refocal_lab.train.trial import Trial

_MOST_TRIALS = 10_000
_SETTINGS = (
    *(
        "data",
        "model",
        "loss",
        "label_smoothing",
        "factor",
        "curvature_penalty",
        "epochs",
        "seed",
        "split_seed",
        "batch_size",
    ),
    *("learning_rate", "milestones", "momentum", "weight_decay", "augmentation", "sum_loss", "clip_norm"),
    *("optimizer", "keep", "word_vectors"),
)


def train(options: Namespace) -> None:
    """Train what the options and the file say, and list how it came out."""
    try:
        import torch
    except ImportError:
        msg = "training needs PyTorch: pip install 'refocal[train]'"
        raise ImportError(msg) from None
    from refocal_lab.train import loop
    from refocal_lab.train.data import load
    from refocal_lab.train.process import choose_device, join_processes
    from refocal_lab.train.run_folder import RunFolder

    recipes = _recipes(options)
    if options.engine == "ray":
        _train_on_cluster(recipes, options)
        return
    if options.address is not None:
        msg = "--address needs --engine ray"
        raise ValueError(msg)
    process = join_processes(options.device)
    device = choose_device(options.device, process)
    out = Path(options.out or "runs")
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
    with _bars(out, recipes, shown=process.leads) as report:
        loop.train(
            recipes,
            data,
            out,
            device=device,
            report=report,
            at_once=options.at_once if process.is_alone else 1,
            compiled=not options.no_compile,
            keep_logits=tuple(options.keep_logits or ()),
            process=process,
        )
    if not process.is_alone:
        torch.distributed.destroy_process_group()
    if process.leads:
        _show([RunFolder(out / recipe.name).read_card() for recipe in recipes], as_json=options.json)


def _train_on_cluster(recipes: list[TrainingRecipe], options: Namespace) -> None:
    from refocal_lab.train.on_ray import train as spread
    from refocal_lab.train.run_folder import RunFolder

    if options.device is not None or options.download:
        msg = "--device and --download are not for --engine ray: it takes the GPUs and the data that the cluster has"
        raise ValueError(msg)
    out = Path(options.out or "runs")
    _discard_unless_resumed(recipes, out, options)
    spread(
        recipes,
        out,
        address=options.address,
        at_once=options.at_once,
        data_folder=options.data_folder,
        compiled=not options.no_compile,
        keep_logits=tuple(options.keep_logits or ()),
        finished=lambda name: print(f"{name}  trained", file=sys.stderr),  # noqa: T201
    )
    _show([RunFolder(out / recipe.name).read_card() for recipe in recipes], as_json=options.json)


def _discard_unless_resumed(recipes: list[TrainingRecipe], out: Path, options: Namespace) -> None:
    from refocal_lab.train.run_folder import RunFolder

    if not options.resume:
        for recipe in recipes:
            RunFolder(out / recipe.name).discard()


def _recipes(options: Namespace) -> list[TrainingRecipe]:
    """One recipe for each run of the file, each gamma and each trial."""
    from dataclasses import replace

    from refocal_lab.train import data, models
    from refocal_lab.train.own_parts import check_name
    from refocal_lab.train.recipe import parse_recipe, read_settings

    settings = read_settings(options.recipe) if options.recipe else {}
    where = options.recipe or "the command line"
    variants = settings.pop("runs", [{}])
    if not (isinstance(variants, list) and variants and all(isinstance(variant, dict) for variant in variants)):
        msg = f"runs in {where} must be tables of settings, [[runs]]"
        raise TypeError(msg)
    given = {name: getattr(options, name) for name in _SETTINGS if getattr(options, name) is not None}
    gammas = [{"gamma": gamma} for gamma in options.gamma] if options.gamma else [{}]
    recipes = []
    for variant in variants:
        for gamma in gammas:
            merged = settings | variant | given | gamma
            in_file = merged.pop("trials", 1)
            trials = _check.count(in_file if options.trials is None else options.trials, "trials", most=_MOST_TRIALS)
            recipe = parse_recipe(merged, where=where)
            check_name(recipe.data, "data", data.names())
            check_name(recipe.model, "model", models.names())
            recipes += [replace(recipe, seed=recipe.seed + trial) for trial in range(trials)]
    names = [recipe.name for recipe in recipes]
    if len({(recipe.data, recipe.split_seed, recipe.word_vectors) for recipe in recipes}) > 1:
        msg = f"all runs of {where} must have the same data, split_seed and word_vectors"
        raise ValueError(msg)
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        msg = f"two runs of {where} would have the name {min(twice)}: train them into different folders"
        raise ValueError(msg)
    return recipes


@contextmanager
def _bars(
    out: Path, recipes: list[TrainingRecipe], *, shown: bool
) -> Iterator[Callable[[Trial, dict[str, Any]], None]]:
    """A bar for each run on a terminal; elsewhere a line after each epoch."""
    console = terminal()
    if not shown:
        yield lambda _trial, _record: None
        return
    if not console.is_terminal:
        lock = threading.Lock()

        def line(trial: Trial, record: dict[str, Any]) -> None:
            with lock:
                sys.stderr.write(f"{trial.recipe.name}  {record['epoch']}/{trial.recipe.epochs}  {_measures(record)}\n")

        yield line
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TextColumn("{task.fields[measures]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        tasks: dict[str, Any] = {}

        def move(trial: Trial, record: dict[str, Any]) -> None:
            name = trial.recipe.name
            if name not in tasks:
                tasks[name] = progress.add_task(name, total=trial.recipe.epochs, measures="")
            progress.update(tasks[name], completed=record["epoch"], measures=_measures(record))

        progress.console.print(f"{len(recipes)} runs in {out}", highlight=False, markup=False)
        yield move


def _measures(record: dict[str, Any]) -> str:
    test = record["test"]
    return f"loss {record['loss']:.3f}  test error {100 * test['error']:.2f} %  ECE {100 * test['ece']:.2f} %"


def _show(cards: list[dict[str, Any]], *, as_json: bool) -> None:
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
    Console().print(table)
