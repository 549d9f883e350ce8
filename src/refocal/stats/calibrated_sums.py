"""Tail probabilities of sums over calibrated predictions, and tests that combine them.

If claims of probability c come true independently with probability c, the sum of their residuals, outcome minus c, has
a known distribution. Its tails come from a saddlepoint approximation, which also holds for rare outcomes and far out,
where a normal distribution fails.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

LEVELS = 128  # of log-odds; claims within a level count as equal
_RANGE = 16.0  # log-odds beyond +-16 fall into the first and last level
SCALES = (1, 2, 4, 8)  # numbers of groups, each with an equal part of the variance
_END_SHARE = 0.1  # of the first and of the last level in a combined test
_ITERATIONS = 60
_LAST_STEP = 1e-12  # relative to the tilt; further steps are rounding errors
_ROUNDING = 1e-9  # of the weight: residuals of certain claims that came true are sums of zeros up to rounding
_FAR = 1.0  # standard deviations; below, no p-value matters and the normal distribution will do


class LevelSums(NamedTuple):
    """Sums over the claims in each level of log-odds, each (..., LEVELS)."""

    weight: np.ndarray
    squared_weight: np.ndarray
    claimed: np.ndarray  # weight times claimed probability
    observed: np.ndarray  # weight times outcome

    @property
    def variance(self) -> np.ndarray:
        """The variance of the observed sum if the claims are calibrated."""
        claim = _divide(self.claimed, self.weight)
        return self.squared_weight * claim * (1 - claim)

    @property
    def residual(self) -> np.ndarray:
        """What was observed beyond what was claimed."""
        return self.observed - self.claimed


def find_levels(claims: np.ndarray) -> np.ndarray:
    """Return the level of each claimed probability, which rounding may put beyond 0 or 1."""
    claims = np.clip(claims, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        odds = np.log(claims) - np.log1p(-claims)
    scaled = (np.clip(odds, -_RANGE, _RANGE) + _RANGE) * (LEVELS / (2 * _RANGE))
    return np.minimum(scaled.astype(np.intp), LEVELS - 1)


def sum_levels(claims: np.ndarray, outcomes: np.ndarray, weights: np.ndarray | None) -> LevelSums:
    """Sum claims (N,) and outcomes (N,) in each level."""
    claims = np.clip(claims, 0.0, 1.0)
    index = find_levels(claims)
    scale = np.ones(len(claims)) if weights is None else weights
    parts = (scale, scale**2, scale * claims, scale * outcomes)
    return LevelSums(*(np.bincount(index, weights=part, minlength=LEVELS) for part in parts))


def group_levels(sums: LevelSums) -> np.ndarray:
    """Divide the levels into 1, 2, 4 and 8 groups of about equal variance: members (..., 17, LEVELS).

    The last two groups are the first and the last level. Claims there are nearly certain and have next to no variance,
    so that a failure among them would drown in the noise of any larger group.
    """
    variance = sums.variance
    total = variance.sum(axis=-1, keepdims=True)
    position = _divide(np.cumsum(variance, axis=-1) - variance / 2, total)
    group = [np.minimum((position * scale).astype(np.intp), scale - 1) for scale in SCALES]
    members = [index[..., None, :] == np.arange(scale)[:, None] for index, scale in zip(group, SCALES, strict=True)]
    ends = np.broadcast_to(np.eye(LEVELS, dtype=bool)[[0, -1]], (*variance.shape[:-1], 2, LEVELS))
    return np.concatenate([*members, ends], axis=-2)


def sum_p_values(sums: LevelSums, members: np.ndarray) -> np.ndarray:
    """Two-sided p-values of the residual sums of groups of levels.

    Args:
        sums: Arrays (..., LEVELS).
        members: Which levels belong to each group, (..., G, LEVELS).

    Returns:
        (..., G), NaN for groups without variance whose residual is 0, since they cannot tell anything.
    """
    members = np.broadcast_to(members, np.broadcast_shapes(members.shape, sums.weight[..., None, :].shape))
    whole = np.where(members, sums.residual[..., None, :], 0.0).sum(axis=-1)
    variance = np.where(members, sums.variance[..., None, :], 0.0).sum(axis=-1)
    known = variance > 0
    scale = np.where(members, sums.weight[..., None, :], 0.0).sum(axis=-1)
    impossible = ~known & (np.abs(whole) > _ROUNDING * scale)
    z = _divide(whole, np.sqrt(variance))
    p = np.where(known, 2 * scipy.special.ndtr(-np.abs(z)), np.where(impossible, 0.0, np.nan))
    far = known & (np.abs(z) > _FAR)
    if far.any():
        rows = [np.broadcast_to(part[..., None, :], members.shape)[far] for part in sums]
        p[far] = _tails(LevelSums(*rows), members[far])
    return p


def _tails(sums: LevelSums, members: np.ndarray) -> np.ndarray:
    """Two-sided p-values by the saddlepoint approximation of Lugannani and Rice for lattices, (R,) from (R, LEVELS)."""
    inside = members & (sums.weight > 0)
    weight = np.where(inside, sums.weight, 0.0)
    count = np.where(inside, _divide(sums.weight**2, sums.squared_weight), 0.0)
    step = np.where(inside, _divide(sums.squared_weight, sums.weight), 0.0)
    claim = np.where(inside, _divide(sums.claimed, sums.weight), 0.5)
    residual = np.where(inside, sums.residual, 0.0).sum(axis=-1)
    # a negative residual of the outcomes is a positive one of their complements
    claim = np.where(residual[:, None] < 0, 1 - claim, claim)
    # the mean step of what can vary: a heavy claim that is nearly certain must not count
    variance = count * step**2 * claim * (1 - claim)
    total = variance.sum(axis=-1)
    if not total.all():  # 1 - claim has rounded to 1: what is left of the residual comes from certain claims
        p = np.where(np.abs(residual) > _ROUNDING * weight.sum(axis=-1), 0.0, 1.0)
        if total.any():
            p[total > 0] = _tails(LevelSums(*(part[total > 0] for part in sums)), members[total > 0])
        return p
    lattice = (step * variance).sum(axis=-1) / total
    target = np.abs(residual) - lattice / 2
    most = (weight * (1 - claim) * (claim > 0)).sum(axis=-1)
    with np.errstate(divide="ignore"):
        log_claim, log_rest = np.log(claim), np.log1p(-claim)
    t, second = _find_tilt(weight, step, claim, log_claim - log_rest, target=target, lattice=lattice)
    uncertain = inside & (claim > 0) & (claim < 1)
    growth = np.logaddexp(log_rest, log_claim + step * t[:, None]) - step * claim * t[:, None]
    cumulants = np.where(uncertain, count * np.where(uncertain, growth, 0.0), 0.0).sum(axis=-1)
    signed = np.sqrt(np.maximum(2 * (t * target - cumulants), 0.0))
    spread = 2 * np.sinh(np.minimum(t * lattice / 2, 300.0)) / lattice * np.sqrt(second)
    density = np.exp(-(signed**2) / 2) / np.sqrt(2 * np.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = scipy.special.ndtr(-signed) + density * (1 / spread - 1 / signed)
    # with very unequal weights the correction can exceed the tail; Chernoff's bound holds always
    tail = np.where(tail > 0, tail, np.exp(-(signed**2) / 2))
    tail = np.where(signed > 1e-4, tail, 0.5)
    return np.where(target >= most, 0.0, np.clip(2 * tail, 0.0, 1.0))


def _find_tilt(
    weight: np.ndarray,
    step: np.ndarray,
    claim: np.ndarray,
    odds: np.ndarray,
    *,
    target: np.ndarray,
    lattice: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Find the tilt t at which the expected residual is the target, by bracketed Newton steps.

    Tilting by t turns the claim c into expit(logit(c) + step t).

    Args:
        weight: Sums of weights, (R, LEVELS).
        step: What one outcome adds to the sum, (R, LEVELS).
        claim: Claimed probabilities, (R, LEVELS).
        odds: Their log-odds, (R, LEVELS).
        target: The residuals to reach, (R,).
        lattice: The mean step, (R,).

    Returns:
        The tilts (R,), and the variances of the tilted sums (R,).
    """

    def expect(t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        tilted = scipy.special.expit(odds + step * t[:, None])
        return (weight * (tilted - claim)).sum(axis=-1), (weight * step * tilted * (1 - tilted)).sum(axis=-1)

    low, high = np.zeros(len(target)), np.full(len(target), 800.0) / lattice
    t = np.minimum(target / np.maximum(expect(low)[1], 1e-300), high / 2)
    for _ in range(_ITERATIONS):
        first, second = expect(t)
        low, high = np.where(first < target, t, low), np.where(first < target, high, t)
        proposal = t - _divide(first - target, second)
        found = (second > 0) & (np.abs(proposal - t) <= _LAST_STEP * t)
        if found.all():
            break
        between = np.where((proposal > low) & (proposal < high), proposal, (low + high) / 2)
        t = np.where(found, t, between)
    return t, expect(t)[1]


def combine(p_values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Combine p-values of any dependence along the last axis into one (Cauchy combination; NaN is left out).

    Reference: Liu, Xie: Cauchy combination test. J. Am. Stat. Assoc. 115, 2020.
    """
    told = ~np.isnan(p_values)
    share = np.where(told, shares, 0.0)
    total = share.sum(axis=-1)
    bounded = np.clip(np.where(told, p_values, 0.5), 1e-300, 0.99)
    score = _divide((share * np.tan((0.5 - bounded) * np.pi)).sum(axis=-1), total)
    # for tiny p-values tan(pi / 2 - pi p) is 1 / (pi p)
    large = _divide((share / (np.pi * bounded)).sum(axis=-1), total)
    combined = np.where(score > 1e8, _divide(np.ones_like(large), np.pi * large), 0.5 - np.arctan(score) / np.pi)
    return np.where(total > 0, np.where((told & (p_values == 0)).any(axis=-1), 0.0, combined), 1.0)


def scale_shares() -> np.ndarray:
    """The shares of the groups of `group_levels`: each scale gets the same share, each end a tenth."""
    by_scale = [np.full(scale, (1 - 2 * _END_SHARE) / (len(SCALES) * scale)) for scale in SCALES]
    return np.concatenate([*by_scale, np.full(2, _END_SHARE)])


def adjust_holm(p_values: np.ndarray) -> np.ndarray:
    """Adjust p-values (M,) for their number.

    Reference: Holm: A simple sequentially rejective multiple test procedure. Scand. J. Statist. 6, 1979.
    """
    order = np.argsort(p_values)
    stepped = np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1))
    adjusted = np.empty_like(stepped)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


def find_detectable(sums: LevelSums, *, level: float, power: float) -> float:
    """Return the calibration error that the combined test of one set of sums sees with a given probability.

    The error keeps its sign within each of up to 8 groups, and is spread over them in the way that is hardest to see:
    all groups are equally many standard errors off.

    Args:
        sums: Arrays (LEVELS,).
        level: Significance level of the combined test.
        power: Probability of seeing the error.
    """
    members = group_levels(sums)
    variance = np.where(members, sums.variance, 0.0).sum(axis=-1)
    total = sums.weight.sum()
    largest, start = 0.0, 0
    for scale in SCALES:
        own = variance[start : start + scale]
        own = own[own > 0]
        start += scale
        if len(own) == 0:
            continue
        limit = scipy.special.ndtri(1 - (1 - 2 * _END_SHARE) * level / (2 * len(SCALES) * scale))
        each = 1 - (1 - power) ** (1 / len(own))  # power of each group if those of all of them are to have `power`
        largest = max(largest, float((limit + scipy.special.ndtri(each)) * np.sqrt(own).sum() / total))
    return largest


def _divide(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divide; 0 where the denominator is 0."""
    out = np.zeros(np.broadcast_shapes(np.shape(numerator), np.shape(denominator)))
    return np.divide(numerator, denominator, out=out, where=np.broadcast_to(denominator, out.shape) != 0)
