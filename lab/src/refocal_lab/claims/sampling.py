"""Searches for counterexamples, and Monte Carlo tests with a stated error probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from refocal_lab.claims.claim import Outcome

Rows = np.ndarray
_BLOCK = 20_000


def search(
    violation: Callable[[Rows], np.ndarray],
    draw: Callable[[np.random.Generator, int], Rows],
    *,
    budget: int,
    seed: int = 0,
    least: float = 1e-9,
) -> Outcome:
    """Look for a violation among random candidates.

    Args:
        violation: By how much each row violates the claim; a positive value is a violation.
        draw: Draws a given number of candidates.
        budget: Number of candidates to try.
        seed: Seed of the random numbers.
        least: Smaller violations count as rounding errors.

    Returns:
        True if there is no violation; False with the worst candidate of the first block that has one; None with a
        candidate whose violation is not a number.

    Example:
        >>> search(lambda x: x[:, 0] - 0.9, lambda rng, n: rng.random((n, 1)), budget=1000).holds
        False
    """
    rng = np.random.default_rng(seed)
    for start in range(0, budget, _BLOCK):
        rows = draw(rng, min(_BLOCK, budget - start))
        amounts = violation(rows)
        worst = int(np.argmax(amounts))  # argmax returns the first NaN, if there is one
        if not amounts[worst] <= least:
            numbers = ", ".join(f"{value:.4g}" for value in rows[worst])
            holds = None if np.isnan(amounts[worst]) else False
            return Outcome(holds, f"violated by {amounts[worst]:.3g} at ({numbers})")
    return Outcome(True, f"no violation among {budget:,} candidates, seed {seed}")


def simplex_rows(rng: np.random.Generator, count: int, *, classes: int) -> Rows:
    """Draw probability vectors of many shapes: even, peaked, tied, and with almost impossible classes."""
    concentration = 10 ** rng.uniform(-1.5, 2, (count, 1))
    rows = rng.standard_gamma(np.broadcast_to(concentration, (count, classes))) + 1e-12
    tied = rng.random(count) < 0.5
    rows[tied, : classes - 1] = rows[tied, :1]
    return np.sort(rows / rows.sum(axis=1, keepdims=True), axis=1)[:, ::-1]


def short_rows(classes: int, *, decimals: int) -> Rows:
    """List all descending probability vectors without zeros that have a given number of decimals.

    Args:
        classes: Length of a vector.
        decimals: Number of decimals of each entry.

    Example:
        >>> short_rows(3, decimals=1)[:2].tolist()
        [[0.8, 0.1, 0.1], [0.7, 0.2, 0.1]]
    """
    whole = 10**decimals
    return np.array(list(_parts(whole, classes, whole)), dtype=float) / whole


def _parts(total: int, count: int, largest: int) -> Iterator[tuple[int, ...]]:
    if count == 1:
        if total <= largest:
            yield (total,)
        return
    for first in range(min(largest, total - count + 1), 0, -1):
        if first * count < total:
            return
        for rest in _parts(total - first, count - 1, first):
            yield (first, *rest)


def find_shortest(
    violation: Callable[[Rows, float], np.ndarray],
    *,
    classes: Sequence[int],
    decimals: Sequence[int],
    gammas: Sequence[float],
    least: float = 1e-9,
) -> tuple[Rows, float] | None:
    """Find the shortest counterexample: fewest classes, then fewest decimals, then the first gamma.

    Args:
        violation: By how much each row violates the claim at a gamma.
        classes: Numbers of classes to try, in this order.
        decimals: Numbers of decimals to try, in this order.
        gammas: Values to try, in this order.
        least: Smaller violations count as rounding errors.

    Returns:
        The vector with the largest violation and its gamma; None if no grid has a violation.
    """
    for size in classes:
        for digits in decimals:
            rows = short_rows(size, decimals=digits)
            for gamma in gammas:
                amounts = violation(rows, gamma)
                worst = int(np.argmax(amounts))
                if amounts[worst] > least:
                    return rows[worst], gamma
    return None


def proportion_bounds(successes: int, trials: int, *, error: float) -> tuple[float, float]:
    """Clopper and Pearson's bounds on a probability; each fails with probability at most `error`.

    Args:
        successes: Number of successes.
        trials: Number of trials.
        error: Error probability of each bound.

    Example:
        >>> [round(bound, 3) for bound in proportion_bounds(90, 100, error=0.025)]
        [0.824, 0.951]
    """
    from scipy.stats import beta

    low = float(beta.ppf(error, successes, trials - successes + 1)) if successes else 0.0
    high = float(beta.ppf(1 - error, successes + 1, trials - successes)) if successes < trials else 1.0
    return low, high


def check_at_least(successes: int, trials: int, level: float, *, error: float) -> Outcome:
    """Test whether a probability is at least `level`.

    Args:
        successes: Number of successes.
        trials: Number of trials.
        level: The claimed probability.
        error: Probability of a wrong answer.

    Returns:
        True or False if a Clopper-Pearson bound decides; None if there are too few trials.
    """
    low, high = proportion_bounds(successes, trials, error=error)
    seen = f"{successes:,} of {trials:,} trials"
    if low >= level:
        return Outcome(True, f"{seen}: the probability is at least {low:.3f}, error probability {error:g}")
    if high < level:
        return Outcome(False, f"{seen}: the probability is at most {high:.3f}, error probability {error:g}")
    return Outcome(None, f"{seen}: the probability is between {low:.3f} and {high:.3f}")
