"""How often the verdict of a report is true, in simulated situations whose truth is known.

python benchmarks/verdicts.py --out benchmarks/results/verdicts.md
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from verdict_situations import RIGHT, SITUATIONS, WRONG, Situation

from refocal import metrics
from refocal.report.decisions import sweep_thresholds
from refocal.report.multilabel_record import fails
from refocal.report.multilabel_verdict import judge_together, write_multilabel_verdict
from refocal.report.record import Estimate, Method, Report, Verdict
from refocal.report.verdict import write_verdict
from refocal.stats.binning import BINS, width_index

REPEATS = 200
LIMIT = 0.05


class Truth(NamedTuple):
    """The true ECE and error in the frequency of a class, the largest of all classes.

    `rarer` is the predicted frequency of y = 1, or of y = 0 if that is rarer; 1 if there are more than two classes.
    """

    ece: float
    frequency: float
    rarer: float = 1.0


def measure_truth(situation: Situation) -> Truth:
    """Measure the errors of a situation with many samples and no labels."""
    rng = np.random.default_rng(99)
    classes = situation.draw(rng, 1)[0].size
    probs, eta = situation.draw(rng, 4_000_000 // max(10, classes))
    if situation.multilabel:
        of_classes = [_measure_errors(probs[:, k], eta[:, k]) for k in range(classes)]
        return Truth(max(ece for ece, _ in of_classes), max(gap for _, gap in of_classes))
    if probs.ndim == 1:
        predicted = float(probs.mean())
        return Truth(*_measure_errors(probs, eta), min(predicted, 1 - predicted))
    rows, top = np.arange(len(probs)), np.argmax(probs, axis=1)
    ece, _ = _measure_errors(probs[rows, top], eta[rows, top])
    return Truth(ece, float(np.abs(np.mean(probs - eta, axis=0)).max()))


def _measure_errors(confidence: np.ndarray, chance: np.ndarray) -> tuple[float, float]:
    """The true ECE of claims, and the error of their mean."""
    sums = np.bincount(width_index(confidence, bins=BINS), weights=confidence - chance, minlength=BINS)
    return float(np.abs(sums).sum() / len(confidence)), float(np.abs(np.mean(confidence - chance)))


class Judgment(NamedTuple):
    """A verdict, the classes that it names, and the errors that it says would have been seen."""

    verdict: Verdict
    named: frozenset[int]
    detectable: float
    detectable_frequency: float


def judge(probs: np.ndarray, labels: np.ndarray) -> Judgment:
    """The verdict of a report on these probabilities as given."""
    method, found = measure(probs, labels, task="binary" if probs.ndim == 1 else "multiclass")
    names = [str(index) for index in range(2 if probs.ndim == 1 else probs.shape[1])]
    settings = {"samples": len(labels), "changed": 0.0, "gamma": None, "below": None, "alone": True}
    verdict = write_verdict(method, method, class_names=names, **settings)
    named = frozenset(gap.index for check in found.checks for gap in check.classes)
    return Judgment(verdict, named, found.detectable, found.detectable_frequency)


def judge_labels(probs: np.ndarray, labels: np.ndarray) -> Judgment:
    """The verdict of a multi-label report on these probabilities as given."""
    classes, names = probs.shape[1], [str(index) for index in range(probs.shape[1])]
    reports = []
    for index, name in enumerate(names):
        own, answers = probs[:, index], labels[:, index]
        method, _ = measure(own, answers, task="binary", among=classes)
        reports.append(
            Report(
                source="",
                samples=len(labels),
                total_weight=len(labels),
                task="binary",
                classes=2,
                class_names=(f"not {name}", name),
                shown_classes=(),
                verdict=None,
                rule=None,
                methods=(method,),
                changes=(),
                slider=None,
                versions={},
                thresholds=sweep_thresholds([np.stack([1 - own, own], axis=1)], answers, None),
            )
        )
    judged = judge_together(reports, [0.0] * classes, tried=[False] * classes)
    verdict = write_multilabel_verdict(judged, names, tried=False, unfitted=())
    found = [report.given.diagnosis for report in judged]
    return Judgment(
        verdict,
        frozenset(index for index, report in enumerate(judged) if fails(report.given)),
        max(each.detectable for each in found),
        max(each.detectable_frequency for each in found),
    )


def measure(probs: np.ndarray, labels: np.ndarray, *, task: str, among: int = 1) -> tuple[Method, metrics.Diagnosis]:
    """The method of a report on these probabilities as given, without what no verdict needs."""
    found = metrics.diagnose(probs, labels, task=task, among=among)
    measures = {name: Estimate(getattr(metrics, name)(probs, labels, task=task)) for name in ("ece", "nll")}
    measures["debiased_ece"] = Estimate(metrics.ece(probs, labels, task=task, debias=True))
    method = Method(
        name="given",
        title="As given",
        parameters={},
        chosen=True,
        given=True,
        measures=measures,
        p_value=found.p_value,
        diagnosis=found,
        fit_seconds=None,
        diagram=None,
        histogram=None,
        class_diagrams=(),
    )
    return method, found


@dataclass(frozen=True)
class Rates:
    """How often a situation got each verdict, and whether it was true."""

    trusted: float
    unclear: float
    alarm: float
    true: float
    named: float  # of the alarms, those that name a culprit
    detectable: float  # median of the stated ECE that would have been seen
    detectable_frequency: float


def simulate(situation: Situation, *, repeats: int, seed: int = 0) -> Rates:
    """Draw a situation many times."""
    rng = np.random.default_rng(seed)
    regimes, named, stated = [], [], []
    for _ in range(repeats):
        probs, eta = situation.draw(rng, situation.samples)
        if eta.ndim == 1 or situation.multilabel:
            labels = (rng.random(eta.shape) < eta).astype(np.int64)
        else:
            labels = np.minimum((rng.random((len(eta), 1)) > np.cumsum(eta, axis=1)).sum(axis=1), eta.shape[1] - 1)
        found = (judge_labels if situation.multilabel else judge)(probs, labels)
        regimes.append(found.verdict.regime)
        stated.append((found.detectable, found.detectable_frequency))
        if found.verdict.regime in WRONG:
            named.append(not situation.culprits or bool(found.named & situation.culprits))
    detectable, frequency = np.median(stated, axis=0)
    return Rates(
        trusted=regimes.count("calibrated") / repeats,
        unclear=regimes.count("unclear") / repeats,
        alarm=sum(regime in WRONG for regime in regimes) / repeats,
        true=sum(regime in situation.true for regime in regimes) / repeats,
        named=float(np.mean(named)) if named else float("nan"),
        detectable=float(detectable),
        detectable_frequency=float(frequency),
    )


def is_detectable(rates: Rates, truth: Truth) -> bool:
    """Whether trust would state that errors as large as the true ones would have been seen."""
    stated = truth.ece > rates.detectable or truth.frequency > rates.detectable_frequency
    return stated or truth.frequency >= truth.rarer


def write_row(index: int, *, repeats: int) -> tuple[str, bool]:
    """Simulate one situation: its row of the table, and whether its limit was kept."""
    situation = SITUATIONS[index]
    truth = measure_truth(situation)
    rates = simulate(situation, repeats=repeats)
    calibrated = situation.true == RIGHT
    seen = not calibrated and is_detectable(rates, truth)
    # three standard errors of a rate of 5% among so many repeats
    slack = 3 * (LIMIT * (1 - LIMIT) / repeats) ** 0.5
    holds = (rates.alarm if calibrated else rates.trusted if seen else 0.0) <= LIMIT + slack
    named = "" if not situation.culprits else f"{rates.named:.0%}"
    row = (
        f"| {situation.name}{' *' if seen else ''} | {situation.samples:,} | {truth.ece:.2%}, {truth.frequency:.2%} | "
        f"{rates.detectable:.2%}, {rates.detectable_frequency:.2%} | {rates.trusted:.1%} | {rates.unclear:.1%} | "
        f"{rates.alarm:.1%} | {rates.true:.1%} | {named} | {'kept' if holds else '**broken**'} |"
    )
    return row, holds


def main() -> None:
    """Simulate all situations, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--jobs", type=int, default=1, help="situations simulated at the same time")
    options = parser.parse_args()
    lines = [
        "# How often the verdict is true",
        "",
        f"{len(SITUATIONS)} situations with a known posterior, {options.repeats} data sets each.",
        "`true error`: the ECE and the largest error in the frequency of a class, of the distribution itself.",
        "`stated`: the errors that the verdict says would have been seen with 95% probability (median).",
        "`true`: the share of verdicts whose regime is true. `named`: the share of alarms that name a class at fault.",
        "",
        "Limits: false alarms (a calibrated situation is not trusted) at most 5%, and false trust at most 5% if the",
        "true error is above the stated one, or if the rarer of two classes is at least twice as frequent as predicted",
        "(marked *), up to three standard errors of the simulation.",
        "",
        "| situation | samples | true error | stated | trusted | cannot tell | not trusted | true | named | limit |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    kept = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for row, holds in pool.map(partial(write_row, repeats=options.repeats), range(len(SITUATIONS))):
            print(row, flush=True)
            lines.append(row)
            kept += holds
    lines += ["", f"Limits kept in {kept} of {len(SITUATIONS)} situations.", "", "`python benchmarks/verdicts.py`"]
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
