"""The exception for invalid predictions, and the place in the file that it reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from refocal._check import Input
from refocal._documents import check_regular
from refocal._files import is_disk_error


class PredictionsError(ValueError):
    """Invalid predictions; the message gives the file, the column and the row, counted from 0."""


class LabelsError(PredictionsError):
    """Labels that cannot be read, in a file that may be valid otherwise."""


class NoRowsError(PredictionsError):
    """A valid file without rows, such as one part of many."""


class PredictionsWarning(UserWarning):
    """What had to be guessed or corrected in a file: the message gives the file and the guess."""


@dataclass(frozen=True)
class Place:
    """Where values come from, for error messages.

    `columns` are the columns of the scores if each class has its own; otherwise `scores` is their name, if it is not
    that of the input. `answers` are the columns of multi-label labels if each class has its own. If `has_lines` (csv),
    row r is on line r + 2: the header is line 1, and a row never spans lines.
    """

    path: Path | None = None
    labels: str = "labels"
    sample_weight: str = "sample_weight"
    columns: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    scores: str | None = None
    has_lines: bool = False
    first_row: int = 0

    def name_scores(self, input: Input, index: int | None = None) -> str:
        """Return the name of the scores, or of those of one class."""
        if not self.columns:
            whole = self.scores or input
            return whole if index is None else f"{whole}, class {index}"
        if index is not None:
            return self.columns[index]
        return _abbreviate(self.columns)

    def name_answers(self, index: int | None = None) -> str:
        """Return the name of multi-label labels, or of those of one class."""
        if not self.answers:
            return self.labels if index is None else f"{self.labels}, class {index}"
        return _abbreviate(self.answers) if index is None else self.answers[index]

    def error(self, message: str, *, column: str | None = None, row: int | None = None) -> PredictionsError:
        """Make the exception, with its place; `row` counts from the first row of this place."""
        about_labels = column in (self.labels, self.name_answers(), *self.answers)
        kind = LabelsError if about_labels or (column or "").startswith(f"{self.labels}, class ") else PredictionsError
        return kind(self._describe(message, column, row))

    def no_rows(self, *, column: str | None = None) -> NoRowsError:
        """Make the exception for a file without rows."""
        return NoRowsError(self._describe("there are no rows", column, None))

    def _describe(self, message: str, column: str | None, row: int | None) -> str:
        parts = [str(self.path)] if self.path is not None else []
        if column is not None:
            parts.append(column)
        if row is not None:
            number = self.first_row + row
            parts.append(f"row {number}" + (f" (line {number + 2})" if self.has_lines else ""))
        return ": ".join([", ".join(parts), message] if parts else [message])

    def check_regular(self) -> None:
        """Reject a FIFO, which would block, or a device before it is opened."""
        assert self.path is not None
        try:
            check_regular(self.path)
        except ValueError as error:
            raise PredictionsError(str(error)) from None

    @contextmanager
    def parsing(self, what: str) -> Iterator[None]:
        """Convert any exception of a parser about the content of the file to a PredictionsError.

        zipfile, zlib, NumPy's header parser and pyarrow raise a dozen kinds of exceptions on damaged files, including
        OverflowError, RecursionError and MemoryError (if a length is wrong). Disk failures remain OSError.
        """
        try:
            yield
        except PredictionsError:
            raise
        except Exception as error:
            if is_disk_error(error):
                raise
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            message = f"cannot read {what}; the file is damaged or has another format: {reason}"
            raise self.error(message) from error


def find_prefix(names: Sequence[str]) -> str:
    """Find what all names begin with."""
    first, last = min(names), max(names)  # what these two share, all share
    same = next((at for at, (one, two) in enumerate(zip(first, last, strict=False)) if one != two), len(first))
    return first[:same]


def _abbreviate(names: tuple[str, ...]) -> str:
    if len(set(names)) == 1:
        return names[0]
    prefix = find_prefix(names)
    return f"{prefix}..." if prefix else f"{names[0]} ... {names[-1]}"
