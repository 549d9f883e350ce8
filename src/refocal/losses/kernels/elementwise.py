"""Sigmoid focal loss with its gradient, and the small passes around a loss: counting, adding up, scaling.

The losses share one float32 buffer, `work`: COUNTS partial sums of what a mean divides by, as many of the losses, a
ticket that tells the last program of `finish`, the correction that a backward pass applies, and from LOSSES on the
losses themselves. The ticket is 0 before `finish`: `count_targets` sets it, or who makes the buffer.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.kernels.maths import LOG2_E, log1p, reciprocal, whole_power

COUNTS = tl.constexpr(32)
TICKET = tl.constexpr(64)
CORRECTION = tl.constexpr(65)
LOSSES = tl.constexpr(80)


@triton.jit
def sigmoid_focal(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    work_ptr,
    loss_ptr,
    incoming_ptr,
    size,
    gamma,
    alpha,
    ignore_index,
    scale,
    BLOCK: tl.constexpr,
    BALANCED: tl.constexpr,
    WHOLE: tl.constexpr,
    LOSS: tl.constexpr,
    GRADIENT: tl.constexpr,
    INCOMING: tl.constexpr,
    BY_ELEMENT: tl.constexpr,
):
    """t alpha l(p) + (1 - t) (1 - alpha) l(1 - p) and its derivative in the logit.

    dl(p)/dx = -q^gamma (q - gamma p log p). Losses are stored by element, or summed over each program together with
    the number of scores that count.
    """
    program = tl.program_id(0)
    place = tl.full((), BLOCK, tl.int64) * program + tl.arange(0, BLOCK)
    mask = place < size
    x = tl.load(logits_ptr + place, mask=mask, other=0.0).to(tl.float32)
    t = tl.load(target_ptr + place, mask=mask, other=0).to(tl.float32)
    counted = mask & (t != ignore_index)
    odds = tl.exp2(-tl.abs(x) * LOG2_E)
    larger = reciprocal(1.0 + odds)
    smaller = odds * larger
    p, q = tl.where(x < 0.0, smaller, larger), tl.where(x < 0.0, larger, smaller)
    soft = log1p(odds)
    minus_log_p, minus_log_q = tl.maximum(-x, 0.0) + soft, tl.maximum(x, 0.0) + soft
    positive, negative = t, 1.0 - t
    if BALANCED:
        positive, negative = alpha * positive, (1.0 - alpha) * negative
    if WHOLE > 0:
        up, down = positive * whole_power(q, WHOLE), negative * whole_power(p, WHOLE)
    else:
        exponent = -gamma * LOG2_E
        up, down = positive * tl.exp2(exponent * minus_log_q), negative * tl.exp2(exponent * minus_log_p)
    loss = tl.where(counted, up * minus_log_p + down * minus_log_q, 0.0)
    if GRADIENT:
        gradient = down * (p + gamma * (q * minus_log_q)) - up * (q + gamma * (p * minus_log_p))
        if INCOMING:
            if BY_ELEMENT:
                scale = scale * tl.load(incoming_ptr + place, mask=mask, other=0.0).to(tl.float32)
            else:
                scale = scale * tl.load(incoming_ptr).to(tl.float32) * tl.load(work_ptr + CORRECTION)
        gradient = tl.where(counted, gradient * scale, 0.0)
        tl.store(gradient_ptr + place, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)
    if LOSS:
        if BY_ELEMENT:
            tl.store(loss_ptr + place, loss.to(loss_ptr.dtype.element_ty), mask=mask)
        else:  # last, because a program waits for its threads here
            tl.store(work_ptr + LOSSES + program, tl.sum(loss, axis=0))
            tl.store(work_ptr + LOSSES + tl.num_programs(0) + program, tl.sum(tl.where(counted, 1.0, 0.0), axis=0))


@triton.jit
def incoming_gradient(incoming_ptr, row, INCOMING: tl.constexpr):
    """The gradient that comes from behind: 1 where INCOMING is 0, one for all rows where it is 1, one a row where 2."""
    if INCOMING == 0:
        return 1.0
    elif INCOMING == 1:
        return tl.load(incoming_ptr).to(tl.float32)
    else:
        return tl.load(incoming_ptr + row).to(tl.float32)


@triton.jit
def count_targets(
    target_ptr, weight_ptr, work_ptr, rows, classes, ignore_index, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr
):
    """COUNTS partial sums of what a mean divides by: one, or the class weight, for each counted row; a new ticket."""
    if tl.program_id(0) == 0:
        tl.store(work_ptr + TICKET, 0.0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, rows, COUNTS * BLOCK):
        row = start + tl.arange(0, BLOCK)
        target = tl.load(target_ptr + row, mask=row < rows, other=ignore_index)
        counted = target != ignore_index
        share = tl.where(counted, 1.0, 0.0)
        if WEIGHTED:
            known = counted & (target >= 0) & (target < classes)
            share = tl.load(weight_ptr + tl.where(known, target, 0), mask=known, other=0.0).to(tl.float32)
        total += share
    tl.store(work_ptr + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def inverse_count(work_ptr):
    """One over what a mean divides by."""
    return 1.0 / tl.sum(tl.load(work_ptr + tl.arange(0, COUNTS)), axis=0)


@triton.jit
def _sum_share(value_ptr, size, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, size, COUNTS * BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(value_ptr + place, mask=place < size, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
def finish(
    work_ptr, result_ptr, size, expected, COUNTED: tl.constexpr, COUNTED_BESIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """The sum of the losses over their count, or over the expected one, by COUNTS programs; the last of them adds up.

    Counts may have been made before, or stand beside the losses. The correction is what the gradient, if it was
    divided by the expected count, has to be multiplied by.
    """
    program = tl.program_id(0)
    tl.store(work_ptr + COUNTS + program, _sum_share(work_ptr + LOSSES, size, BLOCK))
    if COUNTED_BESIDE:
        tl.store(work_ptr + program, _sum_share(work_ptr + LOSSES + size, size, BLOCK))
    tl.debug_barrier()
    if tl.atomic_add(work_ptr + TICKET, 1.0) == COUNTS - 1:
        part = tl.arange(0, COUNTS)
        number = expected
        correction = 1.0
        if COUNTED:
            number = tl.sum(tl.load(work_ptr + part, volatile=True), axis=0)
            as_expected = tl.abs(number - expected) <= 2.5e-7 * expected  # equal, up to the rounding of large sums
            correction = tl.where(as_expected | (number == 0.0), 1.0, expected / number)
        tl.store(work_ptr + CORRECTION, correction)
        result = tl.sum(tl.load(work_ptr + COUNTS + part, volatile=True), axis=0) / number
        tl.store(result_ptr, result.to(result_ptr.dtype.element_ty))


@triton.jit
def scale_all(gradient_ptr, factor_ptr, work_ptr, size, CORRECTED: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply in place by an incoming gradient; a factor of 1, the usual one, touches no memory."""
    factor = tl.load(factor_ptr).to(tl.float32)
    if CORRECTED:
        factor = factor * tl.load(work_ptr + CORRECTION)
    if factor != 1.0:
        for start in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
            place = tl.full((), BLOCK, tl.int64) * start + tl.arange(0, BLOCK)
            values = tl.load(gradient_ptr + place, mask=place < size).to(tl.float32) * factor
            tl.store(gradient_ptr + place, values.to(gradient_ptr.dtype.element_ty), mask=place < size)
