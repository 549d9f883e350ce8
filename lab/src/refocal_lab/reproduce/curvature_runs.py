"""Summaries of runs for Figures 2 to 4 of Kimura and Naganuma (2024), with intervals over seeds.

A run is a record. For Figures 2 and 3 it has the network, gamma, seed and ECE, and the largest eigenvalue and the trace
of one or both Hessians. For Figure 4 it has tau, the learning rate, the seed, whether it diverged, and ECE, error and
trace.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

Runs = Sequence[dict[str, Any]]
HESSIANS = {"trained": "Hessian of the training loss", "cross_entropy": "Hessian of cross-entropy"}
CHANGES = ("ece fall", "error rise", "trace over at 0")  # what `summarize_by_tau` compares with tau = 0
_FOR_A_CUBIC = 5  # runs; a cubic passes through any four


def interval(values: Sequence[float]) -> dict[str, float]:
    """Mean over seeds, with a 95 % interval by Student's t."""
    given = np.asarray(values, dtype=float)
    half = float(stats.t.ppf(0.975, len(given) - 1) * given.std(ddof=1) / np.sqrt(len(given)))
    return {"mean": float(given.mean()), "low": float(given.mean() - half), "high": float(given.mean() + half)}


def by_seed(runs: Runs, number: Callable[[Runs], float], *, interval_of: bool = True) -> dict[str, Any]:
    """Compute a number per seed and, unless it is bounded as correlations are, the interval of its mean."""
    values = [number([run for run in runs if run["seed"] == seed]) for seed in names(runs, "seed")]
    return {"seeds": values, **(interval(values) if interval_of and len(values) > 1 else {})}


def ratio_by_seed(runs: Runs, number: Callable[[Runs], float]) -> dict[str, Any]:
    """Compute a ratio per seed, its geometric mean, and an interval from the logarithms."""
    logs = by_seed(runs, lambda each: float(np.log(number(each))))
    return {key: np.exp(value).tolist() for key, value in logs.items()}


def summarize_by_gamma(runs: Runs) -> dict[str, Any]:
    """Summarize Figure 2: how lambda_max depends on gamma, and which gamma has the lowest ECE."""
    found: dict[str, Any] = {}
    for network in names(runs, "network"):
        own = [run for run in runs if run["network"] == network]
        chosen = _whole_seeds(own)
        if not chosen:
            continue
        last = names(chosen, "gamma")[-1]
        entry: dict[str, Any] = {}
        for name in HESSIANS:
            key = f"lambda_max_{name}"
            measured = _whole_seeds(with_hessian(own, name))
            if measured:
                rank = partial(_rank, one="gamma", two=key)
                growth = partial(_growth, last=names(measured, "gamma")[-1], key=key)
                entry[f"{key}_rank_correlation_with_gamma"] = by_seed(measured, rank, interval_of=False)
                entry[f"{key}_at_largest_over_at_0"] = ratio_by_seed(measured, growth)
        entry["gamma_of_least_ece"] = by_seed(chosen, _gamma_of_least_ece)
        for end, words in ((0.0, "0"), (last, "largest")):
            above = partial(_above_least_between, end=end, last=last)
            entry[f"ece_at_{words}_less_least_between"] = by_seed(chosen, above)
        found[network] = entry
    return found


def fit_cubics(runs: Runs) -> dict[str, Any]:
    """Summarize Figure 3: fit ECE by a cubic in the trace, and find the trace with the lowest fitted ECE."""
    found: dict[str, Any] = {}
    for network in names(runs, "network"):
        for name in HESSIANS:
            chosen = with_hessian([run for run in runs if run["network"] == network], name)
            if len(chosen) < _FOR_A_CUBIC or len(names(chosen, "gamma")) < 2:
                continue
            trace, ece = (np.array([run[key] for run in chosen]) for key in (f"trace_{name}", "ece"))
            fit = np.polyfit(trace, ece, 3)
            rest = ece - np.polyval(fit, trace)
            grid = np.linspace(trace.min(), trace.max(), 2001)
            least = int(np.argmin(np.polyval(fit, grid)))
            found[f"{network}, {name}"] = {
                "cubic_in_trace": fit.tolist(),
                "share_of_variance_explained": float(1 - rest.var() / ece.var()),
                "trace_at_least_ece": float(grid[least]),
                "least_is_inside": bool(0 < least < len(grid) - 1),
                "rank_correlation_of_trace_and_gamma": by_seed(
                    _whole_seeds(chosen) or chosen,
                    partial(_rank, one="gamma", two=f"trace_{name}"),
                    interval_of=False,
                ),
            }
    return found


def summarize_by_tau(runs: Runs) -> dict[str, float]:
    """Summarize Figure 4: how ECE, error and trace change with a penalty, by learning rate and tau.

    A seed counts if it diverged neither with nor without the penalty. Limits need two such seeds.

    Returns:
        "ece fall(rate, tau)" and "error rise(rate, tau)", differences from tau = 0, and "trace over at 0(rate, tau)", a
        ratio; each with ", low" and ", high" before the parenthesis.
    """
    found: dict[str, float] = {}
    for rate in names(runs, "rate"):
        for tau in [tau for tau in names(runs, "tau") if tau]:
            pair = [run for run in runs if run["rate"] == rate and run["tau"] in (0.0, tau)]
            lost = [run["seed"] for run in pair if run["diverged"]]
            kept = [run for run in pair if run["seed"] not in lost]
            if not kept:
                continue
            fall = by_seed(kept, partial(_change, key="ece", start=tau, end=0.0))
            rise = by_seed(kept, partial(_change, key="error", start=0.0, end=tau))
            positive = all(run["trace"] > 0 for run in kept)  # that of a collapsed network is 0 up to noise
            ratios = [ratio_by_seed(kept, partial(_trace_ratio, tau=tau))] if positive else []
            for name, summary in zip(CHANGES, [fall, rise, *ratios], strict=False):
                place = f"({rate:g}, {tau:g})"
                found[f"{name}{place}"] = summary.get("mean", summary["seeds"][0])
                found |= {f"{name}, {end}{place}": summary[end] for end in ("low", "high") if end in summary}
    return found


def _change(runs: Runs, *, key: str, start: float, end: float) -> float:
    return at(runs, "tau", end, key) - at(runs, "tau", start, key)


def _trace_ratio(runs: Runs, *, tau: float) -> float:
    return at(runs, "tau", tau, "trace") / at(runs, "tau", 0.0, "trace")


def with_hessian(runs: Runs, name: str) -> list[dict[str, Any]]:
    """Select the runs whose Hessian of this loss was measured."""
    return [run for run in runs if f"trace_{name}" in run]


def names(runs: Runs, key: str) -> list[Any]:
    """List all values of a key, in ascending order."""
    return sorted({run[key] for run in runs})


def at(runs: Runs, across: str, place: float, key: str) -> float:
    """Look up a number of the run at one place."""
    return float(next(run[key] for run in runs if run[across] == place))


def _whole_seeds(runs: Runs) -> list[dict[str, Any]]:
    """Select runs that form a full grid of seeds and gammas.

    The result is empty unless the grid contains gamma 0 and at least two other gammas. It has all gammas with two or
    more seeds, and as many seeds as all of these have. Seeds that all gammas share come first. Other seeds are matched
    by rank and renumbered: the networks of two gammas are independent in either case.
    """
    of_gamma = {gamma: [run for run in runs if run["gamma"] == gamma] for gamma in names(runs, "gamma")}
    most = max(map(len, of_gamma.values()), default=0)
    with_count = {
        count: [gamma for gamma, trials in of_gamma.items() if len(trials) >= count] for count in range(1, 1 + most)
    }
    usable = {count: gammas for count, gammas in with_count.items() if 0.0 in gammas and len(gammas) > 2}
    if not usable:
        return []
    count, gammas = max(usable.items(), key=lambda each: (each[0] > 1, len(each[1]), each[0]))
    common = set.intersection(*({run["seed"] for run in of_gamma[gamma]} for gamma in gammas))
    return [
        {**run, "seed": place}
        for gamma in gammas
        for place, run in enumerate(sorted(of_gamma[gamma], key=lambda run: (run["seed"] not in common, run["seed"])))
        if place < count
    ]


def _gamma_of_least_ece(runs: Runs) -> float:
    return float(min(runs, key=lambda run: run["ece"])["gamma"])


def _above_least_between(runs: Runs, *, end: float, last: float) -> float:
    return at(runs, "gamma", end, "ece") - float(min(run["ece"] for run in runs if 0 < run["gamma"] < last))


def _growth(runs: Runs, *, last: float, key: str) -> float:
    return at(runs, "gamma", last, key) / at(runs, "gamma", 0.0, key)


def rank_correlation(one: Sequence[float], two: Sequence[float]) -> float:
    """Spearman's rank correlation."""
    return float(stats.spearmanr(one, two).statistic)


def _rank(runs: Runs, *, one: str, two: str) -> float:
    return rank_correlation([run[one] for run in runs], [run[two] for run in runs])
