"""The posterior map from logits with one gamma: one read, one write.

The formulas are those of `refocal.core.posterior.log_h_shift`, on rows held on the chip.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.kernels.maths import focus, log1p, power, reduced_power


@triton.jit
def rows_on_chip(
    logits_ptr,
    probs_ptr,
    rows,
    stride,
    gamma,
    CLASSES: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """A program takes tiles of ROWS rows."""
    column = tl.arange(0, BLOCK)
    inside = column < CLASSES
    unfocused = tl.where(gamma == 0.0, 1.0, 0.0)
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & inside[None, :]
        offset = row.to(tl.int64)[:, None] * stride + column[None, :]
        x = tl.load(logits_ptr + offset, mask=mask, other=-float("inf")).to(tl.float32)
        top = tl.max(x, axis=1)[:, None]
        is_top = x == top
        mass = tl.exp(x - top)
        ties = tl.sum(tl.where(is_top, 1.0, 0.0), axis=1)[:, None]
        beside = tl.sum(tl.where(is_top, 0.0, mass), axis=1)[:, None] + (ties - 1.0)
        inverse_total = 1.0 / (1.0 + beside)
        log_total = log1p(beside)
        p = mass * inverse_total
        q_top = beside * inverse_total
        q = tl.where(is_top, 1.0, 1.0 - p)
        # h / h_top = mass (q_top / q)^gamma (1 + gamma s_top) / (1 + gamma s), in one division
        top_focus = focus(-log_total, 1.0 / tl.where(beside > 1e-30, beside, 1e-31), gamma, False)
        top_factor = tl.where(q_top > 0.0, power(tl.log(tl.where(q_top > 0.0, q_top, 1.0)), gamma), unfocused)
        log_p = tl.where(p > 0.0, x - (top + log_total), 0.0)
        h = mass * (top_factor * top_focus) / (reduced_power(q, gamma, WHOLE) * (q - gamma * p * log_p))
        h = tl.where(is_top, 1.0, h)
        inverse_sum = 1.0 / tl.sum(tl.where(mask, h, 0.0), axis=1)[:, None]
        probs = h * inverse_sum
        out = row.to(tl.int64)[:, None] * CLASSES + column[None, :]
        tl.store(probs_ptr + out, probs.to(probs_ptr.dtype.element_ty), mask=mask)
