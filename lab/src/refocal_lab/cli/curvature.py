"""The command that measures the curvature of a trained network's loss."""

from __future__ import annotations

import functools
import itertools
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refocal import _check
from refocal.cli.output import show
from refocal.report.words import printable

if TYPE_CHECKING:
    from torch import Tensor, nn

    from refocal_lab.train.data import DataSet

_SAMPLES = 1000


def curvature(options: Namespace) -> None:
    """Measure each run by each loss, note it on the card, show."""
    try:
        from refocal.curvature import curvature_summary
        from refocal_lab.train.recipe import expand_loss_name
        from refocal_lab.train.run_folder import RunFolder
    except ImportError:
        msg = "curvature needs PyTorch: pip install 'refocal[train]'"
        raise ImportError(msg) from None
    part = _check.one_of(options.part or "val", "--part", ("train", "val", "test"))
    asked = map(expand_loss_name, options.loss or ["trained"])
    losses = [_check.one_of(name, "--loss", ("trained", "cross-entropy")) for name in asked]
    samples = _check.count(_SAMPLES if options.samples is None else options.samples, "--samples")
    given = {"k": options.eigenvalues, "probes": options.probes, "matrix": options.matrix, "seed": options.seed}
    settings = {name: value for name, value in given.items() if value is not None}
    load_data = functools.cache(functools.partial(_data, folder=options.data_folder))
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
        what = {"part": part, "samples": len(data[1]), "loss": loss_name, "matrix": options.matrix or "hessian"}
        folder = RunFolder(run)
        card = folder.read_card()
        others = [each for each in card.get("curvature", []) if {name: each.get(name) for name in what} != what]
        entry = {**what, **measured.as_dict()}
        folder.update_card(curvature=[*others, entry])
        entries.append({"run": card["name"], **entry})
    show(options, Group(*map(_table, entries)), entries)
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
    """The trained network of a run, its loss or cross-entropy, and the first samples of a part of its data.

    Args:
        run: Folder of a finished run.
        part: "train", "val" or "test".
        loss: "trained" or "cross-entropy".
        samples: How many.
        load_data: Gives a data set by its name and the seed of its split.
        device: Where to compute.
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


def _data(name: str, split_seed: int, *, folder: str | None) -> DataSet:
    from refocal_lab.train import data

    return data.load(name, folder=folder, split_seed=split_seed)


def _table(entry: dict[str, Any]) -> RenderableType:
    kind = {"hessian": "Hessian", "ggn": "Gauss-Newton matrix"}[entry["matrix"]]
    of_loss = "the loss trained with" if entry["loss"] == "trained" else "cross-entropy"
    shown = Table()
    shown.add_column("measure")
    shown.add_column("value", justify="right")
    for label, name in (("largest", "largest_eigenvalues"), ("largest in modulus", "largest_eigenvalues_in_modulus")):
        shown.add_row(
            f"{label}, to {entry['eigenvalue_tolerance']:g}", "  ".join(f"{each:.6g}" for each in entry[name])
        )
    shown.add_row("trace ± standard error", f"{entry['trace']:.5g} ± {entry['trace_standard_error']:.2g}")
    shown.add_row("gradient norm", f"{entry['gradient_norm']:.5g}")
    title = f"{kind} of {of_loss}, {entry['samples']:,} samples of {entry['part']}"
    return Group(Text(printable(entry["run"]), style="bold"), Text(title), shown)
