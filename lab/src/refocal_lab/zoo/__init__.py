"""The zoo: logits of trained networks with their cards, and every measure of them recomputed."""

from refocal._documents import SkippedWarning
from refocal.zoo.cards import Card, Entry, ZooError, add, entries
from refocal.zoo.measures import measure, measure_all
from refocal.zoo.summary import Group, summarise

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
    "summarise",
]
