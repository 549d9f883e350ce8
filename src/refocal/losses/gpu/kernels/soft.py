"""Focal loss of class-probability or smoothed targets: losses and gradient in one pass over each row.

L = sum_c t_c w_c q_c^gamma (-log p_c) and dL/dz_j = p_j sum_c t_c w_c phi_c - t_j w_j phi_j, where
phi = q^(gamma - 1) (q - gamma p log p). If the factor's gradient is stopped (DETACHED), phi = q^gamma.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.gpu.kernels.maths import LN_2, LOG2_E, log2_of_total, reciprocal, reduced_power
from refocal.losses.gpu.kernels.sums import LOSSES, add_up_or_store, incoming_gradient, shared_scale
from refocal.losses.gpu.kernels.tiles import gradient_at, samples_of_tile, score_at


@triton.jit
def beside_top(exponent, mass, total):
    """The total mass without one top class, which has exponent 0 and mass 1; without cancellation if it is small."""
    beside = total - 1.0
    if tl.min(tl.min(beside, axis=1), axis=0) < 1.0:
        summed = tl.sum(tl.where(exponent == 0.0, 0.0, mass), axis=1)[:, None]
        beside = tl.where(beside < 1.0, summed, beside)
    return beside


@triton.jit
def soft_rows(
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
    smoothing,
    CLASSES: tl.constexpr,
    SPAN: tl.constexpr,
    IMAGE: tl.constexpr,
    STRIDE: tl.constexpr,
    TARGET_IMAGE: tl.constexpr,
    TARGET_STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    BY_ROW: tl.constexpr,
    COUNTED: tl.constexpr,
    BESIDE: tl.constexpr,
    ADDS: tl.constexpr,
    INDICES: tl.constexpr,
    SMOOTHED: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WHOLE: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    INCOMING: tl.constexpr,
):
    """A program holds a tile of ROWS samples on the chip; `tiles` describes their layout."""
    # 1. Load the tile.
    scale = shared_scale(work_ptr, correction_ptr, expected, COUNTED, BESIDE, INCOMING)
    column = tl.arange(0, BLOCK)[None, :]
    inside = column < CLASSES
    image, inner, row, exists = samples_of_tile(rows, SPAN, ROWS)
    mask = inside
    if ROWS > 1:
        mask = mask & exists[:, None]
    score_ptr = score_at(logits_ptr, image, inner[:, None], column, SPAN, IMAGE, STRIDE)
    x = tl.load(score_ptr, mask=mask, other=-float("inf")).to(tl.float32)
    # 2. The target of each class: its probability, smoothed and weighted.
    if INDICES:
        index = tl.load(target_ptr + row, mask=exists, other=ignore_index)
        counted = index != ignore_index
        t = tl.where(column == index.to(tl.int32)[:, None], 1.0, 0.0)
        t = tl.where((counted & ((index < 0) | (index >= CLASSES)))[:, None], float("nan"), t)  # no such class
    else:
        counted = exists
        probability_ptr = score_at(target_ptr, image, inner[:, None], column, SPAN, TARGET_IMAGE, TARGET_STRIDE)
        t = tl.load(probability_ptr, mask=mask, other=0.0).to(tl.float32)
    if SMOOTHED:
        t = tl.where(inside, (1.0 - smoothing) * t + smoothing / CLASSES, 0.0)
    if WEIGHTED:
        t = t * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    class_gamma = tl.load(gamma_ptr + column, mask=inside, other=1.0) if GAMMA_BY_CLASS else gamma
    # 3. Masses relative to the largest score; p and q, without cancellation for the top class.
    top = tl.max(x, axis=1)[:, None]
    # The difference comes first: a fused multiply-add would leave the top class a rounding error away from 0.
    exponent = (x - tl.where(top == -float("inf"), 0.0, top)) * LOG2_E
    mass = tl.exp2(exponent)
    total = tl.sum(mass, axis=1)[:, None]
    inverse = reciprocal(total)
    p = mass * inverse
    # A top class with q = 0 has no loss and no pull, so any small number will do.
    beside = beside_top(exponent, mass, total)
    q_top = tl.maximum(beside * inverse, 1e-37)
    q = tl.where(exponent == 0.0, q_top, 1.0 - p)
    # 4. The loss of each sample.
    log_p = tl.where(t != 0.0, exponent - log2_of_total(beside), 0.0)
    reduced = t * reduced_power(q, class_gamma, WHOLE)
    loss = tl.where(counted, tl.sum(reduced * q * log_p, axis=1) * -LN_2, 0.0)
    if BY_ROW:
        tl.store(work_ptr + LOSSES + row, loss, mask=exists)
    # 5. The gradient: the pull of each class, and the pulls of all classes shared among them.
    if GRADIENT:
        if DETACHED:
            pull = reduced * q
        else:
            # 0 log 0 = 0
            pull = reduced * (q - (class_gamma * LN_2) * (p * tl.maximum(log_p, -1e30)))
        incoming = incoming_gradient(incoming_ptr, tl.where(exists, row, 0), INCOMING)
        row_scale = tl.where(counted, scale * incoming, 0.0)[:, None]
        gradient = (p * tl.sum(pull, axis=1)[:, None] - pull) * row_scale
        place = gradient_at(gradient_ptr, image, inner[:, None], column, SPAN, CLASSES)
        tl.store(place, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)
    # 6. The sum of the losses.
    if not BY_ROW and not INCOMING:
        share = tl.where(counted, 1.0, 0.0)
        if BESIDE and WEIGHTED:
            known = counted & (index >= 0) & (index < CLASSES)
            share = tl.load(weight_ptr + tl.where(known, index, 0), mask=known, other=0.0).to(tl.float32)
        total, shares = tl.sum(loss, axis=0), tl.sum(share, axis=0)
        pointers = (work_ptr, tickets_ptr, loss_ptr, correction_ptr)
        add_up_or_store(*pointers, total, shares, expected, COUNTED, BESIDE, ADDS)
