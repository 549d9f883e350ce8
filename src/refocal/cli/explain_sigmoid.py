"""What sigmoid focal loss does to the scores of a binary or multi-label head."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.console import RenderableType

_GRID = 2000  # scores at which the two curves are compared


class SigmoidExplanation(NamedTuple):
    """The effect of sigmoid focal loss on a score.

    Attributes:
        gamma: The focusing parameter.
        alpha: The weight of the positives.
        middle: The true probability at a score of 0.5.
        too_low: Intervals of scores that lie below the true probability.
        too_high: Intervals of scores that lie above it.
        scores: Scores, from 0 to 1.
        posterior: The true probability for each score.
    """

    gamma: float
    alpha: float
    middle: float
    too_low: list[tuple[float, float]]
    too_high: list[tuple[float, float]]
    scores: list[float]
    posterior: list[float]


def explain_sigmoid(gamma: float, alpha: float, *, points: int) -> SigmoidExplanation:
    """Compute what sigmoid focal loss with this gamma and alpha does to scores.

    Args:
        gamma: The focusing parameter, 0 or larger.
        alpha: The weight of the positives, between 0 and 1.
        points: The number of scores to show.

    Example:
        >>> explain_sigmoid(2.0, 0.25, points=3).posterior
        [0.0, 0.75, 1.0]
    """
    import numpy as np

    import refocal
    from refocal import _check

    gamma, alpha = _check.scalar_gamma(gamma, least=0.0), _check.share(alpha, "alpha")

    def recover(scores: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            log_odds = np.log(scores) - np.log1p(-scores)
        return refocal.sigmoid_posterior(log_odds, gamma=gamma, alpha=alpha)

    fine = np.linspace(0, 1, _GRID + 1)
    difference = recover(fine) - fine
    sign = np.where(np.abs(difference) < 1e-12, 0, np.sign(difference))[1:-1]
    shown = np.linspace(0, 1, points)
    return SigmoidExplanation(
        gamma,
        alpha,
        float(recover(np.array([0.5]))[0]),
        _list_intervals(sign > 0),
        _list_intervals(sign < 0),
        shown.tolist(),
        recover(shown).tolist(),
    )


def render_sigmoid(found: SigmoidExplanation, plot: str) -> RenderableType:
    """Write the explanation for a terminal, above a plot."""
    from rich.console import Group
    from rich.text import Text

    if not found.too_low and not found.too_high:
        return Text("gamma = 0 and alpha = 0.5 are cross-entropy: its sigmoid output is p(y=1|x) already.")
    lines = [
        f"Sigmoid focal loss with gamma = {found.gamma:g} and alpha = {found.alpha:g}: scores of a network that",
        "minimizes it are",
        *(f"  too low from {start:.3f} to {end:.3f}," for start, end in found.too_low),
        *(f"  too high from {start:.3f} to {end:.3f}," for start, end in found.too_high),
    ]
    lines[-1] = f"{lines[-1][:-1]}."
    lines += [f"A score of 0.5 stands for p(y=1|x) = {found.middle:.3g}.", "", "p(y=1|x) (●) against the score (·)"]
    return Group(Text("\n".join(lines)), Text(plot, no_wrap=True, overflow="crop"))


def _list_intervals(inside: object) -> list[tuple[float, float]]:
    """List the intervals of scores in which the inner points of the grid are inside."""
    import numpy as np

    steps = np.diff(np.concatenate([[0], np.asarray(inside, dtype=int), [0]]))
    starts, ends = np.flatnonzero(steps > 0), np.flatnonzero(steps < 0)
    # point i of the inner grid stands for the scores between the points before and after it
    edges = [(start + 0.5) / _GRID for start in range(_GRID)]
    edges[0] = 0.0
    return [(edges[start], 1.0 if end == _GRID - 1 else edges[end]) for start, end in zip(starts, ends, strict=True)]
