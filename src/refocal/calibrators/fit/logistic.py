"""Penalized multinomial and binary logistic regression, and mixture weights, for the outputs of a network.

All objectives are convex, and strictly so with positive penalties. Each function finds the minimum or raises an error.
`scipy.optimize` is imported inside functions, because its import takes longer than that of the rest of the package.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_MAX_ITERATIONS = 2000
_MAX_NEWTON_STEPS = 100
_GRADIENT_TOLERANCE = 1e-5  # in variables for which the Hessian of the mean NLL is near the identity


class Affine(NamedTuple):
    """A linear map: W (K, K), or (K,) if it is diagonal, and b (K,)."""

    weights: np.ndarray
    bias: np.ndarray


def fit_affine(
    features: np.ndarray,
    labels: np.ndarray,
    share: np.ndarray,
    start: float,
    *,
    diagonal: float,
    off_diagonal: float | None,
    bias: float,
) -> Affine:
    """Fit softmax(W x + b) by penalized likelihood.

    The objective is the mean NLL plus half of: `diagonal` sum (W_ii / start - 1)^2 + `off_diagonal` sum
    (W_ij / start)^2 + `bias` sum c_i^2. Here c = (W - start I) <x> + b is the change of the scores at the mean of x.
    The penalty is 0 for temperature scaling, W = `start` I and b = 0.

    Args:
        features: x, (N, K).
        labels: Class indices (N,).
        share: Weights of the rows, summing to 1.
        start: The inverse temperature toward which the penalty shrinks the diagonal.
        diagonal: Penalty of the diagonal.
        off_diagonal: Penalty of the other weights; None to keep them at 0.
        bias: Penalty of the bias.
    """
    from scipy.optimize import minimize

    rows, classes = features.shape
    index = np.arange(rows)
    x = features * start
    mean = share @ x
    x -= mean
    base = x + mean  # the scores of temperature scaling; weights and offsets are added to them
    full = off_diagonal is not None
    common = diagonal if off_diagonal is None else off_diagonal
    penalty = np.full((classes, classes) if full else classes, common)
    if full:
        np.fill_diagonal(penalty, diagonal)
    to_weights, to_offset = _condition(x, share, common, bias, full=full)

    def unpack(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inner = parameters[:-classes].reshape(penalty.shape)
        return (inner @ to_weights if full else inner * to_weights), parameters[-classes:] * to_offset

    def objective(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        weights, offset = unpack(parameters)
        scores = (x @ weights.T if full else x * weights) + (base + offset)
        scores -= scores.max(axis=1, keepdims=True)
        own = scores[index, labels].copy()
        np.exp(scores, out=scores)
        total = scores.sum(axis=1)
        residual = scores
        residual *= (share / total)[:, None]
        residual[index, labels] -= share
        value = share @ (np.log(total) - own) + 0.5 * (np.sum(penalty * weights**2) + bias * (offset @ offset))
        slope = (residual.T @ x if full else np.einsum("ij,ij->j", residual, x)) + penalty * weights
        slope = slope @ to_weights if full else slope * to_weights
        return float(value), np.concatenate([slope.ravel(), (residual.sum(axis=0) + bias * offset) * to_offset])

    options = {"maxiter": _MAX_ITERATIONS, "maxfun": 2 * _MAX_ITERATIONS, "maxcor": 20, "ftol": 0.0, "gtol": 1e-7}
    origin = np.zeros(penalty.size + classes)
    found = minimize(objective, origin, jac=True, method="L-BFGS-B", options=options)
    steepest = float(np.max(np.abs(found.jac)))
    if not steepest < _GRADIENT_TOLERANCE:
        msg = f"no optimum found in {found.nit} iterations: the gradient is still {steepest:.1e}"
        raise RuntimeError(msg)
    weights, offset = unpack(found.x)
    bias_at_0 = offset - (weights @ mean if full else weights * mean)
    return Affine(start * (weights + (np.eye(classes) if full else 1.0)), bias_at_0)


def _condition(
    x: np.ndarray, share: np.ndarray, penalty: float, bias: float, *, full: bool
) -> tuple[np.ndarray, float]:
    """Compute factors that map the variables of the descent to weights and offsets.

    They are chosen so that the Hessian in these variables is near the identity. The Hessian of a row of W is about
    Cov(x) / K + penalty.
    """
    classes = x.shape[1]
    to_offset = float(1 / np.sqrt(1 / classes + bias))
    if not full:
        return 1 / np.sqrt(share @ (x * x) / classes + penalty), to_offset
    spread, axes = np.linalg.eigh((x * share[:, None]).T @ x)
    return (axes / np.sqrt(np.maximum(spread, 0) / classes + penalty)) @ axes.T, to_offset


def fit_binary(features: np.ndarray, targets: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Fit the coefficients (d,) of a logistic regression of targets in (0, 1) on features (N, d) by Newton's method.

    Soft targets keep the coefficients of separable data finite. If columns are linearly dependent, the solution with
    the smallest norm is taken.
    """
    coefficients = np.zeros(features.shape[1])

    def nll(scores: np.ndarray) -> float:
        return float(share @ (np.logaddexp(0.0, scores) - targets * scores))

    scores = features @ coefficients
    value = nll(scores)
    for _ in range(_MAX_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
        gradient = features.T @ (share * (p - targets))
        hessian = (features * (share * p * (1 - p))[:, None]).T @ features
        step = np.linalg.lstsq(hessian, -gradient, rcond=1e-12)[0]
        expected = -float(gradient @ step)
        if expected <= 1e-14 * (1 + abs(value)):
            return coefficients
        factor = 1.0
        while nll(scores + factor * (features @ step)) > value - 1e-4 * factor * expected and factor > 1e-10:
            factor /= 2
        coefficients = coefficients + factor * step
        scores = features @ coefficients
        value = nll(scores)
    msg = f"no optimum found in {_MAX_NEWTON_STEPS} Newton steps: the next would gain {expected:.1e}"
    raise RuntimeError(msg)


def fit_mixture(likelihoods: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Find weights (m,) on the simplex that maximize the mean log of a mixture of likelihoods (N, m).

    The problem is convex. It is solved by Newton's method with non-negative least squares, because the minimum over
    w >= 0 of share . (-log(L w)) + sum(w) has sum(w) = 1.
    """
    from scipy.optimize import nnls

    count = likelihoods.shape[1]
    weights = np.full(count, 1 / count)
    roots = np.sqrt(share)

    def objective(w: np.ndarray) -> float:
        with np.errstate(divide="ignore"):
            return float(share @ -np.log(likelihoods @ w) + w.sum())

    value = objective(weights)
    for _ in range(_MAX_NEWTON_STEPS):
        mixture = likelihoods @ weights
        ratio = likelihoods * (roots / mixture)[:, None]
        hessian = ratio.T @ ratio
        # The quadratic model around w has gradient 1 - ratio' roots and this Hessian: a least-squares problem in w.
        curvature, axes = np.linalg.eigh(hessian)
        curvature = np.maximum(curvature, 1e-12 * curvature[-1])
        half = np.sqrt(curvature)[:, None] * axes.T
        target = half @ weights - (axes.T @ (1 - ratio.T @ roots)) / np.sqrt(curvature)
        step = nnls(half, target)[0] - weights
        expected = -float((1 - ratio.T @ roots) @ step)
        if expected <= 1e-13:
            return weights / weights.sum()
        factor = 1.0
        while not objective(weights + factor * step) <= value - 1e-4 * factor * expected and factor > 1e-10:
            factor /= 2
        weights = weights + factor * step
        value = objective(weights)
    msg = f"no optimum found in {_MAX_NEWTON_STEPS} Newton steps: the next would gain {expected:.1e}"
    raise RuntimeError(msg)
