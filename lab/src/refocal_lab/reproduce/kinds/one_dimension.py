"""Figure 3 of Charoenphakdee et al. (2021): networks on one feature and three classes with a known posterior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import refocal
from refocal import metrics
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers
from refocal_lab.reproduce.small_networks import Samples, SmallNetworkRecipe, compute_logits, train

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 10


@dataclass(frozen=True)
class Parameters:
    """Densities, networks and training.

    Attributes:
        priors: Class priors.
        means: Means of the normal class densities.
        deviations: Standard deviations of the normal class densities.
        gammas: Gammas of the focal losses; cross-entropy is added.
        samples: Number of training samples; half as many are held out to fit the temperature.
        test_samples: Number of test samples.
        hidden: Width of both hidden layers.
        epochs: Number of passes over the training data.
        batch: Number of samples per step.
        learning_rate: Initial learning rate.
        points: Number of points per curve.
        seed: Seed of samples, weights and batches.
    """

    priors: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]
    gammas: tuple[float, ...]
    samples: int
    test_samples: int
    hidden: int
    epochs: int
    batch: int
    learning_rate: float
    points: int
    seed: int


def joint(given: Parameters, x: np.ndarray) -> np.ndarray:
    """The joint density p(x, y), shape (n, classes)."""
    deviations = np.array(given.deviations)
    scaled = (x[:, None] - np.array(given.means)) / deviations
    return np.array(given.priors) * np.exp(-(scaled**2) / 2) / (deviations * np.sqrt(2 * np.pi))


def posterior(given: Parameters, x: np.ndarray) -> np.ndarray:
    """The posterior p(y|x), shape (n, classes)."""
    density = joint(given, x)
    return density / density.sum(axis=1, keepdims=True)


def draw_samples(given: Parameters, count: int, rng: np.random.Generator) -> Samples:
    """Draw one trial of samples from the joint density."""
    labels = rng.choice(len(given.priors), size=count, p=given.priors)
    x = np.array(given.means)[labels] + np.array(given.deviations)[labels] * rng.standard_normal(count)
    return Samples(x[None, :, None], labels[None])


def compute(given: Parameters, context: Context) -> Numbers:
    """Train the networks, and measure raw scores, scores after temperature scaling by NLL, and scores after Psi."""
    from refocal.calibrators import TemperatureScaling

    rng = np.random.default_rng(given.seed)
    sizes = (given.samples, given.samples // 2, given.test_samples)
    training, held_out, test = (draw_samples(given, size, rng) for size in sizes)
    gammas = (0.0, *given.gammas)
    recipe = SmallNetworkRecipe(given.hidden, given.epochs, given.batch, given.learning_rate, 0.0)
    context.progress(f"training {len(gammas)} networks")
    networks = train(training, held_out, classes=len(given.priors), gammas=gammas, recipe=recipe, seed=given.seed).best
    reach = [mean + side * 3 * sd for mean, sd in zip(given.means, given.deviations, strict=True) for side in (-1, 1)]
    x = np.linspace(min(reach), max(reach), given.points)
    held_scores, test_scores, curve_scores = (
        compute_logits(networks, features)[:, 0] for features in (held_out.features, test.features, x[None, :, None])
    )
    test_posterior = posterior(given, test.features[0, :, 0])
    values, panels = {}, {}
    for index, gamma in enumerate(gammas):
        scaling = TemperatureScaling().fit(held_scores[index], held_out.labels[0])
        values[f"T({gamma:g})"] = float(scaling.temperature_)
        ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "raw": partial(refocal.posterior_from_logits, gamma=0),
            "TS": scaling.predict_proba,
            "psi": partial(refocal.posterior_from_logits, gamma=gamma),
        }
        for name, way in ways.items():
            if gamma == 0 and name != "raw":
                continue
            probs = way(test_scores[index])
            values[f"ERR({name}, {gamma:g})"] = metrics.error(probs, test.labels[0])
            values[f"KLD({name}, {gamma:g})"] = metrics.kl_to_posterior(probs, test_posterior)
            values[f"ECE({name}, {gamma:g})"] = metrics.ece(probs, test.labels[0], bins=_BINS)
            panels[f"{name}, {gamma:g}"] = way(curve_scores[index]).T
    bayes = np.argmax(test_posterior, axis=1) != test.labels[0]
    values["ERR(Bayes)"] = float(bayes.mean())
    return Numbers(values, {"x": x, "joint": joint(given, x).T, "posterior": posterior(given, x).T, "scores": panels})


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw densities, posterior and cross-entropy in the first row, then one row per gamma."""
    figure.set_size_inches(style.WIDTH, 1.9 * (1 + len(given.gammas)))
    panels = figure.subplots(1 + len(given.gammas), 3, sharex=True)
    x = np.asarray(numbers.curves["x"])
    density, truth, first = panels[0]
    density.fill_between(x, np.sum(numbers.curves["joint"], axis=0), color="0.88", linewidth=0, label="p(x)")
    _curves(density, x, numbers.curves["joint"], names=True)
    density.set(ylim=(0, None), ylabel="density (1/unit of x)")
    density.legend(loc="upper right", fontsize=7, labelspacing=0.2, handlelength=1.8)
    style.label_panel(density, 0, "p(x, y) and p(x)")
    _curves(truth, x, numbers.curves["posterior"])
    style.label_panel(truth, 1, "posterior")
    cells = [(first, "raw", 0.0, "cross-entropy")]
    words = {"raw": "raw", "TS": "temperature", "psi": "after Ψ"}
    for row, gamma in zip(panels[1:], given.gammas, strict=True):
        cells += [(ax, name, gamma, f"γ = {gamma:g}, {words[name]}") for ax, name in zip(row, words, strict=True)]
    for index, (ax, name, gamma, title) in enumerate(cells, start=2):
        _curves(ax, x, numbers.curves["posterior"], thin=True)
        _curves(ax, x, numbers.curves["scores"][f"{name}, {gamma:g}"])
        style.label_panel(ax, index, title)
        shown = (f"{m} {numbers.values[f'{m}({name}, {gamma:g})']:.3f}" for m in ("ERR", "KLD", "ECE"))
        ax.text(0.5, 0.98, "  ".join(shown), transform=ax.transAxes, ha="center", va="top", fontsize=7)
    for ax in panels.ravel()[1:]:
        ax.set(ylim=(0, 1.15), yticks=(0, 0.5, 1))
    for ax in panels[:, 0]:
        ax.set_ylabel(ax.get_ylabel() or "probability")
    for ax in panels[-1]:
        ax.set_xlabel("x")
    density.set_xlim(x[0], x[-1])
    truth.set_ylabel("probability")


def _curves(ax: Axes, x: np.ndarray, curves: list[list[float]], *, thin: bool = False, names: bool = False) -> None:
    for index, curve in enumerate(curves):
        look = {"color": "0.6", "linewidth": 0.9} if thin else style.line(index, linewidth=1.4)
        ax.plot(x, curve, label=f"class {index + 1}" if names else None, **look)


KIND = Kind(Parameters, compute, draw, needs=("torch",))
