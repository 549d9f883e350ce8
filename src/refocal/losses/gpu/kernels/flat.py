"""Focal loss of class-index targets for short rows side by side whose length is not a multiple of 16 bytes.

The formulas are those of `hard`. Such rows start at odd addresses. So a program reads its rows as one flat span, 16
bytes at a time, and turns it on the chip.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.gpu.kernels.hard import check_target, weighted_terms
from refocal.losses.gpu.kernels.maths import LOG2_E
from refocal.losses.gpu.kernels.sums import LOSSES, add_up_or_store, incoming_gradient, shared_scale


@triton.jit
def flat_rows(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    work_ptr,
    tickets_ptr,
    loss_ptr,
    correction_ptr,
    gamma_ptr,
    weight_ptr,
    incoming_ptr,
    rows,
    gamma,
    ignore_index,
    expected,
    CLASSES: tl.constexpr,
    ROWS: tl.constexpr,
    LANES: tl.constexpr,
    FLAT: tl.constexpr,
    BLOCK: tl.constexpr,
    BY_ROW: tl.constexpr,
    COUNTED: tl.constexpr,
    BESIDE: tl.constexpr,
    ADDS: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WHOLE: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    INCOMING: tl.constexpr,
):
    """A program takes ROWS rows: at most LANES, with at most FLAT scores. The span of each program starts aligned."""
    # 1. Load the span, and the targets.
    scale = shared_scale(work_ptr, correction_ptr, expected, COUNTED, BESIDE, INCOMING)
    first = tl.program_id(0) * ROWS
    present = tl.minimum(rows - first, ROWS)
    start = tl.full((), CLASSES, tl.int64) * first
    flat = tl.arange(0, FLAT)
    full = present == ROWS
    if full:  # the mask is then known to be the same for neighbors, so that they are loaded together
        x = tl.load(logits_ptr + start + flat, mask=flat < ROWS * CLASSES, other=0.0)
    else:
        x = tl.load(logits_ptr + start + flat, mask=flat < present * CLASSES, other=0.0)
    x = x.to(tl.float32)
    lane = tl.arange(0, LANES)
    row, exists = first + lane, lane < present
    target = tl.load(target_ptr + row, mask=exists, other=ignore_index)
    counted, sound, safe = check_target(target, ignore_index, CLASSES)
    # 2. Turn the span: a lane gets all classes of its row.
    number = tl.arange(0, BLOCK * LANES)
    source = tl.minimum(number % LANES * CLASSES + number // LANES, FLAT - 1)
    turned = tl.reshape(tl.gather(x, source, 0), (BLOCK, LANES))
    column = tl.arange(0, BLOCK)[:, None]
    turned = tl.where(column < CLASSES, turned, -float("inf"))
    target_place = tl.minimum(lane * CLASSES + safe, FLAT - 1)
    score = tl.gather(x, target_place, 0)
    # 3. Masses relative to the largest score; loss and phi of each row.
    shift = tl.max(turned, axis=0)
    shift = tl.where(shift == -float("inf"), 0.0, shift)
    masses = tl.where(column == safe[None, :], 0.0, tl.exp2((turned - shift[None, :]) * LOG2_E))
    log_mass = (score - shift) * LOG2_E
    row_gamma = tl.load(gamma_ptr + safe) if GAMMA_BY_CLASS else gamma
    terms = (log_mass, tl.exp2(log_mass), tl.sum(masses, axis=0), counted, sound, safe)
    loss, phi, share, q, inverse = weighted_terms(*terms, row_gamma, weight_ptr, WEIGHTED, WHOLE, DETACHED)
    if BY_ROW:
        tl.store(work_ptr + LOSSES + row, loss, mask=exists)
    # 4. The gradient, in the flat order again: each score looks up the numbers of its row.
    if GRADIENT:
        phi = tl.where(counted, phi * scale * incoming_gradient(incoming_ptr, tl.where(exists, row, 0), INCOMING), 0.0)
        owner = tl.minimum(flat // CLASSES, LANES - 1)
        gradient = tl.exp2((x - tl.gather(shift, owner, 0)) * LOG2_E) * tl.gather(phi * inverse, owner, 0)
        is_target = flat == tl.gather(target_place, owner, 0)
        gradient = tl.where(is_target, tl.gather(-phi * q, owner, 0), gradient).to(gradient_ptr.dtype.element_ty)
        if full:
            tl.store(gradient_ptr + start + flat, gradient, mask=flat < ROWS * CLASSES)
        else:
            tl.store(gradient_ptr + start + flat, gradient, mask=flat < present * CLASSES)
    # 5. The sum of the losses.
    if not BY_ROW and not INCOMING:
        total, shares = tl.sum(loss, axis=0), tl.sum(share, axis=0)
        pointers = (work_ptr, tickets_ptr, loss_ptr, correction_ptr)
        add_up_or_store(*pointers, total, shares, expected, COUNTED, BESIDE, ADDS)
