"""The folder of a run: its predictions, its card, its weights.

metrics.jsonl             one line an epoch
checkpoint.safetensors    to go on from
best.safetensors          the same after the best epoch so far, where that is what is kept
predictions.npz           float16 logits of the validation and test parts, as `refocal.predictions` reads them
all-classes.npz           the same for all classes, where samples have only some of them
card.json                 what was trained, how, and how it came out; written last, so that it says "finished"
weights.safetensors       the trained network
.lock                     empty; the command that trains holds a lock on it
"""

from __future__ import annotations

import contextlib
import json
import platform
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import refocal
from refocal._documents import check_regular, parse_json, read_document
from refocal._files import locked, remove_unfinished, replacing, write_text
from refocal.losses import find_policy
from refocal_lab.train import checkpoint
from refocal_lab.train.data import DataSet
from refocal_lab.train.history import measure
from refocal_lab.train.models import build
from refocal_lab.train.objective import SCHEDULED, build_loss, gamma_at_epoch
from refocal_lab.train.recipe import TrainingRecipe, parse_recipe

SCHEMA = 1
# what commands read of a card besides its recipe: the type, and what stands for a key that may be missing
_CARD: dict[str, tuple[Any, Any]] = {
    "name": (str, None),
    **dict.fromkeys(("error", "nll", "ece", "seconds"), (int | float, None)),
    "kept_epoch": (int, 1),
    "curvature": (list, []),
}
_FILES = (
    "card.json",
    "metrics.jsonl",
    "checkpoint.safetensors",
    "best.safetensors",
    "predictions.npz",
    "all-classes.npz",
    "weights.safetensors",
)


def is_finished(folder: Path) -> bool:
    """Whether a run has come to its end."""
    return (folder / "card.json").exists()


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other commands out of a run's folder, until this is left or the process ends, in whatever way.

    What a kill left half written is removed: after many, it would fill the disk. Where the operating system or the file
    system has no locks, none is kept out.
    """
    busy = f"another command is training in {folder}: let it end, or choose another folder"
    with locked(folder / ".lock", busy) as alone:
        if alone:
            remove_unfinished(folder)
        yield


def discard(folder: Path) -> None:
    """Remove the run in a folder, so that it begins anew; files of others stay."""
    if not folder.is_dir():
        return
    with held(folder):
        for path in (*(folder / name for name in _FILES), *folder.glob("train-epoch-*.npz")):
            path.unlink(missing_ok=True)


def epochs_done(folder: Path, recipe: TrainingRecipe, *, processes: int) -> int:
    """How far the run in a folder has come; other settings, or processes, than it was begun with are refused."""
    path = folder / "checkpoint.safetensors"
    if is_finished(folder):
        epochs, settings = recipe.epochs, read_card(folder)["recipe"]
    elif path.exists():
        about = checkpoint.read_info(path)
        epochs, settings = about.epochs, about.recipe(path)
        if about.processes != processes:
            msg = (
                f"{folder} holds a run of {about.processes} processes, this is one of {processes}: batch norm and some "
                "losses see a process's share of the batch; start as many, or choose another folder"
            )
            raise ValueError(msg)
    else:
        return 0
    check_same_settings(settings, recipe, folder)
    return epochs


def check_same_settings(settings: dict[str, Any], recipe: TrainingRecipe, folder: Path) -> None:
    """Refuse to go on with other settings than a run was begun with; those it does not name had their defaults."""
    begun = parse_recipe(settings, where=f"the run in {folder}").settings()
    for name, value in recipe.settings().items():
        if begun[name] != value:
            msg = (
                f"{folder} holds a run with {name} = {begun[name]!r}, asked was {value!r}: "
                "choose another folder, or remove this one"
            )
            raise ValueError(msg)


def read_card(folder: str | Path) -> dict[str, Any]:
    """The card of a finished run."""
    path = Path(folder) / "card.json"
    try:
        content = read_document(path)
    except FileNotFoundError:
        msg = f"{folder} holds no finished run: there is no card.json"
        raise FileNotFoundError(msg) from None
    card = parse_json(content, lambda reason: ValueError(f"{path} is not JSON: {reason}"))
    if not isinstance(card, dict) or card.get("schema") != SCHEMA or not isinstance(card.get("recipe"), dict):
        msg = f"{path} must be a card of schema {SCHEMA}, with a recipe"
        raise ValueError(msg)
    for name, (kind, default) in _CARD.items():
        value = card.get(name, default)
        if not isinstance(value, kind) or isinstance(value, bool):
            msg = f"{path}: {name} must be of type {getattr(kind, '__name__', kind)}, got {value!r:.100}"
            raise ValueError(msg)
    if not all(isinstance(entry, dict) for entry in card.get("curvature", [])):
        msg = f"{path}: curvature must be a list of objects"
        raise ValueError(msg)
    return card


def load_network(folder: str | Path, *, classes: int, shape: tuple[int, ...]) -> tuple[nn.Module, TrainingRecipe]:
    """The trained network of a finished run, in evaluation mode, and the recipe that it was trained by."""
    import safetensors.torch

    recipe = parse_recipe(read_card(folder)["recipe"], where=f"the card of {folder}")
    network = build(recipe.model, classes=classes, shape=shape)
    path = Path(folder) / "weights.safetensors"
    check_regular(path)
    try:
        network.load_state_dict(safetensors.torch.load_file(path))
    except (safetensors.SafetensorError, RuntimeError) as error:  # damaged, or of another network
        msg = f"{path} cannot be read: {error}"
        raise ValueError(msg) from error
    return network.eval(), recipe


def load_loss(folder: str | Path) -> nn.Module:
    """The loss that a finished run was trained with; of a schedule, that of the epoch whose network is kept."""
    card = read_card(folder)
    recipe = parse_recipe(card["recipe"], where=f"the card of {folder}")
    if recipe.loss in SCHEDULED:
        kept = card.get("kept_epoch", recipe.epochs)
        recipe = replace(recipe, loss="focal", gamma=gamma_at_epoch(recipe.loss, epochs=recipe.epochs, epoch=kept))
    loss = build_loss(recipe)
    policy = find_policy(loss)
    learned = {} if policy is None else policy.learned
    if learned:
        name = "best.safetensors" if recipe.keep == "best-validation" else "checkpoint.safetensors"
        if not (Path(folder) / name).exists():
            msg = f"{folder} has no {name}, which holds the gammas that AdaFocal learned: use cross-entropy instead"
            raise FileNotFoundError(msg)
        tensors, _, _ = checkpoint.load(Path(folder) / name)
        for key, buffer in learned.items():
            found = tensors.get(f"loss.gamma.{key}")
            if found is None or found.shape != buffer.shape:
                msg = f"the checkpoint {Path(folder) / name} has no gammas of AdaFocal: loss.gamma.{key} does not fit"
                raise checkpoint.CheckpointError(msg)
            buffer.copy_(found)
    return loss


def write_results(
    folder: Path,
    recipe: TrainingRecipe,
    data: DataSet,
    *,
    logits: dict[str, np.ndarray],
    weights: dict[str, Tensor],
    epochs: list[dict[str, Any]],
    kept_epoch: int,
    device: torch.device,
    processes: int,
) -> None:
    """Write predictions, from logits for all classes, weights and, last, the card."""
    import safetensors.torch

    labels = {name: getattr(data, name).labels for name in logits}
    split = np.repeat(list(logits), [len(part) for part in logits.values()])
    if data.scored is not None:
        scored = np.array(data.scored)
        classes = scored[np.concatenate(list(labels.values()))]
        every = np.concatenate(list(logits.values()))
        _write_logits(folder / "all-classes.npz", logits=every, labels=classes, split=split)
        logits = {name: part[:, scored] for name, part in logits.items()}
    _write_logits(
        folder / "predictions.npz",
        logits=np.concatenate(list(logits.values())),
        labels=np.concatenate(list(labels.values())),
        split=split,
    )
    with replacing(folder / "weights.safetensors", overwrite=True) as file:
        file.write(safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in weights.items()}))
    measures = {name: measure(logits[name].astype(np.float16), labels[name]) for name in logits}
    card = {
        "schema": SCHEMA,
        "name": recipe.name,
        "data": data.name,
        "source": data.source,
        "split": data.split,
        **({"word_vectors": data.word_vectors} if data.word_vectors else {}),
        "model": recipe.model,
        "parameters": sum(tensor.numel() for name, tensor in weights.items() if "running_" not in name),
        "loss": recipe.loss,
        "gamma": recipe.gamma,
        "label_smoothing": recipe.label_smoothing,
        "seed": recipe.seed,
        "epochs": recipe.epochs,
        "kept_epoch": kept_epoch,
        **{name: measures["test"][name] for name in ("error", "nll", "ece")},
        **{f"val_{name}": measures["val"][name] for name in ("error", "nll", "ece")},
        "recipe": recipe.settings(),
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU",
        "versions": {"refocal": refocal.__version__, "torch": torch.__version__, "python": platform.python_version()},
        **({"processes": processes} if processes > 1 else {}),
        "command": command(recipe, processes=processes),
        "seconds": round(sum(epoch["seconds"] for epoch in epochs), 1),
    }
    write_text(folder / "card.json", json.dumps(card, indent=1) + "\n", overwrite=True)


def write_training_logits(folder: Path, epoch: int, logits: np.ndarray, labels: np.ndarray) -> None:
    """Logits of the training part after an epoch, without augmentation."""
    split = np.repeat(["train"], len(labels))
    _write_logits(training_logits(folder, epoch), logits=logits, labels=labels, split=split)


def training_logits(folder: Path, epoch: int) -> Path:
    """Where the logits of the training part after an epoch are kept."""
    return folder / f"train-epoch-{epoch}.npz"


def command(recipe: TrainingRecipe, *, processes: int = 1) -> str:
    """The command that trains this network again: what differs from the defaults, and the data, network and loss.

    Several processes are part of it: batch norm, dropout and some losses see a process's share of the batch.
    """
    plain = TrainingRecipe(data=recipe.data, model=recipe.model, epochs=recipe.epochs).settings()
    alone = processes == 1
    words = ["refocal-lab"] if alone else ["torchrun", "--nproc-per-node", str(processes), "-m", "refocal_lab"]
    words.append("train")
    for name, value in recipe.settings().items():
        if name in ("data", "model", "loss", "epochs", "seed") or value != plain[name]:
            flag = f"--{name.replace('_', '-')}"
            values = value if isinstance(value, list) else [value]
            words += [flag] if value is True else [flag, *map(_written, values)]
    return shlex.join(words)


def _written(value: Any) -> str:
    """A value as one types it, with all its digits."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def _write_logits(path: Path, *, logits: np.ndarray, labels: np.ndarray, split: np.ndarray) -> None:
    with replacing(path, overwrite=True) as file:
        np.savez_compressed(file, logits=logits.astype(np.float16), labels=labels, split=split)
