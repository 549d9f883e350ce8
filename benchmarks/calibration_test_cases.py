"""Predictions that are calibrated, and predictions that are wrong in a known way, for benchmarks of tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit, logit, softmax

SIZES = (500, 2_000, 10_000)

Predictions = Callable[[np.random.Generator, int], np.ndarray]  # logits (N, K), or P(y = 1) (N,)
Truth = Callable[[np.ndarray], np.ndarray]  # from probabilities as given to the true ones


@dataclass(frozen=True)
class Case:
    """Predictions, and the probabilities of their labels.

    Attributes:
        name: What is wrong, or "calibrated".
        predictions: Function that draws the predicted probabilities: (N, K), or (N,) for P(y = 1).
        truth: Function from predicted to true probabilities; None if they are calibrated.
        weighted: Whether samples have weights.
        sizes: Numbers of samples.
    """

    name: str
    predictions: Predictions
    truth: Truth | None = None
    weighted: bool = False
    sizes: tuple[int, ...] = SIZES

    def draw(self, rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Draw probabilities, labels and weights."""
        probs = self.predictions(rng, count)
        eta = probs if self.truth is None else self.truth(probs)
        weights = rng.lognormal(0.0, 1.0, count) if self.weighted else None
        if eta.ndim == 1:
            return probs, (rng.random(count) < eta).astype(np.int64), weights
        labels = (rng.random((count, 1)) > np.cumsum(eta, axis=1)).sum(axis=1)
        return probs, np.minimum(labels, eta.shape[1] - 1), weights


def gaussian(classes: int, spread: float = 2.0, *, prior: np.ndarray | float = 0.0) -> Predictions:
    """The softmax of Gaussian logits."""
    return lambda rng, n: softmax(spread * rng.standard_normal((n, classes)) + prior, axis=1)


def nearly_certain(rng: np.random.Generator, count: int) -> np.ndarray:
    """Ten classes, of which one has a lead of about 8 in log-odds: about 4 of 1,000 samples are errors."""
    logits = rng.standard_normal((count, 10))
    logits[np.arange(count), rng.integers(10, size=count)] += 10.0
    return softmax(logits, axis=1)


def binary(rng: np.random.Generator, count: int) -> np.ndarray:
    """P(y = 1) with log-odds of standard deviation 2."""
    return expit(2.0 * rng.standard_normal(count))


def real(path: Path) -> Predictions:
    """Rows of the logits of a network, at its best temperature (so that confidences are those of a good model)."""
    with np.load(path) as file:
        logits, labels = file["logits_test"].astype(np.float64), file["labels_test"]
    scales = np.linspace(0.2, 1.5, 66)
    losses = [
        np.mean(np.logaddexp.reduce(b * logits, axis=1) - b * logits[np.arange(len(labels)), labels]) for b in scales
    ]
    probs = softmax(scales[int(np.argmin(losses))] * logits, axis=1)
    return lambda rng, n: probs[rng.integers(len(probs), size=n)]


def tempered(factor: float) -> Truth:
    """The truth if the logits as given are the true ones times a factor."""

    def truth(probs: np.ndarray) -> np.ndarray:
        if probs.ndim == 1:
            return expit(logit(probs) / factor)
        return softmax(np.log(np.maximum(probs, 1e-300)) / factor, axis=1)

    return truth


def biased(size: float) -> Truth:
    """The first class is predicted too rarely, the second one too often."""

    def truth(probs: np.ndarray) -> np.ndarray:
        mass = probs * np.exp(np.where(np.arange(probs.shape[1]) == 0, size, 0.0))
        mass[:, 1] *= np.exp(-size)
        return mass / mass.sum(axis=1, keepdims=True)

    return truth


def noisy(share: float) -> Truth:
    """A share of the labels is replaced at random."""
    return lambda probs: (1 - share) * probs + share / probs.shape[1]


def with_accuracy(change: Callable[[np.ndarray], np.ndarray]) -> Truth:
    """The top label's probability is another function of its confidence; the others keep their proportions."""

    def truth(probs: np.ndarray) -> np.ndarray:
        if probs.ndim == 1:
            return np.clip(change(probs), 0.0, 1.0)
        top, each = probs.argmax(axis=1), np.arange(len(probs))
        confidence = probs[each, top]
        accuracy = np.clip(change(confidence), 0.0, 1.0)
        rest = np.maximum(1 - confidence, 1e-300)
        changed = probs * ((1 - accuracy) / rest)[:, None]
        changed[each, top] = accuracy
        return changed

    return truth


def alternating(size: float) -> Truth:
    """Confidences are too high and too low in turn, in intervals of length 0.08."""
    return with_accuracy(lambda c: c + size * np.sign(np.sin(40 * c)))


def by_class(probs: np.ndarray) -> np.ndarray:
    """Too sure where an even class is predicted, not sure enough where an odd one is."""
    even = probs.argmax(axis=1) % 2 == 0
    return np.where(even[:, None], tempered(1.15)(probs), tempered(0.87)(probs))


def bent(probs: np.ndarray) -> np.ndarray:
    """P(y = 1) is too close to 1/2, most of all near 0.2 and 0.8."""
    side = 2 * probs - 1
    return probs + 0.25 * probs * (1 - probs) * side * np.abs(side)


def list_cases(folder: Path | None) -> list[Case]:
    """All cases; those of real networks only if their logits are there."""
    ten = gaussian(10)
    ladder = np.linspace(0.0, -6.0, 10)
    small = SIZES[:2]
    cases = [
        Case("calibrated, P(y = 1)", binary),
        Case("calibrated, 2 classes", gaussian(2)),
        Case("calibrated, 10 classes", ten),
        Case("calibrated, 100 classes", gaussian(100, 3.0)),
        Case("calibrated, 1,000 classes", gaussian(1000, 4.0), sizes=small),
        Case("calibrated, nearly certain", nearly_certain),
        Case("calibrated, imbalanced", gaussian(10, prior=ladder)),
        Case("calibrated, weights", ten, weighted=True),
        Case("logits x 1.08, P(y = 1)", binary, tempered(1.08)),
        Case("logits x 1.08, 10 classes", ten, tempered(1.08)),
        Case("logits x 1.08, 100 classes", gaussian(100, 3.0), tempered(1.08)),
        Case("logits x 1.08, weights", ten, tempered(1.08), weighted=True),
        Case("logits x 0.93, P(y = 1)", binary, tempered(0.93)),
        Case("logits x 0.93, 10 classes", ten, tempered(0.93)),
        Case("two classes biased by 0.8, 10 classes", ten, biased(0.8)),
        Case("two classes biased by 0.3, 10 classes", ten, biased(0.3)),
        Case("two classes biased by 0.8, 100 classes", gaussian(100, 3.0), biased(0.8)),
        Case("two classes biased by 0.3, 100 classes", gaussian(100, 3.0), biased(0.3)),
        Case("two classes biased by 0.8, imbalanced", gaussian(10, prior=ladder), biased(0.8)),
        Case("2% label noise, 10 classes", gaussian(10, 4.0), noisy(0.02)),
        Case("2% label noise, nearly certain", nearly_certain, noisy(0.02)),
        Case("alternating by 0.05, P(y = 1)", binary, alternating(0.05)),
        Case("alternating by 0.05, 10 classes", gaussian(10, 3.0), alternating(0.05)),
        Case("0.05 too high above 0.97, P(y = 1)", binary, with_accuracy(lambda c: np.where(c > 0.97, c - 0.05, c))),
        Case(
            "0.02 too high above 0.97, 10 classes",
            gaussian(10, 4.0),
            with_accuracy(lambda c: np.where(c > 0.97, c - 0.02, c)),
        ),
        Case("temperature by predicted class, 10 classes", gaussian(10, 3.0), by_class),
        Case(
            "temperature by predicted class, P(y = 1) too low above 1/2",
            binary,
            lambda p: np.where(p > 0.5, expit(1.2 * logit(p)), p),
        ),
        Case("P(y = 1) too high: truth p^1.1", binary, lambda p: p**1.1),
        Case(
            "P(y = 1) bent: truth by an S-curve",
            binary,
            bent,
        ),
    ]
    if folder is not None:
        for name in ("netcal_wideresnet_16_4_c10", "pytorchcifar10_resnet18", "netcal_densenet_bc_100_c100"):
            predictions = real(folder / f"{name}.npz")
            cases += [
                Case(f"calibrated, {name}", predictions),
                Case(f"logits x 1.08, {name}", predictions, tempered(1.08)),
                Case(f"two classes biased by 0.8, {name}", predictions, biased(0.8)),
            ]
    return cases
