"""Sigmoid focal loss with its gradient, and the small passes around a loss: counting, adding up, scaling."""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.kernels.maths import focus, log1p, power


@triton.jit
def sigmoid_focal(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    loss_ptr,
    count_ptr,
    size,
    gamma,
    alpha,
    ignore_index,
    scale,
    BLOCK: tl.constexpr,
    BALANCED: tl.constexpr,
    GRADIENT: tl.constexpr,
    BY_ELEMENT: tl.constexpr,
):
    """Sum of t alpha l(p) + (1 - t) (1 - alpha) l(1 - p), and its derivative in the logit."""
    program = tl.program_id(0)
    place = tl.full((), BLOCK, tl.int64) * program + tl.arange(0, BLOCK)
    mask = place < size
    x = tl.load(logits_ptr + place, mask=mask, other=0.0).to(tl.float32)
    t = tl.load(target_ptr + place, mask=mask, other=ignore_index).to(tl.float32)
    counted = t != ignore_index
    soft = log1p(tl.exp(-tl.abs(x)))
    log_p = -(tl.maximum(-x, 0.0) + soft)
    log_q = -(tl.maximum(x, 0.0) + soft)
    positive, negative = t, 1.0 - t
    if BALANCED:
        positive, negative = alpha * t, (1.0 - alpha) * (1.0 - t)
    up, down = positive * power(log_q, gamma), negative * power(log_p, gamma)
    loss = tl.where(counted, -(up * log_p + down * log_q), 0.0)
    if BY_ELEMENT:
        tl.store(loss_ptr + place, loss.to(loss_ptr.dtype.element_ty), mask=mask)
    else:
        tl.store(loss_ptr + program, tl.sum(loss, axis=0))
        tl.store(count_ptr + program, tl.sum(tl.where(counted, 1.0, 0.0), axis=0))
    if GRADIENT:
        # d l(p) / dx = -phi(p) q, and the mirror image for 1 - p
        pulled = up * focus(log_p, tl.exp(x), gamma, False) * tl.exp(log_q)
        pushed = down * focus(log_q, tl.exp(-x), gamma, False) * tl.exp(log_p)
        gradient = tl.where(counted, (pushed - pulled) * scale, 0.0)
        tl.store(gradient_ptr + place, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)


@triton.jit
def count_targets(target_ptr, weight_ptr, count_ptr, rows, ignore_index, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr):
    """Partial sums of what a mean divides by: one, or the class weight, for each counted row."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, rows, tl.num_programs(0) * BLOCK):
        row = start + tl.arange(0, BLOCK)
        target = tl.load(target_ptr + row, mask=row < rows, other=ignore_index)
        counted = target != ignore_index
        share = tl.where(counted, 1.0, 0.0)
        if WEIGHTED:
            share = tl.load(weight_ptr + tl.where(counted, target, 0), mask=counted, other=0.0).to(tl.float32)
        total += share
    tl.store(count_ptr + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def add_parts(part_ptr, sum_ptr, size, BLOCK: tl.constexpr):
    """Sums of every num_programs-th block of values."""
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        place = start + tl.arange(0, BLOCK)
        total += tl.load(part_ptr + place, mask=place < size, other=0.0)
    tl.store(sum_ptr + tl.program_id(0), tl.sum(total, axis=0))


@triton.jit
def finish(part_ptr, count_ptr, loss_ptr, ratio_ptr, expected, PARTS: tl.constexpr, COUNTS: tl.constexpr):
    """The sum of PARTS losses, divided for a mean by the sum of COUNTS counts; and how far those were off."""
    loss = tl.sum(tl.load(part_ptr + tl.arange(0, PARTS)), axis=0)
    if COUNTS > 0:
        number = tl.sum(tl.load(count_ptr + tl.arange(0, COUNTS)), axis=0)
        loss = loss / number
        tl.store(ratio_ptr, tl.where(number == expected, 1.0, expected / number))
    tl.store(loss_ptr, loss.to(loss_ptr.dtype.element_ty))


@triton.jit
def scale_all(gradient_ptr, factor_ptr, ratio_ptr, size, BLOCK: tl.constexpr, CORRECTED: tl.constexpr):
    """Multiply in place by an incoming gradient; a factor of 1, the usual one, touches no memory."""
    factor = tl.load(factor_ptr).to(tl.float32)
    if CORRECTED:
        factor = factor * tl.load(ratio_ptr)
    if factor != 1.0:
        for start in range(tl.program_id(0), tl.cdiv(size, BLOCK), tl.num_programs(0)):
            place = tl.full((), BLOCK, tl.int64) * start + tl.arange(0, BLOCK)
            values = tl.load(gradient_ptr + place, mask=place < size).to(tl.float32) * factor
            tl.store(gradient_ptr + place, values.to(gradient_ptr.dtype.element_ty), mask=place < size)
