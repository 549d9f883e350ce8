"""Isotonic recalibration and the parts of the Brier score, for many samples at once."""

from __future__ import annotations

import numpy as np
import scipy


def isotonic_rows(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The best non-decreasing fit to each row of values (..., C); weights are positive."""
    # Concatenate the rows and lift each above the one before, so that no block of the fit spans two rows.
    flat = values.reshape(-1, values.shape[-1])
    lift = (np.arange(len(flat)) * (1.0 + float(np.ptp(flat))))[:, None]
    fitted = scipy.optimize.isotonic_regression((flat + lift).ravel(), weights=weights.ravel()).x
    return (fitted.reshape(flat.shape) - lift).reshape(values.shape)


def brier_parts(
    places: np.ndarray, mass: np.ndarray, hits: np.ndarray, divisor: np.ndarray | float, fitted: np.ndarray
) -> np.ndarray:
    """Brier score, calibration, refinement, uncertainty and resolution, (5, ...).

    Args:
        places: Predictions of the cells of each class, (K, C).
        mass: Weight of each cell, (..., K, C).
        hits: Weight of the samples of that class in each cell, (..., K, C).
        divisor: Weight of all samples, (...).
        fitted: Recalibrated predictions, (..., K, C).
    """
    class_mass = mass.sum(axis=-1, keepdims=True)
    frequency = hits.sum(axis=-1, keepdims=True) / np.where(class_mass > 0, class_mass, 1.0)
    score, recalibrated, constant = (_squares(values, mass, hits, divisor) for values in (places, fitted, frequency))
    return np.stack([score, score - recalibrated, recalibrated, constant, constant - recalibrated])


def calibration_part(
    places: np.ndarray, mass: np.ndarray, hits: np.ndarray, divisor: np.ndarray | float, fitted: np.ndarray
) -> np.ndarray:
    """The calibration part of `brier_parts` alone, (...)."""
    score, recalibrated = (_squares(values, mass, hits, divisor) for values in (places, fitted))
    return score - recalibrated


def _squares(values: np.ndarray, mass: np.ndarray, hits: np.ndarray, divisor: np.ndarray | float) -> np.ndarray:
    # The sum of w (v - y)^2 over the samples of each cell, with y = 0 or 1.
    squares: np.ndarray = np.sum(hits * (1 - 2 * values) + mass * values**2, axis=(-2, -1)) / divisor
    return squares
