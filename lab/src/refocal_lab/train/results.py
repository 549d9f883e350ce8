"""What a finished training leaves in its folder: logits, weights and, last, the card."""

from __future__ import annotations

import platform
import shlex
from typing import Any

import numpy as np
import torch
from torch import Tensor

import refocal
from refocal_lab.train.data import DataSet
from refocal_lab.train.history import measure
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.run_folder import RunFolder, write_logits

_MEASURES = ("error", "nll", "ece")


def write_results(
    folder: RunFolder,
    recipe: TrainingRecipe,
    data: DataSet,
    *,
    logits: dict[str, np.ndarray],
    weights: dict[str, Tensor],
    parameters: int,
    epochs: list[dict[str, Any]],
    kept_epoch: int,
    device: torch.device,
    processes: int,
) -> None:
    """Write predictions, weights and the card of a finished training.

    Args:
        folder: Of the run.
        recipe: What was trained.
        data: The data set of the recipe.
        logits: Of the parts "val" and "test", (N, K) for all classes.
        weights: The trained network.
        parameters: Number of its parameters, without running statistics and other buffers.
        epochs: The measures after each epoch.
        kept_epoch: The epoch whose network is kept, counted from 1.
        device: Where it was trained.
        processes: How many shared the batches.
    """
    labels = {name: getattr(data, name).labels for name in logits}
    split = np.repeat(list(logits), [len(part) for part in logits.values()])
    if data.scored is not None:
        scored = np.array(data.scored)
        classes = scored[np.concatenate(list(labels.values()))]
        every = np.concatenate(list(logits.values()))
        write_logits(folder.all_class_logits, logits=every, labels=classes, split=split)
        logits = {name: part[:, scored] for name, part in logits.items()}
    write_logits(
        folder.logits,
        logits=np.concatenate(list(logits.values())),
        labels=np.concatenate(list(labels.values())),
        split=split,
    )
    folder.write_weights(weights)
    measures = {name: measure(logits[name].astype(np.float16), labels[name]) for name in logits}
    folder.write_card(
        {
            "name": recipe.name,
            "data": data.name,
            "source": data.source,
            "split": data.split,
            **({"word_vectors": data.word_vectors} if data.word_vectors else {}),
            "model": recipe.model,
            "parameters": parameters,
            "loss": recipe.loss,
            "gamma": recipe.gamma,
            "label_smoothing": recipe.label_smoothing,
            "seed": recipe.seed,
            "epochs": recipe.epochs,
            "kept_epoch": kept_epoch,
            **{name: measures["test"][name] for name in _MEASURES},
            **{f"val_{name}": measures["val"][name] for name in _MEASURES},
            "recipe": recipe.settings(),
            "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU",
            "versions": {
                "refocal": refocal.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            **({"processes": processes} if processes > 1 else {}),
            "command": write_command(recipe, processes=processes),
            "seconds": round(sum(epoch["seconds"] for epoch in epochs), 1),
        }
    )


def write_training_logits(folder: RunFolder, epoch: int, logits: np.ndarray, labels: np.ndarray) -> None:
    """Write the logits of the training part after an epoch, computed without augmentation."""
    split = np.repeat(["train"], len(labels))
    write_logits(folder.training_logits(epoch), logits=logits, labels=labels, split=split)


def write_command(recipe: TrainingRecipe, *, processes: int = 1) -> str:
    """The command that trains this network again: data, network, loss, and the settings that are not defaults.

    The number of processes belongs to it: batch norm, dropout and some losses see a process's share of the batch.

    Example:
        >>> write_command(TrainingRecipe(data="digits", model="mlp", epochs=5))
        'refocal-lab train --data digits --model mlp --loss cross-entropy --epochs 5 --seed 0'
    """
    defaults = TrainingRecipe(data=recipe.data, model=recipe.model, epochs=recipe.epochs).settings()
    alone = processes == 1
    words = ["refocal-lab"] if alone else ["torchrun", "--nproc-per-node", str(processes), "-m", "refocal_lab"]
    words.append("train")
    for name, value in recipe.settings().items():
        if name in ("data", "model", "loss", "epochs", "seed") or value != defaults[name]:
            flag = f"--{name.replace('_', '-')}"
            values = value if isinstance(value, list) else [value]
            words += [flag] if value is True else [flag, *map(_format_value, values)]
    return shlex.join(words)


def _format_value(value: Any) -> str:
    """A value as one types it, with all its digits."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
