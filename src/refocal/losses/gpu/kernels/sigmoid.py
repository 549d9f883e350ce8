"""Sigmoid focal loss with its gradient, element by element; `sums` describes the layout of `work`."""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.gpu.kernels.maths import LOG2_E, log1p, reciprocal, whole_power
from refocal.losses.gpu.kernels.sums import LOSSES


@triton.jit
def sigmoid_focal(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    work_ptr,
    loss_ptr,
    correction_ptr,
    incoming_ptr,
    size,
    gamma,
    alpha,
    ignore_index,
    scale,
    BLOCK: tl.constexpr,
    BALANCED: tl.constexpr,
    WHOLE: tl.constexpr,
    LOSS: tl.constexpr,
    GRADIENT: tl.constexpr,
    INCOMING: tl.constexpr,
    BY_ELEMENT: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """t alpha l(p) + (1 - t) (1 - alpha) l(1 - p) and its derivative in the logit.

    dl(p)/dx = -q^gamma (q - gamma p log p). Losses are stored one by one, or each program stores their sum and the
    number of scores that count.
    """
    # 1. Load scores and targets.
    program = tl.program_id(0)
    place = tl.full((), BLOCK, tl.int64) * program + tl.arange(0, BLOCK)
    mask = place < size
    x = tl.load(logits_ptr + place, mask=mask, other=0.0).to(tl.float32)
    t = tl.load(target_ptr + place, mask=mask, other=0).to(tl.float32)
    counted = mask & (t != ignore_index)
    # 2. p, q and their logarithms, each without cancellation.
    odds = tl.exp2(-tl.abs(x) * LOG2_E)
    larger = reciprocal(1.0 + odds)
    smaller = odds * larger
    p, q = tl.where(x < 0.0, smaller, larger), tl.where(x < 0.0, larger, smaller)
    soft = log1p(odds)
    minus_log_p, minus_log_q = tl.maximum(-x, 0.0) + soft, tl.maximum(x, 0.0) + soft
    # 3. The loss, as positive and as negative.
    positive, negative = t, 1.0 - t
    if BALANCED:
        positive, negative = alpha * positive, (1.0 - alpha) * negative
    if WHOLE > 0:
        up, down = positive * whole_power(q, WHOLE), negative * whole_power(p, WHOLE)
    else:
        exponent = -gamma * LOG2_E
        up, down = positive * tl.exp2(exponent * minus_log_q), negative * tl.exp2(exponent * minus_log_p)
    loss = tl.where(counted, up * minus_log_p + down * minus_log_q, 0.0)
    # 4. The gradient.
    if GRADIENT:
        gradient = down * (p + gamma * (q * minus_log_q)) - up * (q + gamma * (p * minus_log_p))
        if INCOMING:
            if BY_ELEMENT:
                scale = scale * tl.load(incoming_ptr + place, mask=mask, other=0.0).to(tl.float32)
            else:
                scale = scale * tl.load(incoming_ptr).to(tl.float32)
                if COUNTED:
                    scale = scale * tl.load(correction_ptr)
        gradient = tl.where(counted, gradient * scale, 0.0)
        tl.store(gradient_ptr + place, gradient.to(gradient_ptr.dtype.element_ty), mask=mask)
    # 5. Losses, or their sum.
    if LOSS:
        if BY_ELEMENT:
            tl.store(loss_ptr + place, loss.to(loss_ptr.dtype.element_ty), mask=mask)
        else:  # comes last because a program waits for its threads here
            tl.store(work_ptr + LOSSES + program, tl.sum(loss, axis=0))
            if COUNTED:
                share = tl.sum(tl.where(counted, 1.0, 0.0), axis=0)
                tl.store(work_ptr + LOSSES + tl.num_programs(0) + program, share)
