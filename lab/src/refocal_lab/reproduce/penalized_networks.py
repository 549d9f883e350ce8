"""Train perceptrons with a penalty on the trace of the Hessian, as in Section 4.3 of Kimura and Naganuma (2024)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from refocal import metrics

if TYPE_CHECKING:
    from torch import Tensor, nn

_BYTE = 255


@dataclass(frozen=True)
class PenaltyRecipe:
    """Recipe of the networks: two layers, ReLU, SGD with momentum 0.9, cross-entropy plus tau times the trace.

    Attributes:
        hidden: Number of hidden units.
        epochs: Number of passes over the training samples.
        batch: Number of samples per step.
        probes: Random vectors per group of 128 samples for the trace after training.
    """

    hidden: int
    epochs: int
    batch: int
    probes: int


class Samples(NamedTuple):
    """Standardized features (n, d) and labels (n,)."""

    features: Tensor
    labels: Tensor


class Parts(NamedTuple):
    """The samples to train on, to take the Hessian over, and to measure calibration on."""

    train: Samples
    val: Samples
    test: Samples
    classes: int


def load_parts(name: str, folder: Path | None, *, train: int, val: int) -> Parts:
    """Load the first samples of a published training part, then those after them, and the whole test part.

    Args:
        name: Name of a data set of `refocal_lab.train.data`.
        folder: Folder of its files.
        train: Number of training samples.
        val: Number of validation samples.
    """
    import torch

    from refocal_lab.train.data import load

    published = load(name, folder=folder)
    order = np.argsort(np.concatenate([published.train.indices, published.val.indices]))[: train + val]
    inputs, labels = (
        np.concatenate([getattr(published.train, key), getattr(published.val, key)])[order]
        for key in ("inputs", "labels")
    )
    scale = _BYTE if np.issubdtype(inputs.dtype, np.integer) else 1
    mean, spread = inputs[:train].mean() / scale, inputs[:train].std() / scale

    def standardize(pixels: np.ndarray, target: np.ndarray) -> Samples:
        return Samples((torch.tensor(pixels).flatten(1) / scale - mean) / spread, torch.tensor(target))

    test = published.test
    return Parts(
        standardize(inputs[:train], labels[:train]),
        standardize(inputs[train:], labels[train:]),
        standardize(np.asarray(test.inputs), test.labels),
        len(published.classes),
    )


def train_penalized(parts: Parts, recipe: PenaltyRecipe, *, tau: float, rate: float, seed: int) -> dict[str, Any]:
    """Train one network and measure it.

    Args:
        parts: The samples.
        recipe: The recipe.
        tau: Strength of the penalty; 0 for cross-entropy alone.
        rate: Learning rate.
        seed: Seed of weights, order and probes.

    Returns:
        A record with tau, rate, seed and whether training diverged. If it did not, also the test ECE (15 bins) and
        error, and the trace of the Hessian of cross-entropy over the validation samples with its standard error.
    """
    import torch
    from torch import nn

    from refocal.curvature import CurvatureRegularized

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        width = parts.train.features.shape[1]
        network = nn.Sequential(nn.Linear(width, recipe.hidden), nn.ReLU(), nn.Linear(recipe.hidden, parts.classes))
        criterion = CurvatureRegularized(nn.CrossEntropyLoss(), tau, seed=seed)
        optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9)
        order = torch.Generator().manual_seed(seed)
        for _ in range(recipe.epochs):
            for batch in torch.split(torch.randperm(len(parts.train.labels), generator=order), recipe.batch):
                optimizer.zero_grad()
                criterion(network(parts.train.features[batch]), parts.train.labels[batch]).backward()
                optimizer.step()
        diverged = not all(values.isfinite().all() for values in network.parameters())
        record = {"tau": tau, "rate": rate, "seed": seed, "diverged": diverged}
        return record if diverged else {**record, **_measure(network, parts, recipe.probes)}


def _measure(network: nn.Module, parts: Parts, probes: int) -> dict[str, float]:
    import torch
    from torch import nn

    from refocal.curvature import hessian_trace

    with torch.no_grad():
        probs = torch.softmax(network(parts.test.features).double(), dim=1).numpy()
    labels, loss = parts.test.labels.numpy(), nn.CrossEntropyLoss()
    trace = hessian_trace(network, loss, [(parts.val.features, parts.val.labels)], probes=probes)
    return {
        "ece": metrics.ece(probs, labels),
        "error": metrics.error(probs, labels),
        "trace": trace.value,
        "trace_error": trace.standard_error,
    }
