"""Entries of a zoo with made-up logits."""

from __future__ import annotations

import gzip
import json

import numpy as np

from refocal import metrics, posterior_from_logits
from refocal.predictions import Predictions

CLASSES = 10


def logits_of(seed, count, scale=1.0):
    """Logits that favor the label, as float16, and labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    logits = 2 * rng.standard_normal((count, CLASSES))
    logits[np.arange(count), labels] += 6 * rng.random(count)
    return (scale * logits).astype(np.float16), labels


def add(folder, name, *, seed=0, val=300, test=400, scale=1.0, **changes):
    """Write an entry with a card that is true."""
    (val_logits, val_labels), (logits, labels) = logits_of(seed, val, scale), logits_of(seed + 1000, test, scale)
    split = np.repeat(["val", "test"], [val, test])
    folder.mkdir(exist_ok=True)
    np.savez_compressed(
        folder / f"{name}.npz",
        logits=np.concatenate([val_logits, logits]),
        labels=np.concatenate([val_labels, labels]),
        split=split,
    )
    card = {"schema": 1, "name": name, "data": "svhn", "split": "made up", "model": "resnet20", "parameters": 269_722}
    card |= {"loss": "cross-entropy", "gamma": None, "label_smoothing": 0.0, "seed": seed, "epochs": 50}
    for prefix, (scores, truth) in {"": (logits, labels), "val_": (val_logits, val_labels)}.items():
        probs = posterior_from_logits(scores.astype(np.float64), gamma=0)
        for measure in (metrics.error, metrics.nll, metrics.ece):
            card[prefix + measure.__name__] = measure(probs, truth)
    card |= {"hardware": "none", "versions": {}, "command": "refocal-lab train", "seconds": 1.5, **changes}
    (folder / f"{name}.json").write_text(json.dumps(card), encoding="utf-8")
    return card


def parts(folder, name):
    both = Predictions.read(folder / f"{name}.npz")
    for split in ("val", "test"):
        part = both.select(split)
        yield part.scores.astype(np.float64), part.labels


def add_history(folder, name, *, epochs=10, start=1.0):
    """Write what was measured after each epoch: every measure falls evenly from `start`.

    The learning rate drops after 40 % of the epochs.
    """
    lines = []
    for epoch in range(1, epochs + 1):
        value = start * (1 - epoch / (epochs + 1))
        group = {"nll": value, "entropy": 2 * value, "true_probability": 1 - value / 2}
        part = {"nll": value, "error": value / 3, "ece": value / 4, "correct": group, "wrong": group}
        rate = 0.1 if epoch <= 0.4 * epochs else 0.01
        measured = {"epoch": epoch, "learning_rate": rate, "train": part, "test": part, "head_norm": 5 + value}
        lines.append(json.dumps(measured))
    with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def write_zoo(folder, *, seeds=2, gammas=(0.0, 1.0, 2.0, 3.0), **changes):
    """ResNet-20 on CIFAR-10, trained with cross-entropy and focal loss."""
    for gamma in gammas:
        loss = {"loss": "focal", "gamma": gamma} if gamma else {}
        for seed in range(seeds):
            name = f"g{gamma:g}-s{seed}"
            add(folder, name, seed=seed, data="cifar10", scale=1 / (1 + gamma / 3), **loss, **changes)
            add_history(folder, name, start=2 / (1 + gamma))
    return folder
