"""The measures after each epoch, one line of JSON per epoch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_softmax

from refocal import metrics
from refocal._documents import check_regular, parse_json, read_document
from refocal._files import name_if_full, write_text


def measure(logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Measure predictions: NLL, error and ECE, and three means over the correct and over the wrong samples.

    The three means are those of the NLL, the softmax entropy and the probability of the true class. They are None if
    there are no such samples.

    Args:
        logits: Logits (N, K).
        labels: Class indices (N,).

    Example:
        >>> measure(np.array([[2.0, 0.0], [1.0, 0.0]]), np.array([0, 1]))["error"]
        0.5

    Reference: Mukhoti et al. (2020), section 3 (Figures 1 and 3 plot these).
    """
    log_probs = log_softmax(logits.astype(np.float64), axis=1)
    probs = np.exp(log_probs)
    true = np.take_along_axis(log_probs, labels[:, None], axis=1)[:, 0]
    entropy = -np.sum(probs * log_probs, axis=1)
    correct = np.argmax(logits, axis=1) == labels
    return {
        "nll": float(-true.mean()),
        "error": float(1 - correct.mean()),
        "ece": float(metrics.ece(probs, labels)),
        "correct": _summarize(true, entropy, correct),
        "wrong": _summarize(true, entropy, ~correct),
    }


def _summarize(true: np.ndarray, entropy: np.ndarray, group: np.ndarray) -> dict[str, float] | None:
    if not group.any():
        return None
    values = {"nll": -true[group], "entropy": entropy[group], "true_probability": np.exp(true[group])}
    return {name: float(value.mean()) for name, value in values.items()}


class History:
    """The file `metrics.jsonl` of a run: one line per epoch."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def keep(self, epochs: int) -> None:
        """Drop the lines after this many epochs, even a damaged one that a kill left: the run continues from there."""
        lines = self._lines()
        if len(lines) < epochs:
            msg = (
                f"{self._path} has {len(lines)} epochs, the checkpoint beside it {epochs}: one of them is damaged, "
                "remove both to start again"
            )
            raise ValueError(msg)
        _parse(lines[:epochs], self._path)  # report damage now, not when all epochs are over
        if lines[epochs:]:
            write_text(self._path, "".join(lines[:epochs]), overwrite=True)

    def append(self, record: dict[str, Any]) -> None:
        """Add an epoch, with six digits. It is on the disk before the checkpoint that counts it."""
        if self._path.exists():
            check_regular(self._path)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(_round(record)) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            name_if_full(error, self._path)
            raise

    def find_best(self, measure: str) -> int:
        """The first epoch with the lowest value of a measure on the validation part."""
        epochs = self.read()
        return min(epochs, key=lambda epoch: epoch["val"][measure])["epoch"]

    def read(self) -> list[dict[str, Any]]:
        """Read the measures of all epochs."""
        return _parse(self._lines(), self._path)

    def _lines(self) -> list[str]:
        if not self._path.exists():
            return []
        return read_document(self._path).decode(errors="replace").splitlines(keepends=True)


def _parse(lines: list[str], path: Path) -> list[dict[str, Any]]:
    def refuse(reason: str) -> ValueError:
        return ValueError(f"{path} is damaged ({reason}): remove it and the checkpoint beside it to start again")

    epochs = [parse_json(line, refuse) for line in lines]
    for number, epoch in enumerate(epochs, start=1):
        val = epoch.get("val") if isinstance(epoch, dict) else None
        if not isinstance(val, dict) or not isinstance(val.get("error"), int | float) or epoch.get("epoch") != number:
            reason = f"line {number} does not hold the measures of epoch {number}"
            raise refuse(reason)
    return epochs


def _round(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _round(item) for name, item in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value
