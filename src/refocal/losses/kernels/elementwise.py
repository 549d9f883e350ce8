"""Sigmoid focal loss with its gradient, and the scaling of a stored gradient."""

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
    scale_ptr,
    size,
    gamma,
    alpha,
    ignore_index,
    BLOCK: tl.constexpr,
    BALANCED: tl.constexpr,
    SCALED: tl.constexpr,
    GRADIENT: tl.constexpr,
):
    """t alpha l(p) + (1 - t) (1 - alpha) l(1 - p), and its derivative in the logit."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    x = tl.load(logits_ptr + place, mask=mask, other=0.0).to(tl.float32)
    t = tl.load(target_ptr + place, mask=mask, other=0.0).to(tl.float32)
    counted = t != ignore_index
    soft = log1p(tl.exp(-tl.abs(x)))
    log_p = -(tl.maximum(-x, 0.0) + soft)
    log_q = -(tl.maximum(x, 0.0) + soft)
    p, q = tl.exp(log_p), tl.exp(log_q)
    odds = tl.exp(x)
    positive, negative = t, 1.0 - t
    if BALANCED:
        positive, negative = alpha * t, (1.0 - alpha) * (1.0 - t)
    up, down = power(log_q, gamma), power(log_p, gamma)
    loss = -(positive * up * log_p + negative * down * log_q)
    tl.store(loss_ptr + place, tl.where(counted, loss, 0.0).to(loss_ptr.dtype.element_ty), mask=mask)
    if GRADIENT:
        # d l(p) / dx = -phi(p) q, and the mirror image for 1 - p
        gradient = negative * down * focus(log_q, tl.exp(-x), gamma, False) * p
        gradient -= positive * up * focus(log_p, odds, gamma, False) * q
        if SCALED:
            gradient = gradient / tl.load(scale_ptr)
        gradient = tl.where(counted, gradient, 0.0)
        tl.store(gradient_ptr + place, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)


@triton.jit
def scale_rows(gradient_ptr, factor_ptr, rows, CLASSES: tl.constexpr, BLOCK: tl.constexpr, BY_ROW: tl.constexpr):
    """Multiply rows in place by incoming gradients; a factor of 1, the usual one, touches no memory."""
    row = tl.program_id(0).to(tl.int64)
    factor = tl.load(factor_ptr + row if BY_ROW else factor_ptr).to(tl.float32)
    if factor != 1.0:
        for start in range(0, CLASSES, BLOCK):
            column = start + tl.arange(0, BLOCK)
            place = gradient_ptr + row * CLASSES + column
            values = tl.load(place, mask=column < CLASSES).to(tl.float32) * factor
            tl.store(place, values.to(gradient_ptr.dtype.element_ty), mask=column < CLASSES)
