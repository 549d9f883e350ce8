"""The folder of a run. Every file in it is named, read and written here; nothing else touches `card.json`.

| file | content |
|---|---|
| `metrics.jsonl` | one line per epoch, see `refocal_lab.train.history` |
| `checkpoint.safetensors` | the state after the last epoch, to continue from |
| `best.safetensors` | the state after the best epoch so far, if the recipe keeps the best |
| `predictions.npz` | float16 logits of the validation and test parts, for `refocal.predictions` |
| `all-classes.npz` | the same logits for all classes, if samples have only some of them |
| `train-epoch-N.npz` | float16 logits of the training part after epoch N, if asked for |
| `weights.safetensors` | the trained network |
| `card.json` | the recipe, the data, the results and the versions; written last, so that it marks a finished run |
| `.lock` | empty; the command that trains holds a lock on it |
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from refocal._documents import check_regular, parse_json, read_document
from refocal._files import locked, remove_unfinished, replacing, write_text

SCHEMA = 1
_MANY_CLASSES = 100
_FAR_STEPS = ((4.0, 1 / 32), (8.0, 1 / 4))  # scores this far below the top are rounded to multiples of the second
# The entries of a card that commands read besides its recipe: their types, and the value that a missing one counts as.
_CARD: dict[str, tuple[Any, Any]] = {
    "name": (str, None),
    **dict.fromkeys(("error", "nll", "ece", "seconds"), (int | float, None)),
    "kept_epoch": (int, 1),
    "curvature": (list, []),
}


class RunFolder:
    """The files of one run, and the only reader and writer of its card.

    Files are written whole or not at all: a kill or a full disk leaves the previous version.

    Args:
        path: The folder. It need not exist yet.

    Example:
        >>> folder = RunFolder("runs/digits-mlp-focal-g3-s0")
        >>> folder.name, folder.is_finished
        ('digits-mlp-focal-g3-s0', False)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.card = self.path / "card.json"
        self.history = self.path / "metrics.jsonl"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.best = self.path / "best.safetensors"
        self.logits = self.path / "predictions.npz"
        self.all_class_logits = self.path / "all-classes.npz"
        self.weights = self.path / "weights.safetensors"

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.path.name

    @property
    def is_finished(self) -> bool:
        """Whether the run has reached its end."""
        return self.card.exists()

    def training_logits(self, epoch: int) -> Path:
        """The file for the logits of the training part after an epoch."""
        return self.path / f"train-epoch-{epoch}.npz"

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commands out of the folder until this block or the process ends.

        Half-written files that a killed command left are removed; otherwise they would fill the disk over time. On a
        system or file system without locks, no command is kept out.

        Raises:
            RuntimeError: Another command is training in the folder.
        """
        busy = f"another command is training in {self}: wait until it ends, or choose another folder"
        with locked(self.path / ".lock", busy) as alone:
            if alone:
                remove_unfinished(self.path)
            yield

    def discard(self) -> None:
        """Remove the run, so that it starts again from the beginning. Files that a run does not write stay."""
        if not self.path.is_dir():
            return
        files = (self.card, self.history, self.checkpoint, self.best, self.logits, self.all_class_logits, self.weights)
        with self.lock():
            for path in (*files, *self.path.glob("train-epoch-*.npz")):
                path.unlink(missing_ok=True)

    def read_card(self) -> dict[str, Any]:
        """The card of the finished run, with the entries that commands rely on checked.

        Raises:
            FileNotFoundError: The run is not finished.
            ValueError: The card is damaged or is not a card.
        """
        try:
            content = read_document(self.card)
        except FileNotFoundError:
            msg = f"{self} holds no finished run: it has no {self.card.name}"
            raise FileNotFoundError(msg) from None
        card = parse_json(content, lambda reason: ValueError(f"{self.card} is not JSON: {reason}"))
        if not isinstance(card, dict) or card.get("schema") != SCHEMA or not isinstance(card.get("recipe"), dict):
            msg = f"{self.card} must be a card of schema {SCHEMA}, with a recipe"
            raise ValueError(msg)
        for name, (kind, default) in _CARD.items():
            value = card.get(name, default)
            if not isinstance(value, kind) or isinstance(value, bool):
                msg = f"{self.card}: {name} must be of type {getattr(kind, '__name__', kind)}, got {value!r:.100}"
                raise ValueError(msg)
        if not all(isinstance(entry, dict) for entry in card.get("curvature", [])):
            msg = f"{self.card}: curvature must be a list of objects"
            raise ValueError(msg)
        return card

    def write_card(self, content: Mapping[str, Any]) -> None:
        """Write the card, which marks the run as finished."""
        write_text(self.card, json.dumps({"schema": SCHEMA, **content}, indent=1) + "\n", overwrite=True)

    def update_card(self, **entries: Any) -> None:
        """Add entries to the card, or replace those of the same name."""
        self.write_card({**self.read_card(), **entries})

    def write_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Write the trained network."""
        import safetensors.torch

        content = safetensors.torch.save({name: tensor.cpu().contiguous() for name, tensor in weights.items()})
        with replacing(self.weights, overwrite=True) as file:
            file.write(content)

    def read_weights(self) -> dict[str, Tensor]:
        """The weights of the trained network.

        Raises:
            ValueError: The file is damaged.
        """
        import safetensors.torch

        check_regular(self.weights)
        try:
            return safetensors.torch.load_file(self.weights)
        except safetensors.SafetensorError as error:
            msg = f"{self.weights} cannot be read: {error}"
            raise ValueError(msg) from error


def write_logits(path: Path, *, logits: np.ndarray, labels: np.ndarray, split: np.ndarray) -> None:
    """Write logits (N, K) in float16, labels (N,) and the part of each sample (N,), for `refocal.predictions`.

    With 100 classes or more, far scores are rounded further, which saves two fifths of the file.
    """
    if logits.shape[1] >= _MANY_CLASSES:
        logits = round_far_scores(logits)
    with replacing(path, overwrite=True) as file:
        np.savez_compressed(file, logits=logits.astype(np.float16), labels=labels, split=split)


def round_far_scores(logits: np.ndarray) -> np.ndarray:
    """Logits (N, K) whose scores are multiples of 1/32 if more than 4 below the top one, and of 1/4 if more than 8.

    Such classes have probabilities below 0.02 and 0.0004. A mean log loss over 10,000 samples changes by at most about
    0.0001.
    """
    exact = logits.astype(np.float64)
    below, rounded = exact.max(axis=1, keepdims=True) - exact, exact
    for far, step in _FAR_STEPS:
        rounded = np.where(below > far, np.round(exact / step) * step, rounded)
    return rounded
