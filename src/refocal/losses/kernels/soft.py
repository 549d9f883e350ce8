"""Focal loss of class-probability or smoothed targets: losses and gradient, one pass over each row.

L = sum_c t_c w_c q_c^gamma (-log p_c), dL/dz_j = p_j sum_c t_c w_c phi_c - t_j w_j phi_j, where
phi = q^(gamma - 1) (q - gamma p log p), and q^gamma in its place where the factor's gradient is stopped.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.kernels.maths import log1p, reduced_power


@triton.jit
def rows_on_chip(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    loss_ptr,
    gamma_ptr,
    weight_ptr,
    count_ptr,
    rows,
    stride,
    target_stride,
    gamma,
    ignore_index,
    smoothing,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SCALED: tl.constexpr,
    WHOLE: tl.constexpr,
    INDICES: tl.constexpr,
    SMOOTHED: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A program takes tiles of ROWS rows, each held on the chip whole."""
    column = tl.arange(0, BLOCK)
    inside = column < CLASSES
    scale = 1.0
    if SCALED:
        scale = 1.0 / tl.load(count_ptr)
    class_gamma = tl.load(gamma_ptr + column, mask=inside, other=1.0)[None, :] if GAMMA_BY_CLASS else gamma
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        exists = row < rows
        mask = exists[:, None] & inside[None, :]
        place = row.to(tl.int64)[:, None]
        x = tl.load(logits_ptr + place * stride + column[None, :], mask=mask, other=-float("inf")).to(tl.float32)
        if INDICES:
            index = tl.load(target_ptr + row, mask=exists, other=ignore_index)
            counted = index != ignore_index
            t = tl.where(column[None, :] == index[:, None], 1.0, 0.0)
        else:
            counted = exists
            t = tl.load(target_ptr + place * target_stride + column[None, :], mask=mask, other=0.0).to(tl.float32)
        if SMOOTHED:
            t = tl.where(inside[None, :], (1.0 - smoothing) * t + smoothing / CLASSES, 0.0)
        if WEIGHTED:
            t = t * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)[None, :]
        top = tl.max(x, axis=1)[:, None]
        top = tl.where(top == -float("inf"), 0.0, top)
        is_top = x == top
        mass = tl.exp(x - top)
        ties = tl.sum(tl.where(is_top, 1.0, 0.0), axis=1)[:, None]
        # what stands beside one top class: summed without it, so that nothing cancels when it is near 1
        beside = tl.sum(tl.where(is_top, 0.0, mass), axis=1)[:, None] + (ties - 1.0)
        inverse_total = 1.0 / (1.0 + beside)
        log_p = x - (top + log1p(beside))
        p = mass * inverse_total
        q = tl.where(is_top, beside * inverse_total, 1.0 - p)
        # 0 log 0 = 0, and a class with q = 0 has neither loss nor pull, unless its gamma is 0
        log_p = tl.where(t > 0.0, log_p, 0.0)
        unfocused = tl.where(class_gamma == 0.0, 1.0, 0.0)
        base = tl.where(q > 0.0, q, unfocused)
        reduced = reduced_power(tl.where(q > 0.0, q, 1.0), class_gamma, WHOLE)
        factor = reduced * base
        loss = tl.sum(-t * factor * log_p, axis=1)
        loss = tl.where(counted, loss, 0.0)
        tl.store(loss_ptr + row, loss, mask=exists)
        if GRADIENT:
            if DETACHED:
                pull = t * factor
            else:
                pull = t * reduced * (base - class_gamma * p * tl.where(p > 0.0, log_p, 0.0))
            gradient = (p * tl.sum(pull, axis=1)[:, None] - pull) * tl.where(counted, scale, 0.0)[:, None]
            gradient = tl.where(counted[:, None], gradient, 0.0).to(gradient_ptr.dtype.element_ty)
            tl.store(gradient_ptr + place * CLASSES + column[None, :], gradient, mask=mask)
