"""A report made from random numbers, with class names that are hard to show."""

from __future__ import annotations

import dataclasses

import numpy as np

from refocal import metrics
from refocal.calibrators import Refinement
from refocal.maps.minimizer import minimizer
from refocal.maps.posterior import posterior_from_logits
from refocal.report.answers import Subgroup, SubgroupCalibration
from refocal.report.decisions import sweep_thresholds, weigh_costs
from refocal.report.prediction_sets import measure_sets
from refocal.report.record import (
    Change,
    Diagram,
    Estimate,
    Method,
    Report,
    Slider,
    Verdict,
    freeze,
)
from refocal.stats.binning import equal_mass_bins, equal_width_bins
from refocal.stats.proper_scores import log_scores

NASTY = (
    "<script>window.injected = 'class'</script>",
    '"><img src=x onerror="window.injected=\'attribute\'">',
    "'; window.injected = 'quote'; '",
    "</script><script>window.injected='end'</script>",
    "🦊 fox & <b>friends</b>",
    "שלום עולם \u202eevil",
    "a very long name " * 12,
    "line\u2028break ${window.injected} $title",
    "nul\x00 and half \ud800 pair",
    "plain",
)
GAMMA, TEMPERATURE = 3.0, 1.2


def diagram(scores: np.ndarray, hits: np.ndarray, *, bins: int = 15, by_mass: bool = False) -> Diagram:
    sums = (equal_mass_bins if by_mass else equal_width_bins)(scores, hits, bins=bins)
    held = sums.samples > 0
    count = sums.samples[held]
    mean, accuracy = sums.confidence[held] / count, sums.correct[held] / count
    half = 1.96 * np.sqrt(mean * (1 - mean) / count)
    columns = (count, mean, accuracy, np.clip(mean - half, 0, 1), np.clip(mean + half, 0, 1))
    return Diagram(*(tuple(column.tolist()) for column in columns))


def interval(values: np.ndarray, at: float | None = None) -> Estimate:
    value = float(np.mean(values)) if at is None else at
    half = 1.96 * float(np.std(values)) / len(values) ** 0.5
    return Estimate(value, value - half, value + half)


def method(
    name: str,
    title: str,
    log_probs: np.ndarray,
    labels: np.ndarray,
    *,
    parameters: dict[str, float],
    seconds: float | None,
) -> Method:
    probs = np.exp(log_probs)
    confidence, wrong = probs.max(axis=1), np.argmax(probs, axis=1) != labels
    truth = np.eye(probs.shape[1])[labels]
    top = equal_width_bins(confidence, ~wrong, bins=15)
    return Method(
        name=name,
        title=title,
        parameters=freeze(parameters),
        chosen=name == "focal_temperature",
        given=name == "given",
        measures=freeze(
            {
                "nll": interval(log_scores(probs, labels)),
                "brier": interval(np.sum((probs - truth) ** 2, axis=1)),
                "ece": interval(np.abs(confidence - ~wrong) / 12, top.expected_calibration_error),
                "error": interval(wrong),
                "own_measure": Estimate(0.25, float("nan"), float("nan")),
            }
        ),
        p_value=1e-9 if name == "given" else 0.42 if name == "focal_temperature" else float("nan"),
        diagnosis=metrics.diagnose(probs, labels),
        fit_seconds=seconds,
        diagram=diagram(confidence, ~wrong),
        histogram=tuple(equal_width_bins(confidence, ~wrong, bins=20).samples.tolist()),
        class_diagrams=tuple(
            diagram(probs[:, k], labels == k, bins=10, by_mass=True) for k in range(min(probs.shape[1], 10))
        ),
    )


def subgroup(column: str, value: str) -> Subgroup:
    given = SubgroupCalibration(0.31, 0.28, Estimate(0.03, 0.01, 0.05), Estimate(0.04, 0.01, 0.06), 0.003)
    chosen = SubgroupCalibration(0.28, 0.28, Estimate(0.0, -0.02, 0.02), Estimate(0.01), None)
    return Subgroup(column, value, 123, given, chosen)


def sample_report(
    rows: int = 4000, classes: int = 10, *, seed: int = 0, sharpness: float = 1.0, slider_rows: int | None = None
) -> Report:
    """A report on the scores of a network that minimizes the focal risk up to a temperature."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(rows, classes)) * rng.gamma(3.0, 1.6 * sharpness, size=(rows, 1))
    posterior = posterior_from_logits(scores, gamma=0.0)
    labels = (posterior.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1).clip(max=classes - 1)
    logits = TEMPERATURE * np.log(minimizer(posterior, gamma=GAMMA) + 1e-300)
    settings = (
        ("given", "Softmax, as given", 0.0, 1.0, None),
        ("focal_temperature", "Focal temperature scaling", GAMMA, TEMPERATURE, 0.31),
        ("temperature", "Temperature scaling", 0.0, 0.55, 0.05),
        ("posterior", "Closed-form posterior", GAMMA, 1.0, 0.001),
    )
    methods = [
        method(
            name,
            title,
            posterior_from_logits(logits, gamma=gamma, temperature=temperature, log=True),
            labels,
            parameters={} if name == "given" else {"gamma": gamma, "temperature": temperature},
            seconds=seconds,
        )
        for name, title, gamma, temperature, seconds in settings
    ]
    before = posterior_from_logits(logits, gamma=0.0)
    after = posterior_from_logits(logits, gamma=GAMMA, temperature=TEMPERATURE)
    predicted = logits.argmax(axis=1)
    pick = np.arange(rows), predicted
    largest = np.argsort(-np.abs(after[pick] - before[pick]), kind="stable")[:12]
    kept = slice(0, slider_rows)
    names = tuple(NASTY[k % len(NASTY)] if k < len(NASTY) else f"class {k}" for k in range(classes))
    return Report(
        source='predictions/<i>val</i> & "test".npz',
        samples=rows,
        total_weight=float(rows),
        task="multiclass",
        classes=classes,
        class_names=names,
        shown_classes=tuple(range(min(classes, 10))),
        verdict=Verdict(
            "underconfident",
            (
                "These scores are underconfident; focal temperature scaling turns them into probabilities.",
                f"On average they are {before.max(axis=1).mean():.1%} sure and {np.mean(predicted == labels):.1%} "
                "right: the network was trained with focal loss (γ = 3), which in theory does that.",
                "After the fit, no sign of miscalibration is left (p = 0.42).",
            ),
        ),
        rule="Focal temperature scaling was chosen: of those within <b>one</b> standard error, it is the simplest.",
        methods=tuple(methods),
        changes=tuple(
            Change(int(i), int(labels[i]), int(predicted[i]), float(before[i].max()), float(after[i, predicted[i]]))
            for i in largest
        ),
        slider=Slider.pack(logits[kept], labels[kept], gamma=GAMMA, temperature=TEMPERATURE),
        versions=freeze({"refocal": "0.1.0", "numpy": np.__version__}),
        settings=freeze({"input": "logits", "gamma": GAMMA, "command": "refocal calibrate 'a b.npz'"}),
        worst_classes=tuple(subgroup("class", name) for name in names[:10]) if classes > 2 else (),
        slices=tuple(subgroup("<i>region</i>", value) for value in NASTY[:3]),
        costs=weigh_costs([before, after], labels, None, 1 - np.eye(classes)),
        thresholds=sweep_thresholds([before, after], labels, None) if classes == 2 else None,
        sets=measure_sets([before, after], labels, None, 0.9),
        refinement=Refinement("nll", 0.9, 0.75, 0.15, 0.01, 0.011, 0.004, "TemperatureScaling"),
        brier_refinement=Refinement("brier", 0.45, 0.4, 0.05, 0.01, 0.01, 0.002, "TemperatureScaling"),
    )


def poisoned(report: Report, string: str) -> Report:
    """Put a string in every place of a report that users can fill."""
    return dataclasses.replace(
        report,
        source=string,
        class_names=(string,) * report.classes,
        verdict=Verdict(string, (string, string)),
        rule=string,
        methods=tuple(
            dataclasses.replace(
                method,
                name=f"{string}{index}",
                title=string,
                parameters=freeze({string: 1.0}),
                measures=freeze({string: Estimate(1.0, 0.5, 1.5)}),
            )
            for index, method in enumerate(report.methods)
        ),
        versions=freeze({string: string}),
        settings=freeze({string: string, "command": string, "calibrator": string}),
        protocol=string,
        worst_classes=tuple(dataclasses.replace(each, value=string) for each in report.worst_classes),
        slices=tuple(dataclasses.replace(each, value=string, column=string) for each in report.slices),
    )
