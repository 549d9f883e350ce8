"""The likelihood of labels under focal temperature scaling, with exact first and second derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from refocal.calibrators.fit.descent import Quadratic
from refocal.calibrators.fit.focal_masses import (
    BLOCK_BYTES,
    Parameters,
    RankedLogits,
    Rest,
    TopClasses,
    compute_top_classes,
    fill_masses,
    split_rows,
)
from refocal.calibrators.fit.temperature_likelihood import in_blocks

AtLabel = tuple[np.ndarray, np.ndarray]  # the true class of each row, as an index


def focal_likelihood(ranked: RankedLogits, at: Parameters, *, exact: bool = True, curvature: bool = True) -> Quadratic:
    """Evaluate the NLL in (gamma, beta), with its gradient and Hessian.

    With a_j = log h(p_j), the NLL is log sum e^(a_j) - a_y. So its gradient is <a'> - a'_y and its Hessian is
    <a' a' + a''> - <a'><a'> - a''_y, where <> are means under Psi.

    Args:
        ranked: The logits and labels.
        at: Focal parameter and inverse temperature.
        exact: Whether to compute in float64; otherwise in the dtype of the logits.
        curvature: Whether to compute the Hessian, which is almost half of the work; otherwise it is None.
    """
    dtype = np.dtype(np.float64) if exact else ranked.data.logits.dtype
    value = 0.0
    gradient, hessian = np.zeros(2), np.zeros((2, 2))
    for part in split_rows(ranked):
        top = compute_top_classes(part, at, dtype, square=curvature)
        share = part.data.share
        loss, first, second = _differentiate(part, top, at, dtype, curvature=curvature)
        value += float(share @ loss)
        gradient += first @ share
        if second is not None:
            summed = second @ share
            hessian += [[summed[0], summed[1]], [summed[1], summed[2]]]
    return Quadratic(value, gradient, hessian if curvature else None)


class _Sums(NamedTuple):
    """Sums over the classes below the top, weighted by h; one value per row (n,)."""

    mass: np.ndarray
    gamma: np.ndarray  # a' in gamma
    beta: np.ndarray
    growth: np.ndarray  # G
    gamma_gamma: np.ndarray  # a' a' + a''
    gamma_beta: np.ndarray
    beta_beta: np.ndarray  # d2 log h / dt2 u^2 + a' a'; a'' is d2 log h / dt2 u^2 - Var d G


class _ClassTerms(NamedTuple):
    """Log h of one class of each row (n,), and its derivatives. For the true class, those by beta are by t."""

    log_h: np.ndarray
    gamma: np.ndarray
    beta: np.ndarray
    gamma_gamma: np.ndarray
    gamma_beta: np.ndarray
    beta_beta: np.ndarray


def _differentiate(
    part: RankedLogits, top: TopClasses, at: Parameters, dtype: np.dtype, *, curvature: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Compute the loss (n,), gradient (2, n) and Hessian (3, n) of each row."""
    sums, labels = np.zeros((7, len(part.argmax))), np.zeros((6, len(part.argmax)))
    tilt = (top.runner_up - top.q * top.mean).astype(dtype)[:, None]
    for block, room in in_blocks(part.data.logits, dtype, arrays=10 if curvature else 9, size=BLOCK_BYTES):
        rest = Rest(*room, *room[: 10 - len(room)])
        at_label = np.arange(block.stop - block.start), part.data.labels[block]
        of_block, label = _Sums(*sums[:, block]), _ClassTerms(*labels[:, block])
        fill_masses(part, block, top, rest, at)
        np.add(rest.distance, tilt[block], out=rest.distance)
        label.log_h[:] = np.log(rest.inverse[at_label]) - at.gamma * rest.log_q[at_label]
        _fill_first_sums(rest, at.gamma, at_label, of_block, label)
        if curvature:
            _fill_second_sums(rest, at.gamma, at_label, of_block, label)
    return _combine(part, top, at, _Sums(*sums), _ClassTerms(*labels), curvature=curvature)


def _fill_first_sums(rest: Rest, gamma: float, at_label: AtLabel, sums: _Sums, label: _ClassTerms) -> None:
    """Fill in the first derivatives of the classes, of their sums, and of the true classes; `distance` holds u."""
    distance, growth, mass, odds, a_gamma, inverse, ratio, slope, moment, _ = rest
    np.add(ratio, 1, out=slope)
    slope *= odds
    slope += ratio
    slope *= inverse
    ratio *= inverse
    np.subtract(ratio, a_gamma, out=a_gamma)
    np.add(odds, slope, out=growth)
    growth *= gamma
    growth += 1
    np.multiply(mass, distance, out=moment)
    sums.mass[:] = np.einsum("ij->i", mass)
    sums.gamma[:] = np.vecdot(mass, a_gamma)
    sums.beta[:] = np.vecdot(moment, growth)
    label.gamma[:], label.beta[:] = a_gamma[at_label], growth[at_label]


def _fill_second_sums(rest: Rest, gamma: float, at_label: AtLabel, sums: _Sums, label: _ClassTerms) -> None:
    """Fill in the sums that second derivatives need; this overwrites `rest`."""
    distance, growth, mass, odds, a_gamma, inverse, ratio, slope, moment, spare = rest
    sums.growth[:] = np.vecdot(mass, growth)
    ratio *= ratio
    label.gamma_gamma[:] = ratio[at_label]
    ratio += np.multiply(a_gamma, a_gamma, out=spare)
    sums.gamma_gamma[:] = np.vecdot(mass, ratio)

    np.multiply(slope, inverse, out=spare)
    spare += odds
    label.gamma_beta[:] = spare[at_label]
    a_gamma *= growth
    a_gamma += spare
    sums.gamma_beta[:] = np.vecdot(moment, a_gamma)

    # d2 log h / dt2 = gamma (o (1 + o + 1 / (1 + gamma s)) + slope (1 + 2 o + gamma slope))
    np.multiply(slope, gamma, out=spare)
    odds += 1
    spare += odds
    inverse += odds
    odds -= 1
    spare += odds
    spare *= slope
    inverse *= odds
    spare += inverse
    spare *= gamma
    label.beta_beta[:] = spare[at_label]
    growth *= growth
    spare += growth
    moment *= distance
    sums.beta_beta[:] = np.vecdot(moment, spare)


def _combine(
    part: RankedLogits, top: TopClasses, at: Parameters, sums: _Sums, label: _ClassTerms, *, curvature: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Combine the other classes with the top class; log h is relative to the log h of the top class."""
    is_top = part.argmax == part.data.labels
    own = _top_terms(top, at.gamma)
    tilt = part.data.label_gap - top.q * top.mean
    total = 1 + top.scale * sums.mass
    loss = np.log(total) - np.where(is_top, 0.0, at.beta * part.data.label_gap + top.log_p + label.log_h - own.log_h)
    mean = (own.gamma + top.scale * sums.gamma) / total, (own.beta + top.scale * sums.beta) / total
    true = np.where(is_top, own.gamma, label.gamma), np.where(is_top, own.beta, label.beta * tilt)
    gradient = np.stack([mean[0] - true[0], mean[1] - true[1]])
    if not curvature:
        return loss, gradient, None
    assert top.square is not None
    variance = top.q * (top.square - top.q * top.mean**2)

    def second(of_top: Any, products: Any, of_rest: Any, of_label: Any, means: Any) -> np.ndarray:
        return (of_top + products + top.scale * of_rest) / total - means - np.where(is_top, of_top, of_label)

    bend = label.beta_beta * tilt**2 - label.beta * variance
    return (
        loss,
        gradient,
        np.stack(
            [
                second(own.gamma_gamma, own.gamma**2, sums.gamma_gamma, label.gamma_gamma, mean[0] ** 2),
                second(
                    own.gamma_beta, own.gamma * own.beta, sums.gamma_beta, label.gamma_beta * tilt, mean[0] * mean[1]
                ),
                second(own.beta_beta, own.beta**2, sums.beta_beta - variance * sums.growth, bend, mean[1] ** 2),
            ]
        ),
    )


def _top_terms(top: TopClasses, gamma: float) -> _ClassTerms:
    """Compute the terms of the top class from the mean of the other logits, without a division by q."""
    p, q, mean, focus = top.p, top.q, top.mean, top.focus
    ratio, log_q_1, ratio_1 = top.excess + p, p * mean, -top.excess * mean
    square = top.square if top.square is not None else mean * mean
    variance = q * (square - q * mean * mean)
    variance_of_rest = np.maximum(square - mean * mean, 0.0)
    log_q_2 = p * (variance_of_rest - q * mean * mean)
    ratio_2 = (top.excess - p * q) * mean * mean - top.excess * variance_of_rest
    return _ClassTerms(
        log_h=top.log_p - gamma * top.log_q - np.log(focus),
        gamma=-top.log_q - ratio / focus,
        beta=-q * mean - gamma * (log_q_1 + ratio_1 / focus),
        gamma_gamma=(ratio / focus) ** 2,
        gamma_beta=-log_q_1 - ratio_1 / focus**2,
        beta_beta=-variance - gamma * (log_q_2 + ratio_2 / focus - gamma * (ratio_1 / focus) ** 2),
    )
