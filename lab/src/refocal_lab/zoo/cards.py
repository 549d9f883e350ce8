"""Entries of a zoo.

An entry has these files:

- `NAME.json`: the card;
- `NAME.npz`: predictions for the splits val and test;
- `NAME.jsonl.gz`: the measures after each epoch of training;
- `all-classes/NAME.npz`: the logits of all classes, if the network knows more classes than occur among its samples.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refocal._documents import SkippedWarning, check_regular, parse_json, read_document, unpack
from refocal._files import replacing
from refocal_lab.train.recipe import parse_recipe
from refocal_lab.train.run_folder import RunFolder

SCHEMA = 1
_SUFFIXES = (".json", ".npz", ".jsonl.gz")
_ALL_CLASSES = "all-classes"
_MOST_HISTORY = 1 << 28  # bytes
_NUMBER = (int, float)
_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "data": (str,),
    "split": (str,),
    "model": (str,),
    "parameters": (int,),
    "loss": (str,),
    "gamma": (*_NUMBER, type(None)),
    "label_smoothing": _NUMBER,
    "seed": (int,),
    "epochs": (int,),
    "error": _NUMBER,
    "nll": _NUMBER,
    "ece": _NUMBER,
    "val_error": _NUMBER,
    "val_nll": _NUMBER,
    "val_ece": _NUMBER,
    "hardware": (str,),
    "versions": (dict,),
    "command": (str,),
    "seconds": _NUMBER,
}


class ZooError(ValueError):
    """An entry is invalid; the message names its file and key."""


@dataclass(frozen=True)
class Card:
    """How a network was trained, and its test measures.

    Attributes:
        name: Name of the entry.
        data: Name of the data set.
        model: Name of the network.
        loss: Name of the loss.
        gamma: Focusing parameter; None if the loss has none.
        label_smoothing: Label smoothing.
        seed: Seed of the training.
        epochs: Number of epochs.
        error: Test error after training.
        nll: Test NLL after training.
        ece: Test ECE after training.
        content: All keys of the card.
    """

    name: str
    data: str
    model: str
    loss: str
    gamma: float | None
    label_smoothing: float
    seed: int
    epochs: int
    error: float
    nll: float
    ece: float
    content: dict[str, Any]

    @property
    def settings(self) -> str:
        """All settings except the seed, shared by the entries of a group. Missing settings get defaults."""
        named = {"data": self.data, "model": self.model, "loss": self.loss, "gamma": self.gamma, "seed": 0}
        given = named | self.content.get("recipe", {})
        recipe = parse_recipe(given, where=f"the card {self.name}").settings() if "recipe" in self.content else {}
        recipe.pop("seed", None)
        return json.dumps([self.data, self.model, *self.variant, self.epochs, recipe], sort_keys=True)

    @property
    def curvature_penalty(self) -> float | None:
        """Factor of the trace penalty that was added to the loss; None if there was no penalty."""
        return self._setting("curvature_penalty")

    @property
    def factor(self) -> float | None:
        """Factor of MMCE that was added to cross-entropy; None for other losses."""
        return self._setting("factor")

    def _setting(self, name: str) -> float | None:
        value: float | None = self.content.get("recipe", {}).get(name)
        return value

    @property
    def variant(self) -> tuple[str, float | None, float]:
        """Loss, gamma and label smoothing; focal loss with gamma 0 is cross-entropy."""
        if self.loss == "focal" and self.gamma == 0:
            return "cross-entropy", None, self.label_smoothing
        return self.loss, self.gamma, self.label_smoothing


@dataclass(frozen=True)
class Entry:
    """An entry: a card and its file of predictions."""

    card: Card
    predictions: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """The card, the predictions, the history, and the logits of all classes if there are any."""
        files = (self.predictions.with_name(f"{self.card.name}{suffix}") for suffix in _SUFFIXES)
        return (*files, *filter(None, [self.all_classes]))

    @property
    def all_classes(self) -> Path | None:
        """The file with the logits of all classes; None if there is none."""
        path = self.predictions.parent / _ALL_CLASSES / self.predictions.name
        return path if path.exists() else None

    def history(self) -> list[dict[str, Any]]:
        """Read the measures after each epoch."""
        path = self.files[2]

        def refuse(reason: str) -> ZooError:
            return ZooError(f"{path} is damaged: {reason}")

        check_regular(path)
        try:
            with gzip.open(path, "rb") as stream:
                return [parse_json(line, refuse) for line in unpack(stream, _MOST_HISTORY, refuse).splitlines()]
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise refuse(str(error)) from error

    def digest(self) -> str:
        """The first 16 digits of the SHA-256 of all files."""
        return hashlib.sha256(b"".join(map(read_document, self.files))).hexdigest()[:16]


def entries(folder: str | os.PathLike[str]) -> list[Entry]:
    """Read all entries of a folder, ordered by data set, network, loss, smoothing, gamma, epochs and seed.

    Raises:
        FileNotFoundError: If the folder does not exist.

    Warns:
        SkippedWarning: If an entry is skipped because its card is invalid or a file is missing.
    """
    root = Path(folder)
    if not root.is_dir():
        msg = f"the zoo must be a folder, got {root}: give the folder lab/zoo of a clone with --zoo"
        raise FileNotFoundError(msg)
    cards, files = ({path.stem: path for path in root.glob(f"*.{suffix}")} for suffix in ("json", "npz"))
    found = []
    for name in sorted(cards.keys() | files.keys()):
        try:
            found.append(_entry(root / name, cards.get(name), files.get(name)))
        except (ZooError, OSError) as error:
            warnings.warn(f"skipped: {error}", SkippedWarning, stacklevel=2)
    return sorted(found, key=lambda entry: _order(entry.card))


def _entry(place: Path, card: Path | None, predictions: Path | None) -> Entry:
    if card is None or predictions is None:
        msg = f"{place} needs both .json and .npz, {'.json' if card is None else '.npz'} is missing"
        raise ZooError(msg)
    return Entry(_read(card), predictions)


def add(run: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Card:
    """Copy a finished run from the folder that training wrote into a zoo; the weights are not copied.

    Raises:
        FileNotFoundError: If the run is not finished.
        ZooError: If the card is invalid, or the zoo has a run of the same name with other settings.
    """
    source, root = RunFolder(run), Path(folder)
    try:
        card, predictions, history = map(read_document, (source.card, source.logits, source.history))
    except FileNotFoundError as error:
        msg = f"{source} is not a finished run: {Path(error.filename).name} is missing"
        raise FileNotFoundError(msg) from None
    added = _card(card, source.card)
    if added.name != Path(added.name).name or not added.name.strip("."):
        msg = f"{source.card}: name must be a file name, got {added.name!r}"
        raise ZooError(msg)
    target = root / f"{added.name}.json"
    if target.exists() and _read(target).settings != added.settings:
        msg = f"{root} has {added.name} with other settings than {source}: remove it or choose another zoo"
        raise ZooError(msg)
    root.mkdir(parents=True, exist_ok=True)
    contents = {".npz": predictions, ".jsonl.gz": gzip.compress(history, mtime=0), ".json": card}
    files = {root / f"{added.name}{suffix}": content for suffix, content in contents.items()}
    every = source.all_class_logits
    if every.exists():
        (root / _ALL_CLASSES).mkdir(exist_ok=True)
        files = {root / _ALL_CLASSES / f"{added.name}.npz": read_document(every)} | files
    for path, content in files.items():
        with replacing(path, overwrite=True) as file:
            file.write(content)
    return added


def _order(card: Card) -> tuple[str, int, str, str, float, float, int, int]:
    gamma = -1.0 if card.gamma is None else card.gamma
    size = card.content["parameters"]
    return card.data, size, card.model, card.loss, card.label_smoothing, gamma, card.epochs, card.seed


def _read(path: Path) -> Card:
    try:
        content = read_document(path)
    except ValueError as error:
        raise ZooError(str(error)) from error
    card = _card(content, path)
    if card.name != path.stem:
        msg = f"{path}: name must be the file name {path.stem!r}, got {card.name!r}"
        raise ZooError(msg)
    return card


def _card(text: bytes, path: Path) -> Card:
    content = parse_json(text, lambda reason: ZooError(f"{path} is not JSON: {reason}"))
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        msg = f"{path} must be a card of schema {SCHEMA}"
        raise ZooError(msg)
    for key, kinds in _KEYS.items():
        value = content.get(key)
        if key not in content or isinstance(value, bool) or not isinstance(value, kinds) or not _is_usable(value):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            msg = f"{path}: {key} must be of type {wanted}, got {value!r:.100}"
            raise ZooError(msg)
    for key, allowed, good in (
        ("gamma", "at least 0", content["gamma"] is None or content["gamma"] >= 0),
        ("label_smoothing", "in [0, 1)", 0 <= content["label_smoothing"] < 1),
        ("epochs", "at least 1", content["epochs"] >= 1),
    ):
        if not good:
            msg = f"{path}: {key} must be {allowed}, got {content[key]!r:.100}"
            raise ZooError(msg)
    if not isinstance(content.get("recipe", {}), dict):
        msg = f"{path}: recipe must be of type dict, got {content['recipe']!r:.100}"
        raise ZooError(msg)
    kept = content.get("kept_epoch", 1)
    if not isinstance(kept, int) or isinstance(kept, bool):
        msg = f"{path}: kept_epoch must be of type int, got {kept!r:.100}"
        raise ZooError(msg)
    card = Card(**{key: content[key] for key in Card.__dataclass_fields__ if key != "content"}, content=content)
    try:
        _ = card.settings
    except (ValueError, TypeError, ArithmeticError) as error:
        msg = f"{path}: recipe is invalid: {error}"
        raise ZooError(msg) from error
    return card


def _is_usable(value: Any) -> bool:
    """Tell whether a number is finite in float64."""
    try:
        return not isinstance(value, int | float) or math.isfinite(value)
    except OverflowError:  # an integer beyond the range of float64
        return False
