"""Every calibrator on hundreds of experiments: what it reaches on test data, and how long a fit takes.

python benchmarks/calibrator_arena.py --data FOLDER --cache CACHE --save raw.json --out table.md

`arena_experiments.py` says what FOLDER holds and how experiments are made; they are kept in CACHE. `arena_methods.py`
lists the methods, `arena_table.py` makes the tables. `--load` adds the raw numbers of earlier runs to the table. A
method of a package that is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arena_experiments import FAMILIES, ZOO, Experiment, list_cached, load, prepare
from arena_methods import METHODS, REFERENCE, RIVAL, Method, choose_methods
from arena_table import FLOOR, render
from threadpoolctl import threadpool_limits

from refocal.stats.binning import equal_mass_bins
from refocal.stats.proper_scores import log_scores

Numbers = dict[str, Any]


def score_rows(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The log loss of each row (N,), with probabilities of at least `FLOOR`."""
    return log_scores(np.maximum(probs, FLOOR), labels)


def score_brier(probs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The Brier score of each row (N,), summed over classes."""
    return np.sum((probs - np.eye(probs.shape[1])[labels]) ** 2, axis=1)


def measure(probs: np.ndarray, labels: np.ndarray) -> Numbers:
    """Measure predictions for the test part."""
    top = probs.argmax(axis=1)
    bins = equal_mass_bins(probs.max(axis=1).astype(np.float64), top == labels, bins=15)
    return {
        "log_loss": float(np.mean(score_rows(probs, labels))),
        "brier": float(np.mean(score_brier(probs, labels))),
        "ece": float(bins.expected_calibration_error),
        "accuracy": float(np.mean(top == labels)),
    }


def compare(rows: np.ndarray, others: np.ndarray) -> list[float]:
    """The mean of the paired differences of two methods' scores of the same rows, and its standard error."""
    away = rows - others
    return [float(np.mean(away)), float(np.std(away, ddof=1) / np.sqrt(len(away)))]


def run_method(method: Method, experiment: Experiment) -> tuple[Numbers, dict[str, np.ndarray]]:
    """Fit a method and measure it; the scores of the rows, by name, are empty if it fails."""
    cal, test = (method.convert(x, experiment.input) for x in (experiment.scores_cal, experiment.scores_test))
    try:
        calibrator = method.make(experiment.input, experiment.classes)
        start = time.perf_counter()
        calibrator.fit(cal, experiment.labels_cal)
        seconds = time.perf_counter() - start
        probs = np.asarray(calibrator.predict_proba(test), dtype=np.float64)
        if not np.all(np.isfinite(probs)):
            return {"error": "probabilities are not finite"}, {}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}, {}
    numbers = measure(probs, experiment.labels_test) | {"seconds": seconds}
    members = getattr(calibrator, "members_", [])  # of refocal's automatic calibrator
    best = members[0] if len(members) == 1 else None
    if best is not None:
        numbers["chosen"] = type(best).__name__
    labels = experiment.labels_test
    return numbers, {"log_loss": score_rows(probs, labels), "brier": score_brier(probs, labels)}


def run_experiment(path: Path, names: list[str]) -> tuple[str, Numbers]:
    """Run all methods on one experiment."""
    experiment = load(path)
    methods = {name: METHODS[name] for name in names if METHODS[name].takes(experiment.classes)}
    found: dict[str, Numbers] = {}
    rows: dict[str, dict[str, np.ndarray]] = {}
    for name, method in methods.items():
        found[name], scores = run_method(method, experiment)
        if scores:
            rows[name] = scores
    for name, scores in rows.items():
        found[name]["against"] = {
            other: {score: compare(values, rows[other][score]) for score, values in scores.items()}
            for other in (REFERENCE, RIVAL)
            if other in rows
        }
    about = {
        "family": experiment.family,
        "input": experiment.input,
        "classes": experiment.classes,
        "rows_cal": len(experiment.labels_cal),
        "rows_test": len(experiment.labels_test),
    }
    return experiment.name, about | {"methods": found}


def start_worker(names: list[str]) -> None:
    """Use one thread, and let packages import and compile what they need before anything is timed."""
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    threadpool_limits(1)
    rng = np.random.default_rng(0)
    for classes in (2, 3):
        logits = rng.standard_normal((60, classes))
        labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        small = Experiment("warm-up", "", "logits", logits, labels, logits, labels)
        for method in (METHODS[name] for name in names if METHODS[name].takes(classes)):
            run_method(method, small)
            run_method(method, replace(small, input="probs", **as_probs(logits)))


def as_probs(logits: np.ndarray) -> dict[str, np.ndarray]:
    """Both parts of the warm-up as probabilities."""
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return {"scores_cal": probs, "scores_test": probs}


def run_all(paths: list[Path], names: list[str], jobs: int) -> Iterator[tuple[str, Numbers]]:
    """Run the experiments in this process, or in several, the largest first."""
    if jobs == 1:
        start_worker(names)
        yield from (run_experiment(path, names) for path in paths)
        return
    largest_first = sorted(paths, key=lambda path: -path.stat().st_size)
    with get_context("spawn").Pool(jobs, start_worker, (names,)) as pool:
        yield from pool.imap_unordered(partial(run_experiment, names=names), largest_first)


def merge(stored: list[Path], results: dict[str, Numbers]) -> dict[str, Numbers]:
    """Put the results of several runs together; later ones replace earlier ones."""
    merged: dict[str, Numbers] = {}
    for run in [*(json.loads(path.read_text(encoding="utf-8")) for path in stored), results]:
        for name, about in run.items():
            methods = merged.get(name, {"methods": {}})["methods"] | about["methods"]
            merged[name] = about | {"methods": methods}
    return merged


def main() -> None:
    """Run what is asked for, and write numbers and tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with logits/ and tabular/; without it the cache must be full")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the experiments")
    parser.add_argument("--zoo", type=Path, default=ZOO, help="folder of the zoo")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--methods", nargs="*", choices=METHODS, metavar="METHOD", help=f"some of {list(METHODS)}")
    parser.add_argument("--limit", type=int, help="at most this many experiments of each family, evenly spread")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--load", type=Path, nargs="+", default=[], help="raw numbers of earlier runs to add")
    parser.add_argument("--save", type=Path, help="write the raw numbers of this run to this JSON file")
    parser.add_argument("--out", type=Path, help="write the tables to this Markdown file")
    arguments = parser.parse_args()
    if arguments.data is not None:
        prepare(arguments.data, arguments.cache, arguments.zoo, arguments.jobs)
    paths: list[Path] = []
    for family in arguments.families:
        found = list_cached(arguments.cache, (family,))
        few = len(found) if arguments.limit is None else min(len(found), arguments.limit)
        paths += [found[i * len(found) // few] for i in range(few)]
    names = list(choose_methods(arguments.methods))
    results: dict[str, Numbers] = {}
    start = time.perf_counter()
    for count, (name, numbers) in enumerate(run_all(paths, names, arguments.jobs), 1):
        results[name] = numbers
        losses = {method: each.get("log_loss", each.get("error")) for method, each in numbers["methods"].items()}
        told = ", ".join(f"{each} {value:.4f}" if isinstance(value, float) else each for each, value in losses.items())
        print(f"{count}/{len(paths)} {time.perf_counter() - start:.0f} s {name}: {told}", flush=True)
        if arguments.save is not None and (count % 20 == 0 or count == len(paths)):
            arguments.save.write_text(json.dumps(results, indent=1), encoding="utf-8")
    text = render(merge(arguments.load, results), arguments.jobs)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
