"""Sums over all programs: the divisor of a mean, the losses, and the factor that a backward pass applies.

The sums are deterministic. Partial sums lie in a float32 buffer, `work`. Programs take tickets, and the last one to
arrive adds the partial sums in a fixed order. Tickets are 0 between launches.

If `finish` adds up, `work` holds COUNTS partial sums of the divisor, COUNTS partial sums of the losses, the ticket, and
from LOSSES on the losses. If a kernel adds up itself, `work` holds the ticket; from BY_GROUP on a ticket, a loss and a
share for each group of programs; and from BY_PROGRAM on the losses, then the shares, of the programs.
"""

from __future__ import annotations

import triton
import triton.language as tl

COUNTS = tl.constexpr(64)
TICKET = tl.constexpr(2 * COUNTS.value)
LOSSES = tl.constexpr(TICKET.value + 16)
GROUP = tl.constexpr(128)
BY_GROUP = tl.constexpr(TICKET.value + 16)
BY_PROGRAM = tl.constexpr(BY_GROUP.value + 3 * GROUP.value)
MOST_PROGRAMS = tl.constexpr(GROUP.value**2)
SIZE_TO_ADD = tl.constexpr(BY_PROGRAM.value + 2 * MOST_PROGRAMS.value)


@triton.jit
def count_targets(
    target_ptr, weight_ptr, work_ptr, rows, classes, ignore_index, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr
):
    """COUNTS partial sums of a mean's divisor: 1, or the class weight, for each row that counts. Resets the ticket."""
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
def shared_scale(work_ptr, correction_ptr, expected, COUNTED: tl.constexpr, ADDS: tl.constexpr, INCOMING: tl.constexpr):
    """The factor of all rows' gradients: 1 / (divisor of the mean).

    If the divisor depends on the targets (COUNTED), it was counted before. Otherwise, the expected one is used and a
    correction follows, which is known after this launch (ADDS) or after the one that computed the loss (INCOMING).
    """
    if COUNTED and INCOMING:
        return tl.load(correction_ptr) / expected
    elif COUNTED and not ADDS:
        lane = tl.arange(0, COUNTS // 2)  # few enough for each warp to add them up by itself
        return 1.0 / tl.sum(tl.load(work_ptr + lane) + tl.load(work_ptr + COUNTS // 2 + lane), axis=0)
    else:
        return 1.0 / expected


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
def _arrive(ticket_ptr, members):
    """Whether this program is the last of `members` to arrive. It can read what the others stored.

    The last one resets the ticket to 0.
    """
    tl.debug_barrier()
    last = tl.atomic_add(ticket_ptr, 1.0) == members - 1
    if last:
        tl.store(ticket_ptr, 0.0)
    return last


@triton.jit
def _sum_of_parts(part_ptr, number, MOST: tl.constexpr):
    part = tl.arange(0, MOST)
    return tl.sum(tl.load(part_ptr + part, mask=part < number, other=0.0, volatile=True), axis=0)


@triton.jit
def add_up(work_ptr, loss_ptr, correction_ptr, loss, share, expected, COUNTED: tl.constexpr):
    """At the end of a program: store its loss and its share in the mean's divisor. The last program adds up.

    The last program of each GROUP adds up its group, and the last of these adds up the groups, so that no program reads
    many values.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    group, groups = program // GROUP, tl.cdiv(programs, GROUP)
    group_ptr = work_ptr + BY_GROUP + group
    part_ptr = work_ptr + BY_PROGRAM + program
    tl.store(part_ptr, loss)
    if COUNTED:
        tl.store(part_ptr + MOST_PROGRAMS, share)
    members = tl.minimum(programs - group * GROUP, GROUP)
    if _arrive(group_ptr, members):
        first_ptr = work_ptr + BY_PROGRAM + group * GROUP
        tl.store(group_ptr + GROUP, _sum_of_parts(first_ptr, members, GROUP))
        if COUNTED:
            tl.store(group_ptr + 2 * GROUP, _sum_of_parts(first_ptr + MOST_PROGRAMS, members, GROUP))
        if _arrive(work_ptr + TICKET, groups):
            total = _sum_of_parts(work_ptr + BY_GROUP + GROUP, groups, GROUP)
            number = _sum_of_parts(work_ptr + BY_GROUP + 2 * GROUP, groups, GROUP) if COUNTED else expected
            _store_result(loss_ptr, correction_ptr, total, number, expected, COUNTED)


@triton.jit
def _sum_share(value_ptr, size, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, size, COUNTS * BLOCK):
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
    COUNTED_BESIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The sum of many losses over their number, counted or expected, by COUNTS programs; the last of them adds up.

    Counts were made before, or stand beside the losses (COUNTED_BESIDE).
    """
    program = tl.program_id(0)
    tl.store(work_ptr + COUNTS + program, _sum_share(work_ptr + LOSSES, size, BLOCK))
    if COUNTED_BESIDE:
        tl.store(work_ptr + program, _sum_share(work_ptr + LOSSES + size, size, BLOCK))
    tl.debug_barrier()
    if tl.atomic_add(work_ptr + TICKET, 1.0) == COUNTS - 1:
        part = tl.arange(0, COUNTS)
        number = tl.sum(tl.load(work_ptr + part, volatile=True), axis=0) if COUNTED else expected
        total = tl.sum(tl.load(work_ptr + COUNTS + part, volatile=True), axis=0)
        _store_result(loss_ptr, correction_ptr, total, number, expected, COUNTED)


@triton.jit
def scale_all(gradient_ptr, incoming_ptr, correction_ptr, size, CORRECTED: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply in place by an incoming gradient. A factor of 1, the usual one, touches no memory."""
    factor = tl.load(incoming_ptr).to(tl.float32)
    if CORRECTED:
        factor = factor * tl.load(correction_ptr)
    if factor != 1.0:
        for start in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
            place = tl.full((), BLOCK, tl.int64) * start + tl.arange(0, BLOCK)
            values = tl.load(gradient_ptr + place, mask=place < size).to(tl.float32) * factor
            tl.store(gradient_ptr + place, values.to(gradient_ptr.dtype.element_ty), mask=place < size)
