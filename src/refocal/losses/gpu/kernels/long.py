"""Focal loss of class-index targets for rows that are too long for the chip.

The formulas are those of `hard`. A row is read twice: for the normalizer, and from the L2 cache for the gradient.
A lane takes WIDTH neighboring classes of each chunk, so that maxima and sums stay within a thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from refocal.losses.gpu.kernels.hard import check_target, weighted_terms
from refocal.losses.gpu.kernels.maths import LOG2_E
from refocal.losses.gpu.kernels.sums import add_up, incoming_gradient, shared_scale, store_loss


@triton.jit
def add_chunk(x, tops, totals):
    """Running maximum and sum of masses of each lane, with a chunk (LANES, WIDTH) added."""
    higher = tl.maximum(tops, tl.max(x, axis=1))
    sums = tl.sum(tl.exp2((x - higher[:, None]) * LOG2_E), axis=1)
    return higher, totals * tl.exp2((tops - higher) * LOG2_E) + sums


@triton.jit
def aligned_rows(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    work_ptr,
    tickets_ptr,
    loss_ptr,
    correction_ptr,
    gamma_ptr,
    weight_ptr,
    incoming_ptr,
    rows,
    gamma,
    ignore_index,
    expected,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    COUNTED: tl.constexpr,
    BESIDE: tl.constexpr,
    ADDS: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WHOLE: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    INCOMING: tl.constexpr,
):
    """Rows whose chunks of LANES x WIDTH classes are aligned."""
    CHUNK: tl.constexpr = LANES * WIDTH
    FULL: tl.constexpr = CLASSES // CHUNK * CHUNK
    scale = shared_scale(work_ptr, correction_ptr, expected, COUNTED, BESIDE, INCOMING)
    offset = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tail = FULL + offset
    total, shares = 0.0, 0.0
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        # 1. The target and its score.
        place = tl.full((), 0, tl.int64) + row
        base = logits_ptr + place * STRIDE
        target = tl.load(target_ptr + row)
        counted, sound, safe = check_target(target, ignore_index, CLASSES)
        score = tl.load(base + safe).to(tl.float32)
        # 2. First pass: each lane's maximum and sum of masses without the target.
        tops = tl.full((LANES,), -1e38, tl.float32)
        totals = tl.zeros((LANES,), tl.float32)
        for start in tl.range(0, FULL, CHUNK):
            x = tl.load(base + start + offset, eviction_policy="evict_last").to(tl.float32)
            if (safe >= start) & (safe < start + CHUNK):
                x = tl.where(start + offset == safe, -float("inf"), x)
            tops, totals = add_chunk(x, tops, totals)
        if FULL < CLASSES:
            last = tl.load(base + tail, mask=tail < CLASSES, other=-float("inf"), eviction_policy="evict_last")
            tops, totals = add_chunk(tl.where(tail == safe, -float("inf"), last.to(tl.float32)), tops, totals)
        # 3. Those of the whole row; loss and phi.
        shift = tl.maximum(tl.max(tops, axis=0), score)
        rest = tl.sum(totals * tl.exp2((tops - shift) * LOG2_E), axis=0)
        log_mass = (score - shift) * LOG2_E
        row_gamma = tl.load(gamma_ptr + safe) if GAMMA_BY_CLASS else gamma
        terms = (log_mass, tl.exp2(log_mass), rest, counted, sound, safe)
        loss, phi, share, q, inverse = weighted_terms(*terms, row_gamma, weight_ptr, WEIGHTED, WHOLE, DETACHED)
        total, shares = total + loss, shares + share
        if not ADDS and not INCOMING:
            store_loss(work_ptr, row, rows, loss, share, BESIDE)
        # 4. Second pass: the gradient.
        if GRADIENT:
            phi = tl.where(counted, phi * scale * incoming_gradient(incoming_ptr, row, INCOMING), 0.0)
            factor, at_target = phi * inverse, -phi * q
            out = gradient_ptr + place * CLASSES
            for start in tl.range(0, FULL, CHUNK):
                x = tl.load(base + start + offset, eviction_policy="evict_first").to(tl.float32)
                gradient = tl.exp2((x - shift) * LOG2_E) * factor
                if (safe >= start) & (safe < start + CHUNK):
                    gradient = tl.where(start + offset == safe, at_target, gradient)
                rounded = gradient.to(gradient_ptr.dtype.element_ty)
                tl.store(out + start + offset, rounded, eviction_policy="evict_first")
            if FULL < CLASSES:
                last = tl.load(base + tail, mask=tail < CLASSES, other=-float("inf"), eviction_policy="evict_first")
                at_tail = tl.exp2((last.to(tl.float32) - shift) * LOG2_E) * factor
                at_tail = tl.where(tail == safe, at_target, at_tail).to(gradient_ptr.dtype.element_ty)
                tl.store(out + tail, at_tail, mask=tail < CLASSES, eviction_policy="evict_first")
    # 5. The sum of the losses.
    if ADDS:
        add_up(work_ptr, tickets_ptr, loss_ptr, correction_ptr, total, shares, expected, COUNTED)


@triton.jit
def ragged_rows(
    logits_ptr,
    target_ptr,
    gradient_ptr,
    work_ptr,
    tickets_ptr,
    loss_ptr,
    correction_ptr,
    gamma_ptr,
    weight_ptr,
    incoming_ptr,
    rows,
    gamma,
    ignore_index,
    expected,
    CLASSES: tl.constexpr,
    STRIDE: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
    FULL: tl.constexpr,
    TAIL: tl.constexpr,
    COUNTED: tl.constexpr,
    BESIDE: tl.constexpr,
    ADDS: tl.constexpr,
    GAMMA_BY_CLASS: tl.constexpr,
    WEIGHTED: tl.constexpr,
    WHOLE: tl.constexpr,
    DETACHED: tl.constexpr,
    GRADIENT: tl.constexpr,
    INCOMING: tl.constexpr,
):
    """Rows that start anywhere: chunks start at the first class whose address is a multiple of WIDTH.

    Chunks of LANES x WIDTH classes cover FULL classes. Up to TAIL more follow, and fewer than WIDTH classes remain at
    each edge of the row. These stay on the chip between the two passes.
    """
    CHUNK: tl.constexpr = LANES * WIDTH
    scale = shared_scale(work_ptr, correction_ptr, expected, COUNTED, BESIDE, INCOMING)
    offset = tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tail = FULL + tl.arange(0, TAIL // WIDTH)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    side = tl.arange(0, 2 * WIDTH)
    total, shares = 0.0, 0.0
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        # 1. Where the row lies. Places count from its first aligned class, which is class number `head`.
        first = tl.full((), STRIDE, tl.int64) * row
        aligned = (first + (WIDTH - 1)) // WIDTH * WIDTH
        head = (aligned - first).to(tl.int32)
        length = (CLASSES - head) // WIDTH * WIDTH
        base = logits_ptr + aligned
        out = gradient_ptr + (aligned if STRIDE == CLASSES else tl.full((), CLASSES, tl.int64) * row + head)
        # 2. The target and its score; the classes at the edges and behind the full chunks.
        target = tl.load(target_ptr + row)
        counted, sound, safe = check_target(target, ignore_index, CLASSES)
        own = safe - head
        score = tl.load(base + own).to(tl.float32)
        last = tl.load(base + tail, mask=tail < length, other=-float("inf"), eviction_policy="evict_last")
        last = tl.where(tail == own, -float("inf"), last.to(tl.float32))
        highest = tl.maximum(tl.max(tl.max(last, axis=1), axis=0), score)
        edge = tl.where(side < WIDTH, side - head, length + side - WIDTH)
        at_edge = tl.where(side < WIDTH, side < head, edge < CLASSES - head)
        beyond = tl.load(base + edge, mask=at_edge, other=-float("inf")).to(tl.float32)
        beyond = tl.where(edge == own, -float("inf"), beyond)
        highest = tl.maximum(highest, tl.max(beyond, axis=0))
        # 3. First pass: each lane's maximum and sum of masses without the target.
        tops = tl.full((LANES,), -1e38, tl.float32)
        totals = tl.zeros((LANES,), tl.float32)
        for start in tl.range(0, FULL, CHUNK):
            x = tl.load(base + start + offset, eviction_policy="evict_last").to(tl.float32)
            if (own >= start) & (own < start + CHUNK):
                x = tl.where(start + offset == own, -float("inf"), x)
            tops, totals = add_chunk(x, tops, totals)
        # 4. Those of the whole row; loss and phi.
        shift = tl.maximum(tl.max(tops, axis=0), highest)
        rest = tl.sum(totals * tl.exp2((tops - shift) * LOG2_E), axis=0)
        rest += tl.sum(tl.sum(tl.exp2((last - shift) * LOG2_E), axis=1), axis=0)
        rest += tl.sum(tl.exp2((beyond - shift) * LOG2_E), axis=0)
        log_mass = (score - shift) * LOG2_E
        row_gamma = tl.load(gamma_ptr + safe) if GAMMA_BY_CLASS else gamma
        terms = (log_mass, tl.exp2(log_mass), rest, counted, sound, safe)
        loss, phi, share, q, inverse = weighted_terms(*terms, row_gamma, weight_ptr, WEIGHTED, WHOLE, DETACHED)
        total, shares = total + loss, shares + share
        if not ADDS and not INCOMING:
            store_loss(work_ptr, row, rows, loss, share, BESIDE)
        # 5. Second pass: the gradient.
        if GRADIENT:
            phi = tl.where(counted, phi * scale * incoming_gradient(incoming_ptr, row, INCOMING), 0.0)
            factor, at_target = phi * inverse, -phi * q
            for start in tl.range(0, FULL, CHUNK):
                x = tl.load(base + start + offset, eviction_policy="evict_first").to(tl.float32)
                gradient = tl.exp2((x - shift) * LOG2_E) * factor
                if (own >= start) & (own < start + CHUNK):
                    gradient = tl.where(start + offset == own, at_target, gradient)
                rounded = gradient.to(gradient_ptr.dtype.element_ty)
                tl.store(out + start + offset, rounded, eviction_policy="evict_first")
            at_tail = tl.where(tail == own, at_target, tl.exp2((last - shift) * LOG2_E) * factor)
            at_tail = at_tail.to(gradient_ptr.dtype.element_ty)
            tl.store(out + tail, at_tail, mask=tail < length, eviction_policy="evict_first")
            at_sides = tl.where(edge == own, at_target, tl.exp2((beyond - shift) * LOG2_E) * factor)
            tl.store(out + edge, at_sides.to(gradient_ptr.dtype.element_ty), mask=at_edge)
    # 6. The sum of the losses.
    if ADDS:
        add_up(work_ptr, tickets_ptr, loss_ptr, correction_ptr, total, shares, expected, COUNTED)
