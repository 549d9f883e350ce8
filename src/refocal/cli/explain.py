"""`refocal explain`: say what focal loss does to confidence, in numbers and as a plot for the terminal."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from refocal.cli.options import Commands, add_command, add_option

if TYPE_CHECKING:
    from rich.console import RenderableType

_EXAMPLES = """\
refocal explain --gamma 3 --classes 10
refocal explain --loss sigmoid-focal --gamma 2 --alpha 0.25"""
_SIGMOID = "sigmoid-focal"
_WIDTH, _HEIGHT = 61, 16
_MOST_CLASSES_FOR_TEMPERATURE = 4
_LOGITS = 10.0
_MOST_GAMMA = 1e300  # its product with a logarithm of a probability is a finite number
_MOST_CLASSES = 100_000


def add_parser(commands: Commands) -> None:
    """Add the command."""
    summary = "explain what focal loss does to confidence"
    command = add_command(commands, "explain", summary, _EXAMPLES, run)
    command.add_argument("--gamma", type=float, required=True, help="the focusing parameter, 0 or larger")
    add_option(command, "--classes", owner=f"{__name__}:explain", type=int, help="number of classes")
    command.add_argument(
        "--loss", choices=("focal", _SIGMOID), default="focal", help="the training loss (default: %(default)s)"
    )
    command.add_argument("--alpha", type=float, help="weight of the positives in sigmoid focal loss, between 0 and 1")


def run(options: Namespace) -> None:
    """Compute and show the explanation."""
    from refocal.cli.explain_sigmoid import explain_sigmoid, render_sigmoid
    from refocal.cli.output import show

    if options.loss == _SIGMOID:
        if options.alpha is None or options.classes is not None:
            wrong = (
                f"--loss {_SIGMOID} needs --alpha"
                if options.alpha is None
                else f"--classes is not for --loss {_SIGMOID}"
            )
            raise ValueError(wrong)
        sigmoid = explain_sigmoid(options.gamma, options.alpha, points=_WIDTH)
        show(options, render_sigmoid(sigmoid, _plot(sigmoid.scores, sigmoid.posterior, "score")), sigmoid._asdict())
        return
    if options.alpha is not None:
        msg = f"--alpha is only for --loss {_SIGMOID}"
        raise ValueError(msg)
    found = explain(options.gamma, **({} if options.classes is None else {"classes": options.classes}))
    show(options, render(found), found._asdict())


class Explanation(NamedTuple):
    """The effect of focal loss on the top probability.

    Attributes:
        gamma: The focusing parameter.
        classes: The number of classes.
        overconfident_below: A top score below this exceeds the true probability; None for gamma = 0.
        underconfident_above: A top score above this is less than the true probability; None for gamma = 0.
        temperature: The temperature of the scaling that is nearest to the posterior map.
        temperature_error: The largest difference between a probability of the two.
        temperature_classes: The number of classes for which this was computed.
        scores: Top softmax scores; the other classes share the rest.
        posterior: The true probability for each score.
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
    """Compute what focal loss with this gamma does to confidence.

    Args:
        gamma: The focusing parameter, 0 or larger.
        classes: The number of classes, 2 or more.

    Example:
        >>> round(explain(3.0).underconfident_above, 3)
        0.253
    """
    import numpy as np

    import refocal
    from refocal import _check

    gamma = _check.scalar_gamma(gamma, least=0.0)
    if gamma > _MOST_GAMMA:
        msg = f"gamma must be at most {_MOST_GAMMA:g}, got {gamma:g}"
        raise ValueError(msg)
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


def render(found: Explanation) -> RenderableType:
    """Write the explanation for a terminal."""
    from rich.console import Group
    from rich.text import Text

    if found.overconfident_below is None or found.underconfident_above is None:  # gamma is 0
        return Text("gamma = 0 is cross-entropy: its softmax output is p(y|x) already.")
    fewer = found.temperature_classes < found.classes
    enough = math.floor(1 / found.overconfident_below) + 1  # the top score of K classes is at least 1 / K
    lines = [
        f"Focal loss with gamma = {found.gamma:g} and {found.classes} classes: a network that minimizes it is",
        f"  underconfident if its top score is above {found.underconfident_above:.3f},",
        f"  overconfident if it is below {found.overconfident_below:.3f}"
        + (f" (possible with {enough:.7g} classes or more)," if enough > found.classes else ","),
        "  and in between, either one: it depends on the other scores.",
        "The temperature scaling nearest to the map back to p(y|x) divides the logits",
        f"by {found.temperature:.3f}. Its probabilities differ by at most {found.temperature_error:.4f}, "
        f"for logits within ±{_LOGITS:g}"
        + (f"\nand {found.temperature_classes} classes, the most that this is computed for." if fewer else "."),
        "",
        "p(y|x) of the top class (●) against its softmax score (·), if the other classes",
        "share the rest evenly",
    ]
    return Group(
        Text("\n".join(lines)),
        Text(_plot(found.scores, found.posterior, "softmax score"), no_wrap=True, overflow="crop"),
    )


def _plot(scores: Sequence[float], posteriors: Sequence[float], label: str) -> str:
    """Draw the curve as dots, and the diagonal as points."""
    low = scores[0]
    canvas = [[" "] * _WIDTH for _ in range(_HEIGHT)]

    def row(value: float) -> int:
        return _HEIGHT - 1 - round((value - low) / (1 - low) * (_HEIGHT - 1))

    for column, (score, posterior) in enumerate(zip(scores, posteriors, strict=True)):
        canvas[row(score)][column] = "·"
        canvas[row(posterior)][column] = "●"
    labels = {0: "1.00", _HEIGHT - 1: f"{low:.2f}"}
    lines = [f"{labels.get(i, ''):>5} │{''.join(line)}" for i, line in enumerate(canvas)]
    lines.append("      └" + "─" * _WIDTH)
    lines.append(f"       {low:<.2f}{label:^{_WIDTH - 8}}1.00")
    return "\n".join(lines)
