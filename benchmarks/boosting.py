"""Training time with a focal objective, beside the package's own cross-entropy objective in the same run.

python benchmarks/boosting.py --out benchmarks/results/boosting.md
"""

from __future__ import annotations

import argparse
import os
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import catboost
import lightgbm
import numpy as np
import xgboost

from refocal.boosting import BinaryFocal, MulticlassFocal

FEATURES, DEPTH, ROUNDS, CLASSES = 20, 6, 50, 5
Fit = Callable[[np.ndarray, np.ndarray, bool], object]


def fit_lightgbm(features: np.ndarray, labels: np.ndarray, focal: bool) -> object:
    """Train LightGBM on one thread."""
    several = labels.max() > 1
    loss = MulticlassFocal(gamma=2) if several else BinaryFocal(gamma=2)
    builtin = "multiclass" if several else "binary"
    params = {"objective": loss.lightgbm.objective if focal else builtin, "verbosity": -1, "num_threads": 1}
    params |= {"max_depth": DEPTH} | ({"num_class": CLASSES} if several else {})
    return lightgbm.train(params, lightgbm.Dataset(features, labels), ROUNDS)


def fit_xgboost(features: np.ndarray, labels: np.ndarray, focal: bool) -> object:
    """Train XGBoost on one thread."""
    several = labels.max() > 1
    loss = MulticlassFocal(gamma=2) if several else BinaryFocal(gamma=2)
    params = {"objective": "multi:softprob" if several else "binary:logistic", "nthread": 1, "max_depth": DEPTH}
    params |= {"num_class": CLASSES} if several else {}
    data = xgboost.DMatrix(features, labels)
    return xgboost.train(params, data, ROUNDS, obj=loss.xgboost.objective if focal else None)


def fit_catboost(features: np.ndarray, labels: np.ndarray, focal: bool) -> object:
    """Train CatBoost on one thread."""
    several = labels.max() > 1
    loss = MulticlassFocal(gamma=2) if several else BinaryFocal(gamma=2)
    params = {"iterations": ROUNDS, "depth": DEPTH, "thread_count": 1, "verbose": False, "allow_writing_files": False}
    params |= {"leaf_estimation_iterations": 1} | ({"classes_count": CLASSES} if several else {})
    if focal:
        params |= {"loss_function": loss.catboost.objective, "eval_metric": loss.catboost.metric}
    else:
        params |= {"loss_function": "MultiClass" if several else "Logloss"}
    return catboost.CatBoostClassifier(**params).fit(features, labels)


def measure(fit: Fit, rows: int, classes: int, repeats: int) -> tuple[float, float]:
    """Median seconds of the built-in objective, and the median ratio of neighbors; the two take turns."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, FEATURES))
    labels = (features[:, :classes] + rng.gumbel(size=(rows, classes))).argmax(axis=1)
    times = np.empty((repeats, 2))
    for repeat in range(repeats):
        for focal in (False, True):
            begin = time.perf_counter()
            fit(features, labels, focal)
            times[repeat, int(focal)] = time.perf_counter() - begin
    return float(np.median(times[:, 0])), float(np.median(times[:, 1] / times[:, 0]))


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the training data")
    parser.add_argument("--slow-rows", type=int, default=2_000, help="rows for CatBoost with several classes")
    parser.add_argument("--repeats", type=int, default=3, help="fits of each kind")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Failed to import numba")
    fits: dict[str, Fit] = {"LightGBM": fit_lightgbm, "XGBoost": fit_xgboost, "CatBoost": fit_catboost}
    rows = []
    for name, fit in fits.items():
        for classes in (2, CLASSES):
            count = options.slow_rows if name == "CatBoost" and classes > 2 else options.rows
            builtin, ratio = measure(fit, count, classes, options.repeats)
            rows.append(f"| {name} | {classes} | {count:,} | {builtin:.2f} | {ratio:.2f} |")
            print(rows[-1], flush=True)
    versions = f"LightGBM {lightgbm.__version__}, XGBoost {xgboost.__version__}, CatBoost {catboost.__version__}"
    table = "\n".join(
        [
            "# Training boosted trees with focal loss",
            "",
            f"Time to train {ROUNDS} rounds of depth {DEPTH} on {FEATURES} features, on one thread: with the package's "
            "own cross-entropy objective in seconds, and with `refocal.boosting`, gamma = 2, as a multiple of it "
            f"(medians of {options.repeats}, taking turns). CatBoost calls Python for each row if there are several "
            "classes.",
            "",
            "| package | classes | rows | built-in, s | focal, ratio |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"Python {platform.python_version()}, NumPy {np.__version__}, {versions}, {platform.machine()}, "
            f"{os.cpu_count()} cores; `python benchmarks/boosting.py`.",
            "",
        ]
    )
    print(table)
    if options.out is not None:
        options.out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
