"""Every measure of an entry, from its logits alone: as given, and after each way to calibrate them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

import numpy as np

from refocal import metrics, posterior_from_logits
from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.predictions import Predictions
from refocal.zoo.cards import Card, Entry, ZooError

METHODS = ("raw", "psi", "ts-nll", "ts-ece", "ts-fl", "ts-fl-psi", "fts")
Function = Callable[[np.ndarray, np.ndarray], float]
_FROM_LABELS: dict[str, Function] = {
    "error": metrics.error,
    "nll": metrics.nll,
    "ece_10": partial(metrics.ece, bins=10),
    "ece_15": partial(metrics.ece, bins=15),
    "adaptive_ece_10": partial(metrics.adaptive_ece, bins=10),
    "adaptive_ece_15": partial(metrics.adaptive_ece, bins=15),
}
MEASURES = (*_FROM_LABELS, "kl_human")
# what 002 has in its tables besides; NaN for the accuracy of no samples
FURTHER: dict[str, Function] = {
    "mce_15": partial(metrics.mce, bins=15),
    "confident_99": lambda probs, labels: metrics.confidence_share(probs, labels, threshold=0.99).share,
    "accuracy_99": lambda probs, labels: metrics.confidence_share(probs, labels, threshold=0.99).accuracy,
}
FUNCTIONS = {**_FROM_LABELS, **FURTHER}
_HUMAN_DATA = ("cifar10", "cifar10-s")
_FEWEST_FOR_PROCESSES = 8
_LEAST_AGREEMENT = 0.9  # of people with the labels; it is 0.99 in the publisher's order, 0.1 in another

Measures = dict[str, dict[str, float]]


_LAST_GAMMA = {"cross-entropy": 0.0, "fls-531": 1.0, "fls-532": 2.0}  # of a schedule, where training ended
_PROPER = ("brier", "mmce", "proper-focal")  # softmax is their posterior


def measure(entry: Entry, human: np.ndarray | None = None) -> Measures:
    """Measures of the test part, method by method; calibrators are fitted to the validation part.

    "raw" is softmax; "psi" the closed-form posterior of the loss, where there is one; "ts-nll" and "ts-ece" are
    temperature scaling by NLL and by ECE (15 bins, T from 0.1 to 10 as in 002); "ts-fl" and "ts-fl-psi" temperature
    scaling by the focal loss of the training, without and with its posterior map; "fts" is focal temperature scaling by
    NLL.

    Args:
        entry: Of a zoo.
        human: Label distributions of the CIFAR-10 test part; "kl_human" is the KL divergence from them.

    Returns:
        The value of each of `MEASURES` for each of `METHODS`, those left out that do not apply.

    Reference: 001, section 6.1; 002, section 6; 003, section 5.
    """
    val, (logits, labels) = read_parts(entry)
    seen = human if entry.card.data in _HUMAN_DATA else None
    if seen is not None and (seen.shape != logits.shape or np.mean(seen.argmax(axis=1) == labels) < _LEAST_AGREEMENT):
        msg = f"{entry.predictions}: the test part is not that of CIFAR-10 in its publisher's order"
        raise ZooError(msg)
    calibrated = _methods(entry.card, *val)
    return {method: _measures(predict(logits), labels, seen) for method, predict in calibrated}


class Part(NamedTuple):
    """Logits (n, K) and labels (n,) of a part of the data."""

    logits: np.ndarray
    labels: np.ndarray


def read_parts(entry: Entry) -> tuple[Part, Part]:
    """The validation and the test part of an entry, in double precision.

    Raises:
        ZooError: The file holds no logits, or no labels.
    """
    predictions = Predictions.read(entry.predictions)
    if predictions.kind != "logits" or predictions.labels is None:
        msg = f"{entry.predictions} must hold logits and labels"
        raise ZooError(msg)
    val, test = (predictions.select(split) for split in ("val", "test"))
    return _part(val), _part(test)


def _part(predictions: Predictions) -> Part:
    return Part(predictions.scores.astype(np.float64), np.asarray(predictions.labels))


def measure_all(found: Sequence[Entry], human: np.ndarray | None = None) -> Iterator[Measures]:
    """`measure` of each entry, in their order, in several processes where there are many."""
    one = partial(measure, human=human)
    workers = min(os.cpu_count() or 1, len(found) // (_FEWEST_FOR_PROCESSES // 2))
    if len(found) < _FEWEST_FOR_PROCESSES or workers < 2:
        yield from map(one, found)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, found, chunksize=max(1, len(found) // (4 * workers)))


Predict = Callable[[np.ndarray], np.ndarray]


def _methods(card: Card, logits: np.ndarray, labels: np.ndarray) -> Iterator[tuple[str, Predict]]:
    """Each method's name and map to probabilities, in the order of `METHODS`."""
    yield "raw", partial(posterior_from_logits, gamma=0.0)
    gamma = card.gamma if card.loss == "focal" else _LAST_GAMMA.get(card.loss)
    if gamma is not None or card.loss in _PROPER:
        yield "psi", partial(posterior_from_logits, gamma=gamma or 0.0, label_smoothing=card.label_smoothing)
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
