"""`refocal-lab curvature`: measure how curved the loss is at a trained network."""

from __future__ import annotations

import functools
import itertools
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refocal.cli.defaults import read_default
from refocal.cli.options import Commands, add_command, add_option
from refocal_lab.cli.options import add_data_folder, add_device

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import Tensor, nn

    from refocal_lab.train.data import DataSet

_SUMMARY = "refocal.curvature.summary:curvature_summary"
_PARTS = ("train", "val", "test")
_LOSSES = ("trained", "cross-entropy")
_EXAMPLES = """\
refocal-lab curvature --run runs/digits-mlp-focal-g3-s0
refocal-lab curvature --run runs/digits-mlp-focal-g3-s0 --loss cross-entropy --part train --eigenvalues 5
refocal-lab curvature --run runs/* --loss trained cross-entropy --probes 20"""


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "measure how curved the loss is at a trained network, and record it on the run's card"
    command = add_command(commands, "curvature", summary, _EXAMPLES, run)
    command.add_argument(
        "--run", dest="folder", metavar="FOLDER", nargs="+", required=True, help="finished runs of refocal-lab train"
    )
    command.add_argument("--part", default="val", help="train, val or test (default: %(default)s)")
    command.add_argument(
        "--samples", type=int, default=1000, help="use this many, the first ones (default: %(default)s)"
    )
    command.add_argument(
        "--loss",
        nargs="+",
        default=[_LOSSES[0]],
        help=f"{_LOSSES[0]} for the run's own loss (the default), {_LOSSES[1]} (ce for short), or both",
    )
    add_option(command, "--matrix", owner=_SUMMARY, help="hessian, or ggn for the Gauss-Newton matrix")
    add_option(
        command, "--eigenvalues", owner=_SUMMARY, parameter="k", type=int, metavar="K", help="number of eigenvalues"
    )
    add_option(command, "--probes", owner=_SUMMARY, type=int, help="random vectors for the trace, per 128 samples")
    add_option(command, "--seed", owner=_SUMMARY, type=int, help="seed of the random vectors")
    add_data_folder(command)
    add_device(command)


def run(options: Namespace) -> None:
    """Measure each run by each loss, record it on the card, and show it."""
    from rich.console import Group

    from refocal import _check
    from refocal.cli.output import show
    from refocal.curvature import curvature_summary
    from refocal_lab.train.recipe import expand_loss_name
    from refocal_lab.train.run_folder import RunFolder

    part = _check.one_of(options.part, "--part", _PARTS)
    asked = map(expand_loss_name, options.loss)
    losses = [_check.one_of(name, "--loss", _LOSSES) for name in asked]
    samples = _check.count(options.samples, "--samples")
    given = {"k": options.eigenvalues, "probes": options.probes, "matrix": options.matrix, "seed": options.seed}
    settings = {name: value for name, value in given.items() if value is not None}
    matrix = options.matrix or read_default(_SUMMARY, "matrix")
    load_data = functools.cache(functools.partial(_load_data, folder=options.data_folder))
    entries: list[dict[str, Any]] = []
    failures: list[ArithmeticError] = []
    for run, loss_name in itertools.product(map(Path, options.folder), losses):
        model, loss, data = load_run(
            run, part=part, loss=loss_name, samples=samples, load_data=load_data, device=options.device
        )
        try:
            measured = curvature_summary(model, loss, [data], progress=not options.json, **settings)
        except ArithmeticError as error:  # the other runs are measured first
            failures.append(type(error)(f"{run}, {loss_name}: {error}"))
            continue
        what = {"part": part, "samples": len(data[1]), "loss": loss_name, "matrix": matrix}
        folder = RunFolder(run)
        card = folder.read_card()
        others = [each for each in card.get("curvature", []) if {name: each.get(name) for name in what} != what]
        entry = {**what, **measured.as_dict()}
        folder.update_card(curvature=[*others, entry])
        entries.append({"run": card["name"], **entry})
    show(options, Group(*map(_build_table, entries)), entries)
    if failures:
        raise type(failures[0])("; ".join(map(str, failures)))


def load_run(
    run: Path,
    *,
    part: str,
    loss: str,
    samples: int,
    load_data: Callable[[str, int], DataSet],
    device: str | None,
) -> tuple[nn.Module, nn.Module, tuple[Tensor, Tensor]]:
    """Load the trained network of a run, a loss, and samples of its data.

    Args:
        run: Folder of a finished run.
        part: "train", "val" or "test".
        loss: "trained" or "cross-entropy".
        samples: How many, from the first on.
        load_data: Loads a data set, given its name and the seed of its split.
        device: Where to compute; None for a GPU if there is one.

    Returns:
        The network, the loss, and inputs with their labels.
    """
    import torch
    from torch import nn

    from refocal_lab.train.batches import normalize
    from refocal_lab.train.process import choose_device
    from refocal_lab.train.trained_network import load_loss, load_network, read_trained_recipe

    recipe = read_trained_recipe(run)
    chosen = load_data(recipe.data, recipe.split_seed)
    if chosen.kind != "arrays":
        msg = f"{run} was trained on {chosen.kind}: curvature is measured on images and vectors"
        raise ValueError(msg)
    network = load_network(run, classes=len(chosen.classes), shape=chosen.shape)
    criterion = nn.CrossEntropyLoss() if loss == "cross-entropy" else load_loss(run)
    place = choose_device(device)
    some = getattr(chosen, part)
    raw = torch.from_numpy(some.inputs[:samples]).to(place)
    mean, std = (torch.from_numpy(each).float().to(place) for each in (chosen.mean, chosen.std))
    inputs = normalize(raw, mean, 1 / std, torch.float32).contiguous()
    return network.to(place), criterion, (inputs, torch.from_numpy(some.labels[:samples]).to(place))


def _load_data(name: str, split_seed: int, *, folder: str | None) -> DataSet:
    from refocal_lab.train import data

    return data.load(name, folder=folder, split_seed=split_seed)


def _build_table(entry: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from refocal.report.words import printable

    kind = {"hessian": "Hessian", "ggn": "Gauss-Newton matrix"}[entry["matrix"]]
    of_loss = "the training loss" if entry["loss"] == "trained" else "cross-entropy"
    table = Table()
    table.add_column("measure")
    table.add_column("value", justify="right")
    tolerance = f"relative tolerance {entry['eigenvalue_tolerance']:g}"
    for label, name in (
        ("largest eigenvalues", "largest_eigenvalues"),
        ("largest in modulus", "largest_eigenvalues_in_modulus"),
    ):
        table.add_row(f"{label}, {tolerance}", "  ".join(f"{each:.6g}" for each in entry[name]))
    table.add_row("trace ± standard error", f"{entry['trace']:.5g} ± {entry['trace_standard_error']:.2g}")
    table.add_row("gradient norm", f"{entry['gradient_norm']:.5g}")
    title = f"{kind} of {of_loss}, {entry['samples']:,} samples of {entry['part']}"
    return Group(Text(printable(entry["run"]), style="bold"), Text(title), table)
