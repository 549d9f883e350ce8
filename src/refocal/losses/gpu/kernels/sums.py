"""Sums over all programs: the divisor of a mean, the losses, and the factor that a backward pass applies.

The sums are deterministic. A float32 buffer, `work`, holds COUNTS partial sums of the divisor, COUNTS partial sums of
the losses, a ticket, and from LOSSES on the losses, then perhaps the share of each loss in the divisor.

A launch of its own, `finish`, adds up the losses. One program adds up to MOST_ALONE losses. COUNTS programs add up
more: they take tickets, and the last one to arrive adds their partial sums in a fixed order.

A small batch that is not captured is bound by the host, so its kernel saves that launch: it adds up at its end
(`add_up`). Then `work` holds one loss and one share per program, and behind them those of groups of programs. Tickets
are a buffer of their own.
"""

from __future__ import annotations

import triton
import triton.language as tl

COUNTS = tl.constexpr(64)
TICKET = tl.constexpr(2 * COUNTS.value)
LOSSES = tl.constexpr(TICKET.value + 16)
MOST_ALONE = tl.constexpr(32_768)
GROUP = tl.constexpr(128)  # programs whose losses one of them adds up
MOST_TO_ADD_UP = tl.constexpr(GROUP.value**2)
TICKETS = tl.constexpr(GROUP.value + 1)  # of `add_up`


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
def _arrive(ticket_ptr, members):
    """Whether this program is the last of `members` to arrive, and can read what the others stored.

    The last one sets the ticket to 0 again, for the next launch.
    """
    tl.debug_barrier()
    last = tl.atomic_add(ticket_ptr, 1) == members - 1
    if last:
        tl.store(ticket_ptr, 0)
    return last


@triton.jit
def _sum_parts(part_ptr, parts):
    part = tl.arange(0, GROUP)
    return tl.sum(tl.load(part_ptr + part, mask=part < parts, other=0.0, volatile=True), axis=0)


@triton.jit
def add_up(work_ptr, tickets_ptr, loss_ptr, correction_ptr, loss, share, expected, COUNTED: tl.constexpr):
    """A program stores its loss and its share in a mean's divisor; the last program adds them up.

    The last program of each group adds up the group, and the last of these adds up the groups, so that no program reads
    more than GROUP of each. Tickets are 0 between launches.
    """
    # 1. Store this program's part.
    program, programs = tl.program_id(0), tl.num_programs(0)
    store_loss(work_ptr, program, programs, loss, share, COUNTED)
    # 2. The last program of a group adds up its parts.
    group, groups = program // GROUP, tl.cdiv(programs, GROUP)
    members = tl.minimum(programs - group * GROUP, GROUP)
    member_ptr = work_ptr + LOSSES + group * GROUP
    sums_ptr = work_ptr + LOSSES + 2 * programs  # losses of groups, then shares of groups
    if _arrive(tickets_ptr + group, members):
        tl.store(sums_ptr + group, _sum_parts(member_ptr, members))
        if COUNTED:
            tl.store(sums_ptr + GROUP + group, _sum_parts(member_ptr + programs, members))
        # 3. The last of these adds up the groups.
        if _arrive(tickets_ptr + GROUP, groups):
            number = expected
            if COUNTED:
                number = _sum_parts(sums_ptr + GROUP, groups)
            _store_result(loss_ptr, correction_ptr, _sum_parts(sums_ptr, groups), number, expected, COUNTED)


@triton.jit
def add_up_or_store(
    work_ptr,
    tickets_ptr,
    loss_ptr,
    correction_ptr,
    loss,
    share,
    expected,
    COUNTED: tl.constexpr,
    BESIDE: tl.constexpr,
    ADDS: tl.constexpr,
):
    """At the end of a program with one loss: add up the losses of all programs, or store this one for `finish`."""
    if ADDS:
        add_up(work_ptr, tickets_ptr, loss_ptr, correction_ptr, loss, share, expected, COUNTED)
    else:
        store_loss(work_ptr, tl.program_id(0), tl.num_programs(0), loss, share, BESIDE)


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
