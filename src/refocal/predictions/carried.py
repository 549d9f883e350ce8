"""Columns of a file that are written again with calibrated scores."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Carried:
    """The columns of a parquet or csv file beside its scores, in their order and with their values.

    Attributes:
        table: A pyarrow table with one row per sample. It holds the columns of labels, splits and weights, too.
        label: Its column of labels, if there is one.
        others: Columns of the file that hold neither labels nor splits nor weights. Not all of them may be kept.
        per_class: Whether the file has one column of scores per class, not one column of lists.
        positive: The class that a single column of scores is about, if its name says so.
        scores: The columns of scores, for errors.
    """

    table: Any
    label: str | None
    others: tuple[str, ...]
    per_class: bool
    positive: str | None = None
    scores: tuple[str, ...] = ()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, rows: np.ndarray) -> Carried:
        """Select rows by a mask or by their numbers."""
        import pyarrow as pa

        return self._with(self.table.take(pa.array(np.flatnonzero(rows) if rows.dtype == bool else rows)))

    @staticmethod
    def join(parts: list[Carried]) -> Carried:
        """Put the rows of several parts of a file together."""
        import pyarrow as pa

        return parts[0]._with(pa.concat_tables([part.table for part in parts]))

    def _with(self, table: Any) -> Carried:
        return replace(self, table=table)
