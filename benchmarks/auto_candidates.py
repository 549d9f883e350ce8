"""Do beta calibration and top-versus-all calibration help `AutoCalibrator` with more than two classes?

python benchmarks/auto_candidates.py --cache CACHE --out benchmarks/results/auto_candidates.md

CACHE holds the experiments of the calibrator arena, see `arena_experiments.py`. Each candidate is added to the default
ones, and the mixture is fitted to the calibration part and measured on the test part.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from arena_experiments import Experiment, list_cached, load
from calibrator_arena import compare, measure, score_rows
from threadpoolctl import threadpool_limits

from refocal.calibrators import AutoCalibrator, BetaCalibration, Calibrator
from refocal.calibrators.auto import default_candidates
from refocal.calibrators.base import Head
from refocal.calibrators.binary import _fit_beta
from refocal.calibrators.nonparametric import _fit_temperature
from refocal.maps.simplex import log_p_and_q, split_logits

FAMILIES = ("network", "zoo", "tabular-multiclass")
NOISE = 1e-5  # differences of the mean log loss below this do not count
CONCLUSION = (
    "Neither became a default candidate. Beta calibration lowers the mean log loss by 0.0008 in the zoo and by "
    "0.0004 on the tabular sets. It leaves that of the published networks as it is, and Brier score and ECE do "
    "not improve in the zoo, but a fit takes 1.5 to 2.1 times as long. Top-versus-all changes the mean log loss "
    'by less than 0.0001: a default candidate, `IsotonicCalibration(method="top_label")`, already calibrates the '
    "top class against all others. To use beta calibration all the same, add `BetaCalibration()` to `candidates`."
)
LEAD = 1.001  # of the top class over the runner-up, so that the predicted class stays


class TopVersusAll(Calibrator):
    """Temperature scaling, then beta calibration of the top class against all others, which keep their proportions.

    Reference: Le Coz, Herbin and Adjed, "Confidence calibration of classifiers with many classes", NeurIPS 2024.
    """

    def __init__(self, *, input: Any = None, classes: Any = None) -> None:
        self.input = input
        self.classes = classes

    def _fit(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None) -> None:
        self.temperature_ = _fit_temperature(logits, labels, weights)
        split = split_logits(logits.astype(np.float64, copy=False), temperature=self.temperature_, xp=np)
        log_p, log_q = log_p_and_q(split, xp=np)
        top = np.argmax(logits, axis=1)
        rows = np.arange(len(logits))
        self.coefficients_ = _fit_beta(log_p[rows, top], log_q[rows, top], top == labels, weights)

    def _head(self, classes: int) -> Head:  # noqa: ARG002
        return Head(top_beta_head, {"beta": self.coefficients_}, {"temperature": self.temperature_}, wide=True)

    def _count_parameters(self) -> int:
        return 4


def top_beta_head(logits: Any, beta: Any, *, temperature: float, log: bool, xp: Any) -> Any:
    """The probabilities of `TopVersusAll`."""
    split = split_logits(logits, temperature=temperature, xp=xp)
    log_p, log_q = log_p_and_q(split, xp=xp)
    on_p, on_q, bias = beta
    score = xp.max(on_p * xp.where(split.is_top, log_p, 0) - on_q * xp.where(split.is_top, log_q, 0), axis=-1)
    confidence = (1 / (1 + xp.exp(-(score + bias))))[..., None]
    confidence = xp.maximum(confidence, LEAD / (split.rest + LEAD))
    others = xp.log1p(-confidence) + (xp.where(split.is_top, 0.0, split.log_odds) - xp.log(split.rest))
    log_probs = xp.where(split.gap > 0, xp.where(split.is_top, xp.log(confidence), others), log_p)
    return log_probs if log else xp.exp(log_probs)


def list_additions() -> dict[str, list[Calibrator]]:
    """The candidates to add to the default ones."""
    return {
        "none": [],
        "beta": [BetaCalibration()],
        "top-versus-all": [TopVersusAll()],
        "both": [BetaCalibration(), TopVersusAll()],
    }


def run(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The measures of one experiment by added candidates."""
    found: dict[str, dict[str, Any]] = {}
    rows: dict[str, np.ndarray] = {}
    for name, added in list_additions().items():
        candidates = [*default_candidates(experiment.classes).values(), *added]
        auto = AutoCalibrator(candidates=candidates, input=experiment.input)
        start = time.perf_counter()
        auto.fit(experiment.scores_cal, experiment.labels_cal)
        seconds = time.perf_counter() - start
        probs = np.asarray(auto.predict_proba(experiment.scores_test), dtype=np.float64)
        rows[name] = score_rows(probs, experiment.labels_test)
        kinds = {type(each) for each in added}
        weights = zip(auto.members_, auto.weights_, strict=True)
        found[name] = measure(probs, experiment.labels_test) | {
            "seconds": seconds,
            "weight": float(sum(weight for member, weight in weights if type(member) in kinds)),
            "against": compare(rows[name], rows["none"]),
        }
    return found


def tabulate(results: list[dict[str, dict[str, Any]]]) -> list[str]:
    """The rows of one family."""
    lines = []
    for name in list_additions():
        found = [result[name] for result in results]
        log_loss, brier, ece, weight = (
            np.mean([each[key] for each in found]) for key in ("log_loss", "brier", "ece", "weight")
        )
        ratio = np.median(
            [each["seconds"] / result["none"]["seconds"] for each, result in zip(found, results, strict=True)]
        )
        away, error = np.array([each["against"] for each in found]).T
        better, worse = (int(np.sum(side * away > np.maximum(2 * error, NOISE))) for side in (-1, 1))
        wins = "–" if name == "none" else f"{np.count_nonzero(away < 0)} of {len(found)}"
        lines.append(
            f"| {name} | {log_loss:.5f} | {wins} | {better} | {worse} | {brier:.5f} | {ece:.4f} | {weight:.3f} "
            f"| {ratio:.2f} |"
        )
    return lines


def main() -> None:
    """Measure all experiments and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, required=True, help="folder of the experiments")
    parser.add_argument("--out", type=Path, required=True, help="Markdown file to write")
    arguments = parser.parse_args()
    text = [
        "# More candidates for `AutoCalibrator`",
        "",
        "`python benchmarks/auto_candidates.py --cache CACHE --out benchmarks/results/auto_candidates.md`",
        "",
        "The mixture of `AutoCalibrator` with its default candidates for more than two classes, and with others "
        "added: `BetaCalibration` (each class against the rest), and beta calibration of the top class against all "
        "others (top-versus-all). Log loss, Brier score and ECE are measured on test data as in the calibrator arena. "
        "A win is a lower log loss than without additions. Better and worse: by more than two standard errors of the "
        f"mean paired difference, and by more than {NOISE:g}. Weight: the mean share of the added candidates among the "
        "members. Time: the median ratio of the time to fit.",
        "",
        CONCLUSION,
    ]
    with threadpool_limits(1):
        for family in FAMILIES:
            paths = list_cached(arguments.cache, (family,))
            experiments = [experiment for experiment in map(load, paths) if experiment.classes > 2]
            results = []
            for experiment in experiments:
                results.append(run(experiment))
                print(family, len(results), len(experiments), experiment.name, flush=True)
            text += [
                "",
                f"## {family}: {len(results)} experiments",
                "",
                "| added | log loss | wins | better | worse | Brier | ECE | weight | time |",
                "|---|---|---|---|---|---|---|---|---|",
                *tabulate(results),
            ]
    arguments.out.write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
