"""Time to fit temperature, focal temperature, vector and matrix scaling, beside other packages and plain searches.

python benchmarks/calibrators.py --out benchmarks/results/calibrators.md

All in one process with one thread, on the same arrays. `make bench-calibrators` installs the other packages.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import logging
import os
import platform
import sys
import time
import types
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.special import log_softmax
from threadpoolctl import threadpool_limits
from torch.utils.data import TensorDataset

import refocal
from refocal.calibrators import FocalTemperatureScaling, MatrixScaling, TemperatureScaling, VectorScaling
from refocal.calibrators.focal_temperature import PUBLISHED_GAMMAS, PUBLISHED_TEMPERATURES
from refocal.stats.binning import equal_mass_bins

SHAPES = [(5_000, 100), (50_000, 1_000), (1_000_000, 10)]
MANY_CLASSES = (25_000, 1_000)
HELD_OUT = 5_000  # more rows, to measure on
TRUE_TEMPERATURE = 1.7
SMALL_REPEATS = 25
SLOW = "torch-uncertainty"  # takes minutes beyond the first shape
Fit = Callable[[np.ndarray, np.ndarray], float]


def problem(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Overconfident float32 logits and labels."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((rows, classes), dtype=np.float32)
    labels = np.empty(rows, dtype=np.int64)
    for start in range(0, rows, 10_000):
        part = logits[start : start + 10_000]
        labels[start : start + 10_000] = np.argmax(part + rng.gumbel(size=part.shape), axis=1)
    return np.float32(TRUE_TEMPERATURE) * logits, labels


def with_refocal(logits: np.ndarray, labels: np.ndarray) -> float:
    """Newton's method on 1/T."""
    return TemperatureScaling().fit(logits, labels).temperature_


def with_scikit_learn(logits: np.ndarray, labels: np.ndarray) -> float:
    """The fit behind CalibratedClassifierCV(method="temperature")."""
    from sklearn.calibration import _TemperatureScaling

    return 1 / _TemperatureScaling().fit(logits, labels).beta_


def with_probmetrics(logits: np.ndarray, labels: np.ndarray) -> float:
    """Bisection, from logits as PyTorch tensors."""
    from probmetrics.calibrators import TemperatureScalingCalibrator
    from probmetrics.distributions import CategoricalLogits

    calibrator = TemperatureScalingCalibrator()
    calibrator.fit_torch(CategoricalLogits(torch.as_tensor(logits)), torch.as_tensor(labels))
    return 1 / float(calibrator.invtemp_)


def with_netcal(logits: np.ndarray, labels: np.ndarray) -> float:
    """From probabilities."""
    from netcal.scaling import TemperatureScaling as Theirs

    probs = np.exp(log_softmax(logits, axis=1))
    return 1 / float(np.ravel(Theirs().fit(probs, labels)._sites["weights"]["values"])[0])


def with_torch_uncertainty(logits: np.ndarray, labels: np.ndarray) -> float:
    """L-BFGS without a line search, from a loader that gives all rows at once."""
    scaler = torch_uncertainty_scaler()()
    rows = TensorDataset(torch.as_tensor(logits), torch.as_tensor(labels))
    scaler.fit([rows[:]], progress=False)
    return 1 / float(scaler.inv_temp.detach())


def torch_uncertainty_scaler() -> type:
    """Its class, without the `__init__` of the package, which asks for a torchvision that matches PyTorch's build."""
    root = "torch_uncertainty"
    if root not in sys.modules:
        folder = Path(importlib.util.find_spec(root).submodule_search_locations[0])
        for name in (root, f"{root}.post_processing", f"{root}.post_processing.calibration"):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        parent = sys.modules[f"{root}.post_processing"]
        parent.PostProcessing = importlib.import_module(f"{root}.post_processing.abstract").PostProcessing
    return importlib.import_module(f"{root}.post_processing.calibration.temperature_scaler").TemperatureScaler


def with_lbfgs(logits: np.ndarray, labels: np.ndarray) -> float:
    """The recipe in PyTorch: L-BFGS with a strong Wolfe line search."""
    scores, target = torch.as_tensor(logits), torch.as_tensor(labels)
    log_temperature = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([log_temperature], lr=1.0, max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(scores * torch.exp(-log_temperature), target)
        loss.backward()
        return loss

    optimizer.step(closure)
    return float(torch.exp(log_temperature.detach()))


PEERS: dict[str, tuple[Fit, str]] = {
    "refocal": (with_refocal, "refocal"),
    "probmetrics": (with_probmetrics, "probmetrics"),
    "scikit-learn": (with_scikit_learn, "scikit-learn"),
    "L-BFGS in PyTorch": (with_lbfgs, "torch"),
    "torch-uncertainty": (with_torch_uncertainty, "torch_uncertainty"),
    "netcal": (with_netcal, "netcal"),
}


def nll(logits: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    """The mean negative log-likelihood in float64."""
    total = 0.0
    for start in range(0, len(logits), 10_000):
        rows = slice(start, start + 10_000)
        logs = log_softmax(logits[rows].astype(np.float64) / temperature, axis=1)
        total -= logs[np.arange(len(logs)), labels[rows]].sum()
    return total / len(logits)


def plain_grid(logits: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Nine gammas by 500 temperatures, one after the other, as Komisarenko and Kull (2024) describe it."""
    correct = logits.argmax(axis=1) == labels
    best = (np.inf, 0.0, 1.0)
    for gamma in PUBLISHED_GAMMAS:
        for temperature in PUBLISHED_TEMPERATURES:
            probs = refocal.posterior_from_logits(logits, gamma=float(gamma), temperature=float(temperature))
            error = equal_mass_bins(probs.max(axis=1), correct, bins=15).expected_calibration_error
            best = min(best, (error, float(gamma), float(temperature)))
    return best[1], best[2]


def timed(function: Callable[[], object], repeats: int) -> tuple[float, object]:
    """The shortest time, and the result."""
    times: list[float] = []
    result: object = None
    for _ in range(repeats):
        start = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - start)
    return min(times), result


def temperature_rows() -> list[str]:
    """One row a package and shape."""
    rows = []
    for shape in SHAPES:
        logits, labels = problem(*shape)
        repeats = SMALL_REPEATS if shape[0] == 5_000 else 2
        found = {}
        for name, (fit, package) in PEERS.items():
            if name == SLOW and shape != SHAPES[0]:
                continue
            try:
                version = importlib.metadata.version(package)
                seconds, temperature = timed(partial(fit, logits, labels), repeats)
            except Exception as error:
                print(f"{name} at {shape}: {error!r}")
                continue
            found[name] = (seconds, float(temperature), nll(logits, labels, float(temperature)), version)
            print(shape, name, found[name], flush=True)
        base = found["refocal"]
        rows += [
            f"| {shape[0]:,} x {shape[1]:,} | {name} {version} | {seconds:.4f} | {seconds / base[0]:.1f} | "
            f"{temperature:.4f} | {value - base[2]:+.1e} |"
            for name, (seconds, temperature, value, version) in found.items()
        ]
    return rows


def focal_rows() -> list[str]:
    """Focal temperature scaling at 5,000 x 100: time, evaluations, and what was reached."""
    logits, labels = problem(*SHAPES[0])
    correct = logits.argmax(axis=1) == labels
    exact = logits.astype(np.float64)

    def quality(gamma: float, temperature: float) -> tuple[float, float]:
        logs = refocal.posterior_from_logits(exact, gamma=gamma, temperature=temperature, log=True)
        bins = equal_mass_bins(np.exp(logs.max(axis=1)), correct, bins=15)
        return 100 * bins.expected_calibration_error, float(-np.mean(logs[np.arange(len(logs)), labels]))

    def by(**options: str) -> Callable[[], FocalTemperatureScaling]:
        return lambda: FocalTemperatureScaling(**options).fit(logits, labels)

    rows = []
    temperature_seconds, _ = timed(lambda: TemperatureScaling().fit(logits, labels), SMALL_REPEATS)
    grid_seconds, (gamma, temperature) = timed(lambda: plain_grid(logits, labels), 1)
    error, value = quality(gamma, temperature)
    rows.append(("plain loop over the grid", grid_seconds, 4500, error, value))
    for name, options, repeats in [
        ('search="grid", objective="adaptive_ece"', {"search": "grid", "objective": "adaptive_ece"}, 1),
        ('search="line", objective="adaptive_ece"', {"search": "line", "objective": "adaptive_ece"}, 3),
        ('search="newton", objective="nll"', {}, SMALL_REPEATS),
    ]:
        seconds, fitted = timed(by(**options), repeats)
        rows.append((name, seconds, fitted.evaluations_, *quality(fitted.gamma_, fitted.temperature_)))
    return [
        f"| {name} | {seconds:.4f} | {grid_seconds / seconds:.0f} | {seconds / temperature_seconds:.1f} | {count:,} | "
        f"{error:.3f} | {value:.5f} |"
        for name, seconds, count, error, value in rows
    ]


def linear_rows() -> list[str]:
    """Vector and matrix scaling of many classes, each with its own scale and bias: time, penalties tried, and gain."""
    rows, classes = MANY_CLASSES
    logits, labels = problem(rows + HELD_OUT, classes)
    rng = np.random.default_rng(1)
    scale, bias = 1 + 0.2 * rng.standard_normal(classes), 0.5 * rng.standard_normal(classes)
    logits = (logits * scale + bias).astype(np.float32)
    other, wanted = logits[rows:], labels[rows:]
    logits, labels = logits[:rows], labels[:rows]
    plain = nll(other, wanted, with_refocal(logits, labels))
    lines = []
    for calibrator in (VectorScaling(), MatrixScaling()):
        busy = time.process_time()
        seconds, _ = timed(partial(calibrator.fit, logits, labels), 1)
        busy = time.process_time() - busy
        value = -float(np.mean(calibrator.predict_log_proba(other)[np.arange(HELD_OUT), wanted]))
        lines.append(
            f"| {type(calibrator).__name__} | {seconds:.1f} | {busy:.1f} | {len(calibrator.penalty_scores_)} "
            f"| {calibrator.penalty_:g} | {plain:.4f} | {value:.4f} |"
        )
        print(lines[-1], flush=True)
    return lines


def cpu() -> str:
    """The processor's name, as the system gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def write_temperature() -> list[str]:
    """The section on temperature scaling."""
    return [
        "## Temperature scaling by likelihood",
        "",
        "| logits | package | seconds | times refocal | T | NLL above refocal's |",
        "|---|---|---|---|---|---|",
        *temperature_rows(),
        "",
        "netcal gets probabilities, in float32 as the logits are; probmetrics and torch-uncertainty get tensors. "
        "torch-uncertainty's scaler is imported without the rest of its package, which needs a torchvision built "
        "for the same PyTorch; it is measured at 5,000 x 100 alone, as it would take minutes beyond.",
    ]


def write_focal() -> list[str]:
    """The section on focal temperature scaling."""
    return [
        "## Focal temperature scaling at 5,000 x 100",
        "",
        "Calibration error: equal-mass, 15 bins, in percent, on the data fitted to; it is what the grid and the "
        "line minimize. NLL is what Newton's method minimizes.",
        "",
        "| search | seconds | times faster than the plain loop | times the cost of temperature scaling "
        "| evaluations | error, % | NLL |",
        "|---|---|---|---|---|---|---|",
        *focal_rows(),
    ]


def write_linear() -> list[str]:
    """The section on vector and matrix scaling."""
    return [
        f"## Vector and matrix scaling at {MANY_CLASSES[0]:,} x {MANY_CLASSES[1]:,}",
        "",
        "The same logits, but each class has its own factor and bias. One fit each, with the cross-validation of the "
        f"penalty in five folds. NLL of {HELD_OUT:,} other rows, after temperature scaling and after the fit. "
        "Processor seconds do not count other processes on the machine. "
        "`python benchmarks/calibrators.py --sections linear`",
        "",
        "| calibrator | seconds | processor seconds | penalties tried | penalty | NLL, temperature | NLL, fit |",
        "|---|---|---|---|---|---|---|",
        *linear_rows(),
    ]


SECTIONS = {"temperature": write_temperature, "focal": write_focal, "linear": write_linear}


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="only these tables")
    parser.add_argument("--out", type=Path, help="also write the tables to this Markdown file")
    given = parser.parse_args()
    out = given.out
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    threadpool_limits(1)
    text = "\n".join(
        [
            "# Fitting calibrators",
            "",
            f"Logits of known temperature {TRUE_TEMPERATURE}, float32; every package in the same process, on the same "
            f"arrays, with one thread; the shortest of {SMALL_REPEATS} fits at 5,000 x 100, else of 2. Times include "
            "each package's checks of its input.",
            "",
            *(line for name in given.sections for line in [*SECTIONS[name](), ""]),
            f"{cpu()}, {os.cpu_count()} cores, one thread; Python {platform.python_version()}, NumPy {np.__version__}, "
            f"PyTorch {torch.__version__.split('+')[0]}; `python benchmarks/calibrators.py`.",
            "",
        ]
    )
    print(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
