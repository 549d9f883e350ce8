"""The posterior map from logits with one gamma: one read, one write.

Psi_j = h_j / sum(h), h = p / phi, phi = q^(gamma - 1) (q - gamma p log p), relative to h of the top class.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.gpu.kernels.maths import LN_2, LOG2_E, log2_of_total, reciprocal, reduced_power
from refocal.losses.gpu.kernels.soft import beside_top
from refocal.losses.gpu.kernels.tiles import gradient_at, samples_of_tile, score_at


@triton.jit
def posterior_rows(
    logits_ptr,
    probs_ptr,
    rows,
    gamma,
    CLASSES: tl.constexpr,
    SPAN: tl.constexpr,
    IMAGE: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    WHOLE: tl.constexpr,
):
    """A program takes a tile of ROWS samples, whose layout `tiles` describes. Results are laid out as gradients."""
    # 1. Load the tile.
    column = tl.arange(0, BLOCK)[None, :]
    image, inner, _, exists = samples_of_tile(rows, SPAN, ROWS)
    mask = column < CLASSES
    if ROWS > 1:
        mask = mask & exists[:, None]
    score_ptr = score_at(logits_ptr, image, inner[:, None], column, SPAN, IMAGE, STRIDE)
    x = tl.load(score_ptr, mask=mask, other=-float("inf")).to(tl.float32)
    # 2. Masses relative to the largest score. The bound replaces -inf, so that 0 log 0 = 0.
    exponent = (x - tl.max(x, axis=1)[:, None]) * LOG2_E
    exponent = tl.maximum(exponent, -1e30, propagate_nan=tl.PropagateNan.ALL)
    mass = tl.exp2(exponent)
    total = tl.sum(mass, axis=1)[:, None]
    inverse = reciprocal(total)
    beside = beside_top(exponent, mass, total)
    log_total = log2_of_total(beside)
    # 3. phi of the top class, without cancellation, and of the others.
    weighted_gamma = gamma * LN_2
    q_top = tl.maximum(beside * inverse, 1e-37)
    phi_top = reduced_power(q_top, gamma, WHOLE) * (q_top + weighted_gamma * (inverse * log_total))
    p = mass * inverse
    q = 1.0 - p
    phi = reduced_power(q, gamma, WHOLE) * (q - weighted_gamma * (p * (exponent - log_total)))
    # 4. h relative to that of the top class, normalized.
    h = tl.where(exponent == 0.0, 1.0, (mass * phi_top) * reciprocal(phi))
    probs = h * reciprocal(tl.sum(h, axis=1)[:, None])
    place = gradient_at(probs_ptr, image, inner[:, None], column, SPAN, CLASSES)
    tl.store(place, probs.to(probs_ptr.dtype.element_ty), mask=mask)
