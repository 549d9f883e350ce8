"""Every calibrator on the logits of real networks: what it reaches on test data, and how long it takes.

python benchmarks/real_networks.py --data FOLDER --out benchmarks/results/real_networks.md

FOLDER has one .npz file per network with `logits_val`, `labels_val`, `logits_test`, `labels_test`, or with `logits` and
`labels`, which are then split in half by a fixed seed. Calibrators are fitted to the validation part.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from calibrators import cpu
from refocal.calibrators import (
    BY_NAME,
    AutoCalibrator,
    Calibrator,
    FocalPosterior,
    FocalTemperatureScaling,
    IsotonicCalibration,
    TemperatureScaling,
)
from refocal.stats.binning import equal_mass_bins, equal_width_bins

SEED = 0
RESAMPLES = 2000
CALIBRATORS: dict[str, Calibrator] = {
    "none": FocalPosterior(gamma=0.0),
    **{name: method() for name, method in BY_NAME.items()},
    "temperature, by ECE": TemperatureScaling(objective="ece"),
    "isotonic, top label": IsotonicCalibration(method="top_label"),
    "auto": AutoCalibrator(),
}


class Network(NamedTuple):
    """A network's logits and labels."""

    name: str
    val: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def read(path: Path) -> Network:
    """A file of logits; float16 is widened, as it is only how they are stored."""
    data = np.load(path, allow_pickle=False)
    parts: Any
    if "logits_val" in data:
        parts = [(data[f"logits_{part}"], data[f"labels_{part}"]) for part in ("val", "test")]
    else:
        order = np.random.default_rng(SEED).permutation(len(data["labels"]))
        halves = np.array_split(order, 2)
        parts = [(data["logits"][half], data["labels"][half]) for half in halves]
    val, test = ((np.asarray(z, dtype=np.float32), np.asarray(y, dtype=np.int64)) for z, y in parts)
    return Network(path.stem, val, test)


def log_losses(calibrator: Calibrator, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The negative log-likelihood of each sample."""
    return -calibrator.predict_log_proba(logits)[np.arange(len(labels)), labels]


def quality(calibrator: Calibrator, logits: np.ndarray, labels: np.ndarray) -> tuple[float, float, float]:
    """NLL, ECE and adaptive ECE (15 bins, in percent)."""
    probs = calibrator.predict_proba(logits)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    bins = [make(confidence, correct, bins=15) for make in (equal_width_bins, equal_mass_bins)]
    width, mass = (100 * each.expected_calibration_error for each in bins)
    return float(np.mean(log_losses(calibrator, logits, labels))), width, mass


def fit(calibrator: Calibrator, network: Network, repeats: int = 1) -> float:
    """Fit; the shortest CPU time."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        calibrator.fit(*network.val)
        times.append(time.process_time() - start)
    return min(times)


def every_calibrator(networks: list[Network]) -> tuple[list[str], list[str]]:
    """A row for each network and calibrator, and the means over networks."""
    rows, summary = [], []
    found = np.empty((len(networks), len(CALIBRATORS), 4))
    for i, network in enumerate(networks):
        for j, (name, calibrator) in enumerate(CALIBRATORS.items()):
            seconds = fit(calibrator, network)
            found[i, j] = (*quality(calibrator, *network.test), seconds)
            nll, ece, adaptive, _ = found[i, j]
            rows.append(f"| {network.name} | {name} | {nll:.4f} | {ece:.2f} | {adaptive:.2f} | {seconds:.4f} |")
            print(rows[-1], flush=True)
    base = found[:, list(CALIBRATORS).index("temperature"), 0]
    for j, name in enumerate(CALIBRATORS):
        nll, ece, adaptive, seconds = found[:, j].mean(axis=0)
        better = int(np.sum(found[:, j, 0] < base))
        summary.append(f"| {name} | {nll:.4f} | {better} | {ece:.2f} | {adaptive:.2f} | {seconds:.4f} |")
    return rows, summary


def focal_against_plain(networks: list[Network]) -> tuple[list[str], str]:
    """Focal temperature scaling beside temperature scaling, with paired bootstrap intervals of the test NLL."""
    rows, better, surely = [], 0, 0
    for network in networks:
        plain, focal = TemperatureScaling().fit(*network.val), FocalTemperatureScaling().fit(*network.val)
        gain_fit = np.mean(log_losses(plain, *network.val) - log_losses(focal, *network.val))
        gains = log_losses(plain, *network.test) - log_losses(focal, *network.test)
        rng = np.random.default_rng(SEED)
        resampled = [gains[rng.integers(0, len(gains), len(gains))].mean() for _ in range(RESAMPLES)]
        low, high = np.quantile(resampled, [0.025, 0.975])
        better += int(gains.mean() > 0)
        surely += int(low > 0)
        rows.append(
            f"| {network.name} | {plain.temperature_:.3f} | {focal.temperature_:.3f} | "
            f"{focal.gamma_:+.3f} ± {focal.gamma_error_:.3f} | {1e3 * gain_fit:+.3f} | {1e3 * gains.mean():+.3f} | "
            f"[{1e3 * low:+.3f}, {1e3 * high:+.3f}] |"
        )
        print(rows[-1], flush=True)
    verdict = (
        f"Better on test data on {better} of {len(networks)} networks, on {surely} with an interval above 0; on the "
        "data fitted to never worse."
    )
    return rows, verdict


def searches(networks: list[Network]) -> list[str]:
    """Newton, grid and line on each network."""
    rows = []
    for network in networks:
        for name, options in {
            "newton, NLL": {},
            "grid, adaptive ECE": {"search": "grid", "objective": "adaptive_ece"},
            "line, adaptive ECE": {"search": "line", "objective": "adaptive_ece"},
        }.items():
            calibrator = FocalTemperatureScaling(**options)
            seconds = fit(calibrator, network)
            val, test = quality(calibrator, *network.val), quality(calibrator, *network.test)
            rows.append(
                f"| {network.name} | {name} | {calibrator.gamma_:+.2f} | {calibrator.temperature_:.2f} | "
                f"{val[2]:.2f} | {test[2]:.2f} | {test[0]:.4f} | {seconds:.4f} | {calibrator.evaluations_:,} |"
            )
            print(rows[-1], flush=True)
    return rows


def why_gamma_is_negative(networks: list[Network]) -> tuple[list[str], float]:
    """The temperature of the top class's log-odds, that of the other classes among themselves, and gamma."""
    rows, pairs = [], []
    for network in networks:
        logits = np.concatenate([network.val[0], network.test[0]]).astype(np.float64)
        labels = np.concatenate([network.val[1], network.test[1]])
        top = logits.argmax(axis=1)
        below = np.arange(logits.shape[1]) != top[:, None]
        others = logits[below].reshape(len(logits), -1)
        largest = others.max(axis=1)
        log_odds = logits.max(axis=1) - largest - np.log(np.exp(others - largest[:, None]).sum(axis=1))
        of_top = TemperatureScaling().fit(log_odds, top == labels)
        wrong = top != labels
        of_others = TemperatureScaling().fit(others[wrong], (labels - (labels > top))[wrong])
        focal = FocalTemperatureScaling().fit(logits, labels)
        ratio = of_others.temperature_ / of_top.temperature_
        pairs.append((focal.gamma_, ratio))
        rows.append(
            f"| {network.name} | {of_top.temperature_:.2f} ± {of_top.temperature_error_:.2f} | "
            f"{of_others.temperature_:.2f} ± {of_others.temperature_error_:.2f} | {ratio - 1:+.2f} | "
            f"{focal.gamma_:+.2f} ± {focal.gamma_error_:.2f} | {focal.temperature_:.2f} |"
        )
        print(rows[-1], flush=True)
    return rows, float(np.corrcoef(np.array(pairs).T)[0, 1])


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of .npz files, one per network")
    parser.add_argument("--out", type=Path, help="also write the tables to this Markdown file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    threadpool_limits(1)
    networks = [read(path) for path in sorted(arguments.data.glob("*.npz"))]
    focal_rows, verdict = focal_against_plain(networks)
    reason_rows, correlation = why_gamma_is_negative(networks)
    search_rows = searches(networks)
    rows, summary = every_calibrator(networks)
    text = "\n".join(
        [
            "# Calibrators on the logits of real networks",
            "",
            f"{len(networks)} published networks, all trained with cross-entropy; calibrators are fitted to 5,000 "
            "validation samples and measured on the test samples. ECE and adaptive ECE: 15 bins of equal width and of "
            "equal mass, in percent. CPU seconds of one thread. Penalties and weights are chosen by cross-validation "
            "on the validation samples. The candidates and the floor were decided while looking at these networks, "
            "which flatters refocal a little; `calibrator_arena.md` has more experiments.",
            "",
            "## Means over networks",
            "",
            "| calibrator | test NLL | networks with a lower NLL than temperature scaling | ECE | adaptive ECE | "
            "seconds to fit |",
            "|---|---|---|---|---|---|",
            *summary,
            "",
            "## Focal temperature scaling beside temperature scaling",
            "",
            f"{verdict} Gains in NLL, in thousandths of a nat; 95 % intervals by paired bootstrap over test samples "
            f"({RESAMPLES:,} resamples).",
            "",
            "| network | T alone | T | gamma | gain, data fitted to | gain, test | 95 % interval |",
            "|---|---|---|---|---|---|---|",
            *focal_rows,
            "",
            "## Why gamma is negative",
            "",
            "T_top: the temperature of the top class's log-odds against all others, fitted to whether it is right. "
            "T_others: the temperature of the other classes among themselves, fitted where the top class is wrong. "
            f"All samples of a network. Correlation of gamma with T_others / T_top: {correlation:.2f}.",
            "",
            "| network | T_top | T_others | T_others / T_top − 1 | gamma | T |",
            "|---|---|---|---|---|---|",
            *reason_rows,
            "",
            "## Three searches for focal temperature scaling",
            "",
            "| network | search | gamma | T | adaptive ECE, data fitted to | adaptive ECE, test | test NLL | seconds "
            "| evaluations |",
            "|---|---|---|---|---|---|---|---|---|",
            *search_rows,
            "",
            "## Every calibrator on every network",
            "",
            "| network | calibrator | test NLL | ECE | adaptive ECE | seconds to fit |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"{cpu()}, {os.cpu_count()} cores, one thread; Python {platform.python_version()}, NumPy {np.__version__}; "
            "`python benchmarks/real_networks.py --data FOLDER`.",
            "",
        ]
    )
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
