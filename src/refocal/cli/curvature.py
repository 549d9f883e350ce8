"""The command that measures the curvature of a trained network's loss."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refocal import _check
from refocal._files import write_text
from refocal.cli.output import show
from refocal.cli.train import _device

if TYPE_CHECKING:
    from torch import Tensor, nn

_SAMPLES = 1000


def curvature(options: Namespace) -> None:
    """Measure, note on the card, show."""
    try:
        from refocal.curvature import curvature_summary
        from refocal.train import runs
    except ImportError:
        msg = "curvature needs PyTorch and curvlinops: install refocal[curvature,train]"
        raise ImportError(msg) from None
    part = _check.one_of(options.part or "val", "--part", ("train", "val", "test"))
    loss_name = _check.one_of(options.loss or "trained", "--loss", ("trained", "cross-entropy"))
    samples = _check.count(_SAMPLES if options.samples is None else options.samples, "--samples")
    model, loss, data = load_run(
        Path(options.folder),
        part=part,
        loss=loss_name,
        samples=samples,
        folder=options.data_folder,
        device=options.device,
    )
    given = {"k": options.eigenvalues, "probes": options.probes, "matrix": options.matrix, "seed": options.seed}
    settings = {name: value for name, value in given.items() if value is not None}
    measured = curvature_summary(model, loss, [data], progress=not options.json, **settings)
    entry = {
        "part": part,
        "samples": len(data[1]),
        "loss": loss_name,
        "matrix": options.matrix or "hessian",
        **measured.as_dict(),
    }
    card = runs.read_card(options.folder)
    card["curvature"] = [*card.get("curvature", []), entry]
    write_text(Path(options.folder) / "card.json", json.dumps(card, indent=1) + "\n", overwrite=True)
    show(options, _table(entry), entry)


def load_run(
    run: Path, *, part: str, loss: str, samples: int, folder: str | None, device: str | None
) -> tuple[nn.Module, nn.Module, tuple[Tensor, Tensor]]:
    """The trained network of a run, its loss or cross-entropy, and the first samples of a part of its data."""
    import torch
    from torch import nn

    from refocal.losses import AdaFocal, Scheduled
    from refocal.train import data, runs
    from refocal.train.batches import normalised
    from refocal.train.objective import build_loss
    from refocal.train.recipe import recipe_from

    recipe = recipe_from(runs.read_card(run)["recipe"], where=f"the card of {run}")
    chosen = data.load(recipe.data, folder=folder, split_seed=recipe.split_seed)
    network, _ = runs.load_network(run, classes=len(chosen.classes), shape=chosen.shape)
    criterion = nn.CrossEntropyLoss() if loss == "cross-entropy" else build_loss(recipe)
    policy = getattr(criterion, "gamma", None)
    if isinstance(policy, AdaFocal):
        msg = f"{run} was trained with AdaFocal, whose last gammas a run does not keep: use --loss cross-entropy"
        raise ValueError(msg)
    if isinstance(policy, Scheduled):
        for _ in range(recipe.epochs):
            policy.step_epoch()
    place = _device(device, (0, 1))
    some = getattr(chosen, part)
    raw = torch.from_numpy(some.inputs[:samples]).to(place)
    mean, std = (torch.from_numpy(each).float().to(place) for each in (chosen.mean, chosen.std))
    inputs = normalised(raw, mean, 1 / std, torch.float32)
    return network.to(place), criterion, (inputs, torch.from_numpy(some.labels[:samples]).to(place))


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
    return Group(Text(f"{kind} of {of_loss}, {entry['samples']:,} samples of {entry['part']}"), shown)
