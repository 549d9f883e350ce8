"""Group entries that differ only in their seeds, and compare them with the papers' numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from refocal_lab.zoo.cards import Card, Entry
from refocal_lab.zoo.measures import MEASURES, METHODS, Measures
from refocal_lab.zoo.published import TableCell, lookup

# allowed difference between a card and its logits, which are rounded to float16
_TOLERANCES = {"error": 5e-4, "nll": 2e-3, "ece": 1e-3}


class Mean(NamedTuple):
    """The mean of a measure over seeds.

    Attributes:
        mean: Mean.
        deviation: Standard deviation (n - 1); None if there is one value.
        published: The papers' numbers.
    """

    mean: float
    deviation: float | None
    published: list[TableCell]


@dataclass(frozen=True)
class Group:
    """Entries of one recipe.

    Attributes:
        cards: One card per seed.
        methods: Measures by method.
        notes: Differences between cards and logits.
    """

    cards: list[Card]
    methods: dict[str, dict[str, Mean]]
    notes: list[str]


def summarize(found: Sequence[Entry], measured: Sequence[Measures]) -> list[Group]:
    """Group entries that differ only in their seeds.

    Args:
        found: The entries.
        measured: Their measures, in the same order.
    """
    groups: dict[str, list[tuple[Card, Measures]]] = {}
    for entry, values in zip(found, measured, strict=True):
        groups.setdefault(entry.card.settings, []).append((entry.card, values))
    return [_group([card for card, _ in members], [values for _, values in members]) for members in groups.values()]


def _group(cards: list[Card], measured: list[Measures]) -> Group:
    first = cards[0]
    methods: dict[str, dict[str, Mean]] = {}
    for method in METHODS:
        if method in measured[0]:
            names = [name for name in MEASURES if name in measured[0][method]]
            methods[method] = {
                name: _mean(
                    [values[method][name] for values in measured],
                    [] if first.curvature_penalty else lookup(first.data, first.model, first.variant, method, name),
                )
                for name in names
            }
    notes = [note for card, values in zip(cards, measured, strict=True) for note in _notes(card, values["raw"])]
    return Group(cards, methods, notes)


def _mean(values: list[float], published: list[TableCell]) -> Mean:
    finite = np.all(np.isfinite(values))
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 and finite else None
    return Mean(float(np.mean(values)), deviation, published)


def _notes(card: Card, raw: dict[str, float]) -> list[str]:
    found = {"error": raw["error"], "nll": raw["nll"], "ece": raw["ece_15"]}
    return [
        f"{card.name}: {name} is {getattr(card, name):.4f} on its card but {found[name]:.4f} from its logits"
        for name, tolerance in _TOLERANCES.items()
        if not abs(getattr(card, name) - found[name]) <= tolerance
    ]
