"""How to undo label smoothing without probabilities of 0: candidates side by side on trained networks.

python benchmarks/label_smoothing.py --zoo lab/zoo --jobs 2 --repeats 5 --out benchmarks/results/label_smoothing.md

A network trained with label smoothing epsilon estimates t = (1 - epsilon) eta + epsilon / K. The exact inverse is
t - epsilon / K, divided by 1 - epsilon, and becomes negative where an estimate is low. Each candidate keeps it positive
in its own way; rows are then normalized. The networks are those of the zoo that were trained with label smoothing, and
MLPs on scikit-learn's digits, trained here on labels of which a share is random.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits

from refocal import posterior_from_logits
from refocal.losses import FocalLoss
from refocal.stats.binning import width_index

Edge = Callable[[np.ndarray, float], np.ndarray]

# Each candidate takes the estimates t and the level epsilon / K; rows are normalized afterwards.
CANDIDATES: dict[str, Edge] = {
    "not undone": lambda t, level: t,  # noqa: ARG005
    "exact: max(t - a, 0)": lambda t, level: np.maximum(t - level, 0),
    "soft: t - a, below 2a t²/(4a)": lambda t, level: np.where(t < 2 * level, t**2 / (4 * level), t - level),
    "rational: t²/(t + a)": lambda t, level: t**2 / (t + level),
    "floor: max(t - a, a/10)": lambda t, level: np.maximum(t - level, level / 10),
    "floor: max(t - a, a/2)": lambda t, level: np.maximum(t - level, level / 2),
    "softplus of width a/4": lambda t, level: np.logaddexp(0, (t - level) / (level / 4)) * level / 4,
    "softplus of width a": lambda t, level: np.logaddexp(0, (t - level) / level) * level,
}
EXACT, SOFT = list(CANDIDATES)[1:3]
LIBRARY: dict[str, Any] = {EXACT: "exact", SOFT: "soft"}
TITLES = {"nll": "NLL", "brier": "Brier score", "ece": "ECE"}


class Network(NamedTuple):
    """Test logits of a network and how it was trained."""

    name: str
    group: str
    gamma: float
    epsilon: float
    logits: np.ndarray
    labels: np.ndarray


class Measures(NamedTuple):
    """What a candidate reaches: the share of zeros, NLL, Brier score and ECE."""

    zeros: float
    nll: float
    brier: float
    ece: float


def measure(probs: np.ndarray, labels: np.ndarray) -> Measures:
    """Measure probabilities (N, K)."""
    rows = np.arange(len(labels))
    with np.errstate(divide="ignore"):
        nll = -np.log(probs[rows, labels]).mean()
    hot = np.eye(probs.shape[1])[labels]
    confidence, right = probs.max(axis=1), probs.argmax(axis=1) == labels
    index = width_index(confidence, bins=15)
    gaps = np.bincount(index, weights=confidence - right, minlength=15)
    brier = ((probs - hot) ** 2).sum(axis=1).mean()
    return Measures(float(np.mean(probs == 0)), float(nll), float(brier), float(np.abs(gaps).sum() / len(labels)))


def compare(network: Network) -> dict[str, Measures]:
    """Measure each candidate on one network; the library's two forms must agree with theirs here."""
    estimates = posterior_from_logits(network.logits, gamma=network.gamma)
    found = {}
    for name, edge in CANDIDATES.items():
        mass = edge(estimates, network.epsilon / estimates.shape[1])
        probs = mass / mass.sum(axis=1, keepdims=True)
        if name in LIBRARY:
            settings: dict[str, Any] = {"gamma": network.gamma, "label_smoothing": network.epsilon}
            same = posterior_from_logits(network.logits, smoothing_edge=LIBRARY[name], **settings)
            np.testing.assert_allclose(same, probs, atol=1e-12)
        found[name] = measure(probs, network.labels)
    return found


def read_zoo(folder: Path) -> list[Network]:
    """Read the networks of the zoo that were trained with label smoothing and a loss with a closed form."""
    networks = []
    for path in sorted(folder.glob("*-ls0*.npz")):
        recipe = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["recipe"]
        data = np.load(path, allow_pickle=False)
        test = data["split"] == "test"
        gamma = float(recipe["gamma"]) if recipe["loss"] == "focal" else 0.0
        logits = data["logits"][test].astype(np.float64)
        group = path.stem.rsplit("-s", 1)[0]
        networks.append(
            Network(path.stem, group, gamma, float(recipe["label_smoothing"]), logits, data["labels"][test])
        )
    return networks


def train_digits(task: tuple[float, float, float, int]) -> Network:
    """Train an MLP on digits with a share of random labels; the test labels are as noisy."""
    gamma, epsilon, noise, seed = task
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    features, digits = load_digits(return_X_y=True)
    labels = np.where(rng.random(len(digits)) < noise, rng.integers(10, size=len(digits)), digits)
    order = rng.permutation(len(digits))
    train, test = order[:1000], order[1000:]
    x, y = torch.tensor(features / 16, dtype=torch.float32), torch.tensor(labels)
    network = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    criterion = FocalLoss(gamma=gamma, label_smoothing=epsilon)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.1)
    for _ in range(60):
        for batch in torch.tensor(rng.permutation(train)).split(100):
            optimizer.zero_grad()
            criterion(network(x[batch]), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        logits = network(x[test]).double().numpy()
    group = f"digits MLP, gamma {gamma:g}, epsilon {epsilon:g}, {noise:.0%} random labels"
    return Network(f"{group}, seed {seed}", group, gamma, epsilon, logits, labels[test])


def write_tables(results: list[tuple[Network, dict[str, Measures]]], command: str) -> str:
    """Write the means over all networks, then those of each group of seeds."""
    groups = list(dict.fromkeys(network.group for network, _ in results))
    by_group = {group: [found for network, found in results if network.group == group] for group in groups}
    means = {name: [_mean([found[name] for found in seeds]) for seeds in by_group.values()] for name in CANDIDATES}
    totals = {name: _mean(each) for name, each in means.items()}
    lines = ["# Undoing label smoothing without zeros", ""]
    lines += [
        f"{len(results)} networks in {len(groups)} groups of seeds, measured on test data. a = epsilon / K is what "
        "smoothing adds to each class. ECE: 15 bins of equal width. Means are over groups.",
        "",
        'The library\'s `smoothing_edge` offers "exact" and "soft". Soft is the default: no probability is 0, the '
        "order of the classes is kept, and there is nothing to tune. Floors tie all classes below them. "
        f"{name_best(totals)}",
        "",
        "| candidate | zeros | NLL | groups with a lower NLL than soft | Brier score | ECE |",
        "|---|---|---|---|---|---|",
    ]
    for name, total in totals.items():
        lower = sum(own.nll < soft.nll for own, soft in zip(means[name], means[SOFT], strict=True))
        lines.append(
            f"| {name} | {total.zeros:.1%} | {total.nll:.4f} | {'' if name == SOFT else lower} | {total.brier:.4f} | "
            f"{total.ece:.4f} |"
        )
    lines += [
        "",
        "## By group",
        "",
        "| networks | candidate | zeros | NLL | Brier score | ECE |",
        "|---|---|---|---|---|---|",
    ]
    for group, seeds in by_group.items():
        for name in CANDIDATES:
            own = _mean([found[name] for found in seeds])
            lines.append(f"| {group} | {name} | {own.zeros:.1%} | {own.nll:.4f} | {own.brier:.4f} | {own.ece:.4f} |")
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}, PyTorch {torch.__version__}"
    return "\n".join([*lines, "", f"{versions}; `{command}`.", ""])


def name_best(totals: dict[str, Measures]) -> str:
    """Name the candidates without zeros that have the lowest mean NLL, Brier score and ECE."""
    positive = {name: total for name, total in totals.items() if total.zeros == 0}
    parts = [
        f'"{min(positive, key=lambda name: getattr(positive[name], field))}" has the lowest mean {title}'
        for field, title in TITLES.items()
    ]
    return f"Of the candidates without zeros, {', '.join(parts[:-1])}, and {parts[-1]}."


def _mean(measures: list[Measures]) -> Measures:
    return Measures(*(float(value) for value in np.mean(measures, axis=0)))


def main() -> None:
    """Train, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zoo", type=Path, help="folder of the zoo; without it, only the MLPs are measured")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5, help="seeds per setting")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tasks = [
        (gamma, epsilon, noise, seed)
        for gamma, epsilon in ((0.0, 0.05), (0.0, 0.1), (2.0, 0.1))
        for noise in (0.0, 0.2)
        for seed in range(arguments.repeats)
    ]
    with get_context("spawn").Pool(arguments.jobs) as pool:
        networks = pool.map(train_digits, tasks)
    networks += read_zoo(arguments.zoo) if arguments.zoo else []
    command = f"python benchmarks/label_smoothing.py --zoo lab/zoo --repeats {arguments.repeats}"
    text = write_tables([(network, compare(network)) for network in networks], command)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
