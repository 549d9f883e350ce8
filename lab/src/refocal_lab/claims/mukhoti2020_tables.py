"""Claims of Mukhoti et al. (2020) about their printed tables, and about the linear model of Appendix G."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from refocal.maps.focal import focal_partial_unchecked
from refocal_lab.claims.claim import ABOUT_NETWORKS, CheckMethod, Claim, Finding, Outcome, not_checkable, settle
from refocal_lab.claims.sampling import check_at_least

_PLACES = (
    *(f"{network}, CIFAR-100" for network in ("ResNet-50", "ResNet-110", "Wide ResNet", "DenseNet")),
    *(f"{network}, CIFAR-10" for network in ("ResNet-50", "ResNet-110", "Wide ResNet", "DenseNet")),
    "20 Newsgroups",
    "SST",
)
# Tables 1 and 7, in the order of _PLACES: ECE in percent before and after temperature scaling, and the temperature
_BEFORE = {
    "cross-entropy": (17.52, 19.05, 15.33, 20.98, 4.35, 4.41, 3.23, 4.52, 17.92, 7.37),
    "Brier": (6.52, 7.88, 4.31, 5.17, 1.82, 2.56, 1.25, 1.53, 13.58, 9.01),
    "MMCE": (15.32, 19.14, 13.17, 19.13, 4.56, 5.08, 3.29, 5.10, 15.48, 5.03),
    "sample-wise 5,3": (4.50, 8.56, 3.03, 3.73, 1.55, 1.87, 1.56, 1.22, 6.92, 9.19),
    "γ = 1": (12.86, 15.08, 8.93, 14.24, 3.42, 3.46, 2.69, 3.44, 15.06, 6.78),
    "γ = 2": (8.61, 11.56, 4.64, 7.90, 2.36, 2.70, 1.42, 1.93, 12.10, 3.05),
    "γ = 3": (5.13, 8.64, 2.13, 4.15, 1.48, 1.55, 1.69, 1.32, 8.67, 16.05),
    "schedule 5,3,1": (11.63, 14.99, 9.36, 13.05, 4.06, 4.92, 2.81, 4.12, 13.55, 4.66),
    "schedule 5,3,2": (8.47, 11.20, 4.98, 7.63, 2.97, 3.33, 1.82, 2.22, 12.13, 3.91),
}
_AFTER = {
    "schedule 5,3,1": (2.09, 4.56, 2.48, 2.08, 1.53, 1.50, 0.96, 1.65, 4.32, 3.36),
    "schedule 5,3,2": (2.13, 3.43, 1.94, 1.96, 1.53, 1.36, 1.45, 1.34, 2.47, 2.64),
}
_TEMPERATURES = {
    "cross-entropy": (2.1, 2.3, 2.2, 2.3, 2.5, 2.8, 2.2, 2.4, 3.4, 1.8),
    "MMCE": (1.8, 2.3, 1.9, 2.1, 2.6, 2.8, 2.2, 2.5, 2.2, 1.5),
    "sample-wise 5,3": (1.1, 1.2, 1.1, 1.1, 1.1, 1.1, 0.9, 1.0, 1.5, 0.7),
}


def _lower(table: Mapping[str, Sequence[float]], one: str, others: tuple[str, ...]) -> Outcome:
    """Check that one column is the lowest in every row."""
    worse = [
        (place, other, table[one][row], table[other][row])
        for row, place in enumerate(_PLACES)
        for other in others
        if table[other][row] <= table[one][row]
    ]
    if not worse:
        return Outcome(True, f"{one} is lowest in all {len(_PLACES)} rows")
    rows = len({place for place, *_ in worse})
    place, other, mine, theirs = worse[0]
    return Outcome(
        False, f"not lowest in {rows} of {len(_PLACES)} rows, for example {place}: {one} {mine}, {other} {theirs}"
    )


def _mostly_lowest(one: str, others: tuple[str, ...]) -> Finding:
    """Check that a column is the lowest in more than half of the rows, and on average."""
    columns = np.array([_BEFORE[name] for name in (one, *others)])
    rows, means = int(np.sum(columns[0] < columns[1:].min(axis=0))), columns.mean(axis=1)
    words = (
        f"lowest in {rows} of {len(_PLACES)} rows; its mean is {means[0]:.2f}, the next lowest {means[1:].min():.2f}"
    )
    return settle(Outcome(rows > len(_PLACES) / 2 and bool(means[0] < means[1:].min()), words))


def _schedules() -> Finding:
    pair = ("schedule 5,3,2", ("schedule 5,3,1",))
    before, after = _lower(_BEFORE, *pair), _lower(_AFTER, *pair)
    return settle(before & after, inside=before, where="before temperature scaling")


def _temperatures() -> Finding:
    outside = [
        f"{method}, {place}: {value}"
        for method in ("cross-entropy", "MMCE")
        for place, value in zip(_PLACES, _TEMPERATURES[method], strict=True)
        if not 2.0 <= value <= 2.8
    ]
    return settle(Outcome(not outside, "; ".join(outside) or "all twenty lie in this range"))


def _near_one() -> Finding:
    values = _TEMPERATURES["sample-wise 5,3"]
    near = sum(0.9 <= value <= 1.1 for value in values)
    return settle(
        Outcome(near > len(values) / 2, f"{near} of {len(values)} do; the others range from 0.7 to {max(values)}")
    )


def _confident() -> Finding:
    """|S99| in percent after temperature scaling (Table 6), for cross-entropy, MMCE and focal loss."""
    rows = {"ResNet-110": (11.5, 10.62, 31.10), "ResNet-50": (7.33, 4.21, 14.27)}
    higher = all(focal > max(others) for *others, focal in rows.values())
    words = "; ".join(
        f"{name}: {focal} % with focal loss, {one} % and {two} % with the others"
        for name, (one, two, focal) in rows.items()
    )
    return settle(Outcome(higher, words))


def weight_norms(*, trials: int, seed: int = 0, samples: int = 400, spread: float = 0.3) -> np.ndarray:
    """Weight norms of the linear model of Appendix G, trained with cross-entropy and with focal loss (gamma = 1).

    There are two classes of two clusters each, at the corners of a square. 10 % of the labels are flipped, and there is
    no intercept. The paper does not print the width of the clusters; here it is `spread` times half a side.

    Args:
        trials: Number of data sets.
        seed: Seed of the random numbers.
        samples: Number of points per data set.
        spread: Standard deviation of a cluster.

    Returns:
        Array of shape (trials, 2).
    """
    from scipy.optimize import minimize

    rng = np.random.default_rng(seed)
    corners = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=float)
    norms = np.empty((trials, 2))
    for trial in range(trials):
        which = rng.integers(4, size=samples)
        points = corners[which] + spread * rng.standard_normal((samples, 2))
        sign = np.where(which < 2, 1.0, -1.0) * np.where(rng.random(samples) < 0.1, -1.0, 1.0)
        for column, gamma in enumerate((0.0, 1.0)):

            def risk(
                w: np.ndarray, gamma: float = gamma, points: np.ndarray = points, sign: np.ndarray = sign
            ) -> float:
                margin = sign * (points @ w)
                log_p, log_q = -np.logaddexp(0, -margin), -np.logaddexp(0, margin)
                return float(np.mean(focal_partial_unchecked(log_p, log_q, gamma=gamma, xp=np)))

            norms[trial, column] = np.linalg.norm(minimize(risk, np.zeros(2), method="BFGS").x)
    return norms


def _norms() -> Finding:
    norms = weight_norms(trials=40)
    larger = int(np.sum(norms[:, 0] > norms[:, 1]))
    means = f"the mean norm is {norms[:, 0].mean():.2f} with cross-entropy and {norms[:, 1].mean():.2f} with focal loss"
    corrected = check_at_least(larger, len(norms), 0.5, error=1e-6)
    printed = check_at_least(len(norms) - larger, len(norms), 0.5, error=1e-6)
    mend = "the norm is larger for cross-entropy, as in Figure 5"
    return settle(printed, corrected=corrected._replace(words=f"{mend}: {means}; {corrected.words}"))


CLAIMS = (
    Claim(
        "002-text-table-1",
        "Section 6, performance gains",
        "Focal loss with sample-wise γ outperforms all the baselines, with broadly the lowest ECE (Table 1).",
        CheckMethod.TABLE,
        "ECE before temperature scaling; we read broadly as in most of ten rows and on average",
        lambda: _mostly_lowest("sample-wise 5,3", ("cross-entropy", "Brier", "MMCE")),
    ),
    Claim(
        "002-text-table-7",
        "Section 6, performance gains",
        "Of the fixed γ, γ = 3 gives the best ECE.",
        CheckMethod.TABLE,
        "ECE before temperature scaling, in most of ten rows of Table 7 and on average",
        lambda: _mostly_lowest("γ = 3", ("γ = 1", "γ = 2")),
    ),
    Claim(
        "002-text-schedules",
        "Section 6, performance gains",
        "The schedule 5,3,2 has a better ECE than 5,3,1 for every model and data set.",
        CheckMethod.TABLE,
        "ECE before and after temperature scaling, ten rows of Table 7",
        _schedules,
    ),
    Claim(
        "002-text-temperatures",
        "Section 6, confident and calibrated models",
        "The optimal temperatures of cross-entropy and MMCE lie between 2.0 and 2.8.",
        CheckMethod.TABLE,
        "twenty entries of Table 1",
        _temperatures,
    ),
    Claim(
        "002-text-near-one",
        "Section 6, confident and calibrated models",
        "With sample-wise γ, most optimal temperatures lie between 0.9 and 1.1.",
        CheckMethod.TABLE,
        "ten entries of Table 1; we read mostly as more than half",
        _near_one,
    ),
    Claim(
        "002-text-s99",
        "Section 6 and Table 6",
        "After temperature scaling, focal loss has more predictions above 99 % confidence than cross-entropy and MMCE.",
        CheckMethod.TABLE,
        "two networks on CIFAR-10",
        _confident,
    ),
    Claim(
        "002-appendix-g",
        "Appendix G, high confidence for mistakes",
        "The weight norm of the linear model is much larger for focal loss than for cross-entropy.",
        CheckMethod.MONTE_CARLO,
        "40 data sets of 400 points, clusters of width 0.3, 10 % of labels flipped, γ = 1, seed 0; error probability "
        "10⁻⁶",
        _norms,
    ),
    not_checkable(
        "002-experiments",
        "Sections 3 to 6, Tables 1 to 13, Figures 1 to 4 and 8",
        "Networks trained with focal loss are better calibrated than with cross-entropy, Brier score or MMCE.",
        ABOUT_NETWORKS,
    ),
)
