"""Every calibrator, and labeled logits to fit it to."""

from __future__ import annotations

import numpy as np

from refocal import minimizer
from refocal.calibrators import (
    BY_NAME,
    AutoCalibrator,
    FocalPosterior,
    FocalTemperatureScaling,
    HistogramBinning,
    IsotonicCalibration,
    TemperatureScaling,
)

# One calibrator of each family, and one for each setting that changes its map.
EVERY = {
    **{name: method() for name, method in BY_NAME.items()},
    "posterior": FocalPosterior(gamma=2.0),
    "posterior-fit": FocalPosterior(gamma="fit"),
    "temperature-focal": TemperatureScaling(objective="focal", gamma=2.0, apply_posterior=True),
    "temperature-ece": TemperatureScaling(objective="ece"),
    "focal-temperature-line": FocalTemperatureScaling(objective="adaptive_ece", search="line"),
    "isotonic-top": IsotonicCalibration(method="top_label"),
    "histogram-rest": HistogramBinning(method="one_vs_rest"),
    "auto": AutoCalibrator(cv=3),
}
# These, and settings that need three classes.
SHIPPED = {
    **EVERY,
    "posterior-all": FocalPosterior(gamma=[0.0, 1.0, 3.0], weight=[1.0, 2.0, 5.0], label_smoothing=0.05),
    "posterior-exact": FocalPosterior(gamma=1.0, label_smoothing=0.1, smoothing_edge="exact"),
    "posterior-detached": FocalPosterior(gamma=-0.5, detached=True),
}
SATURATED = np.array([[300, 0, 0], [0, 1000, 999], [-2000, 0, 2000], [0, 0, 0], [7, 7, 1]], dtype=np.float32)


def draw_calibrated(rows, classes, *, seed=0, spread=2.0, dtype=np.float64):
    """Draw logits, and labels from their softmax."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((rows, classes))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return logits.astype(dtype), labels


def draw_focal(rows, classes, *, gamma, temperature=1.0, seed=0):
    """Draw logits, and labels from Psi^gamma(softmax(logits / temperature))."""
    logits, labels = draw_calibrated(rows, classes, seed=seed)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return temperature * np.log(minimizer(probs, gamma=gamma)), labels


def mean_nll(calibrator, logits, labels):
    """Compute the mean negative log-likelihood of a fitted calibrator."""
    return float(-np.mean(calibrator.predict_log_proba(logits)[np.arange(len(labels)), labels]))
