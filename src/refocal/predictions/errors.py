"""The one exception for what a file of predictions holds, and the place in the file that it names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from refocal._documents import check_regular
from refocal._files import is_of_disk


class PredictionsError(ValueError):
    """Predictions that cannot be used: the message names the file, the column and the row, counted from 0."""


class NoRowsError(PredictionsError):
    """A file in order that holds no rows, as one part of many may."""


@dataclass(frozen=True)
class Place:
    """Where values come from, as messages tell it.

    `numbered` says that class k has a column of its own, `logit_k` or `prob_k`. In a csv file row r stands on line
    r + 2: the header is line 1, and a row never spans lines.
    """

    source: Path | None = None
    labels: str = "labels"
    sample_weight: str = "sample_weight"
    numbered: bool = False
    lines: bool = False
    first_row: int = 0

    def scores(self, input: str, index: int | None = None) -> str:
        """The name of the scores, or of those of one class."""
        if index is None:
            return f"{input[:-1]}_..." if self.numbered else input
        return f"{input[:-1]}_{index}" if self.numbered else f"{input}, class {index}"

    def error(self, message: str, *, column: str | None = None, row: int | None = None) -> PredictionsError:
        """The exception, with what is known about where; `row` counts from the first row of this place."""
        return PredictionsError(self._told(message, column, row))

    def no_rows(self, *, column: str | None = None) -> NoRowsError:
        """The exception for a file without rows."""
        return NoRowsError(self._told("there are no rows", column, None))

    def _told(self, message: str, column: str | None, row: int | None) -> str:
        parts = [str(self.source)] if self.source is not None else []
        if column is not None:
            parts.append(column)
        if row is not None:
            number = self.first_row + row
            parts.append(f"row {number}" + (f" (line {number + 2})" if self.lines else ""))
        return ": ".join([", ".join(parts), message] if parts else [message])

    def check_regular(self) -> None:
        """Refuse a FIFO, which would block, and a device, before it is opened."""
        assert self.source is not None
        try:
            check_regular(self.source)
        except ValueError as error:
            raise PredictionsError(str(error)) from None

    @contextmanager
    def parsing(self, what: str) -> Iterator[None]:
        """Turn whatever a parser raises over the file's content into a PredictionsError.

        zipfile, zlib, NumPy's header parser and pyarrow raise a dozen kinds of exceptions over damaged files, among
        them OverflowError, RecursionError and MemoryError (a length that is not true). Failures of the disk stay
        OSError.
        """
        try:
            yield
        except PredictionsError:
            raise
        except Exception as error:
            if is_of_disk(error):
                raise
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            message = f"{what} cannot be read, the file is damaged or of another format: {reason}"
            raise self.error(message) from error
