"""Binary logistic regression and mixture weights, for the outputs of a network.

All objectives are convex. `scipy.optimize` is imported inside functions, because its import takes longer than that of
the rest of the package.
"""

from __future__ import annotations

import numpy as np

_MAX_NEWTON_STEPS = 100
_MAX_EM_STEPS = 10_000


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
    # At the optimum, no row has a mixture below its share of its largest likelihood. Steps that leave this range are
    # shortened: a likelihood of e^-500 would cost little in the mean, but the next Hessian would overflow.
    least = share / count * likelihoods.max(axis=1)

    def objective(w: np.ndarray) -> float:
        mixture = likelihoods @ w
        if np.any(mixture < least):
            return np.inf
        with np.errstate(divide="ignore"):
            return float(share @ -np.log(mixture) + w.sum())

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
        if factor <= 1e-10:
            break
        weights = weights + factor * step
        value = objective(weights)
    return _improve_mixture(likelihoods, share, weights / weights.sum())


def _improve_mixture(likelihoods: np.ndarray, share: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Improve the weights of a mixture by EM, whose steps always gain, until at most 1e-6 of mean log is left.

    The largest mean of a component's likelihood relative to the mixture, minus 1, bounds what is left to gain. EM is
    slow but does not mind components that are nearly equal, for which Newton's steps may become too short.
    """
    weights = 0.99 * weights + 0.01 / len(weights)  # EM cannot leave a weight of 0
    for _ in range(_MAX_EM_STEPS):
        ratio = (share / (likelihoods @ weights)) @ likelihoods
        if ratio.max() - 1 < 1e-6:
            break
        weights = weights * ratio
        weights /= weights.sum()
    return weights


def fit_square_mixture(products: np.ndarray) -> np.ndarray:
    """Find weights w (m,) on the simplex that minimize w' P w, where P (m, m) has mean products of errors.

    It is the non-negative least-squares problem min |S w|^2 with S' S = P and sum(w) = 1: a row of large numbers asks
    for the sum, and the weights are scaled to it.
    """
    from scipy.optimize import nnls

    curvature, axes = np.linalg.eigh(products)
    roots = np.sqrt(np.maximum(curvature, 0.0))[:, None] * axes.T
    strict = 1e4 * (1 + np.abs(roots).max())
    rows = np.concatenate([roots, np.full((1, len(products)), strict)])
    weights = nnls(rows, np.append(np.zeros(len(products)), strict))[0]
    scaled: np.ndarray = weights / weights.sum()
    return scaled
