"""The planner: which kernels compute a call, and how they are laid out over a GPU.

Small batches are host-bound, so a plan is worked out once for all calls of the same description and cached. Batches
whose size changes every time gain nothing from the cache.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refocal.losses.gpu.calls import ChunkCall, FocalCall, NormalizerCall, PosteriorCall, SigmoidCall
from refocal.losses.gpu.launch import ALIGNMENT, Launch, multiprocessors
from refocal.losses.gpu.layout import (
    LONGEST_ROW_ON_CHIP,
    LONGEST_TILED_ROW,
    Layout,
    Tiling,
    choose_flat_tiling,
    choose_tiling,
    common_stride,
    find_layout,
    next_power,
)
from refocal.losses.spec import copy_gammas

_SIGMOID_BLOCK = 2048  # scores per program
# A gradient up to this size stays in the L2 cache until the backward pass corrects the divisor of a mean. For a larger
# gradient, counting the targets first and writing it once is faster.
_MOST_BYTES_CORRECTED = 1 << 25
# Rows whose length is not a multiple of 16 bytes have kernels of their own if they are short, and if they are long.
_LONGEST_FLAT_ROW = 64
_WIDTH = 8  # classes that a thread loads together
_LONG_ROW_OF_CHUNK = 65_536  # classes; of longer rows, each multiprocessor has one in work
_MOST_BYTES_READ_AGAIN = 1 << 25  # of long rows in work at a time: the L2 cache holds them


@dataclasses.dataclass(frozen=True, slots=True)
class FocalPlan:
    """The launches of a focal loss, and what it takes to call them."""

    call: FocalCall
    losses: int  # how many `finish` adds up: one per row, or one per tile
    gradient: bool  # as in the call, whose properties are worked out each time; likewise `counted`
    gradient_strides: tuple[int, ...] | None  # None if they are those of the logits
    gammas: Tensor | None  # one per class, on the device
    target_has_gaps: bool  # for class indices; class probabilities may have gaps
    counted: bool
    small: bool  # if so, shares in a mean's divisor stand beside the losses; if not, `count` runs before `compute`
    cleared: bool  # whether the buffer must start with zeros
    loss: Tensor  # a template for new tensors
    correction: Tensor  # likewise
    compute_and_add: Launch | None  # of a small batch
    compute: Launch
    count: Launch
    finish: Launch
    scale: Launch


@functools.lru_cache(maxsize=256)
def plan_focal_loss(call: FocalCall) -> FocalPlan | None:
    """The plan of a focal loss, or of its gradient for an incoming one; None if no kernel supports it."""
    from refocal.losses.gpu.kernels import sums

    layout = find_layout(call.shape, call.strides)
    if layout is None or not _is_supported(call):
        return None
    target_layout = layout if call.has_indices else find_layout(call.shape, call.target_strides)
    if target_layout is None or layout.span != target_layout.span:
        return None
    size, classes = math.prod(call.shape), call.shape[1]
    rows = size // classes
    if _is_flat(call, layout):
        tiling = choose_flat_tiling(rows, classes, call.dtype.itemsize)
    else:
        tiling = choose_tiling(rows, classes, layout.span)
    losses = tiling.programs if tiling.rows > 1 and call.spec.reduction != "none" else rows
    small = size * call.dtype.itemsize <= _MOST_BYTES_CORRECTED and losses <= sums.MOST_TO_ADD_UP.value
    small = small and call.spec.reduction != "none" and not call.incoming
    beside = small and call.counted
    plan_compute = functools.partial(_plan_computation, call, layout, target_layout, tiling, beside=beside)
    strides, gamma = layout.gradient_strides(call.shape), call.spec.gamma
    return FocalPlan(
        call=call,
        losses=losses,
        gradient=call.gradient,
        gradient_strides=None if strides == call.strides else strides,
        gammas=copy_gammas(call.spec, torch.float32, call.device) if isinstance(gamma, tuple) else None,
        target_has_gaps=call.has_indices and common_stride(call.target_shape, call.target_strides, alone=1) != 1,
        counted=call.counted,
        small=small,
        cleared=not call.counted and call.spec.reduction != "none" and _takes_tickets(losses),
        loss=torch.empty((), dtype=call.loss_dtype, device=call.device),
        correction=torch.empty((), dtype=torch.float32, device=call.device),
        compute_and_add=plan_compute(adds=True) if small else None,
        compute=plan_compute(adds=False),
        count=Launch(
            sums.count_targets,
            sums.COUNTS.value,
            (rows, classes, call.spec.ignore_index),
            warps=32,
            BLOCK=8192,
            WEIGHTED=call.weight_dtype is not None,
        ),
        finish=_plan_sum(losses, call.expected, counted=call.counted, beside=beside),
        scale=plan_scaling(size, call.dtype, call.loss_dtype, call.device, corrected=beside),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SigmoidPlan:
    """The launches of a sigmoid focal loss, and what it takes to call them."""

    call: SigmoidCall
    programs: int
    cleared: bool  # whether the buffer must start with zeros
    compute: Launch
    finish: Launch
    scale: Launch


@functools.lru_cache(maxsize=256)
def plan_sigmoid_loss(call: SigmoidCall) -> SigmoidPlan:
    """The plan of a sigmoid focal loss, or of its gradient for an incoming one."""
    from refocal.losses.gpu.kernels import sigmoid

    gamma, alpha, ignore_index = call.spec.gamma, call.spec.alpha, call.spec.ignore_index
    programs, mean = -(-call.size // _SIGMOID_BLOCK), call.spec.reduction == "mean"
    compute = Launch(
        sigmoid.sigmoid_focal,
        programs,
        (call.size, gamma, 0.0 if alpha is None else alpha, float(ignore_index), 1.0 / call.size if mean else 1.0),
        warps=4,
        BLOCK=_SIGMOID_BLOCK,
        BALANCED=alpha is not None,
        WHOLE=whole(gamma),
        LOSS=call.loss,
        GRADIENT=call.gradient,
        INCOMING=not call.loss,
        BY_ELEMENT=call.spec.reduction == "none",
        COUNTED=mean,
    )
    finish = _plan_sum(programs, float(call.size) if mean else 1.0, counted=mean, beside=mean)
    scale = plan_scaling(call.size, call.dtype, call.loss_dtype, call.device, corrected=mean)
    return SigmoidPlan(call, programs, _takes_tickets(programs), compute, finish, scale)


class PosteriorPlan(NamedTuple):
    """The launch of a posterior map, and the strides of its result."""

    compute: Launch
    strides: tuple[int, ...]


@functools.lru_cache(maxsize=256)
def plan_posterior_map(call: PosteriorCall) -> PosteriorPlan | None:
    """The plan of a posterior map; None if no kernel supports this layout."""
    from refocal.losses.gpu.kernels import posterior

    layout = find_layout(call.shape, call.strides)
    if layout is None:
        return None
    classes = call.shape[1]
    rows = math.prod(call.shape) // classes
    block, tile_rows, warps, programs = choose_tiling(rows, classes, layout.span)
    constants = {
        "CLASSES": classes,
        "SPAN": layout.span,
        "IMAGE": layout.image,
        "STRIDE": layout.stride,
        "WHOLE": whole(call.gamma),
    }
    numbers = (rows, call.gamma)
    launch = Launch(posterior.posterior_rows, programs, numbers, warps=warps, BLOCK=block, ROWS=tile_rows, **constants)
    return PosteriorPlan(launch, layout.gradient_strides(call.shape))


@functools.lru_cache(maxsize=64)
def plan_chunk(call: ChunkCall) -> Launch:
    """The launch for a chunk of a linear loss."""
    from refocal.losses.gpu.kernels import linear

    spec = call.spec
    rows, classes = call.shape
    programs, warps, lanes = _tile_chunk(rows, classes, call.device)
    return Launch(
        linear.loss_and_gradient,
        programs,
        (rows, spec.gamma, spec.ignore_index, spec.softcap),
        warps=warps,
        CLASSES=classes,
        STRIDE=call.stride,
        LANES=lanes,
        WIDTH=_WIDTH,
        CAPPED=spec.softcap > 0,
        GAMMA_BY_CLASS=call.gamma_by_class,
        WEIGHTED=call.weight_dtype is not None,
        WHOLE=0 if call.gamma_by_class else whole(spec.gamma),
        DETACHED=spec.detached,
        GRADIENT=call.gradient,
        SCALE_BY_ROW=call.scale_by_row,
    )


@functools.lru_cache(maxsize=64)
def plan_normalizers(call: NormalizerCall) -> Launch:
    """The launch for the normalizers of a chunk."""
    from refocal.losses.gpu.kernels import linear

    rows, classes = call.shape
    programs, warps, lanes = _tile_chunk(rows, classes, call.device)
    numbers = (rows, call.gamma, call.softcap)
    constants = {"CLASSES": classes, "STRIDE": call.stride, "LANES": lanes, "WIDTH": _WIDTH, "CAPPED": call.softcap > 0}
    return Launch(linear.normalizers, programs, numbers, warps=warps, WHOLE=whole(call.gamma), **constants)


def _tile_chunk(rows: int, classes: int, device: torch.device) -> tuple[int, int, int]:
    """Programs, warps of a program, and lanes of 8 classes that a program reads at once.

    The L2 cache holds as many long rows as there are multiprocessors until they are read a second time. These sizes
    are the fastest on an H200.
    """
    if classes > _LONG_ROW_OF_CHUNK:
        return min(rows, multiprocessors(device)), 32, 2048
    lanes = min(512, max(32, next_power(-(-classes // _WIDTH))))
    return min(rows, 4 * multiprocessors(device)), min(8, lanes // 32), lanes


@functools.lru_cache(maxsize=256)
def plan_scaling(
    size: int,
    dtype: torch.dtype,  # noqa: ARG001 kernels are compiled for each type
    incoming_dtype: torch.dtype,  # noqa: ARG001
    device: torch.device,
    *,
    corrected: bool,
) -> Launch:
    """The launch that multiplies a gradient by the incoming one, and by a correction."""
    from refocal.losses.gpu.kernels import sums

    block = 4096
    programs = min(-(-size // block), 4 * multiprocessors(device))
    return Launch(sums.scale_all, programs, (size,), warps=8, CORRECTED=corrected, BLOCK=block)


def _is_supported(call: FocalCall) -> bool:
    """Whether the shapes fit together and a kernel computes this loss."""
    shape, classes = call.shape, call.shape[1]
    if call.target_shape != (shape[:1] + shape[2:] if call.has_indices else shape) or not math.prod(shape):
        return False
    # PyTorch's cross-entropy computes gamma = 0.
    gamma_fits = len(call.spec.gamma) == classes if isinstance(call.spec.gamma, tuple) else call.spec.gamma > 0
    # PyTorch rejects class probabilities together with an index to ignore.
    target_fits = call.target_dtype == torch.int64 if call.has_indices else call.spec.ignore_index < 0
    # PyTorch rejects or converts a weight of another type.
    weight_fits = call.weight_dtype is None or (call.weight_shape, call.weight_dtype) == (shape[1:2], call.loss_dtype)
    return gamma_fits and target_fits and weight_fits and call.loss_dtype != torch.float64


def _is_flat(call: FocalCall, layout: Layout) -> bool:
    """Whether rows of a hard target are short, side by side, and of a length that is not a multiple of 16 bytes."""
    classes = call.shape[1]
    odd = classes * call.dtype.itemsize % ALIGNMENT != 0
    return call.hard and odd and not layout.span and layout.stride == classes and classes <= _LONGEST_FLAT_ROW


def _plan_computation(
    call: FocalCall, layout: Layout, target_layout: Layout, tiling: Tiling, *, beside: bool, adds: bool
) -> Launch:
    """The kernel that computes losses and gradient."""
    classes, gamma = call.shape[1], call.spec.gamma
    constants: dict[str, Any] = {
        "CLASSES": classes,
        "STRIDE": layout.stride,
        "COUNTED": call.counted,
        "BESIDE": beside,
        "ADDS": adds,
        "GAMMA_BY_CLASS": isinstance(gamma, tuple),
        "WEIGHTED": call.weight_dtype is not None,
        "WHOLE": 0 if isinstance(gamma, tuple) else whole(gamma),
        "DETACHED": call.spec.detached,
        "GRADIENT": call.gradient,
        "INCOMING": call.incoming,
    }
    rows = math.prod(call.shape) // classes
    numbers = (rows, 0.0 if isinstance(gamma, tuple) else gamma, call.spec.ignore_index, call.expected)
    if not call.hard:
        return _plan_soft(call, layout, target_layout, tiling, (*numbers, call.spec.label_smoothing), constants)
    if classes > LONGEST_ROW_ON_CHIP:
        return _plan_long(call, layout, rows, numbers, constants)
    return _plan_hard(call, layout, tiling, numbers, constants)


def _is_ragged(call: FocalCall, layout: Layout) -> bool:
    """Whether rows start at addresses from which few classes can be loaded together."""
    return call.shape[1] % _WIDTH != 0 or layout.stride % _WIDTH != 0


def _plan_hard(
    call: FocalCall, layout: Layout, tiling: Tiling, numbers: tuple[float, ...], constants: dict[str, Any]
) -> Launch:
    """The kernel for one class per row, with whole rows on the chip."""
    from refocal.losses.gpu.kernels import flat, hard

    block, tile_rows, warps, programs = tiling
    constants["BLOCK"] = block
    if block > LONGEST_TILED_ROW:
        ragged = _is_ragged(call, layout)
        if block == LONGEST_ROW_ON_CHIP and call.dtype.itemsize == 2 and not ragged:
            # One program fills a multiprocessor, whose memory has room for the next rows.
            resident = min(programs, multiprocessors(call.device))
            return Launch(hard.whole_rows, resident, numbers, warps=warps, STAGES=3, **constants)
        if ragged and block == LONGEST_ROW_ON_CHIP // 2:
            warps //= 2
        return Launch(hard.whole_rows, programs, numbers, warps=warps, STAGES=1, **constants)
    constants |= {"ROWS": tile_rows, "BY_ROW": call.spec.reduction == "none" and not call.incoming}
    if _is_flat(call, layout):
        del constants["STRIDE"]
        constants |= {"LANES": next_power(tile_rows), "FLAT": next_power(tile_rows * call.shape[1])}
        return Launch(flat.flat_rows, programs, numbers, warps=warps, **constants)
    constants |= {"SPAN": layout.span, "IMAGE": layout.image}
    return Launch(hard.tiles_of_rows, programs, numbers, warps=warps, **constants)


def _plan_long(
    call: FocalCall, layout: Layout, rows: int, numbers: tuple[float, ...], constants: dict[str, Any]
) -> Launch:
    """The kernel for long rows. The L2 cache holds those in work until they are read a second time."""
    from refocal.losses.gpu.kernels import long

    classes, resident = call.shape[1], multiprocessors(call.device)
    lanes, warps, programs = 2048, 32, resident
    constants["WIDTH"] = _WIDTH
    if not _is_ragged(call, layout):
        return Launch(long.aligned_rows, min(rows, programs), numbers, warps=warps, LANES=lanes, **constants)
    if 2 * resident * classes * call.dtype.itemsize <= _MOST_BYTES_READ_AGAIN:  # programs hide each other's waiting
        lanes, warps, programs = 1024, 8, 4 * resident
    full = (classes - 2 * (_WIDTH - 1)) // (lanes * _WIDTH) * (lanes * _WIDTH)
    constants |= {"LANES": lanes, "FULL": full, "TAIL": next_power(max(classes - full, _WIDTH))}
    return Launch(long.ragged_rows, min(rows, programs), numbers, warps=warps, **constants)


def _plan_soft(  # noqa: PLR0917 what was found out about the call
    call: FocalCall,
    layout: Layout,
    target_layout: Layout,
    tiling: Tiling,
    numbers: tuple[float, ...],
    constants: dict[str, Any],
) -> Launch:
    """The kernel for a loss at each class of a row."""
    from refocal.losses.gpu.kernels import smoothed, soft

    block, tile_rows, warps, programs = tiling
    warps = min(32, 2 * warps)  # these kernels hold twice as much per row
    constants["BLOCK"] = block
    one_gamma = isinstance(call.spec.gamma, float)
    if call.has_indices and block > LONGEST_TILED_ROW and call.weight_dtype is None and one_gamma:
        del constants["GAMMA_BY_CLASS"], constants["WEIGHTED"]
        return Launch(smoothed.smoothed_rows, programs, numbers, warps=warps, **constants)
    constants |= {"ROWS": tile_rows, "SPAN": layout.span, "IMAGE": layout.image}
    constants |= {"TARGET_IMAGE": target_layout.image, "TARGET_STRIDE": target_layout.stride}
    constants |= {"INDICES": call.has_indices, "SMOOTHED": call.spec.label_smoothing > 0}
    constants["BY_ROW"] = call.spec.reduction == "none" and not call.incoming
    return Launch(soft.soft_rows, programs, numbers, warps=warps, **constants)


def _takes_tickets(losses: int) -> bool:
    """Whether several programs add up so many losses."""
    from refocal.losses.gpu.kernels.sums import MOST_ALONE

    return losses > int(MOST_ALONE.value)


def _plan_sum(losses: int, expected: float, *, counted: bool, beside: bool) -> Launch:
    """The kernel that adds up losses in a buffer, with shares beside them or counts made before."""
    from refocal.losses.gpu.kernels import sums

    alone = not _takes_tickets(losses)
    warps, block = (8, 2048) if losses <= 4096 else (32 if alone else 16, 8192)
    constants = {"COUNTED": counted, "BESIDE": beside, "ALONE": alone, "BLOCK": block}
    programs = 1 if alone else sums.COUNTS.value
    return Launch(sums.finish, programs, (losses, expected), warps=warps, **constants)


def whole(gamma: float) -> int:
    """Gamma if it is a small whole number, whose powers are products; else 0."""
    return int(gamma) if gamma.is_integer() and 1 <= gamma <= 8 else 0
