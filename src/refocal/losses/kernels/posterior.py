"""The posterior map from logits with one gamma: one read, one write.

The formulas are those of `refocal.core.posterior.log_h_shift`, on rows held on the chip.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.kernels.maths import focus, log1p


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
):
    """A persistent program walks over tiles of ROWS rows."""
    column = tl.arange(0, BLOCK)
    inside = column < CLASSES
    for tile in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = tile * ROWS + tl.arange(0, ROWS)
        mask = (row < rows)[:, None] & inside[None, :]
        offset = row.to(tl.int64)[:, None] * stride + column[None, :]
        x = tl.load(logits_ptr + offset, mask=mask, other=-float("inf")).to(tl.float32)
        top = tl.max(x, axis=1)[:, None]
        first = tl.min(tl.where(x == top, column[None, :], BLOCK), axis=1)[:, None]
        is_top = column[None, :] == first
        others = tl.where(is_top, -float("inf"), x)
        runner_up = tl.max(others, axis=1)[:, None]
        alone = runner_up == -float("inf")
        runner_up = tl.where(alone, top, runner_up)
        gap = top - runner_up
        log_odds = others - runner_up
        odds = tl.exp(log_odds)
        rest = tl.where(alone, 1.0, tl.sum(odds, axis=1)[:, None])
        shrink = tl.exp(-gap)
        against = rest * shrink
        far = (gap > 40.0) | (gamma < 0.0)
        grown = tl.exp(tl.where(far, 0.0, gap))
        offset_term = tl.where(far, rest - 1.0, grown - 1.0)
        factor = tl.where(far, shrink, 1.0 / rest)
        base = tl.where(far, gamma * tl.log(rest) - (1.0 + gamma) * gap, -gap)
        shift = base - gamma * log1p(((1.0 - odds) + offset_term) * factor)
        log_total = log1p(against)
        p = odds * (shrink / (1.0 + against))
        log_p = tl.where(p > 0.0, log_odds - (gap + log_total), 0.0)
        top_focus = focus(-log_total, 1.0 / tl.where(against == 0.0, 1e-38, against), gamma, False)
        shift += tl.log(top_focus / (1.0 - gamma * p * log_p / (1.0 - p)))
        mass = tl.where(is_top, 1.0, odds * tl.exp(shift))
        mass = tl.where(mask, mass, 0.0)
        probs = mass / tl.sum(mass, axis=1)[:, None]
        out = row.to(tl.int64)[:, None] * CLASSES + column[None, :]
        tl.store(probs_ptr + out, probs.to(probs_ptr.dtype.element_ty), mask=mask)
