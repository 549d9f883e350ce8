"""Labelled logits for the tests of calibrators."""

from __future__ import annotations

import numpy as np

from refocal import minimizer
from refocal.calibrators import (
    AutoCalibrator,
    BetaCalibration,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    FocalPosterior,
    FocalTemperatureScaling,
    HistogramBinning,
    IsotonicCalibration,
    MatrixScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
)

# one of each family and of each setting that changes its map
EVERY = {
    "posterior": FocalPosterior(gamma=2.0),
    "posterior-fit": FocalPosterior(gamma="fit"),
    "temperature": TemperatureScaling(),
    "temperature-focal": TemperatureScaling(objective="focal", gamma=2.0, apply_posterior=True),
    "temperature-ece": TemperatureScaling(objective="ece"),
    "focal-temperature": FocalTemperatureScaling(),
    "focal-temperature-line": FocalTemperatureScaling(objective="adaptive_ece", search="line"),
    "vector": VectorScaling(),
    "matrix": MatrixScaling(),
    "dirichlet": DirichletCalibration(),
    "ensemble": EnsembleTemperatureScaling(),
    "platt": PlattScaling(),
    "beta": BetaCalibration(),
    "isotonic": IsotonicCalibration(),
    "isotonic-top": IsotonicCalibration(method="top_label"),
    "histogram": HistogramBinning(),
    "auto": AutoCalibrator(cv=3),
}


def calibrated(rows, classes, *, seed=0, spread=2.0, dtype=np.float64):
    """Logits whose softmax is the posterior, and labels drawn from it."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((rows, classes))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return logits.astype(dtype), labels


def focal(rows, classes, *, gamma, temperature=1.0, seed=0):
    """Logits with Psi^gamma(softmax(logits / temperature)) as the posterior, and labels."""
    logits, labels = calibrated(rows, classes, seed=seed)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return temperature * np.log(minimizer(probs, gamma=gamma)), labels


def mean_nll(calibrator, logits, labels):
    """The mean negative log-likelihood of a fitted calibrator."""
    return float(-np.mean(calibrator.predict_log_proba(logits)[np.arange(len(labels)), labels]))
