"""Train many small multilayer perceptrons at once, one per gamma and trial, with batched matrices."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Weights = list["Tensor"]


@dataclass(frozen=True)
class SmallNetworkRecipe:
    """Recipe of the networks: three layers, ReLU, AdamW with a cosine schedule down to 0.

    Attributes:
        hidden: Width of both hidden layers.
        epochs: Number of passes over the training data.
        batch: Number of samples per step.
        learning_rate: Initial learning rate.
        weight_decay: Decoupled weight decay of all weights.
    """

    hidden: int
    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float


class Samples(NamedTuple):
    """Features (trials, n, d) and labels (trials, n); each trial has its own samples."""

    features: np.ndarray
    labels: np.ndarray


class TrainedNetworks(NamedTuple):
    """Weights after the last epoch, and after the epoch with the lowest held-out loss of each network."""

    last: Weights
    best: Weights


def train(
    samples: Samples,
    held_out: Samples,
    *,
    classes: int,
    gammas: tuple[float, ...],
    recipe: SmallNetworkRecipe,
    seed: int,
) -> TrainedNetworks:
    """Train one network per gamma and trial, each with the focal loss of its gamma.

    The networks of a trial start from the same weights and see the same batches, so they differ only in gamma. The sum
    of all losses is minimized; its gradient with respect to the weights of one network is that of this network's loss.

    Args:
        samples: Training samples.
        held_out: Held-out samples, which choose the best epoch.
        classes: Number of classes.
        gammas: Focusing parameters; 0 for cross-entropy.
        recipe: Size and training of the networks.
        seed: Seed of weights and batches.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    x, y = _tensors(samples)
    x_held, y_held = _tensors(held_out)
    trials, count, inputs = x.shape
    weights = _draw_weights(trials, (inputs, recipe.hidden, recipe.hidden, classes), len(gammas), generator)
    optimizer = torch.optim.AdamW(weights, lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    batches = math.ceil(count / recipe.batch)
    steps = recipe.epochs * batches
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
    best = [weight.detach().clone() for weight in weights]
    least = torch.full((len(gammas), trials), math.inf)
    for _ in range(recipe.epochs):
        order = torch.rand((trials, count), generator=generator).argsort(dim=1)
        for chosen in order.chunk(batches, dim=1):
            rows = torch.arange(trials)[:, None]
            optimizer.zero_grad()
            _losses(weights, x[rows, chosen], y[rows, chosen], gammas).sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            held = _losses(weights, x_held, y_held, gammas)
            better = held < least
            least = torch.where(better, held, least)
            for kept, weight in zip(best, weights, strict=True):
                kept[better] = weight[better]
    return TrainedNetworks([weight.detach() for weight in weights], best)


def compute_logits(weights: Weights, features: np.ndarray) -> np.ndarray:
    """Compute logits (gammas, trials, n, classes) of features (trials, n, d), in double precision."""
    import torch

    with torch.no_grad():
        return _forward(weights, torch.as_tensor(features, dtype=torch.float32)).double().numpy()


def _tensors(samples: Samples) -> tuple[Tensor, Tensor]:
    import torch

    features = torch.as_tensor(samples.features, dtype=torch.float32)
    return features, torch.as_tensor(samples.labels, dtype=torch.int64)


def _draw_weights(trials: int, widths: tuple[int, ...], gammas: int, generator: object) -> Weights:
    """Draw uniform weights in ±1/sqrt(inputs), as in PyTorch's linear layers; the bias is the last row."""
    import torch

    weights = []
    for inputs, outputs in itertools.pairwise(widths):
        drawn = torch.rand((trials, inputs + 1, outputs), generator=generator)  # type: ignore[call-overload]
        scaled = (2 * drawn - 1) / math.sqrt(inputs)
        weights.append(scaled.expand(gammas, *scaled.shape).clone().requires_grad_())
    return weights


def _forward(weights: Weights, features: Tensor) -> Tensor:
    gammas, trials = weights[0].shape[:2]
    hidden = features.expand(gammas, *features.shape).flatten(0, 1)
    for index, weight in enumerate(weights):
        flat = weight.flatten(0, 1)
        hidden = flat[:, -1:].baddbmm(hidden.relu() if index else hidden, flat[:, :-1])
    return hidden.reshape(gammas, trials, *hidden.shape[1:])


def _losses(weights: Weights, features: Tensor, labels: Tensor, gammas: tuple[float, ...]) -> Tensor:
    """Mean loss (gammas, trials) of each network."""
    import torch

    from refocal.losses import focal_loss

    scores = _forward(weights, features)
    flat = labels.flatten()
    found = [focal_loss(score.flatten(0, 1), flat, gamma=gamma) for score, gamma in zip(scores, gammas, strict=True)]
    return torch.stack(found).reshape(len(gammas), *labels.shape).mean(dim=2)
