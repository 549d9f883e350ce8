"""Focal loss of class-index targets: losses and the gradient in the logits.

With m_j = exp(x_j - max x), p = m_y / sum(m) and q = (sum of the others) / sum(m). Neither is computed from the other
by subtraction. The difference x_j - max x comes before the factor that changes to base 2, so that logits far from 0
keep their precision. The gradient is phi (p_j - [j = y]), phi = q^(gamma - 1) (q - gamma p log p).

Each kernel writes one loss per row or per tile to `work`, whose layout `sums` describes, or it adds up its losses.
Lengths and strides are constants: Triton then knows which addresses are aligned, and loads many classes at once. `flat`
has a kernel for short rows without alignment, and `long` two for long rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.gpu.kernels.maths import LN_2, LOG2_E, log1p, log2, reciprocal, reduced_power
from refocal.losses.gpu.kernels.sums import (
    LOSSES,
    add_up,
    add_up_or_store,
    incoming_gradient,
    shared_scale,
    store_loss,
)
from refocal.losses.gpu.kernels.tiles import gradient_at, samples_of_tile, score_at


@triton.jit
def _row_terms(log_mass, mass, rest, gamma, WHOLE: tl.constexpr, DETACHED: tl.constexpr):
    """Loss, phi, q and 1 / (mass + rest) of a target. `log_mass` is exact even if the mass underflows."""
    inverse = reciprocal(mass + rest)
    p, q = mass * inverse, rest * inverse
    soft = log1p(tl.minimum(mass, rest) * reciprocal(tl.maximum(mass, rest)))
    log_p = tl.where(mass < rest, (log_mass - log2(rest)) * LN_2, 0.0) - soft
    alone = (rest == 0.0) & (mass > 0.0)  # the others underflow, and so do loss and gradient
    reduced = reduced_power(tl.where(alone, 1.0, q), gamma, WHOLE)
    # 0 log 0 = 0
    phi = reduced * q if DETACHED else reduced * (q - gamma * (p * tl.maximum(log_p, -1e30)))
    return tl.where(alone, 0.0, -reduced * q * log_p), tl.where(alone, 0.0, phi), q, inverse


@triton.jit
def weighted_terms(
    log_mass,
    mass,
    rest,
    counted,
    sound,
    safe,
    gamma,
    weight_ptr,
    WEIGHTED: tl.constexpr,
    WHOLE: tl.constexpr,
    DETACHED: tl.constexpr,
):
    """Loss, phi and the share in a mean's divisor, with class weights; q and 1 / (mass + rest).

    The loss and the share of rows that do not count are 0; phi is not yet masked.
    """
    loss, phi, q, inverse = _row_terms(log_mass, mass, rest, gamma, WHOLE, DETACHED)
    loss, phi = tl.where(sound, loss, float("nan")), tl.where(sound, phi, float("nan"))
    share = tl.where(counted, 1.0, 0.0)
    if WEIGHTED:
        weight = tl.load(weight_ptr + safe).to(tl.float32)
        loss, phi, share = loss * weight, phi * weight, tl.where(counted, weight, 0.0)
    return tl.where(counted, loss, 0.0), phi, share, q, inverse


@triton.jit
def check_target(target, ignore_index, CLASSES: tl.constexpr):
    """Which rows count, which have a class that exists, and classes that are safe to look up.

    A class that does not exist gives NaN. A kernel cannot raise as PyTorch does, but must not read or write elsewhere.
    """
    counted = target != ignore_index
    exists = (target >= 0) & (target < CLASSES)
    return counted, exists | ~counted, tl.where(counted & exists, target, 0).to(tl.int32)


@triton.jit
def tiles_of_rows(
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
    SPAN: tl.constexpr,
    IMAGE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
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
    """Few classes: a program takes a tile of ROWS samples, whose layout `tiles` describes."""
    # 1. Load the tile, and the scores of its targets.
    scale = shared_scale(work_ptr, correction_ptr, expected, COUNTED, BESIDE, INCOMING)
    image, inner, row, exists = samples_of_tile(rows, SPAN, ROWS)
    column = tl.arange(0, BLOCK)[None, :]
    mask = exists[:, None] & (column < CLASSES)
    score_ptr = score_at(logits_ptr, image, inner[:, None], column, SPAN, IMAGE, STRIDE)
    x = tl.load(score_ptr, mask=mask, other=-float("inf")).to(tl.float32)
    target = tl.load(target_ptr + row, mask=exists, other=ignore_index)
    counted, sound, safe = check_target(target, ignore_index, CLASSES)
    target_score_ptr = score_at(logits_ptr, image, inner, safe, SPAN, IMAGE, STRIDE)
    score = tl.load(target_score_ptr, mask=exists, other=0.0).to(tl.float32)
    # 2. Masses relative to the largest score; that of the target stays apart.
    shift = tl.max(x, axis=1)
    shift = tl.where(shift == -float("inf"), 0.0, shift)
    is_target = column == safe[:, None]
    mass = tl.where(is_target, 0.0, tl.exp2((x - shift[:, None]) * LOG2_E))
    log_mass = (score - shift) * LOG2_E
    # 3. Loss and phi of each sample.
    row_gamma = tl.load(gamma_ptr + safe) if GAMMA_BY_CLASS else gamma
    terms = (log_mass, tl.exp2(log_mass), tl.sum(mass, axis=1), counted, sound, safe)
    loss, phi, share, q, inverse = weighted_terms(*terms, row_gamma, weight_ptr, WEIGHTED, WHOLE, DETACHED)
    if BY_ROW:
        tl.store(work_ptr + LOSSES + row, loss, mask=exists)
    # 4. The gradient.
    if GRADIENT:
        phi = tl.where(counted, phi * scale * incoming_gradient(incoming_ptr, tl.where(exists, row, 0), INCOMING), 0.0)
        gradient = tl.where(is_target, (-phi * q)[:, None], mass * (phi * inverse)[:, None])
        place = gradient_at(gradient_ptr, image, inner[:, None], column, SPAN, CLASSES)
        tl.store(place, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)
    # 5. The sum of the losses.
    if not BY_ROW and not INCOMING:
        total, shares = tl.sum(loss, axis=0), tl.sum(share, axis=0)
        pointers = (work_ptr, tickets_ptr, loss_ptr, correction_ptr)
        add_up_or_store(*pointers, total, shares, expected, COUNTED, BESIDE, ADDS)


@triton.jit
def _whole_row(
    row,
    scale,
    logits_ptr,
    target_ptr,
    gradient_ptr,
    work_ptr,
    gamma_ptr,
    weight_ptr,
    incoming_ptr,
    rows,
    gamma,
    ignore_index,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    BESIDE: tl.constexpr,
    ADDS: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WHOLE: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    INCOMING: tl.constexpr,
):
    """Write the gradient of a row except at the target, and its loss unless the kernel adds up.

    Returns the address and the value of the gradient at the target, the loss, and its share in a mean's divisor.
    Telling the target from the other classes here would cost two instructions for each class.
    """
    # 1. Load the row, and the score of its target.
    column = tl.arange(0, BLOCK)
    inside = column < CLASSES
    place = tl.full((), 0, tl.int64) + row
    start = logits_ptr + place * STRIDE
    x = tl.load(start + column, mask=inside, other=-float("inf")).to(tl.float32)
    target = tl.load(target_ptr + row)
    counted, sound, safe = check_target(target, ignore_index, CLASSES)
    score = tl.load(start + safe).to(tl.float32)
    # 2. Masses relative to the largest score, and their sum without the target.
    shift = tl.max(x, axis=0)
    shift = tl.where(shift == -float("inf"), 0.0, shift)
    masses = tl.exp2((x - shift) * LOG2_E)
    log_mass = (score - shift) * LOG2_E
    mass = tl.exp2(log_mass)
    rest = tl.sum(masses, axis=0) - mass
    if rest < mass:  # the difference has lost precision
        rest = tl.sum(tl.where(column == safe, 0.0, masses), axis=0)
    # 3. Loss and phi.
    row_gamma = tl.load(gamma_ptr + safe) if GAMMA_BY_CLASS else gamma
    terms = (log_mass, mass, rest, counted, sound, safe)
    loss, phi, share, q, inverse = weighted_terms(*terms, row_gamma, weight_ptr, WEIGHTED, WHOLE, DETACHED)
    if not ADDS and not INCOMING:
        store_loss(work_ptr, row, rows, loss, share, BESIDE)
    # 4. The gradient, wrong at the target.
    phi = tl.where(counted, phi * scale * incoming_gradient(incoming_ptr, row, INCOMING), 0.0)
    out = gradient_ptr + place * CLASSES
    if GRADIENT:
        tl.store(out + column, (masses * (phi * inverse)).to(gradient_ptr.dtype.element_ty), mask=inside)
    return out + safe, -phi * q, loss, share


@triton.jit
def whole_rows(
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
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
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
    """A program holds a row on the chip: a single row if STAGES is 1, else one after another, loading ahead."""
    scale = shared_scale(work_ptr, correction_ptr, expected, COUNTED, BESIDE, INCOMING)
    data = (
        scale,
        logits_ptr,
        target_ptr,
        gradient_ptr,
        work_ptr,
        gamma_ptr,
        weight_ptr,
        incoming_ptr,
        rows,
        gamma,
        ignore_index,
    )
    # 1. The first row: all but its gradient at the target. Constants stand one by one: in a tuple, they are none.
    first, step = tl.program_id(0), tl.num_programs(0)
    target_place, at_target, total, shares = _whole_row(
        first,
        *data,
        CLASSES,
        STRIDE,
        BLOCK,
        BESIDE,
        ADDS,
        GAMMA_BY_CLASS,
        WEIGHTED,
        WHOLE,
        DETACHED,
        GRADIENT,
        INCOMING,
    )
    # 2. Further rows, each followed by the gradient at the target of the row before.
    if STAGES > 1:
        for i in tl.range(first + step, rows, step, num_stages=STAGES):
            place_before, before = target_place, at_target
            target_place, at_target, loss, share = _whole_row(
                i,
                *data,
                CLASSES,
                STRIDE,
                BLOCK,
                BESIDE,
                ADDS,
                GAMMA_BY_CLASS,
                WEIGHTED,
                WHOLE,
                DETACHED,
                GRADIENT,
                INCOMING,
            )
            total, shares = total + loss, shares + share
            if GRADIENT:  # the sums of this row made all threads wait for the stores of the row before
                tl.store(place_before, before.to(gradient_ptr.dtype.element_ty))
    # 3. The gradient at the target of the last row, after all threads have stored theirs.
    if GRADIENT:
        tl.debug_barrier()
        tl.store(target_place, at_target.to(gradient_ptr.dtype.element_ty))
    # 4. The sum of the losses.
    if ADDS:
        add_up(work_ptr, tickets_ptr, loss_ptr, correction_ptr, total, shares, expected, COUNTED)
