"""What a claim is, what a check of it finds, and how a verdict follows from that."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ClaimVerdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    ONLY_WHERE = "holds only where"
    REFUTED = "refuted"
    MISPRINT = "misprint"
    NOT_CHECKABLE = "not checkable"


class CheckMethod(StrEnum):
    """How a claim is checked."""

    BALLS = "ball arithmetic"
    IDENTITY = "exact identity"
    SEARCH = "search"
    MONTE_CARLO = "Monte Carlo"
    TABLE = "printed table"
    NONE = "none"


class Outcome(NamedTuple):
    """What a checker found about one predicate.

    Attributes:
        holds: True, False, or None if the checker could not decide.
        words: The evidence: what was proved or tried, or the witness against it.
    """

    holds: bool | None
    words: str

    def as_counterexample(self) -> Outcome:
        """As evidence against a claim: that is false if this holds, and undecided if not."""
        return self._replace(holds=False if self.holds else None)

    def reword(self, words: str) -> Outcome:
        """Other words for it if it holds; what speaks against it stays."""
        return self._replace(words=words) if self.holds else self

    def prefix(self, lead: str) -> Outcome:
        """The same with words before the evidence."""
        return self._replace(words=f"{lead}: {self.words}")

    def __and__(self, other: Outcome) -> Outcome:
        """Both: false if one is false, undecided if one is undecided."""
        for part in (self, other):
            if part.holds is False:
                return part
        both = f"{self.words}; {other.words}"
        return Outcome(True if self.holds and other.holds else None, both)


class Finding(NamedTuple):
    """A verdict and its evidence."""

    verdict: ClaimVerdict
    evidence: str


_HYPHEN_BEFORE_NUMBER = re.compile(r"(?<![\w.])-(?=[\d.])")


@dataclass(frozen=True)
class Claim:
    """A statement of a paper with its check.

    Attributes:
        id: Paper and place, such as `003-prop-5`.
        where: The place in words.
        statement: What the paper says, in the notation of this package.
        method: How it is checked.
        domain: For which values.
        check: Computes the finding.
        draw: Draws what helps to see it, on the Axes given; None where nothing does.
    """

    id: str
    where: str
    statement: str
    method: CheckMethod
    domain: str
    check: Callable[[], Finding]
    draw: Callable[[Axes], None] | None = None

    @property
    def paper(self) -> str:
        """The paper's number."""
        return self.id.split("-", 1)[0]


class ClaimRecord(NamedTuple):
    """A claim after its check, as `refocal-lab claims --json` prints it."""

    id: str
    paper: str
    where: str
    statement: str
    method: str
    domain: str
    verdict: str
    evidence: str


def settle(
    printed: Outcome, *, inside: Outcome | None = None, where: str = "", corrected: Outcome | None = None
) -> Finding:
    """The verdict that follows from what was computed.

    Args:
        printed: The statement as the paper prints it, on the whole domain it is stated for.
        inside: The statement on the smaller domain `where`.
        where: That domain, in words.
        corrected: The statement with the slip mended.

    Returns:
        `holds` if the printed statement does; else `holds only where`, `misprint`, or `refuted`.

    Raises:
        RuntimeError: If a checker could not decide.

    Example:
        >>> settle(Outcome(False, "fails at 2"), corrected=Outcome(True, "with + it holds")).verdict.value
        'misprint'
    """
    for outcome in (printed, inside, corrected):
        if outcome is not None and outcome.holds is None:
            msg = f"the check did not decide: {outcome.words}"
            raise RuntimeError(msg)
    if printed.holds:
        return _make_finding(ClaimVerdict.HOLDS, printed.words)
    if corrected is not None and corrected.holds:
        return _make_finding(ClaimVerdict.MISPRINT, f"{corrected.words}. As printed: {printed.words}")
    if inside is not None and inside.holds:
        return _make_finding(ClaimVerdict.ONLY_WHERE, f"{where}: {inside.words}. Elsewhere: {printed.words}")
    tried = [] if inside is None else [f"{where}: {inside.words}"]
    tried += [] if corrected is None else [f"nor does the correction hold: {corrected.words}"]
    return _make_finding(ClaimVerdict.REFUTED, "; ".join([printed.words, *tried]))


def _make_finding(verdict: ClaimVerdict, evidence: str) -> Finding:
    """A finding whose negative numbers are written with a true minus, as the statements are."""
    return Finding(verdict, _HYPHEN_BEFORE_NUMBER.sub("−", evidence))


def not_checkable(id: str, where: str, statement: str, reason: str) -> Claim:
    """A claim that no computation here can decide.

    Args:
        id: Paper and place.
        where: The place in words.
        statement: What the paper says.
        reason: Why it cannot be checked.
    """
    finding = Finding(ClaimVerdict.NOT_CHECKABLE, reason)
    return Claim(id, where, statement, CheckMethod.NONE, "–", lambda: finding)
