"""Sums over all programs: the divisor of a mean, the losses, and the factor that a backward pass applies.

The sums are deterministic. A float32 buffer, `work`, holds COUNTS partial sums of the divisor, COUNTS partial sums of
the losses, a ticket, and from LOSSES on the losses, then perhaps the share of each loss in the divisor. One program
adds up to MOST_ALONE losses. More are added up by COUNTS programs, which take tickets: the last one to arrive adds
their partial sums in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

COUNTS = tl.constexpr(64)
TICKET = tl.constexpr(2 * COUNTS.value)
LOSSES = tl.constexpr(TICKET.value + 16)
MOST_ALONE = tl.constexpr(32_768)


@triton.jit
def count_targets(
    target_ptr, weight_ptr, work_ptr, rows, classes, ignore_index, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr
):
    """COUNTS partial sums of a mean's divisor: 1, or the class weight, for each row that counts. Resets the ticket."""
    # 1. The ticket of `finish`.
    if tl.program_id(0) == 0:
        tl.store(work_ptr + TICKET, 0.0)
    # 2. This program's share of the targets.
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
def shared_scale(
    work_ptr, correction_ptr, expected, COUNTED: tl.constexpr, BESIDE: tl.constexpr, INCOMING: tl.constexpr
):
    """The factor of all rows' gradients: 1 / (divisor of the mean).

    If the divisor depends on the targets (COUNTED), it was counted before. If shares in it stand beside the losses
    (BESIDE), the expected divisor is used and a correction follows. A later gradient (INCOMING) knows the correction.
    """
    if COUNTED and INCOMING:
        return tl.load(correction_ptr) / expected
    elif COUNTED and not BESIDE:
        lane = tl.arange(0, COUNTS // 2)  # few enough for each warp to add them up by itself
        return 1.0 / tl.sum(tl.load(work_ptr + lane) + tl.load(work_ptr + COUNTS // 2 + lane), axis=0)
    else:
        return 1.0 / expected


@triton.jit
def store_loss(work_ptr, place, size, loss, share, BESIDE: tl.constexpr):
    """Store one of `size` losses, and its share in the divisor if shares stand beside the losses."""
    tl.store(work_ptr + LOSSES + place, loss)
    if BESIDE:
        tl.store(work_ptr + LOSSES + size + place, share)


@triton.jit
def incoming_gradient(incoming_ptr, row, INCOMING: tl.constexpr):
    """The incoming gradient: 1 if INCOMING is 0, one number for all rows if it is 1, one per row if it is 2."""
    if INCOMING == 0:
        return 1.0
    elif INCOMING == 1:
        return tl.load(incoming_ptr).to(tl.float32)
    else:
        return tl.load(incoming_ptr + row).to(tl.float32)


@triton.jit
def _store_result(loss_ptr, correction_ptr, total, number, expected, COUNTED: tl.constexpr):
    """Store the total over the counted or expected number, and the correction of a gradient over the expected one."""
    if COUNTED:
        as_expected = tl.abs(number - expected) <= 2.5e-7 * expected  # up to the rounding of large sums
        tl.store(correction_ptr, tl.where(as_expected | (number == 0.0), 1.0, expected / number))
        total = total / number
    else:
        total = total / expected
    tl.store(loss_ptr, total.to(loss_ptr.dtype.element_ty))


@triton.jit
def _sum_share(value_ptr, size, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(value_ptr + place, mask=place < size, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
def finish(
    work_ptr,
    loss_ptr,
    correction_ptr,
    size,
    expected,
    COUNTED: tl.constexpr,
    BESIDE: tl.constexpr,
    ALONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum of the losses over their number, counted or expected; by one program (ALONE) or by COUNTS.

    Counts were made before, or shares stand beside the losses (BESIDE).
    """
    # 1. Each program adds up its part of the losses and the shares.
    program, part = tl.program_id(0), tl.arange(0, COUNTS)
    total, number = _sum_share(work_ptr + LOSSES, size, BLOCK), expected
    if BESIDE:
        number = _sum_share(work_ptr + LOSSES + size, size, BLOCK)
    # 2. A program alone knows the result.
    if ALONE:
        if COUNTED and not BESIDE:
            number = tl.sum(tl.load(work_ptr + part), axis=0)
        _store_result(loss_ptr, correction_ptr, total, number, expected, COUNTED)
    # 3. Of several programs, the last one adds up their sums.
    else:
        tl.store(work_ptr + COUNTS + program, total)
        if BESIDE:
            tl.store(work_ptr + program, number)
        tl.debug_barrier()
        if tl.atomic_add(work_ptr + TICKET, 1.0) == COUNTS - 1:
            if COUNTED:
                number = tl.sum(tl.load(work_ptr + part, volatile=True), axis=0)
            total = tl.sum(tl.load(work_ptr + COUNTS + part, volatile=True), axis=0)
            _store_result(loss_ptr, correction_ptr, total, number, expected, COUNTED)


@triton.jit
def scale_all(gradient_ptr, incoming_ptr, correction_ptr, size, CORRECTED: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply in place by an incoming gradient. A factor of 1, the usual one, touches no memory."""
    # 1. The factor.
    factor = tl.load(incoming_ptr).to(tl.float32)
    if CORRECTED:
        factor = factor * tl.load(correction_ptr)
    # 2. This program's part of the gradient.
    if factor != 1.0:
        for start in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
            place = tl.full((), BLOCK, tl.int64) * start + tl.arange(0, BLOCK)
            values = tl.load(gradient_ptr + place, mask=place < size).to(tl.float32) * factor
            tl.store(gradient_ptr + place, values.to(gradient_ptr.dtype.element_ty), mask=place < size)
