"""Appendix C of Charoenphakdee et al. (2021): calibration on tabular data sets, with focal loss and after Psi."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import refocal
from refocal import metrics
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers
from refocal_lab.reproduce.small_networks import Samples, SmallNetworkRecipe, compute_logits, train

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 10
_TRAIN, _HELD_OUT = 0.6, 0.2
_WHEN = {"best": "lowest validation loss", "last": "last epoch"}
_HOW = {"raw": "raw", "psi": "after Ψ"}


@dataclass(frozen=True)
class Parameters:
    """Data sets, networks and training.

    Attributes:
        sets: Names of npz files in `tabular/` of the data folder, with X (n, d), y (n,) and categorical (d,).
        gammas: Gammas of the focal losses; cross-entropy is added.
        trials: Number of splits, each with its own initial weights.
        most_rows: Larger data sets are cut to a random subset of this size in each trial; 0 for no limit.
        hidden: Width of both hidden layers.
        epochs: Number of passes over the training data.
        batch: Number of samples per step.
        learning_rate: Initial learning rate.
        weight_decay: Weight decay of all weights.
        seed: Seed of splits, weights and batches.
    """

    sets: tuple[str, ...]
    gammas: tuple[float, ...]
    trials: int
    most_rows: int
    hidden: int
    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    seed: int


class Table(NamedTuple):
    """A data set as stored."""

    features: np.ndarray
    labels: np.ndarray
    categorical: np.ndarray


def read_table(folder: Path | None, name: str) -> Table:
    """Read a data set.

    Raises:
        FileNotFoundError: If no folder was given or the data set is not in it.
        ValueError: If arrays are missing, have shapes that do not match, or are not finite.
    """
    if folder is None:
        msg = "this figure needs a data folder with tabular/*.npz: give it with --data or $REFOCAL_DATA"
        raise FileNotFoundError(msg)
    file = folder / "tabular" / f"{name}.npz"
    if not file.is_file():
        msg = f"no data set {name!r}: {file} does not exist"
        raise FileNotFoundError(msg)
    with np.load(file, allow_pickle=False) as arrays:
        missing = [key for key in ("X", "y", "categorical") if key not in arrays]
        if missing:
            msg = f"{file} must contain the arrays X, y and categorical, got {', '.join(arrays)}"
            raise ValueError(msg)
        table = Table(np.asarray(arrays["X"], dtype=float), np.asarray(arrays["y"]), np.asarray(arrays["categorical"]))
    if table.features.shape != (len(table.labels), len(table.categorical)):
        msg = f"{file}: X must have shape (len(y), len(categorical)), got {table.features.shape}"
        raise ValueError(msg)
    if not np.isfinite(table.features).all():
        msg = f"{file}: X must be finite, got NaN or infinity"
        raise ValueError(msg)
    return table


def encode(table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Encode categories as indicators and labels as 0 ... K - 1; numbers stay."""
    columns = []
    for column, categorical in zip(table.features.T, table.categorical, strict=True):
        levels = np.unique(column) if categorical else None
        columns.append(column[:, None] if levels is None else (column[:, None] == levels).astype(float))
    return np.concatenate(columns, axis=1), np.unique(table.labels, return_inverse=True)[1]


def split(table: Table, given: Parameters, rng: np.random.Generator) -> tuple[Samples, Samples, Samples]:
    """Split all trials into training, held-out and test samples, stratified by class, with standardized columns."""
    features, labels = encode(table)
    parts: tuple[list[Samples], ...] = ([], [], [])
    for _ in range(given.trials):
        rows = rng.permutation(len(labels))
        rows = rows[: given.most_rows] if given.most_rows else rows
        # rank the rows within their class; the first 60 % of each class are training samples
        rank = np.empty(len(rows))
        for label in np.unique(labels[rows]):
            members = np.flatnonzero(labels[rows] == label)
            rank[members] = (np.arange(len(members)) + rng.random()) / len(members)
        order = rows[np.argsort(rank, kind="stable")]
        ends = round(_TRAIN * len(rows)), round((_TRAIN + _HELD_OUT) * len(rows))
        center, spread = features[order[: ends[0]]].mean(axis=0), features[order[: ends[0]]].std(axis=0)
        scaled = (features - center) / np.where(spread > 0, spread, 1)
        for part, chosen in zip(parts, np.split(order, ends), strict=True):
            part.append(Samples(scaled[chosen], labels[chosen]))
    training, held_out, test = (
        Samples(np.stack([one.features for one in part]), np.stack([one.labels for one in part])) for part in parts
    )
    return training, held_out, test


def measure(table: Table, given: Parameters, seed: int) -> dict[str, list[float]]:
    """Measure mean test ECE and error over the trials of one data set, for cross-entropy and then for each gamma."""
    gammas = (0.0, *given.gammas)
    training, held_out, test = split(table, given, np.random.default_rng(seed))
    recipe = SmallNetworkRecipe(given.hidden, given.epochs, given.batch, given.learning_rate, given.weight_decay)
    classes = len(np.unique(table.labels))
    networks = train(training, held_out, classes=classes, gammas=gammas, recipe=recipe, seed=seed)
    found: dict[str, list[float]] = {}
    for when in _WHEN:
        scores = compute_logits(getattr(networks, when), test.features)
        for index, gamma in enumerate(gammas):
            errors = []
            eces: dict[str, list[float]] = {how: [] for how in _HOW}
            for trial_scores, labels in zip(scores[index], test.labels, strict=True):
                for how, applied in (("raw", 0.0), ("psi", gamma)):
                    probs = refocal.posterior_from_logits(trial_scores, gamma=applied)
                    eces[how].append(metrics.ece(probs, labels, bins=_BINS))
                errors.append(np.mean(trial_scores.argmax(axis=1) != labels))
            for how, several in eces.items():
                found.setdefault(f"ECE, {how}, {when}", []).append(float(np.mean(several)))
            found.setdefault(f"error, {when}", []).append(float(np.mean(errors)))
    return found


def compute(given: Parameters, context: Context) -> Numbers:
    """Measure each data set, then compare with cross-entropy over the data sets, in pairs."""
    tables = [read_table(context.data, name) for name in given.sets]
    found = []
    for index, (name, table) in enumerate(zip(given.sets, tables, strict=True)):
        context.progress(f"{name} ({index + 1} of {len(tables)})")
        found.append(measure(table, given, given.seed + index))
    values: dict[str, float] = {"sets": float(len(tables))}
    for when in _WHEN:
        values[f"mean ECE of cross-entropy({when})"] = float(np.mean([one[f"ECE, raw, {when}"][0] for one in found]))
        for how in _HOW:
            eces = np.array([one[f"ECE, {how}, {when}"] for one in found])
            for column, gamma in enumerate(given.gammas, start=1):
                values |= {
                    f"{key}({how}, {gamma:g}, {when})": value
                    for key, value in compare_paired(eces[:, column] - eces[:, 0]).items()
                }
    names = list(found[0])
    return Numbers(values, {"sets": list(given.sets), **{name: [one[name] for one in found] for name in names}})


def compare_paired(differences: np.ndarray) -> dict[str, float]:
    """Compute the mean difference, its 95 % interval by Student's t, Wilcoxon's p-value, and the share above 0."""
    from scipy import stats

    mean, count = float(differences.mean()), len(differences)
    half = float(stats.t.ppf(0.975, count - 1) * differences.std(ddof=1) / np.sqrt(count))
    p_value = float(stats.wilcoxon(differences).pvalue) if np.any(differences) else 1.0
    return {
        "difference": mean,
        "low": mean - half,
        "high": mean + half,
        "p": p_value,
        "share above": float(np.mean(differences > 0)),
    }


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw mean differences above and the data sets below, with one column per choice of the epoch."""
    figure.set_size_inches(style.WIDTH, 6.0)
    panels = figure.subplots(2, 2, height_ratios=(1, 1.5))
    for column, (when, words) in enumerate(_WHEN.items()):
        _draw_differences(panels[0, column], given, numbers, when)
        style.label_panel(panels[0, column], column, words)
        _draw_sets(panels[1, column], numbers, when)
        style.label_panel(panels[1, column], column + 2, f"{words}, γ = {given.gammas[-1]:g}")
    limits = np.array([ax.get_ylim() for ax in panels[0]])
    for ax in panels[0]:
        ax.set(xlim=(-0.5, len(given.gammas) - 0.5), ylim=(limits[:, 0].min(), limits[:, 1].max()))
    panels[0, 0].set_ylabel("ECE minus that of\ncross-entropy (% points)")
    panels[1, 0].set_ylabel("ECE with focal loss (%)")
    panels[0, 0].legend(loc="upper left")
    panels[1, 0].legend(loc="lower right")


def _draw_differences(ax: Axes, given: Parameters, numbers: Numbers, when: str) -> None:
    ax.axhline(0, color=style.GUIDE, linewidth=0.8)
    for index, (how, words) in enumerate(_HOW.items()):
        at = np.arange(len(given.gammas)) + (index - 0.5) * 0.25
        middle, low, high = (
            100 * np.array([numbers.values[f"{key}({how}, {gamma:g}, {when})"] for gamma in given.gammas])
            for key in ("difference", "low", "high")
        )
        ax.errorbar(
            at,
            middle,
            yerr=(middle - low, high - middle),
            linestyle="none",
            marker=style.MARKERS[index],
            markersize=5,
            markerfacecolor="white" if how == "raw" else style.color(1),
            color=style.color(2 - index),
            capsize=2.5,
            label=words,
        )
    ax.set_xticks(range(len(given.gammas)), [f"γ = {gamma:g}" for gamma in given.gammas])


def _draw_sets(ax: Axes, numbers: Numbers, when: str) -> None:
    reference = 100 * np.array(numbers.curves[f"ECE, raw, {when}"])[:, 0]
    top = reference.max()
    for index, (how, words) in enumerate(_HOW.items()):
        eces = 100 * np.array(numbers.curves[f"ECE, {how}, {when}"])[:, -1]
        top = max(top, eces.max())
        ax.plot(
            reference,
            eces,
            linestyle="none",
            marker=style.MARKERS[index],
            markersize=4,
            markerfacecolor="white" if how == "raw" else style.color(1),
            color=style.color(2 - index),
            label=words,
        )
    ax.axline((0, 0), slope=1, color=style.GUIDE, linewidth=0.8)
    ax.set(xlim=(0, 1.05 * top), ylim=(0, 1.05 * top), aspect="equal", xlabel="ECE with cross-entropy (%)")


KIND = Kind(Parameters, compute, draw, needs=("torch",))
