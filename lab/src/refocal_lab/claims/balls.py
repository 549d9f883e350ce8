"""The formulas of focal loss in ball arithmetic, and proofs on boxes.

A ball is an interval that is guaranteed to contain the exact value, so an inequality between balls is a proof. Each
formula is built from functions that are monotone on their whole domain: the image of an interval is then the interval
between the values at its two ends, and the ends of the domain may be included. With q = 1 - p and L = -log p:

    s(p) = p L / q            rises from 0 to 1      (-log p > 1 - p, so s' = c(q) > 0)
    c(x) = (-log(1-x) - x) / x^2    rises from 1/2 without bound: the series sum x^k / (k + 2)
    lambda(x) = log(1+x) / x  falls from 1 to 0 on [0, inf)
    log phi^gamma(p) = gamma r,    r = log q + s lambda(gamma s)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from flint import arb

from refocal_lab.claims.claim import Outcome

Side = tuple[float, float]
PRECISION = 128  # bits; `checking` sets it


def ball(low: float, high: float) -> arb:
    """The interval [low, high]."""
    return arb(low).union(arb(high))


def decimal(text: str) -> arb:
    """A decimal number, such as "0.1", as a tiny ball around its exact value."""
    return arb(text)


def _monotone(function: Callable[[arb], arb], x: arb, *, start: float, end: float | None = None) -> arb:
    """Apply a monotone function with domain [start, end] to a ball."""
    low, high = x.lower(), x.upper()
    if not low > start:
        low = arb(start)
    if end is not None and not high < end:
        high = arb(end)
    return function(low).union(function(high))


def _ends(x: arb, values: dict[int, arb], inside: Callable[[arb], arb]) -> arb:
    """Evaluate a function that has given limits at the ends of its domain."""
    for place, value in values.items():
        if x == place:
            return value
    return inside(x)


def s(p: arb) -> arb:
    """-p log(p) / (1 - p) on [0, 1]."""
    return _monotone(lambda v: _ends(v, {0: arb(0), 1: arb(1)}, lambda w: -w * w.log() / (1 - w)), p, start=0, end=1)


def c(x: arb) -> arb:
    """(-log(1 - x) - x) / x^2 on [0, 1)."""
    return _monotone(lambda v: _ends(v, {0: arb(0.5)}, lambda w: (-(-w).log1p() - w) / (w * w)), x, start=0)


def log1p_ratio(x: arb) -> arb:
    """log(1 + x) / x on [0, inf)."""
    return _monotone(lambda v: _ends(v, {0: arb(1)}, lambda w: w.log1p() / w), x, start=0)


def log1p_deficit(x: arb) -> arb:
    """(x - log(1 + x)) / x^2 on [0, inf); it falls from 1/2 to 0."""
    return _monotone(lambda v: _ends(v, {0: arb(0.5)}, lambda w: (w - w.log1p()) / (w * w)), x, start=0)


def expm1_ratio(x: arb) -> arb:
    """(1 - e^-x) / x on the real line; it is positive, falls, and is 1 at 0."""
    low, high = (_ends(v, {0: arb(1)}, lambda w: -(-w).expm1() / w) for v in (x.lower(), x.upper()))
    return low.union(high)


def log_phi_rate(p: arb, gamma: arb) -> arb:
    """log(phi^gamma(p)) / gamma for gamma >= 0, also at gamma = 0; p < 1."""
    ratio = s(p)
    return (-p).log1p() + ratio * log1p_ratio(gamma * ratio)


def phi(p: arb, gamma: arb) -> arb:
    """(1 - p)^gamma (1 + gamma s) for any gamma; p < 1."""
    return (gamma * (-p).log1p()).exp() * (1 + gamma * s(p))


def posterior(q: Sequence[arb], gamma: arb) -> list[arb]:
    """Psi^gamma of a row that contains no 1."""
    h = [v / phi(v, gamma) for v in q]
    total = sum(h[1:], start=h[0])
    return [value / total for value in h]


def slope_sign(p: arb, gamma: arb) -> arb:
    """k = 1 - 2 (1 - p) / (-log p) - gamma p, which has the sign of phi' for gamma > 0 and 0 < p < 1.

    Reference: Mukhoti et al. (2020), Eq. 9.
    """
    return 1 + 2 * (1 - p) / p.log() - gamma * p


def loss_slope(p: arb, gamma: arb) -> arb:
    """The derivative of -(1 - p)^gamma log p, 0 < p < 1."""
    return -phi(p, gamma) / p


def prove(margin: Callable[..., arb], box: Sequence[Side], *, most: int = 200_000) -> Outcome:
    """Prove that a function is positive on a box, by halving sub-boxes on which its sign is not yet clear.

    Args:
        margin: The function; it takes one ball per side of the box.
        box: The two ends of each side.
        most: Number of sub-boxes to examine before giving up.

    Returns:
        True with the number of balls; False with a sub-box on which the function is certainly not positive; None if
        the search gave up.

    Example:
        >>> prove(lambda x: 1 + x - x * x, [(0.0, 1.0)]).holds, prove(lambda x: x - 0.5, [(0.0, 1.0)]).holds
        (True, False)
    """
    widths = [high - low for low, high in box]
    # Largest box first: this finds the widest violation and does not get lost in one corner.
    waiting: list[tuple[float, int, tuple[Side, ...]]] = [(-1.0, 0, tuple(box))]
    for count in range(1, most + 1):
        if not waiting:
            return Outcome(True, f"proved by {_count_balls(count - 1)}")
        _, _, sides = heapq.heappop(waiting)
        value = margin(*(ball(*side) for side in sides))
        if value > 0:
            continue
        if value <= 0:
            return Outcome(False, f"certainly violated on {_format_box(sides)}")
        shares = [(high - low) / width if width else 0.0 for (low, high), width in zip(sides, widths, strict=True)]
        widest = max(range(len(sides)), key=shares.__getitem__)
        low, high = sides[widest]
        middle = (low + high) / 2
        for number, half in enumerate(((low, middle), (middle, high))):
            smaller = (*sides[:widest], half, *sides[widest + 1 :])
            heapq.heappush(waiting, (-max(shares), 2 * count + number, smaller))
    if not waiting:
        return Outcome(True, f"proved by {_count_balls(most)}")
    return Outcome(None, f"undecided after {most:,} balls, for example on {_format_box(waiting[0][2])}")


def decide(margin: arb, words: str, otherwise: str) -> Outcome:
    """Decide whether the value at a single point is positive.

    Args:
        margin: The ball that should be positive.
        words: The evidence if it is.
        otherwise: The evidence if it is not.
    """
    if margin > 0:
        return Outcome(True, words)
    return Outcome(False if margin <= 0 else None, otherwise)


def format_ball(value: arb, digits: int = 6) -> str:
    """Write the midpoint of a ball in decimal digits."""
    return f"{float(value.mid()):.{digits}g}"


def _count_balls(balls: int) -> str:
    return f"{balls:,} ball" + ("s" if balls > 1 else "")


def _format_box(sides: Sequence[Side]) -> str:
    return " × ".join(f"[{low:.6g}, {high:.6g}]" for low, high in sides)
