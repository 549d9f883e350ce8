"""A claim of a paper, the outcome of its check, and the verdict that follows from the outcome."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ClaimVerdict(StrEnum):
    """The result of checking a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    REFUTED = "refuted"
    MISPRINT = "misprint"
    REPRODUCED = "reproduced"
    REPRODUCED_IN_PART = "reproduced in part"
    NOT_REPRODUCED = "not reproduced"
    NOT_CHECKABLE = "not checkable"


class CheckMethod(StrEnum):
    """How a claim is checked."""

    BALLS = "ball arithmetic"
    IDENTITY = "exact identity"
    SEARCH = "search"
    MONTE_CARLO = "Monte Carlo"
    TABLE = "printed table"
    NETWORKS = "trained networks"
    NONE = "none"


class Outcome(NamedTuple):
    """The answer of a checker to one yes-or-no question.

    Attributes:
        holds: True, False, or None if the checker could not decide.
        words: The evidence: the proof or the search, or the counterexample.
    """

    holds: bool | None
    words: str

    def as_counterexample(self) -> Outcome:
        """Use this outcome against a claim: the claim is false if the outcome holds, else undecided."""
        return self._replace(holds=False if self.holds else None)

    def reword(self, words: str) -> Outcome:
        """Replace the evidence if the outcome holds; keep a counterexample as it is."""
        return self._replace(words=words) if self.holds else self

    def prefix(self, lead: str) -> Outcome:
        """Put words before the evidence."""
        return self._replace(words=f"{lead}: {self.words}")

    def __and__(self, other: Outcome) -> Outcome:
        """Combine two outcomes: false if either is false, else undecided if either is undecided."""
        for part in (self, other):
            if part.holds is False:
                return part
        both = f"{self.words}; {other.words}"
        return Outcome(True if self.holds and other.holds else None, both)


class Finding(NamedTuple):
    """A verdict and its evidence."""

    verdict: ClaimVerdict
    evidence: str


# why a claim is not checkable
DEFINITION = "a definition"
ABOUT_NETWORKS = "a statement about trained networks; the gallery measures it"

_HYPHEN_BEFORE_NUMBER = re.compile(r"(?<![\w.])-(?=[\d.])")


@dataclass(frozen=True)
class Claim:
    """A statement of a paper with its check.

    Attributes:
        id: Paper and place, such as `003-prop-5`.
        where: The place in words, such as "Proposition 5".
        statement: The statement, in the notation of this package.
        method: How it is checked.
        domain: The values it is checked for.
        check: Computes the finding.
        draw: Draws an illustration on the given Axes; None if there is none.
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
        """The number of the paper, such as "003"."""
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
    printed: Outcome,
    *,
    inside: Outcome | None = None,
    where: str = "",
    corrected: Outcome | None = None,
    instead: Outcome | None = None,
) -> Finding:
    """Derive the verdict from the outcomes of the checks.

    Args:
        printed: The statement as printed, on its whole domain.
        inside: The statement on the smaller domain `where`.
        where: The smaller domain, in words.
        corrected: The corrected statement, if nothing in the paper rests on the printed one.
        instead: What is true instead, if conclusions of the paper rest on the printed statement.

    Returns:
        `holds` if the printed statement holds. Otherwise `misprint` if the corrected statement holds, `holds in part`
        if the statement holds on the smaller domain, else `refuted`.

    Raises:
        RuntimeError: If a checker could not decide, or if what is said to be true instead is not.

    Example:
        >>> settle(Outcome(False, "fails at 2"), corrected=Outcome(True, "with + it holds")).verdict.value
        'misprint'
        >>> settle(Outcome(False, "fails at 2"), instead=Outcome(True, "with + it holds")).evidence
        'fails at 2. Instead: with + it holds'
    """
    _require_decisions(printed, inside, corrected, instead)
    if instead is not None and not instead.holds:
        msg = f"what should hold instead does not: {instead.words}"
        raise RuntimeError(msg)
    if printed.holds:
        return _make_finding(ClaimVerdict.HOLDS, printed.words)
    if corrected is not None and corrected.holds:
        return _make_finding(ClaimVerdict.MISPRINT, f"{corrected.words}. As printed: {printed.words}")
    if inside is not None and inside.holds:
        return _make_finding(ClaimVerdict.IN_PART, f"{where}: {inside.words}. Elsewhere: {printed.words}")
    tried = [] if inside is None else [f"{where}: {inside.words}"]
    tried += [] if corrected is None else [f"the correction fails too: {corrected.words}"]
    true = "" if instead is None else f". Instead: {instead.words}"
    return _make_finding(ClaimVerdict.REFUTED, "; ".join([printed.words, *tried]) + true)


def settle_reproduction(trials: Sequence[Outcome], *, explanation: Outcome | None = None) -> Finding:
    """Derive the verdict on a statement about networks or settings that are not the paper's.

    Args:
        trials: The statement for each of our networks or settings.
        explanation: Why some disagree, with the experiment that tests it.

    Returns:
        `reproduced` if all trials agree with the statement, `not reproduced` if none does, else `reproduced in part`.
        An explanation that its experiment does not confirm is reported as such.

    Raises:
        RuntimeError: If a checker could not decide.

    Example:
        >>> settle_reproduction([Outcome(True, "A: yes"), Outcome(False, "B: no")]).verdict.value
        'reproduced in part'
    """
    _require_decisions(*trials, explanation)
    agreeing = sum(bool(trial.holds) for trial in trials)
    verdict = ClaimVerdict.REPRODUCED_IN_PART
    if agreeing in {0, len(trials)}:
        verdict = ClaimVerdict.REPRODUCED if agreeing else ClaimVerdict.NOT_REPRODUCED
    words = "; ".join(trial.words for trial in trials)
    if explanation is not None:
        words += f". {'A likely explanation' if explanation.holds else 'Not the explanation'}: {explanation.words}"
    return _make_finding(verdict, words)


def _require_decisions(*outcomes: Outcome | None) -> None:
    for outcome in outcomes:
        if outcome is not None and outcome.holds is None:
            msg = f"the check could not decide: {outcome.words}"
            raise RuntimeError(msg)


def _make_finding(verdict: ClaimVerdict, evidence: str) -> Finding:
    """Make a finding. Negative numbers get a true minus sign, as in the statements."""
    return Finding(verdict, _HYPHEN_BEFORE_NUMBER.sub("−", evidence))


def not_checkable(id: str, where: str, statement: str, reason: str) -> Claim:
    """Make a claim that no computation here can decide.

    Args:
        id: Paper and place.
        where: The place in words.
        statement: The statement.
        reason: Why it cannot be checked.
    """
    finding = Finding(ClaimVerdict.NOT_CHECKABLE, reason)
    return Claim(id, where, statement, CheckMethod.NONE, "–", lambda: finding)
