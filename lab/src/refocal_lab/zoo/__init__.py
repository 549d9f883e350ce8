"""The zoo: logits of trained networks with their cards, and tables of measures computed from them."""

from refocal._documents import SkippedWarning
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
