"""Figures 5 and 6 of Mukhoti et al. (2020): a linear model on four clusters with flipped labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit

import refocal
from refocal import _check
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_POINTS = 250
_EDGES = np.linspace(0.5, 1, 26)


@dataclass(frozen=True)
class Parameters:
    """Data and training.

    Attributes:
        samples: Number of training samples.
        test_samples: Number of test samples.
        deviation: Standard deviation of each cluster. The means are (±1, ±1); the class is the first sign.
        flipped: Share of labels that are flipped.
        gamma: Focusing parameter.
        iterations: Number of steps of gradient descent over all samples.
        learning_rate: Learning rate of each step.
        records: Number of times the weights are recorded.
        seed: Seed of the samples.
        show: "norms" (Fig. 5) or "mistakes" (Fig. 6).
    """

    samples: int
    test_samples: int
    deviation: float
    flipped: float
    gamma: float
    iterations: int
    learning_rate: float
    records: int
    seed: int
    show: str


class Points(NamedTuple):
    """Features (n, 2), and labels that are -1 or 1."""

    features: np.ndarray
    labels: np.ndarray


def draw_points(given: Parameters, count: int, rng: np.random.Generator) -> Points:
    """Draw points of four clusters, and flip a share of the labels."""
    corners = rng.choice([-1.0, 1.0], size=(count, 2))
    features = corners + given.deviation * rng.standard_normal((count, 2))
    labels = corners[:, 0].copy()
    labels[rng.permutation(count)[: round(given.flipped * count)]] *= -1
    return Points(features, labels)


def compute(given: Parameters, context: Context) -> Numbers:
    """Run gradient descent with both losses from zero weights; measure the confidence of mistakes on test points."""
    _check.one_of(given.show, "show", ("norms", "mistakes"))
    rng = np.random.default_rng(given.seed)
    train, test = (draw_points(given, count, rng) for count in (given.samples, given.test_samples))
    context.progress(f"{given.iterations:,} steps of gradient descent")
    path = descent(train, gammas=(0.0, given.gamma), given=given)
    weight_norm = np.linalg.norm(path, axis=1)
    logit_norm = np.mean(np.abs(train.features @ path), axis=1)
    final = path[-1]
    values: dict[str, float] = {}
    histograms = []
    for index, name in enumerate(("cross-entropy", "focal")):
        scores = test.features @ final[:, index]
        mistakes = np.sign(scores) != test.labels
        confidence = expit(np.abs(scores[mistakes]))
        values |= {
            f"weight norm({name})": float(weight_norm[-1, index]),
            f"mean size of logits({name})": float(logit_norm[-1, index]),
            f"test error({name})": float(mistakes.mean()),
            f"mean confidence of mistakes({name})": float(confidence.mean()),
            f"mistakes above 90%({name})": float(np.mean(confidence > 0.9)),
        }
        histograms.append(100 * np.histogram(confidence, bins=_EDGES)[0] / len(confidence))
    sizes, confidences = (
        [values[f"{key}({name})"] for name in ("cross-entropy", "focal")]
        for key in ("weight norm", "mean confidence of mistakes")
    )
    values["weight norm by focal's"] = sizes[0] / sizes[1]
    values["confidence of mistakes, focal minus cross-entropy"] = confidences[1] - confidences[0]
    directions = final / np.linalg.norm(final, axis=0)
    values["angle between the weights (degrees)"] = float(
        np.degrees(np.arccos(np.clip(directions[:, 0] @ directions[:, 1], -1, 1)))
    )
    curves = {
        "step": np.arange(len(path)) * _steps_between(given),
        "weight_norm": weight_norm.T,
        "logit_norm": logit_norm.T,
        "mistakes": histograms,
        "final": final.T,
        "points": test.features[:_SHOWN_POINTS],
        "labels": test.labels[:_SHOWN_POINTS],
    }
    return Numbers(values, curves)


def _steps_between(given: Parameters) -> int:
    return max(1, given.iterations // given.records)


def descent(train: Points, *, gammas: tuple[float, ...], given: Parameters) -> np.ndarray:
    """Record the weights (records, 2, gammas) during gradient descent.

    With the margin m = y w·x and p = sigmoid(m), the loss falls with m at the rate (1 - p) phi^gamma(p), which is the
    rate of cross-entropy times phi.

    Reference: Mukhoti et al. (2020), Proposition 1.
    """
    signed = train.features * train.labels[:, None]
    weights = np.zeros((2, len(gammas)))
    every = _steps_between(given)
    path = [weights]
    for step in range(1, given.iterations + 1):
        p = expit(signed @ weights)
        weights = weights + given.learning_rate * signed.T @ ((1 - p) * refocal.phi(p, gamma=gammas)) / len(signed)
        if step % every == 0:
            path.append(weights)
    return np.array(path)


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw norms during training, or mistakes and decision boundaries."""
    (_draw_norms if given.show == "norms" else _draw_mistakes)(figure, given, numbers)


def _names(given: Parameters) -> tuple[str, str]:
    return "cross-entropy", f"focal loss, γ = {given.gamma:g}"


def _draw_norms(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    figure.set_size_inches(style.WIDTH, 2.9)
    panels = figure.subplots(1, 2)
    shown = {"logit_norm": "mean absolute logit", "weight_norm": "norm of the weights"}
    for index, (ax, (curve, words)) in enumerate(zip(panels, shown.items(), strict=True)):
        for series, name in enumerate(_names(given)):
            ax.plot(numbers.curves["step"], numbers.curves[curve][series], label=name, **style.line(series))
        ax.set(xlim=(0, given.iterations), ylim=(0, None), xlabel="step of gradient descent", ylabel=words)
        ax.xaxis.set_major_formatter("{x:,.0f}")
        style.label_panel(ax, index)
    panels[0].legend(loc="lower right")


def _draw_mistakes(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    figure.set_size_inches(style.WIDTH, 2.8)
    histogram, *maps = figure.subplots(1, 3, width_ratios=(1.25, 1, 1))
    for series, name in enumerate(_names(given)):
        histogram.stairs(
            numbers.curves["mistakes"][series],
            _EDGES,
            label=name,
            fill=series == 1,
            alpha=0.55 if series else 1,
            color=style.color(series),
            linewidth=1.3,
        )
    top = 1.3 * max(map(max, numbers.curves["mistakes"]))  # room for the legend
    histogram.set(xlim=(0.5, 1), ylim=(0, top), xlabel="confidence in the wrong class", ylabel="mistakes (%)")
    histogram.legend(loc="upper left")
    style.label_panel(histogram, 0)
    points, labels = np.asarray(numbers.curves["points"]), np.asarray(numbers.curves["labels"])
    reach = np.abs(points).max() * 1.05
    for index, (ax, name) in enumerate(zip(maps, _names(given), strict=True)):
        for label, marker, face in ((1, "o", "white"), (-1, "^", "0.35")):
            chosen = points[labels == label]
            ax.plot(
                *chosen.T,
                linestyle="none",
                marker=marker,
                markersize=3,
                markerfacecolor=face,
                markeredgecolor="0.35",
                markeredgewidth=0.6,
            )
        first, second = numbers.curves["final"][index]
        ends = np.array([-reach, reach])
        ax.plot(-second / first * ends, ends, **style.line(index, linestyle="-", linewidth=1.8))
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="$x_1$", ylabel="$x_2$")
        style.label_panel(ax, index + 1, name)


KIND = Kind(Parameters, compute, draw)
