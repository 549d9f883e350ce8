"""Published numbers of the papers' tables, for the same network, data set and loss.

`published.json` has the numbers as printed, table by table; null stands for a number that our copy of a paper lost.
Columns that a paper prints in several tables are there once. Table 1 of Komisarenko and Kull (2024) lists the same six
losses for each data set. Where the name of a loss is illegible, it follows from this order: γ = 7 and FLSD-53 on
CIFAR-100, γ = 3 on CIFAR-10.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import NamedTuple


class TableCell(NamedTuple):
    """A number in a table of a paper.

    Attributes:
        paper: Number of the paper, such as "002", or author and year.
        table: Number of the table.
        value: The value, as a fraction or in nats.
        deviation: Standard deviation over trials; None if not given.
    """

    paper: str
    table: int
    value: float
    deviation: float | None

    @property
    def id(self) -> str:
        """Paper and table, such as "003-table-1", as in the ids of claims and specs."""
        return f"{self.paper}-table-{self.table}"


Key = tuple[str, str, tuple[str, float | None, float], str, str]


def lookup(
    data: str, model: str, variant: tuple[str, float | None, float], method: str, measure: str
) -> list[TableCell]:
    """Look up the published numbers of a network.

    `resnet110` and `resnet110-bottleneck` are kept apart, although the papers use one name for both.

    Args:
        data: Name of the data set.
        model: Name of the network.
        variant: Loss, gamma and label smoothing.
        method: One of `refocal_lab.zoo.measures.METHODS`, "ts-adaptive-ece" or "fts-adaptive-ece".
        measure: One of `refocal_lab.zoo.measures.FUNCTIONS`; or "temperature" or "gamma", the parameters of the method.

    Example:
        >>> [found] = lookup("cifar10", "resnet20", ("cross-entropy", None, 0.0), "raw", "error")
        >>> found.paper, round(found.value, 4)
        ('He 2016', 0.0875)
    """
    return _numbers().get((data, model, variant, method, measure), [])


def parse_variant(loss: str, label_smoothing: float = 0.0) -> tuple[str, float | None, float]:
    """Parse the name of a loss into loss, gamma and label smoothing.

    Example:
        >>> parse_variant("focal 3"), parse_variant("focal 0"), parse_variant("cross-entropy ls0.05")
        (('focal', 3.0, 0.0), ('cross-entropy', None, 0.0), ('cross-entropy', None, 0.05))
    """
    name, _, gamma = loss.partition(" ")
    if gamma.startswith("ls"):
        return name, None, float(gamma.removeprefix("ls"))
    if name == "focal" and float(gamma) == 0:
        return "cross-entropy", None, label_smoothing
    return name, float(gamma) if gamma else None, label_smoothing


@cache
def _numbers() -> dict[Key, list[TableCell]]:
    content = json.loads(resources.files("refocal_lab.zoo").joinpath("published.json").read_text(encoding="utf-8"))
    found: dict[Key, list[TableCell]] = {}
    for table in content:
        for row, values in table["rows"].items():
            data, model = row.split()
            for column, value in zip(table["columns"], values, strict=True):
                if value is None:
                    continue
                number, deviation = value if isinstance(value, list) else (value, None)
                measure, unit = table["measure"], table["unit"]
                if measure == "accuracy":  # in percent
                    measure, number = "error", round(100 - number, 6)
                found.setdefault((data, model, parse_variant(column), table["method"], measure), []).append(
                    TableCell(
                        table["paper"], table["table"], number * unit, None if deviation is None else deviation * unit
                    )
                )
    return found
