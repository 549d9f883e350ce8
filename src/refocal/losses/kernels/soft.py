"""Focal loss of class-probability or smoothed targets: losses and gradient, one pass over each row.

L = sum_c t_c w_c q_c^gamma (-log p_c), dL/dz_j = p_j sum_c t_c w_c phi_c - t_j w_j phi_j.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.kernels.maths import focus, log1p, power


@triton.jit
def _class_terms(x, top, rest_of_top, ties, gamma, DETACHED: tl.constexpr):
    """p, loss and phi of every class; `rest_of_top` sums exp(x - top) over the classes below the top."""
    mass = tl.exp(x - top)
    extra = rest_of_top + (ties - 1.0)  # what stands beside one top class
    total = 1.0 + extra
    is_top = x == top
    rest = tl.where(is_top, extra, total - mass)
    alone = rest == 0.0
    log_p = x - top - log1p(extra)
    log_q = tl.where(alone, -float("inf"), tl.log(tl.where(alone, 1.0, rest)) - log1p(extra))
    odds = tl.where(alone, float("inf"), mass / tl.where(alone, 1.0, rest))
    factor = power(log_q, gamma)
    possible = mass > 0.0
    safe_log_p = tl.where(possible, log_p, 0.0)
    loss = tl.where(x == -float("inf"), float("inf"), -factor * tl.where(x == -float("inf"), 0.0, log_p))
    return mass / total, tl.where(alone, 0.0, loss), factor * focus(safe_log_p, odds, gamma, DETACHED)


@triton.jit
def rows_on_chip(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    loss_ptr,
    gamma_ptr,
    weight_ptr,
    scale_ptr,
    rows,
    stride,
    target_stride,
    gamma,
    ignore_index,
    smoothing,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    INDICES: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SCALED: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A persistent program walks over tiles of ROWS rows, each held on the chip whole."""
    column = tl.arange(0, BLOCK)
    inside = column < CLASSES
    scale = 1.0
    if SCALED:
        scale = 1.0 / tl.load(scale_ptr)
    class_gamma = tl.load(gamma_ptr + column, mask=inside, other=1.0)[None, :] if GAMMA_BY_CLASS else gamma
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        exists = row < rows
        mask = exists[:, None] & inside[None, :]
        offset = row.to(tl.int64)[:, None] * stride + column[None, :]
        x = tl.load(logits_ptr + offset, mask=mask, other=-float("inf")).to(tl.float32)
        if INDICES:
            index = tl.load(target_ptr + row, mask=exists, other=ignore_index)
            counted = index != ignore_index
            t = tl.where(column[None, :] == index[:, None], 1.0, 0.0)
        else:
            counted = exists
            place = row.to(tl.int64)[:, None] * target_stride + column[None, :]
            t = tl.load(target_ptr + place, mask=mask, other=0.0).to(tl.float32)
        t = (1.0 - smoothing) * t + smoothing / CLASSES
        if WEIGHTED:
            t = t * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        t = tl.where(mask, t, 0.0)
        top = tl.max(x, axis=1)[:, None]
        top = tl.where(top == -float("inf"), 0.0, top)
        below = tl.sum(tl.where(x == top, 0.0, tl.exp(x - top)), axis=1)[:, None]
        ties = tl.sum(tl.where((x == top) & mask, 1.0, 0.0), axis=1)[:, None]
        p, loss, pull = _class_terms(x, top, below, ties, class_gamma, DETACHED)
        total_loss = tl.sum(tl.where(t > 0.0, t * tl.where(t > 0.0, loss, 0.0), 0.0), axis=1)
        tl.store(loss_ptr + row, tl.where(counted, total_loss, 0.0), mask=exists)
        if GRADIENT:
            pulls = tl.where(mask, t * pull, 0.0)
            gradient = (p * tl.sum(pulls, axis=1)[:, None] - pulls) * scale
            gradient = tl.where(counted[:, None], gradient, 0.0)
            out = row.to(tl.int64)[:, None] * CLASSES + column[None, :]
            tl.store(gradient_ptr + out, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)
