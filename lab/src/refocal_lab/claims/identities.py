"""Identities checked in 40 digits, and printed numbers checked by rounding."""

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
    """Check in 40 digits that two expressions agree at all points.

    Args:
        left: The left side, a function of mpmath numbers.
        right: The right side.
        points: Arguments; strings are read as decimals.
        tolerance: Largest difference allowed, relative to the larger of 1 and the value. Use a wider one if a side is a
            numerical derivative or optimum.

    Returns:
        True if all agree; False with the first point at which they differ; None with the first point at which a side
        is not a number.

    Example:
        >>> check_identity(mp.exp, lambda x: 1 + x, [("0",), ("1",)]).words
        'at (1): left side 2.71828, right side 2.0'
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
                words = f"at ({places}): left side {mp.nstr(one, 6)}, right side {mp.nstr(two, 6)}"
                return Outcome(None if mp.isnan(gap) else False, words)
    return Outcome(True, f"both sides agree to {tolerance} at {count} point{'s' * (count != 1)}")


def rounds_to(value: float, printed: str) -> bool:
    """Tell whether a computed value rounds to a printed number.

    Args:
        value: The computed value.
        printed: The printed number, such as "0.78"; its decimals set the rounding.

    Example:
        >>> rounds_to(0.7744, "0.78"), rounds_to(0.7744, "0.77")
        (False, True)
    """
    decimals = len(printed.partition(".")[2])
    return f"{value:.{decimals}f}" == f"{float(printed):.{decimals}f}"


def is_about(value: float, printed: str) -> bool:
    """Tell whether a computed value agrees with a number that is printed with ≈, "about" or "around".

    Args:
        value: The computed value.
        printed: The printed number; the value may differ by one unit of its last digit.

    Example:
        >>> is_about(0.6266, "0.62"), is_about(0.6266, "0.61")
        (True, False)
    """
    return abs(value - float(printed)) < 10.0 ** -len(printed.partition(".")[2])


def compare_printed(values: Sequence[tuple[str, float, str]]) -> tuple[Outcome, str]:
    """Compare computed values with printed ones.

    Args:
        values: A name, a computed value and a printed number for each comparison.

    Returns:
        The outcome, and the corrected numbers in words.
    """
    wrong = [(name, value, said) for name, value, said in values if not rounds_to(value, said)]
    right = ", ".join(f"{name}: {value:.{len(said.partition('.')[2]) + 2}f}" for name, value, said in values)
    words = "; ".join(f"{name}: printed {said}, computed {value:.4f}" for name, value, said in wrong)
    return Outcome(not wrong, f"computed {right}" if not wrong else words), right


def is_cross_entropy(gamma: int) -> Outcome:
    """Check that focal loss with this gamma is -log p."""
    return check_identity(lambda p: mp_loss(p, gamma), lambda p: -mp.log(p), [("0.1",), ("0.5",), ("0.9",)])


def mp_phi(p: Any, gamma: Any) -> Any:
    """phi in the printed form.

    Reference: Charoenphakdee et al. (2021), Eq. 10.
    """
    return (1 - p) ** gamma - gamma * (1 - p) ** (gamma - 1) * p * mp.log(p)


def mp_loss(p: Any, gamma: Any) -> Any:
    """-(1 - p)^gamma log p.

    Reference: Charoenphakdee et al. (2021), Eq. 5.
    """
    return -((1 - p) ** gamma) * mp.log(p)


def mp_posterior(q: Sequence[Any], gamma: Any) -> list[Any]:
    """Psi^gamma in the printed form.

    Reference: Charoenphakdee et al. (2021), Eqs. 12 and 13.
    """
    h = [v / mp_phi(v, gamma) for v in q]
    return [value / mp.fsum(h) for value in h]
