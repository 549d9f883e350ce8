"""Prediction sets: how often they contain the true class, and how large they are before and after the posterior map.

python benchmarks/conformal.py --jobs 2 --repeats 5 --out benchmarks/results/conformal.md

The first part draws data of known distribution. The second part uses logits of networks that were trained with focal
loss, lab/zoo/*.npz: halves of the test logits, drawn --repeats times, give the threshold and the sets.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
import warnings
from collections import defaultdict
from multiprocessing import Pool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refocal.calibrators import FocalPosterior, FocalTemperatureScaling
from refocal.conformal import PredictionSets
from refocal.conformal.thresholds import Ranking, compute_conformity, find_threshold

ZOO = Path(__file__).parents[1] / "lab" / "zoo"
NETWORKS = ("cifar10-resnet20", "svhn-resnet20", "newsgroups20-gp-cnn", "cifar100-resnet18", "cifar100-vgg19")
COVERAGES = (0.9, 0.95, 0.99)
METHODS = ("LAC", "APS", "APS, randomized", "RAPS")
MAPS = ("softmax", "Ψ", "focal temperature")
KINDS: dict[str, dict[str, Any]] = {
    "LAC": {"method": "lac"},
    "APS": {"method": "aps"},
    "APS, randomized": {"method": "aps", "randomized": True},
    "RAPS": {"method": "raps"},
    "RAPS, randomized": {"method": "raps", "randomized": True},
}
SIMULATED_ROWS, SIMULATED_CLASSES, SIMULATIONS_PER_REPEAT = 199, 5, 200


class Outcome(NamedTuple):
    """Mean sizes and coverages of one network, (maps, methods, coverages), and size differences from softmax.

    `change` and `error` are the mean difference and its standard error over test rows.
    """

    size: np.ndarray
    covered: np.ndarray
    change: np.ndarray
    error: np.ndarray


def draw(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits of a network that is too sure of itself, and labels; class 4 is rare."""
    logits = 1.5 * rng.standard_normal((rows, SIMULATED_CLASSES)) - [0, 0, 0, 0, 1]
    return 2 * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)


def simulate(job: tuple[str, bool, int]) -> tuple[str, bool, float, float, float]:
    """Measure the coverage of all rows, of the worst class, and the size, over data sets."""
    name, by_class, repeats = job
    rng = np.random.default_rng(sum(name.encode()) + by_class)
    hits, sizes, own = [], [], np.zeros((2, SIMULATED_CLASSES))
    for _ in range(repeats * SIMULATIONS_PER_REPEAT):
        logits, labels = draw(rng, SIMULATED_ROWS)
        sets = PredictionSets(**KINDS[name], by_class=by_class, allow_empty=True, seed=int(rng.integers(1 << 30)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the rare class has too few rows in some data sets
            sets.fit(logits, labels)
        new, true = draw(rng, 20)
        found = sets.predict_set(new, rng=rng)
        hit = found[np.arange(len(true)), true]
        hits.append(hit.mean())
        sizes.append(found.sum(axis=1).mean())
        own += [np.bincount(true, weights=hit, minlength=5), np.bincount(true, minlength=5)]
    return name, by_class, float(np.mean(hits)), float((own[0] / own[1]).min()), float(np.mean(sizes))


def list_networks() -> list[tuple[str, float, Path]]:
    """List the networks trained with cross-entropy (gamma 0) or focal loss: family, gamma and file."""
    found = []
    for card in sorted(ZOO.glob("*.json")):
        content = json.loads(card.read_text(encoding="utf-8"))
        family = f"{content.get('data')}-{content.get('model')}"
        if family in NETWORKS and content["loss"] in ("focal", "cross-entropy") and not content["label_smoothing"]:
            gamma = 0.0 if content["loss"] == "cross-entropy" else float(content["gamma"])
            found.append((family, gamma, card.with_suffix(".npz")))
    return found


def measure(job: tuple[str, float, Path, int]) -> tuple[str, float, Outcome]:
    """Measure all maps and methods on the test logits of one network."""
    family, gamma, path, repeats = job
    with np.load(path, allow_pickle=False) as data:
        logits, truth, split = data["logits"].astype(np.float32), data["labels"], data["split"]
    val, test = ((logits[split == part], truth[split == part]) for part in ("val", "test"))
    labels = test[1]
    maps = (FocalPosterior(gamma=0.0), FocalPosterior(gamma=gamma), FocalTemperatureScaling())
    rng = np.random.default_rng(0)
    splits = [rng.permutation(len(labels)) for _ in range(repeats)]
    uniform = rng.random((len(labels), 1))
    shape = (len(MAPS), len(METHODS), len(COVERAGES))
    sizes = np.zeros((*shape, len(labels)))  # the sum of sizes over the splits that had the row in the test half
    times = np.zeros(len(labels))
    for order in splits:
        times[order[len(order) // 2 :]] += 1
    covered = np.zeros(shape)
    for i, calibrator in enumerate(maps):
        calibrator.fit(*val)
        probs = calibrator.predict_proba(test[0])
        for j, name in enumerate(METHODS):
            for k, coverage in enumerate(COVERAGES):
                chosen = PredictionSets(**KINDS[name], coverage=coverage, calibrator=calibrator)
                if name == "RAPS":  # its penalty is chosen on the validation logits
                    chosen.fit(*val)
                    ranking = chosen._ranking()
                else:
                    ranking = Ranking(name != "LAC", 0.0, 0)
                if k == 0 or name == "RAPS":
                    conformity = compute_conformity(probs, ranking, uniform if "randomized" in name else None)
                    top = probs == probs.max(axis=1, keepdims=True)
                for order in splits:
                    first, second = np.array_split(order, 2)
                    true = conformity[first, labels[first]]
                    found = conformity[second] >= find_threshold(true, np.ones(len(first)), coverage)
                    found |= top[second] & ~found.any(axis=1, keepdims=True)
                    sizes[i, j, k, second] += found.sum(axis=1)
                    covered[i, j, k] += found[np.arange(len(second)), labels[second]].mean() / repeats
    some = times > 0
    per_row = sizes[..., some] / times[some]
    away = per_row - per_row[:1]
    error = away.std(axis=-1) / np.sqrt(some.sum())
    return family, gamma, Outcome(per_row.mean(axis=-1), covered, away.mean(axis=-1), error)


def write_coverage(found: list[tuple[str, bool, float, float, float]]) -> list[str]:
    """Write the table of the simulation."""
    lines = [
        "| method | by class | coverage | coverage of the worst class | mean size |",
        "|---|---|---|---|---|",
    ]
    for name, by_class, coverage, worst, size in found:
        lines.append(f"| {name} | {'yes' if by_class else 'no'} | {coverage:.4f} | {worst:.3f} | {size:.2f} |")
    return lines


def write_sizes(grouped: dict[tuple[str, float], list[Outcome]], k: int) -> list[str]:
    """Write the mean sizes for one coverage: softmax / Psi / focal temperature scaling."""
    lines = [f"| network | γ | seeds | {' | '.join(METHODS)} |", "|---|---|---|" + "---|" * len(METHODS)]
    for (family, gamma), outcomes in grouped.items():
        mean = np.mean([each.size for each in outcomes], axis=0)
        cells = [" / ".join(f"{mean[i, j, k]:.3f}" for i in range(len(MAPS))) for j in range(len(METHODS))]
        lines.append(f"| {family} | {gamma:g} | {len(outcomes)} | {' | '.join(cells)} |")
    return lines


def write_changes(grouped: dict[tuple[str, float], list[Outcome]]) -> list[str]:
    """Count the networks whose sets became smaller or larger by more than two standard errors."""
    columns = [f"{name} at {coverage:.0%}" for coverage in COVERAGES for name in METHODS]
    lines = [f"| map | γ | networks | {' | '.join(columns)} |", "|---|---|---|" + "---|" * len(columns)]
    for i in (1, 2):
        for gamma in sorted({gamma for _, gamma in grouped}):
            outcomes = [each for (_, own), found in grouped.items() if own == gamma for each in found]
            cells = []
            for k in range(len(COVERAGES)):
                for j in range(len(METHODS)):
                    change = np.array([each.change[i, j, k] for each in outcomes])
                    error = np.array([each.error[i, j, k] for each in outcomes])
                    base = np.array([each.size[0, j, k] for each in outcomes])
                    clear = np.abs(change) > 2 * error
                    smaller, larger = int(np.sum(clear & (change < 0))), int(np.sum(clear & (change > 0)))
                    cells.append(f"{100 * np.mean(change / base):+.1f}% ({smaller}, {larger})")
            lines.append(f"| {MAPS[i]} | {gamma:g} | {len(outcomes)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    """Run both parts, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=5, help="splits per network, and 200 times as many data sets")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    start = time.perf_counter()
    simulations = [(name, by_class, options.repeats) for by_class in (False, True) for name in KINDS]
    networks = [(*network, options.repeats) for network in list_networks()]
    with Pool(options.jobs) as pool:
        measured = pool.map_async(measure, networks[::-1], chunksize=1)
        coverage = pool.map(simulate, simulations, chunksize=1)
        outcomes = measured.get()
    grouped: dict[tuple[str, float], list[Outcome]] = defaultdict(list)
    for family, gamma, outcome in sorted(outcomes, key=lambda each: (NETWORKS.index(each[0]), each[1])):
        grouped[family, gamma].append(outcome)
    gaps = np.array([each.covered - COVERAGES for found in grouped.values() for each in found])
    sizes = [
        part
        for k, coverage_ in enumerate(COVERAGES)
        for part in ("", f"### Coverage {coverage_:.0%}", "", *write_sizes(grouped, k))
    ]
    page = [
        "# Prediction sets",
        "",
        f"`python benchmarks/conformal.py --repeats {options.repeats}` on {platform.machine()}, "
        f"{time.perf_counter() - start:.0f} s with {options.jobs} processes.",
        "",
        "## Coverage on data of known distribution",
        "",
        f"{options.repeats * SIMULATIONS_PER_REPEAT:,} data sets per row, each with {SIMULATED_ROWS} rows of "
        f"{SIMULATED_CLASSES} classes, one of them rare, and a coverage of 0.9; 20 new rows per data set. Sets may be "
        "empty. In theory the coverage is 0.9 without ties, and at least 0.9 with them (the most probable classes are "
        "tied if nothing is randomized). By class, a class with fewer than 9 rows is in every set, and ranks are "
        "rounded, which adds coverage. The standard error of a coverage is about 0.002.",
        "",
        *write_coverage(coverage),
        "",
        "## Sizes on networks trained with focal loss",
        "",
        f"Mean size of the sets of {sum(map(len, grouped.values()))} networks of the zoo, with softmax / Ψ^γ of "
        "softmax (`FocalPosterior`) / `FocalTemperatureScaling`. One half of the test logits gives the threshold, the "
        f"other is measured, {options.repeats} times. Focal temperature scaling and the penalty of RAPS are chosen on "
        "the validation logits. Empty sets get the top class. γ = 0 is cross-entropy, where Ψ is the identity. "
        "Coverage minus its target, over all networks, maps and methods: "
        f"mean {gaps.mean():+.4f}, least {gaps.min():+.4f}.",
        *sizes,
        "",
        "## Changes from softmax",
        "",
        "Mean change of the size in percent, and in brackets the number of networks whose sets became smaller and "
        "larger by more than two standard errors over test rows. Every map has the coverage that was asked for, so "
        "only sizes can change. In theory the true posterior gives the smallest LAC sets on average.",
        "",
        *write_changes(grouped),
        "",
    ]
    text = "\n".join(page)
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
