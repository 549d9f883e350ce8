"""Measures of an entry, computed from its logits: uncalibrated, and after each calibration method."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refocal import metrics, posterior_from_logits
from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.predictions import Predictions
from refocal_lab.train.objective import SCHEDULED, gamma_at_epoch
from refocal_lab.zoo.cards import Card, Entry, ZooError

METHODS = ("raw", "psi", "ts-nll", "ts-ece", "ts-fl", "ts-fl-psi", "fts")
Function = Callable[..., float]  # takes probabilities and labels
_FROM_LABELS: dict[str, Function] = {
    "error": metrics.error,
    "nll": metrics.nll,
    "ece_10": partial(metrics.ece, bins=10),
    "ece_15": partial(metrics.ece, bins=15),
    "adaptive_ece_10": partial(metrics.adaptive_ece, bins=10),
    "adaptive_ece_15": partial(metrics.adaptive_ece, bins=15),
}
MEASURES = (*_FROM_LABELS, "kl_human")
# further measures in the tables of Mukhoti et al. (2020); the accuracy of no samples is NaN
FURTHER: dict[str, Function] = {
    "mce_15": partial(metrics.mce, bins=15),
    "classwise_ece_15": partial(metrics.classwise_ece, bins=15),
    "confident_99": lambda probs, labels: metrics.confidence_share(probs, labels, threshold=0.99).share,
    "accuracy_99": lambda probs, labels: metrics.confidence_share(probs, labels, threshold=0.99).accuracy,
}
FUNCTIONS = {**_FROM_LABELS, **FURTHER}
_HUMAN_DATA = ("cifar10", "cifar10-s")
_PROPER = ("brier", "mmce", "proper-focal")  # softmax is their posterior
_FEWEST_FOR_PROCESSES = 8
_LEAST_AGREEMENT = 0.9  # between people and labels; 0.99 in the published order, 0.1 in any other

Measures = dict[str, dict[str, float]]


def measure(entry: Entry, human: np.ndarray | None = None) -> Measures:
    """Measure the test part with each method; calibrators are fitted to the validation part.

    - "raw": softmax.
    - "psi": the closed-form posterior of the loss, if there is one.
    - "ts-nll", "ts-ece": temperature scaling by NLL, or by ECE (15 bins, T from 0.1 to 10).
    - "ts-fl", "ts-fl-psi": temperature scaling by the focal loss of the training, without and with its posterior map.
    - "fts": focal temperature scaling by NLL.

    Args:
        entry: An entry of a zoo.
        human: Label distributions of the CIFAR-10 test part; "kl_human" is the KL divergence from them.

    Returns:
        The value of each of `MEASURES` for each of `METHODS`; those that do not apply are left out.

    Reference: Charoenphakdee et al. (2021), Section 6.1; Mukhoti et al. (2020), Section 6; Komisarenko and Kull (2024),
    Section 5.
    """
    val, (logits, labels) = read_parts(entry)
    seen = human if entry.card.data in _HUMAN_DATA else None
    if seen is not None and (seen.shape != logits.shape or np.mean(seen.argmax(axis=1) == labels) < _LEAST_AGREEMENT):
        msg = f"{entry.predictions}: the test part must be that of CIFAR-10 in the published order"
        raise ZooError(msg)
    found = {method: predict(logits) for method, predict in fit_methods(entry.card, val)}
    if "psi" in found and entry.all_classes is not None:
        found = {method: probs for method, probs in found.items() if not method.startswith("ts-fl")}
        found["psi"] = scored_posterior(entry)
    return {method: _measures(probs, labels, seen) for method, probs in found.items()}


def scored_posterior(entry: Entry) -> np.ndarray:
    """Compute the posterior of the loss on the test part, conditional on the classes that occur (n, K).

    The map needs the logits of all classes that the loss saw; on a subset of them it would give another result.
    """
    _, test = read_all_classes(entry)
    card = entry.card
    probs = _undo_loss(card)(test.logits)
    some = np.asarray(probs)[:, scored_classes(test)]
    return np.asarray(some / some.sum(axis=1, keepdims=True))


def scored_classes(part: LogitPart) -> np.ndarray:
    """List the classes that occur among the samples."""
    return np.unique(part.labels)


class LogitPart(NamedTuple):
    """Logits (n, K) and labels (n,) of one part of the data."""

    logits: np.ndarray
    labels: np.ndarray


def read_parts(entry: Entry) -> tuple[LogitPart, LogitPart]:
    """Read the validation part and the test part of an entry, in double precision.

    Raises:
        ZooError: If the file has no logits or no labels, or has infinite logits.
    """
    return _read(entry.predictions)


def read_all_classes(entry: Entry) -> tuple[LogitPart, LogitPart]:
    """Read both parts with the logits of all classes of the network; labels are indices of these classes.

    Raises:
        ZooError: If the entry has no such file, or the file is invalid as in `read_parts`.
    """
    if entry.all_classes is None:
        msg = f"{entry.card.name} has no logits of all classes"
        raise ZooError(msg)
    return _read(entry.all_classes)


def _read(path: Path) -> tuple[LogitPart, LogitPart]:
    predictions = Predictions.read(path)
    if predictions.input != "logits" or predictions.labels is None:
        msg = f"{path} must contain logits and labels"
        raise ZooError(msg)
    if not np.isfinite(predictions.scores).all():
        msg = f"{path} must contain finite logits, got -inf: temperature scaling does not support masked classes"
        raise ZooError(msg)
    val, test = (predictions.select(split) for split in ("val", "test"))
    return _part(val), _part(test)


def _part(predictions: Predictions) -> LogitPart:
    return LogitPart(predictions.scores.astype(np.float64), np.asarray(predictions.labels))


def measure_all(found: Sequence[Entry], human: np.ndarray | None = None) -> Iterator[Measures]:
    """Measure each entry, in order; many entries are measured in several processes."""
    one = partial(measure, human=human)
    workers = min(os.cpu_count() or 1, len(found) // (_FEWEST_FOR_PROCESSES // 2))
    if len(found) < _FEWEST_FOR_PROCESSES or workers < 2:
        yield from map(one, found)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, found, chunksize=max(1, len(found) // (4 * workers)))


Predict = Callable[[np.ndarray], np.ndarray]


def posterior_gamma(card: Card) -> float | None:
    """The gamma of the posterior map of a focal loss; for a schedule, that of the kept epoch."""
    if card.loss in SCHEDULED:
        return gamma_at_epoch(card.loss, epochs=card.epochs, epoch=card.content.get("kept_epoch", card.epochs))
    return 0.0 if card.loss == "cross-entropy" else card.gamma if card.loss == "focal" else None


def _undo_loss(card: Card) -> Predict:
    """The posterior map of a loss with a closed form; label smoothing is undone exactly, as the formula says."""
    gamma = posterior_gamma(card) or 0.0
    return partial(posterior_from_logits, gamma=gamma, label_smoothing=card.label_smoothing, smoothing_edge="exact")


def fit_methods(card: Card, val: LogitPart) -> Iterator[tuple[str, Predict]]:
    """Fit each method to the validation part; yield its name and its map to probabilities."""
    logits, labels = val
    yield "raw", partial(posterior_from_logits, gamma=0.0)
    gamma = posterior_gamma(card)
    if gamma is not None or card.loss in _PROPER:
        yield "psi", _undo_loss(card)
    yield "ts-nll", TemperatureScaling().fit(logits, labels).predict_proba
    yield "ts-ece", TemperatureScaling(objective="ece").fit(logits, labels).predict_proba
    if gamma is not None:
        scaling = TemperatureScaling(objective="focal", gamma=gamma).fit(logits, labels)
        yield "ts-fl", scaling.predict_proba
        yield "ts-fl-psi", lambda z: posterior_from_logits(z / scaling.temperature_, gamma=gamma)
    yield "fts", FocalTemperatureScaling().fit(logits, labels).predict_proba


def _measures(probs: np.ndarray, labels: np.ndarray, human: np.ndarray | None) -> dict[str, float]:
    values = {name: function(probs, labels) for name, function in _FROM_LABELS.items()}
    if human is not None:
        values["kl_human"] = metrics.kl_to_posterior(probs, human)
    return values
