"""Focal loss of a chunk of logits that a linear layer has just computed: losses, and the gradient over the logits.

The formulas are those of `hard`. Logits are not needed again, so the gradient takes their place in memory. The second
pass goes backward: the L2 cache then still holds the end of the row, which the first pass read last.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.gpu.kernels.hard import check_target, weighted_terms
from refocal.losses.gpu.kernels.long import add_chunk
from refocal.losses.gpu.kernels.maths import LN_2, LOG2_E, log2, reciprocal, reduced_power


@triton.jit
def _cap(x, softcap, CAPPED: tl.constexpr):
    """softcap tanh(x / softcap), or x."""
    if CAPPED:
        far = softcap - 2.0 * softcap * reciprocal(1.0 + tl.exp2(x * (2.0 * LOG2_E / softcap)))
        square = (x / softcap) * (x / softcap)
        near = x * (1.0 - square * (1.0 / 3.0 - square * (2.0 / 15.0 - square * (17.0 / 315.0))))
        return tl.where(square < 0.01, near, far)  # without cancellation
    else:
        return x


@triton.jit
def _cap_slope(capped, softcap, CAPPED: tl.constexpr):
    """The derivative of `_cap`, from its value."""
    if CAPPED:
        return 1.0 - (capped / softcap) * (capped / softcap)
    else:
        return 1.0


@triton.jit
def _load(ptr, column, softcap, CLASSES: tl.constexpr, WHOLE_CHUNK: tl.constexpr, CAPPED: tl.constexpr):
    """Scores of a chunk of classes in float32; -inf beyond the last class."""
    if WHOLE_CHUNK:
        return _cap(tl.load(ptr + column).to(tl.float32), softcap, CAPPED)
    else:
        x = _cap(tl.load(ptr + column, mask=column < CLASSES, other=0.0).to(tl.float32), softcap, CAPPED)
        return tl.where(column < CLASSES, x, -float("inf"))


@triton.jit
def loss_and_gradient(
    logits_ptr,
    target_ptr,
    losses_ptr,
    scale_ptr,
    gamma_ptr,
    weight_ptr,
    rows,
    gamma,
    ignore_index,
    softcap,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CAPPED: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WHOLE: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    SCALE_BY_ROW: tl.constexpr,
):
    """Losses of rows (rows, CLASSES); with GRADIENT, logits become `scale` times the gradient in them."""
    CHUNK: tl.constexpr = LANES * WIDTH
    FULL: tl.constexpr = CLASSES // CHUNK * CHUNK
    offset = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tail = FULL + offset
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        # 1. Load the target's score.
        base = logits_ptr + (tl.full((), 0, tl.int64) + row) * STRIDE
        counted, sound, safe = check_target(tl.load(target_ptr + row), ignore_index, CLASSES)
        score = _cap(tl.load(base + safe).to(tl.float32), softcap, CAPPED)

        # 2. Add up the exponentials of the other classes.
        tops = tl.full((LANES,), -1e38, tl.float32)
        totals = tl.zeros((LANES,), tl.float32)
        for start in tl.range(0, FULL, CHUNK):
            x = _load(base, start + offset, softcap, CLASSES, True, CAPPED)
            if (safe >= start) & (safe < start + CHUNK):
                x = tl.where(start + offset == safe, -float("inf"), x)
            tops, totals = add_chunk(x, tops, totals)
        if FULL < CLASSES:
            x = _load(base, tail, softcap, CLASSES, False, CAPPED)
            tops, totals = add_chunk(tl.where(tail == safe, -float("inf"), x), tops, totals)
        shift = tl.maximum(tl.max(tops, axis=0), score)
        rest = tl.sum(totals * tl.exp2((tops - shift) * LOG2_E), axis=0)

        # 3. The loss, and the factor of the gradient.
        log_mass = (score - shift) * LOG2_E
        row_gamma = tl.load(gamma_ptr + safe) if GAMMA_BY_CLASS else gamma
        terms = (log_mass, tl.exp2(log_mass), rest, counted, sound, safe)
        loss, phi, _, q, inverse = weighted_terms(*terms, row_gamma, weight_ptr, WEIGHTED, WHOLE, DETACHED)
        tl.store(losses_ptr + row, loss)

        # 4. The gradient, from the last class to the first.
        if GRADIENT:
            phi = phi * tl.load(scale_ptr + (row if SCALE_BY_ROW else 0)).to(tl.float32)
            if counted:
                at_target, factor = -phi * q, phi * inverse
                if FULL < CLASSES:
                    x = _load(base, tail, softcap, CLASSES, False, CAPPED)
                    gradient = tl.where(tail == safe, at_target, tl.exp2((x - shift) * LOG2_E) * factor)
                    gradient = gradient * _cap_slope(x, softcap, CAPPED)
                    tl.store(base + tail, gradient.to(logits_ptr.dtype.element_ty), mask=tail < CLASSES)
                for back in tl.range(0, FULL, CHUNK):
                    start = FULL - CHUNK - back
                    x = _load(base, start + offset, softcap, CLASSES, True, CAPPED)
                    gradient = tl.exp2((x - shift) * LOG2_E) * factor
                    if (safe >= start) & (safe < start + CHUNK):
                        gradient = tl.where(start + offset == safe, at_target, gradient)
                    gradient = gradient * _cap_slope(x, softcap, CAPPED)
                    tl.store(base + start + offset, gradient.to(logits_ptr.dtype.element_ty))
            else:  # such a row may hold NaN, which no factor removes
                nothing = tl.zeros((LANES, WIDTH), logits_ptr.dtype.element_ty)
                for start in tl.range(0, FULL, CHUNK):
                    tl.store(base + start + offset, nothing)
                if FULL < CLASSES:
                    tl.store(base + tail, nothing, mask=tail < CLASSES)


@triton.jit
def _h(x, top, inverse, log_total, gamma, WHOLE: tl.constexpr):
    """Masses relative to the top score, and h = p / phi, of classes below the top."""
    exponent = tl.maximum((x - top) * LOG2_E, -1e30)  # so that 0 log 0 = 0
    mass = tl.exp2(exponent)
    p = mass * inverse
    q = 1.0 - p
    phi = reduced_power(q, gamma, WHOLE) * (q - gamma * LN_2 * p * (exponent - log_total))
    below = x < top
    return tl.where(below, mass, 0.0), tl.where(below, p * reciprocal(phi), 0.0)


@triton.jit
def normalizers(
    logits_ptr,
    top_ptr,
    ties_ptr,
    rest_ptr,
    sum_ptr,
    rows,
    gamma,
    softcap,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    CAPPED: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """What a posterior map needs to know of a row of logits.

    The top score; how many classes have it; the sum of the others' exp(x - top); and the sum of the others' h.
    """
    CHUNK: tl.constexpr = LANES * WIDTH
    FULL: tl.constexpr = CLASSES // CHUNK * CHUNK
    offset = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tail = FULL + offset
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        base = logits_ptr + (tl.full((), 0, tl.int64) + row) * STRIDE

        # 1. The top score, and the sum of exponentials.
        tops = tl.full((LANES,), -1e38, tl.float32)
        totals = tl.zeros((LANES,), tl.float32)
        for start in tl.range(0, FULL, CHUNK):
            tops, totals = add_chunk(_load(base, start + offset, softcap, CLASSES, True, CAPPED), tops, totals)
        if FULL < CLASSES:
            tops, totals = add_chunk(_load(base, tail, softcap, CLASSES, False, CAPPED), tops, totals)
        top = tl.max(tops, axis=0)
        total = tl.sum(totals * tl.exp2((tops - top) * LOG2_E), axis=0)
        inverse, log_total = reciprocal(total), log2(total)

        # 2. The sums over the other classes, from the last class to the first.
        rests, sums, ties = (
            tl.zeros((LANES,), tl.float32),
            tl.zeros((LANES,), tl.float32),
            tl.zeros((LANES,), tl.int32),
        )
        if FULL < CLASSES:
            x = _load(base, tail, softcap, CLASSES, False, CAPPED)
            mass, h = _h(x, top, inverse, log_total, gamma, WHOLE)
            rests, sums = rests + tl.sum(mass, axis=1), sums + tl.sum(h, axis=1)
            ties += tl.sum((x == top).to(tl.int32), axis=1)
        for back in tl.range(0, FULL, CHUNK):
            x = _load(base, FULL - CHUNK - back + offset, softcap, CLASSES, True, CAPPED)
            mass, h = _h(x, top, inverse, log_total, gamma, WHOLE)
            rests, sums = rests + tl.sum(mass, axis=1), sums + tl.sum(h, axis=1)
            ties += tl.sum((x == top).to(tl.int32), axis=1)

        # 3. Store the results.
        tl.store(top_ptr + row, top)
        tl.store(ties_ptr + row, tl.sum(ties, axis=0))
        tl.store(rest_ptr + row, tl.sum(rests, axis=0))
        tl.store(sum_ptr + row, tl.sum(sums, axis=0))
