"""What gamma does to confidence, in numbers and as a plot for the terminal."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

import refocal
from refocal import _check

_WIDTH, _HEIGHT = 61, 16
_MOST_CLASSES_FOR_TEMPERATURE = 4
_LOGITS = 10.0
_MOST_CLASSES = 100_000


class Explanation(NamedTuple):
    """The effect of focal loss on the top probability.

    Attributes:
        gamma: The focusing parameter.
        classes: Number of classes.
        overconfident_below: A top score below it is above the true probability; None for gamma = 0.
        underconfident_above: A top score above it is below the true probability; None for gamma = 0.
        temperature: The temperature scaling nearest to the map.
        temperature_error: The largest difference of a probability between the two.
        temperature_classes: For how many classes that was computed.
        scores: Top softmax scores, the others sharing the rest.
        posterior: The true probability of each.
    """

    gamma: float
    classes: int
    overconfident_below: float | None
    underconfident_above: float | None
    temperature: float
    temperature_error: float
    temperature_classes: int
    scores: list[float]
    posterior: list[float]


def explain(gamma: float, *, classes: int = 2) -> Explanation:
    """Work out what focal loss with this gamma does.

    Args:
        gamma: Focusing parameter >= 0.
        classes: Two or more.

    Example:
        >>> round(explain(3.0).underconfident_above, 3)
        0.253
    """
    gamma = _check.scalar_gamma(gamma, least=0.0)
    _check.count(classes, "classes", least=2, most=_MOST_CLASSES)
    low, high = refocal.thresholds(gamma) if gamma > 0 else (None, None)
    some = min(classes, _MOST_CLASSES_FOR_TEMPERATURE)
    nearest = refocal.closest_temperature(gamma, classes=some, logit_range=_LOGITS)
    tops = np.linspace(1 / classes, 1, _WIDTH)
    rows = np.column_stack([tops, np.tile((1 - tops)[:, None] / (classes - 1), classes - 1)])
    posterior = refocal.posterior(rows, gamma=gamma)[:, 0]
    return Explanation(
        gamma,
        classes,
        low,
        high,
        float(nearest.temperature),
        float(nearest.error),
        some,
        tops.tolist(),
        posterior.tolist(),
    )


def shown(found: Explanation) -> RenderableType:
    """The explanation for a terminal."""
    if found.overconfident_below is None or found.underconfident_above is None:  # gamma is 0
        return Text("gamma = 0 is cross-entropy: its softmax output is p(y|x) already.")
    fewer = found.temperature_classes < found.classes
    enough = math.floor(1 / found.overconfident_below) + 1  # classes: the top score is at least 1 over their number
    lines = [
        f"Focal loss with gamma = {found.gamma:g} and {found.classes} classes: a network that minimizes it is",
        f"  underconfident where its top score is above {found.underconfident_above:.3f},",
        f"  overconfident where it is below {found.overconfident_below:.3f}"
        + (f" (which takes {enough:.7g} classes or more)," if enough > found.classes else ","),
        "  and between the two as the other scores decide.",
        "The nearest temperature scaling to the map back to p(y|x) divides the logits",
        f"by {found.temperature:.3f}: no probability differs by more than {found.temperature_error:.4f}, "
        f"for logits of ±{_LOGITS:g}"
        + (f"\nand {found.temperature_classes} classes, the most that this is computed for." if fewer else "."),
        "",
        "p(y|x) of the top class (●) against its softmax score (·), the others sharing",
        "the rest evenly",
    ]
    return Group(Text("\n".join(lines)), Text(_plot(found), no_wrap=True, overflow="crop"))


def _plot(found: Explanation) -> str:
    """The curve as dots, the diagonal as points."""
    low = 1 / found.classes
    canvas = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def row(value: float) -> int:
        return _HEIGHT - 1 - round((value - low) / (1 - low) * (_HEIGHT - 1))

    for column, (score, posterior) in enumerate(zip(found.scores, found.posterior, strict=True)):
        canvas[row(score)][column] = "·"
        canvas[row(posterior)][column] = "●"
    labels = {0: "1.00", _HEIGHT - 1: f"{low:.2f}"}
    lines = [f"{labels.get(i, ''):>5} │{''.join(line)}" for i, line in enumerate(canvas)]
    lines.append("      └" + "─" * _WIDTH)
    lines.append(f"       {low:<.2f}{'softmax score':^{_WIDTH - 8}}1.00")
    return "\n".join(lines)
