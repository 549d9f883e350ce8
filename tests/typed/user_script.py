"""What a user may write. Type checkers must find the type of every expression; the test runs it as well."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import refocal
from refocal import demo
from refocal.calibrators import Calibrator, FocalTemperatureScaling, TemperatureScaling, load
from refocal.conformal import PredictionSets
from refocal.metrics import Interval, ece, interval
from refocal.predictions import Predictions
from refocal.report import Report, Verdict


def recover(logits: np.ndarray) -> np.ndarray:
    return refocal.posterior_from_logits(logits, gamma=3)


def fit(scores: np.ndarray, labels: np.ndarray, path: Path) -> Calibrator:
    calibrator = FocalTemperatureScaling().fit(scores, labels)
    temperature: float = calibrator.temperature_
    print(f"T = {temperature:.2f}")
    calibrator.save(path)
    return load(path)


def trust(predictions: Predictions) -> str:
    if predictions.labels is None:
        msg = "labels are missing"
        raise ValueError(msg)
    report: Report = refocal.evaluate(predictions.scores, predictions.labels, input="logits")
    verdict: Verdict | None = report.verdict
    return "" if verdict is None else verdict.sentences[0]


def main() -> None:
    val = demo.load().select("val")
    if val.labels is None:
        raise SystemExit(1)
    probs = fit(val.scores, val.labels, Path("calibrator.json")).predict_proba(val.scores)
    error: float = ece(probs, val.labels)
    limits: Interval = interval(ece, probs, val.labels, resamples=200)
    sets = PredictionSets(calibrator=TemperatureScaling(), coverage=0.9).fit(val.scores, val.labels)
    held: np.ndarray = sets.predict_set(val.scores)
    print(limits.low <= error <= limits.high, held.shape == recover(val.scores).shape, trust(val))


if __name__ == "__main__":
    main()
