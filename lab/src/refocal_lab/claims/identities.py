"""Identities in many digits, printed numbers, and limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import mpmath as mp

from refocal_lab.claims.claim import Outcome

DIGITS = 40


def check_identity(
    left: Callable[..., Any],
    right: Callable[..., Any],
    points: Iterable[Sequence[Any]],
    *,
    tolerance: str = "1e-25",
) -> Outcome:
    """Whether two expressions agree at all points, relative to the larger of 1 and the value, in 40 digits.

    Args:
        left: The one side, of mpmath numbers.
        right: The other.
        points: Arguments; strings are read as decimals.
        tolerance: The largest difference allowed; wider where one side is a numerical derivative or optimum.

    Returns:
        False names the first point where they differ, None one where a side is not a number.

    Example:
        >>> check_identity(mp.exp, lambda x: 1 + x, [("0",), ("1",)]).words
        'at (1): 2.71828 against 2.0'
    """
    count = 0
    with mp.workdps(DIGITS):
        for given in points:
            count += 1
            arguments = [mp.mpf(value) if isinstance(value, str) else value for value in given]
            one, two = left(*arguments), right(*arguments)
            gap = abs(one - two)
            if not gap <= mp.mpf(tolerance) * max(1, abs(one)):
                places = ", ".join(map(str, given))
                words = f"at ({places}): {mp.nstr(one, 6)} against {mp.nstr(two, 6)}"
                return Outcome(None if mp.isnan(gap) else False, words)
    return Outcome(True, f"equal to {tolerance} at {count} points")


def rounds_to(value: float, printed: str) -> bool:
    """Whether a value, rounded to as many decimals as a printed number has, is that number.

    Args:
        value: What was computed.
        printed: What the paper says, such as "0.78".

    Example:
        >>> rounds_to(0.7744, "0.78"), rounds_to(0.7744, "0.77")
        (False, True)
    """
    decimals = len(printed.partition(".")[2])
    return f"{value:.{decimals}f}" == f"{float(printed):.{decimals}f}"


def compare_printed(values: Sequence[tuple[str, float, str]]) -> tuple[Outcome, str]:
    """Compare computed values with printed ones.

    Args:
        values: Name, computed value and printed number of each.

    Returns:
        The outcome, and the corrected numbers in words.
    """
    wrong = [(name, value, said) for name, value, said in values if not rounds_to(value, said)]
    right = ", ".join(f"{name}: {value:.{len(said.partition('.')[2]) + 2}f}" for name, value, said in values)
    words = "; ".join(f"{name} is printed {said}, computed {value:.4f}" for name, value, said in wrong)
    return Outcome(not wrong, f"computed {right}" if not wrong else words), right


def is_cross_entropy(gamma: int) -> Outcome:
    """Whether focal loss with this gamma is -log p."""
    return check_identity(lambda p: mp_loss(p, gamma), lambda p: -mp.log(p), [("0.1",), ("0.5",), ("0.9",)])


def mp_phi(p: Any, gamma: Any) -> Any:
    """phi as 001 prints it (Eq. 10)."""
    return (1 - p) ** gamma - gamma * (1 - p) ** (gamma - 1) * p * mp.log(p)


def mp_loss(p: Any, gamma: Any) -> Any:
    """-(1 - p)^gamma log p (001, Eq. 5)."""
    return -((1 - p) ** gamma) * mp.log(p)


def mp_posterior(q: Sequence[Any], gamma: Any) -> list[Any]:
    """Psi^gamma as 001 prints it (Eqs. 12 and 13)."""
    h = [v / mp_phi(v, gamma) for v in q]
    return [value / mp.fsum(h) for value in h]
