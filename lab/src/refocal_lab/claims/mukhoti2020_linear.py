"""Claims of Mukhoti et al. (2020) about the linear model of Appendix G."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refocal.maps.focal import focal_partial_unchecked
from refocal_lab.claims.claim import CheckMethod, Claim, Finding, settle
from refocal_lab.claims.sampling import check_at_least

_GAMMAS = (0.0, 1.0)  # cross-entropy and focal loss
_CORNERS = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=float)
_SAMPLES = 400
_TEST_SAMPLES = 2_000
_ALMOST_ALWAYS = 0.95


class LinearModels(NamedTuple):
    """Trained models, one row per data set and one column per loss: cross-entropy and focal loss.

    Attributes:
        norms: Norms of the weights.
        sure: Share of mistakes on test points with a confidence above 0.9.
    """

    norms: np.ndarray
    sure: np.ndarray


def train_linear_models(*, trials: int, flipped: float = 0.1, spread: float = 0.3, seed: int = 0) -> LinearModels:
    """Train the linear model of Appendix G with cross-entropy and with focal loss (gamma = 1) to the minimum.

    There are two classes of two clusters each, at the corners of a square, and no intercept. The paper does not print
    the width of the clusters; here it is `spread` times half a side.

    Args:
        trials: Number of data sets.
        flipped: Share of labels that are flipped, in training and test.
        spread: Standard deviation of a cluster.
        seed: Seed of the random numbers.
    """
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    models = LinearModels(np.empty((trials, 2)), np.empty((trials, 2)))
    for trial in range(trials):
        points, sign = _draw_points(rng, _SAMPLES, flipped, spread)
        test, test_sign = _draw_points(rng, _TEST_SAMPLES, flipped, spread)
        for column, gamma in enumerate(_GAMMAS):

            def risk(
                w: np.ndarray, gamma: float = gamma, points: np.ndarray = points, sign: np.ndarray = sign
            ) -> float:
                margin = sign * (points @ w)
                log_p, log_q = -np.logaddexp(0, -margin), -np.logaddexp(0, margin)
                return float(np.mean(focal_partial_unchecked(log_p, log_q, gamma=gamma, xp=np)))

            weights = minimize(risk, np.zeros(2), method="BFGS").x
            models.norms[trial, column] = np.linalg.norm(weights)
            margins = test_sign * (test @ weights)
            models.sure[trial, column] = np.mean(-margins[margins < 0] > np.log(9))  # sigmoid(log 9) = 0.9
    return models


def _draw_points(rng: np.random.Generator, count: int, flipped: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, 2), and labels that are -1 or 1."""
    which = rng.integers(4, size=count)
    points = _CORNERS[which] + spread * rng.standard_normal((count, 2))
    return points, np.where(which < 2, 1.0, -1.0) * np.where(rng.random(count) < flipped, -1.0, 1.0)


def measure_flip_y(flip_y: float, *, samples: int = 100_000, seed: int = 0) -> float:
    """Measure which share of labels scikit-learn's `make_classification` changes for a given `flip_y`.

    It replaces this share of labels by random ones, of which half are the same as before if there are two classes.

    Args:
        flip_y: The argument.
        samples: Number of labels.
        seed: Seed of the random numbers.
    """
    from sklearn.datasets import make_classification

    labels = [
        make_classification(
            samples, n_features=2, n_redundant=0, flip_y=share, shuffle=False, random_state=np.random.RandomState(seed)
        )[1]
        for share in (0.0, flip_y)
    ]
    return float(np.mean(labels[0] != labels[1]))


def _norms() -> Finding:
    norms = train_linear_models(trials=40).norms
    larger = int(np.sum(norms[:, 0] > norms[:, 1]))
    means = f"the mean norm is {norms[:, 0].mean():.2f} with cross-entropy and {norms[:, 1].mean():.2f} with focal loss"
    corrected = check_at_least(larger, len(norms), 0.5, error=1e-6)
    printed = check_at_least(len(norms) - larger, len(norms), 0.5, error=1e-6)
    mend = "the norm is larger for cross-entropy, as in Figure 5"
    return settle(printed, corrected=corrected._replace(words=f"{mend}: {means}; {corrected.words}"))


def _sure_mistakes() -> Finding:
    """The minimum of cross-entropy gives the centers of the clusters about the confidence 1 - flipped."""
    trials = 40
    told, half = (train_linear_models(trials=trials, flipped=share, spread=0.05).sure for share in (0.1, 0.05))
    printed, inside = (
        check_at_least(int(np.sum(sure[:, 0] > _ALMOST_ALWAYS)), trials, 0.5, error=1e-6) for sure in (told, half)
    )
    changed = measure_flip_y(0.1)
    words = "on average {:.1f} % of the mistakes of cross-entropy and {:.1f} % of those of focal loss exceed 90 %"
    source = (
        "the data resemble those of scikit-learn's make_classification, which replaces labels by random ones: its "
        f"flip_y = 0.1 changes {100 * changed:.1f} % of them"
    )
    why = "the minimum gives the centers of the clusters a confidence of about 90 %"
    return settle(
        printed._replace(
            words=f"{words.format(*100 * told.mean(axis=0))}, and more than 95 % in {printed.words}; {why}"
        ),
        inside=inside._replace(
            words=f"{words.format(*100 * half.mean(axis=0))}, and more than 95 % in {inside.words}; {source}"
        ),
        where="if 5 % of the labels are flipped",
    )


CLAIMS = (
    Claim(
        "002-appendix-g",
        "Appendix G, high confidence for mistakes",
        "The weight norm of the linear model is much larger for focal loss than for cross-entropy.",
        CheckMethod.MONTE_CARLO,
        "40 data sets of 400 points, clusters of width 0.3, 10 % of labels flipped, γ = 1, seed 0; error probability "
        "10⁻⁶",
        _norms,
    ),
    Claim(
        "002-appendix-g-mistakes",
        "Appendix G, high confidence for mistakes, and Figure 6a",
        "With 10 % of the labels flipped, cross-entropy makes mistakes almost always with a confidence above 90 %, "
        "focal loss with a much lower one.",
        CheckMethod.MONTE_CARLO,
        "40 data sets of 400 points and 2,000 test points, narrow clusters of width 0.05, γ = 1, seed 0; we read "
        "almost always as more than 95 %, and ask whether this is so for most data sets; error probability 10⁻⁶",
        _sure_mistakes,
    ),
)
