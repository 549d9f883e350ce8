"""Focal loss of class-index targets: losses and the gradient in the logits, one pass over each row.

With u = logsumexp of the other classes minus the target's logit, log p = -softplus(u) and log q = -softplus(-u);
the gradient is phi (p_j - [j = y]) with phi = q^gamma (1 + gamma s).
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.kernels.maths import focus, log1p, power


@triton.jit
def _row_terms(score, rest_max, rest_sum, gamma, scale, DETACHED: tl.constexpr):
    """Loss, gradient at the target, and the gradient's factor on exp(x_j - rest_max) elsewhere."""
    alone = rest_sum == 0.0
    against = tl.where(alone, -float("inf"), rest_max + tl.log(tl.where(alone, 1.0, rest_sum)) - score)
    soft = log1p(tl.exp(-tl.abs(against)))
    log_p = -(tl.maximum(against, 0.0) + soft)
    log_q = -(tl.maximum(-against, 0.0) + soft)
    factor = power(log_q, gamma)
    pull = factor * focus(log_p, tl.exp(-against), gamma, DETACHED) * tl.exp(log_q) * scale
    loss = -factor * log_p
    return tl.where(alone, 0.0, loss), -pull, tl.where(alone, 0.0, pull / tl.where(alone, 1.0, rest_sum))


@triton.jit
def tiles_of_rows(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    loss_ptr,
    gamma_ptr,
    weight_ptr,
    count_ptr,
    rows,
    stride,
    gamma,
    ignore_index,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    SCALED: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    """Short rows: a program takes ROWS of them at once."""
    column = tl.arange(0, BLOCK)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = row < rows
    mask = exists[:, None] & (column < CLASSES)[None, :]
    place = row.to(tl.int64)
    x = tl.load(logits_ptr + (place * stride)[:, None] + column[None, :], mask=mask, other=-float("inf")).to(tl.float32)
    target = tl.load(target_ptr + row, mask=exists, other=ignore_index)
    counted = target != ignore_index
    safe = tl.where(counted, target, 0)
    score = tl.load(logits_ptr + place * stride + safe, mask=exists, other=0.0).to(tl.float32)
    scale = 1.0
    if SCALED:
        scale = 1.0 / tl.load(count_ptr)
    is_target = column[None, :] == safe[:, None]
    top = tl.max(x, axis=1)
    top = tl.where(top == -float("inf"), 0.0, top)
    # relative to the target, classes more than 88 below it vanish: so do their losses and gradients in float32
    mass = tl.where(is_target, 0.0, tl.exp(x - top[:, None]))
    row_gamma = tl.load(gamma_ptr + safe) if GAMMA_BY_CLASS else gamma + 0.0 * top
    row_weight = tl.load(weight_ptr + safe).to(tl.float32) if WEIGHTED else 1.0 + 0.0 * top
    loss, at_target, elsewhere = _row_terms(score, top, tl.sum(mass, axis=1), row_gamma, scale * row_weight, DETACHED)
    loss = tl.where(counted, loss * row_weight, 0.0)
    tl.store(loss_ptr + row, loss, mask=exists)
    if GRADIENT:
        gradient = tl.where(is_target, at_target[:, None], mass * elsewhere[:, None])
        gradient = tl.where(counted[:, None], gradient, 0.0).to(gradient_ptr.dtype.element_ty)
        tl.store(gradient_ptr + (place * CLASSES)[:, None] + column[None, :], gradient, mask=mask)


@triton.jit
def _one_row(
    row,
    logits_ptr,
    target_ptr,
    gradient_ptr,
    loss_ptr,
    gamma_ptr,
    weight_ptr,
    stride,
    gamma,
    ignore_index,
    scale,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    inside = column < CLASSES
    place = tl.full((), 0, tl.int64) + row
    x = tl.load(logits_ptr + place * stride + column, mask=inside, other=-float("inf")).to(tl.float32)
    target = tl.load(target_ptr + row)
    counted = target != ignore_index
    safe = tl.where(counted, target, 0)
    score = tl.load(logits_ptr + place * stride + safe).to(tl.float32)
    top = tl.max(x, axis=0)
    top = tl.where(top == -float("inf"), 0.0, top)
    mass = tl.where(column == safe, 0.0, tl.exp(x - top))
    row_gamma = tl.load(gamma_ptr + safe) if GAMMA_BY_CLASS else gamma + 0.0 * top
    row_weight = tl.load(weight_ptr + safe).to(tl.float32) if WEIGHTED else 1.0 + 0.0 * top
    loss, at_target, elsewhere = _row_terms(score, top, tl.sum(mass, axis=0), row_gamma, scale * row_weight, DETACHED)
    tl.store(loss_ptr + row, tl.where(counted, loss * row_weight, 0.0))
    if GRADIENT:
        gradient = tl.where(column == safe, at_target, mass * elsewhere)
        gradient = tl.where(counted, gradient, 0.0).to(gradient_ptr.dtype.element_ty)
        tl.store(gradient_ptr + place * CLASSES + column, gradient, mask=inside)


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
    gamma,
    ignore_index,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """A program holds a row on the chip whole: one row where STAGES is 1, else one after another, loading ahead."""
    scale = 1.0
    if SCALED:
        scale = 1.0 / tl.load(count_ptr)
    if STAGES == 1:
        _one_row(
            tl.program_id(0),
            logits_ptr,
            target_ptr,
            gradient_ptr,
            loss_ptr,
            gamma_ptr,
            weight_ptr,
            stride,
            gamma,
            ignore_index,
            scale,
            CLASSES,
            BLOCK,
            GAMMA_BY_CLASS,
            WEIGHTED,
            DETACHED,
            GRADIENT,
        )
    else:
        for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
            _one_row(
                row,
                logits_ptr,
                target_ptr,
                gradient_ptr,
                loss_ptr,
                gamma_ptr,
                weight_ptr,
                stride,
                gamma,
                ignore_index,
                scale,
                CLASSES,
                BLOCK,
                GAMMA_BY_CLASS,
                WEIGHTED,
                DETACHED,
                GRADIENT,
            )


@triton.jit
def rows_in_chunks(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    loss_ptr,
    gamma_ptr,
    weight_ptr,
    count_ptr,
    rows,
    stride,
    gamma,
    ignore_index,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Long rows: one pass for the normaliser, a second, from the L2 cache, for the gradient."""
    scale = 1.0
    if SCALED:
        scale = 1.0 / tl.load(count_ptr)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        place = tl.full((), 0, tl.int64) + row
        base = logits_ptr + place * stride
        target = tl.load(target_ptr + row)
        counted = target != ignore_index
        safe = tl.where(counted, target, 0)
        score = tl.load(base + safe).to(tl.float32)
        tops = tl.full((BLOCK,), -1e38, tl.float32)
        totals = tl.zeros((BLOCK,), tl.float32)
        for start in tl.range(0, CLASSES, BLOCK, num_stages=STAGES):
            column = start + tl.arange(0, BLOCK)
            x = tl.load(base + column, mask=column < CLASSES, other=-float("inf"), eviction_policy="evict_last").to(
                tl.float32
            )
            x = tl.where(column == safe, -float("inf"), x)
            higher = tl.maximum(tops, x)
            # one of the two exponentials is exp(0)
            shrink = tl.exp(-tl.abs(x - tops))
            totals = tl.where(x > tops, totals * shrink + 1.0, totals + shrink)
            tops = higher
        top = tl.max(tops, axis=0)
        top = tl.where(top == -1e38, 0.0, top)
        total = tl.sum(totals * tl.exp(tops - top), axis=0)
        row_gamma = tl.load(gamma_ptr + safe) if GAMMA_BY_CLASS else gamma + 0.0 * score
        row_weight = tl.load(weight_ptr + safe).to(tl.float32) if WEIGHTED else 1.0 + 0.0 * top
        row_weight = tl.where(counted, row_weight, 0.0)
        loss, at_target, elsewhere = _row_terms(score, top, total, row_gamma, scale * row_weight, DETACHED)
        loss = tl.where(counted, loss * row_weight, 0.0)
        tl.store(loss_ptr + row, loss)
        if GRADIENT:
            out = gradient_ptr + place * CLASSES
            for start in tl.range(0, CLASSES, BLOCK, num_stages=STAGES):
                column = start + tl.arange(0, BLOCK)
                x = tl.load(
                    base + column, mask=column < CLASSES, other=-float("inf"), eviction_policy="evict_first"
                ).to(tl.float32)
                gradient = tl.where(column == safe, at_target, tl.exp(x - top) * elsewhere)
                gradient = tl.where(counted, gradient, 0.0).to(gradient_ptr.dtype.element_ty)
                tl.store(out + column, gradient, mask=column < CLASSES, eviction_policy="evict_first")
