"""Networks of the zoo for figures and tables: select entries, label them, fit temperatures, write rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np

from refocal import posterior_from_logits
from refocal.calibrators import TemperatureScaling
from refocal.calibrators.temperature import Objective, minimize_error
from refocal_lab import zoo
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Kind
from refocal_lab.zoo.measures import LogitPart
from refocal_lab.zoo.published import lookup, parse_variant
from refocal_lab.zoo.scoring import Scoring

Variant = tuple[str, float | None, float]
Predict = Callable[[np.ndarray], np.ndarray]
Rows = list[tuple[str, ...]]  # rows of a table, the header first

_DATA = {
    "cifar10": "CIFAR-10",
    "cifar10-s": "CIFAR-10-s",
    "cifar100": "CIFAR-100",
    "svhn": "SVHN",
    "tiny-imagenet": "Tiny ImageNet",
    "newsgroups20": "20 Newsgroups",
    "newsgroups20-headerless": "20 Newsgroups without headers",
    "newsgroups20-stripped": "20 Newsgroups without headers and quotes",
    "newsgroups20-bydate": "20 Newsgroups by date",
    "newsgroups20-bydate-stripped": "20 Newsgroups by date without headers",
    "sst": "SST Binary",
}
_MODELS = {
    "densenet121": "DenseNet-121",
    "resnet18-wide2": "ResNet-18 (2× wide)",
    "resnet110-bottleneck": "ResNet-110 (bottleneck)",
    "gp-cnn": "Global Pooling CNN",
    "mobilenet-v2": "MobileNet-v2",
    "tree-lstm": "Tree LSTM",
    "vgg19": "VGG-19",
}


class ZooParameters(Protocol):
    """Parameters of a kind that reads the zoo."""

    def wants(self, card: zoo.Card) -> bool:
        """Tell whether the computation uses an entry."""


class Network(NamedTuple):
    """A data set and a network, written "cifar10 resnet20" in a spec."""

    data: str
    model: str

    @classmethod
    def parse(cls, text: str) -> Network:
        """Parse the form used in specs."""
        data, _, model = text.partition(" ")
        return cls(data, model)

    def __str__(self) -> str:
        return f"{self.data} {self.model}"

    @property
    def label(self) -> str:
        """The usual spelling.

        Example:
            >>> Network("cifar10", "resnet20").label, Network("svhn", "wide-resnet26-10").label
            ('CIFAR-10, ResNet-20', 'SVHN, Wide-ResNet-26-10')
        """
        return f"{self.data_label}, {self.model_label}"

    @property
    def data_label(self) -> str:
        """The usual spelling of the data set."""
        return _DATA.get(self.data, self.data)

    @property
    def model_label(self) -> str:
        """The usual spelling of the network."""
        return _MODELS.get(self.model) or self.model.replace("resnet", "ResNet-").replace("wide", "Wide")

    @property
    def sort_key(self) -> list[str]:
        """Sort key that puts ResNet-20 before ResNet-110."""
        return [part.zfill(4) if part.isdigit() else part for part in re.split(r"(\d+)", str(self))]


class Entries:
    """Selected entries of the zoo, by network and variant."""

    def __init__(self, found: Iterable[zoo.Entry]) -> None:
        self._groups: dict[tuple[Network, Variant], list[zoo.Entry]] = {}
        for entry in found:
            key = Network(entry.card.data, entry.card.model), entry.card.variant
            self._groups.setdefault(key, []).append(entry)

    @property
    def networks(self) -> list[Network]:
        """The networks that have entries, in the order of the zoo."""
        return list(dict.fromkeys(network for network, _ in self._groups))

    def trials(self, network: Network, variant: Variant) -> list[zoo.Entry]:
        """Entries that differ only in their seeds; of several recipes, the one with the most seeds."""
        recipes: dict[str, list[zoo.Entry]] = {}
        for entry in self._groups.get((network, variant), []):
            recipes.setdefault(entry.card.settings, []).append(entry)
        return max(recipes.values(), key=len, default=[])


def select_entries(given: ZooParameters, context: Context) -> Entries:
    """Select the entries that a computation uses.

    Raises:
        FileNotFoundError: If no zoo was given, or it is not a folder.
    """
    return Entries(_select(given, context))


def choose_networks(networks: Sequence[str], losses: Sequence[str], found: Entries) -> list[Network]:
    """Choose the networks of a figure: those in the zoo, up to the first that was trained with every loss.

    Args:
        networks: The paper's network, then others, as in a spec.
        losses: For example "focal 3".
        found: The entries.
    """
    chosen = []
    for network in map(Network.parse, networks):
        held = [bool(found.trials(network, parse_variant(loss))) for loss in losses]
        if any(held):
            chosen.append(network)
        if all(held):
            break
    return chosen


def zoo_kind(parameters: type, compute: Callable[..., Any], draw: Callable[..., Any]) -> Kind:
    """Make a kind whose results are outdated when the entries it uses change."""
    return Kind(parameters, compute, draw, made_from=_made_from)


def _made_from(given: ZooParameters, context: Context) -> dict[str, str]:
    return {entry.card.name: entry.digest() for entry in _select(given, context)}


def _select(given: ZooParameters, context: Context) -> list[zoo.Entry]:
    if context.zoo is None:
        msg = "this figure needs the logits of trained networks: give their folder with --zoo"
        raise FileNotFoundError(msg)
    return [entry for entry in zoo.entries(context.zoo) if given.wants(entry.card)]


def was_trained_with(card: zoo.Card, losses: Sequence[str], label_smoothing: float = 0.0) -> bool:
    """Tell whether a network was trained with one of these losses, such as "focal 3", and without a penalty."""
    return not card.curvature_penalty and card.variant in {parse_variant(loss, label_smoothing) for loss in losses}


def is_focal_network(card: zoo.Card, networks: Sequence[str], gammas: Sequence[float]) -> bool:
    """Tell whether an entry is one of these networks, trained with focal loss and one of these gammas."""
    losses = [f"focal {gamma:g}" for gamma in gammas]
    return f"{card.data} {card.model}" in networks and was_trained_with(card, losses)


def published_values(paper: str, network: Network, loss: str, method: str, measure: str) -> list[float]:
    """Look up the numbers that a paper prints for a network, loss, method and measure."""
    numbers = lookup(*network, parse_variant(loss), method, measure)
    return [number.value for number in numbers if number.paper == paper]


def loss_label(loss: str) -> str:
    """Give the usual name of a loss of a spec.

    Example:
        >>> loss_label("focal 3"), loss_label("fla-53"), loss_label("brier")
        ('γ = 3', 'FLA-53', 'Brier score')
    """
    name, _, gamma = loss.partition(" ")
    if name == "focal":
        return f"γ = {gamma}"
    if gamma.startswith("ls"):
        return f"{name}, smoothing {gamma.removeprefix('ls')}"
    known = {"brier": "Brier score", "adafocal": "AdaFocal", "cross-entropy": "cross-entropy"}
    return known.get(loss, loss.upper())


def softmax(logits: np.ndarray) -> np.ndarray:
    """Uncalibrated probabilities."""
    return np.asarray(posterior_from_logits(logits, gamma=0.0))


class FittedMap(NamedTuple):
    """A map from logits to probabilities, and its temperature."""

    temperature: float
    predict: Predict


_OBJECTIVES: dict[str, Objective] = {"ts-nll": "nll", "ts-ece": "ece", "ts-adaptive-ece": "adaptive_ece"}
_BY_ALL_CLASSES = Scoring()


def fit_temperature(method: str, val: LogitPart, *, grid: Any = None, scoring: Scoring = _BY_ALL_CLASSES) -> FittedMap:
    """Fit temperature scaling to a validation part.

    Args:
        method: "raw" for no scaling; "ts-nll", "ts-ece" or "ts-adaptive-ece" to minimize NLL, ECE or adaptive ECE.
        val: The validation part.
        grid: Temperatures to try for the calibration errors; None for the grid of Mukhoti et al. (2020).
        scoring: How the calibration errors are measured.
    """
    if method == "raw":
        return FittedMap(1.0, softmax)
    objective = _OBJECTIVES[method]
    if scoring.scored is not None and objective != "nll":
        temperature = minimize_error(
            lambda T: scoring.value(f"{objective}_15", softmax(val.logits / T), val.labels), grid, start=1.0
        )
        return FittedMap(temperature, make_focal_map(0.0, temperature))
    grid = None if objective == "nll" else grid
    fitted = TemperatureScaling(objective=objective, temperature_grid=grid).fit(val.logits, val.labels)
    return FittedMap(fitted.temperature_, fitted.predict_proba)


def make_focal_map(gamma: float, temperature: float = 1.0) -> Predict:
    """Make the map from logits to Psi^gamma(softmax(logits / T))."""
    return partial(_focal_map, gamma=gamma, temperature=temperature)


def _focal_map(logits: np.ndarray, *, gamma: float, temperature: float) -> np.ndarray:
    return np.asarray(posterior_from_logits(logits / temperature, gamma=gamma))


def collapse_rows(rows: Sequence[tuple[str, ...]], *, labels: int) -> tuple[tuple[str, ...], ...]:
    """Replace the rows of a network without numbers by a single row.

    Args:
        rows: The header, then rows that begin with a network.
        labels: Number of columns that label a row.

    Example:
        >>> collapse_rows([("network", "γ", "T"), ("a", "1", "no entry"), ("a", "2", "no entry")], labels=2)
        (('network', 'γ', 'T'), ('a', 'no entry', ''))
    """
    head, *body = rows
    kept = [head]
    for network, group in groupby(body, key=lambda row: row[0]):
        several = list(group)
        empty = all(cell in (NO_ENTRY, "–", "") for row in several for cell in row[labels:])
        kept += [(network, NO_ENTRY, *[""] * (len(head) - 2))] if empty else several
    return tuple(kept)


def format_spread(values: Sequence[float], *, factor: float = 100.0, digits: int = 2) -> str:
    """Write mean ± standard deviation over trials in percent; one trial has no deviation, none gives "no entry".

    Example:
        >>> format_spread([0.01, 0.03]), format_spread([0.01]), format_spread([])
        ('2.00 ± 1.41', '1.00', 'no entry')
    """
    if not values:
        return NO_ENTRY
    scaled = factor * np.asarray(values)
    deviation = f" ± {scaled.std(ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{scaled.mean():.{digits}f}{deviation}"
