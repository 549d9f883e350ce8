"""The zoo: logits of trained networks with their cards, and tables of measures computed from them.

Its names are imported when they are first used: looking up published numbers needs neither PyTorch nor scikit-learn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refocal._documents import SkippedWarning
from refocal._lazy import lazy_names

if TYPE_CHECKING:
    from refocal_lab.zoo.cards import Card, Entry, ZooError, add, entries
    from refocal_lab.zoo.measures import measure, measure_all
    from refocal_lab.zoo.summary import Group, summarize

__all__ = [
    "Card",
    "Entry",
    "Group",
    "SkippedWarning",
    "ZooError",
    "add",
    "entries",
    "measure",
    "measure_all",
    "summarize",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cards": ("Card", "Entry", "ZooError", "add", "entries"),
        "measures": ("measure", "measure_all"),
        "summary": ("Group", "summarize"),
    },
)
