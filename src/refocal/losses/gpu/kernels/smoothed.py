"""Focal loss of class indices with label smoothing, for one gamma and no class weights.

With u = smoothing / K and f = -q^gamma log p, L = u sum_c f_c + (1 - smoothing) f_y. With phi as in `soft`,
dL/dz_j = p_j S - u phi_j, less (1 - smoothing) phi_y at the target, where S = u sum_c phi_c + (1 - smoothing) phi_y. So
the sums over classes need not tell the target from the others, which saves half of `soft`'s instructions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.gpu.kernels.hard import check_target
from refocal.losses.gpu.kernels.maths import LN_2, LOG2_E, log2_of_total, reciprocal, reduced_power
from refocal.losses.gpu.kernels.sums import add_up, incoming_gradient, shared_scale, store_loss


@triton.jit
def _pull(reduced, q, mass_log_p, factor, DETACHED: tl.constexpr):
    """phi, from q^(gamma - 1), q, and gamma p log p as a product of two factors."""
    return reduced * q if DETACHED else reduced * (q - mass_log_p * factor)


@triton.jit
def smoothed_rows(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    work_ptr,
    tickets_ptr,
    loss_ptr,
    correction_ptr,
    gamma_ptr,  # noqa: ARG001 the kernels share one signature
    weight_ptr,  # noqa: ARG001
    incoming_ptr,
    rows,
    gamma,
    ignore_index,
    expected,
    smoothing,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    COUNTED: tl.constexpr,
    BESIDE: tl.constexpr,
    ADDS: tl.constexpr,
    WHOLE: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    INCOMING: tl.constexpr,
):
    """A program holds a row on the chip."""
    # 1. Load the row, and the score of its target. Finite scores give 0 log 0 = 0.
    scale = shared_scale(work_ptr, correction_ptr, expected, COUNTED, BESIDE, INCOMING)
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < CLASSES
    start = logits_ptr + tl.full((), STRIDE, tl.int64) * row
    x = tl.load(start + column, mask=inside, other=-float("inf")).to(tl.float32)
    target = tl.load(target_ptr + row)
    counted, sound, safe = check_target(target, ignore_index, CLASSES)
    score = tl.load(start + safe).to(tl.float32)
    top = tl.max(x, axis=0)
    sound = sound & (top != -float("inf"))
    top = tl.maximum(top, -1e30)
    x = tl.maximum(x, -1e30, propagate_nan=tl.PropagateNan.ALL)
    # 2. Masses; p and q, without cancellation for the top class.
    exponent = (x - top) * LOG2_E
    mass = tl.exp2(exponent)
    total = tl.sum(mass, axis=0)
    inverse = reciprocal(total)
    beside = total - 1.0
    q = 1.0 - mass * inverse
    if beside < 1.0:  # the differences have lost precision
        beside = tl.sum(tl.where(exponent == 0.0, 0.0, mass), axis=0)
        q = tl.where(exponent == 0.0, tl.maximum(beside * inverse, 1e-37), q)
    log_total = log2_of_total(beside)
    # 3. Sums over all classes. Behind the last one, p is 0 and phi is 1.
    log_p = tl.where(inside, exponent - log_total, 0.0)
    reduced = reduced_power(q, gamma, WHOLE)
    losses = tl.sum(reduced * (q * log_p), axis=0)
    losses = tl.where(losses < -1e29, -float("inf"), losses)
    pull = _pull(reduced, q, mass * log_p, gamma * LN_2 * inverse, DETACHED)
    pulls = tl.sum(pull, axis=0) - (BLOCK - CLASSES)
    # 4. The target, and the loss.
    own_exponent = (score - top) * LOG2_E
    own_p, own_log_p = tl.exp2(own_exponent) * inverse, own_exponent - log_total
    own_q = tl.where(own_exponent == 0.0, tl.maximum(beside * inverse, 1e-37), 1.0 - own_p)
    own_reduced = reduced_power(own_q, gamma, WHOLE)
    own_pull = _pull(own_reduced, own_q, own_p * tl.maximum(own_log_p, -1e30), gamma * LN_2, DETACHED)
    uniform, sharp = smoothing / CLASSES, 1.0 - smoothing
    own_loss = tl.where(sharp == 0.0, 0.0, sharp * (own_reduced * own_q * own_log_p))
    loss = tl.where(sound, -LN_2 * (uniform * losses + own_loss), float("nan"))
    loss, share = tl.where(counted, loss, 0.0), tl.where(counted, 1.0, 0.0)
    if not ADDS and not INCOMING:
        store_loss(work_ptr, row, rows, loss, share, BESIDE)
    # 5. The gradient; at the target after all threads have stored theirs.
    if GRADIENT:
        row_scale = tl.where(sound, scale * incoming_gradient(incoming_ptr, row, INCOMING), float("nan"))
        row_scale = tl.where(counted, row_scale, 0.0)
        push, own = (uniform * pulls + sharp * own_pull) * row_scale, uniform * row_scale
        out = gradient_ptr + tl.full((), CLASSES, tl.int64) * row
        tl.store(out + column, (mass * (push * inverse) - pull * own).to(gradient_ptr.dtype.element_ty), mask=inside)
        at_target = own_p * push - own_pull * (own + sharp * row_scale)
        tl.debug_barrier()
        tl.store(out + safe, at_target.to(gradient_ptr.dtype.element_ty))
    # 6. The sum of the losses.
    if ADDS:
        add_up(work_ptr, tickets_ptr, loss_ptr, correction_ptr, loss, share, expected, COUNTED)
