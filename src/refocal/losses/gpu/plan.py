"""The planner: which kernels compute a call, and how they are laid out over a GPU.

Small batches are host-bound, so a plan is worked out once per spec and cached. Batches whose size changes every time
gain nothing from the cache.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
from refocal.losses.gpu.spec import FocalSpec, PosteriorSpec, SigmoidSpec

_SIGMOID_BLOCK = 2048  # scores per program
MOST_SMALL_LOSSES = 16_384  # losses of a small batch, whose buffer is kept
# A gradient up to this size stays in the L2 cache until the backward pass corrects the divisor of a mean. For a larger
# gradient, counting the targets first and writing it once is faster.
_MOST_BYTES_CORRECTED = 1 << 25
# Rows whose length is not a multiple of 16 bytes have kernels of their own if they are short, and if they are long.
_LONGEST_FLAT_ROW = 64
_WIDTH = 8  # classes of a long row that a thread loads together
_MOST_BYTES_READ_AGAIN = 1 << 25  # of long rows in work at a time: the L2 cache holds them


@dataclasses.dataclass(frozen=True, slots=True)
class FocalPlan:
    """The launches of a focal loss, and what it takes to call them."""

    spec: FocalSpec
    losses: int  # how many are added up: one per row, or one per tile
    gradient: bool
    gradient_strides: tuple[int, ...] | None  # None if they are those of the logits
    gammas: Tensor | None  # one per class, on the device
    target_has_gaps: bool  # for class indices; class probabilities may have gaps
    counted: bool
    small: bool  # if so, shares in a mean's divisor stand beside the losses; if not, `count` runs before `compute`
    cleared: bool  # whether the buffer must start with zeros
    loss: Tensor  # a template for new tensors
    correction: Tensor  # likewise
    compute: Launch
    count: Launch
    finish: Launch
    multiply: Launch


# The fields are the key of the cache: small batches are host-bound, and making a FocalSpec per call would cost time.
@functools.lru_cache(maxsize=256)
def plan_focal_loss(*fields: Any) -> FocalPlan | None:
    """The plan of a `FocalSpec`, given by its fields; None if no kernel supports it."""
    from refocal.losses.gpu.kernels import sums

    spec = FocalSpec(*fields)
    layout = find_layout(spec.shape, spec.strides)
    if layout is None or not _is_supported(spec):
        return None
    target_layout = layout if spec.has_indices else find_layout(spec.shape, spec.target_strides)
    if target_layout is None or layout.span != target_layout.span:
        return None
    size, classes = math.prod(spec.shape), spec.shape[1]
    rows = size // classes
    if _is_flat(spec, layout):
        tiling = choose_flat_tiling(rows, classes, spec.dtype.itemsize)
    else:
        tiling = choose_tiling(rows, classes, layout.span)
    losses = tiling.programs if tiling.rows > 1 and spec.reduction != "none" else rows
    small = size * spec.dtype.itemsize <= _MOST_BYTES_CORRECTED and losses <= MOST_SMALL_LOSSES
    small = small and spec.reduction != "none" and not spec.incoming
    beside = small and spec.counted
    strides, gamma = layout.gradient_strides(spec.shape), spec.gamma
    return FocalPlan(
        spec=spec,
        losses=losses,
        gradient=spec.gradient,
        gradient_strides=None if strides == spec.strides else strides,
        gammas=_copy_gammas(gamma, spec.device) if isinstance(gamma, tuple) else None,
        target_has_gaps=spec.has_indices and common_stride(spec.target_shape, spec.target_strides, alone=1) != 1,
        counted=spec.counted,
        small=small,
        cleared=not spec.counted and spec.reduction != "none" and takes_tickets(losses),
        loss=torch.empty((), dtype=spec.loss_dtype, device=spec.device),
        correction=torch.empty((), dtype=torch.float32, device=spec.device),
        compute=_plan_computation(spec, layout, target_layout, tiling, beside=beside),
        count=Launch(
            sums.count_targets,
            sums.COUNTS.value,
            (rows, classes, spec.ignore_index),
            warps=32,
            BLOCK=8192,
            WEIGHTED=spec.weight_dtype is not None,
        ),
        finish=_plan_sum(losses, spec.expected, counted=spec.counted, beside=beside),
        multiply=plan_multiplication(size, spec.dtype, spec.loss_dtype, spec.device, corrected=beside),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SigmoidPlan:
    """The launches of a sigmoid focal loss, and what it takes to call them."""

    spec: SigmoidSpec
    programs: int
    compute: Launch
    finish: Launch


@functools.lru_cache(maxsize=256)
def plan_sigmoid_loss(spec: SigmoidSpec) -> SigmoidPlan:
    """The plan of a sigmoid focal loss, or of its gradient for an incoming one."""
    from refocal.losses.gpu.kernels import sigmoid

    gamma, alpha, ignore_index = spec.settings
    programs, mean = -(-spec.size // _SIGMOID_BLOCK), spec.reduction == "mean"
    compute = Launch(
        sigmoid.sigmoid_focal,
        programs,
        (spec.size, gamma, 0.0 if alpha is None else alpha, float(ignore_index), 1.0 / spec.size if mean else 1.0),
        warps=4,
        BLOCK=_SIGMOID_BLOCK,
        BALANCED=alpha is not None,
        WHOLE=whole(gamma),
        LOSS=spec.loss,
        GRADIENT=spec.gradient,
        INCOMING=not spec.loss,
        BY_ELEMENT=spec.reduction == "none",
        COUNTED=mean,
    )
    finish = _plan_sum(programs, float(spec.size) if mean else 1.0, counted=mean, beside=mean)
    return SigmoidPlan(spec, programs, compute, finish)


class PosteriorPlan(NamedTuple):
    """The launch of a posterior map, and the strides of its result."""

    compute: Launch
    strides: tuple[int, ...]


@functools.lru_cache(maxsize=256)
def plan_posterior_map(spec: PosteriorSpec) -> PosteriorPlan | None:
    """The plan of a posterior map; None if no kernel supports this layout."""
    from refocal.losses.gpu.kernels import posterior

    layout = find_layout(spec.shape, spec.strides)
    if layout is None:
        return None
    classes = spec.shape[1]
    rows = math.prod(spec.shape) // classes
    block, tile_rows, warps, programs = choose_tiling(rows, classes, layout.span)
    constants = {
        "CLASSES": classes,
        "SPAN": layout.span,
        "IMAGE": layout.image,
        "STRIDE": layout.stride,
        "WHOLE": whole(spec.gamma),
    }
    numbers = (rows, spec.gamma)
    launch = Launch(posterior.rows_on_chip, programs, numbers, warps=warps, BLOCK=block, ROWS=tile_rows, **constants)
    return PosteriorPlan(launch, layout.gradient_strides(spec.shape))


@functools.lru_cache(maxsize=256)
def plan_multiplication(
    size: int,
    dtype: torch.dtype,  # noqa: ARG001 kernels are compiled for each type
    incoming_dtype: torch.dtype,  # noqa: ARG001
    device: torch.device,
    *,
    corrected: bool,
) -> Launch:
    """The kernel that multiplies a gradient by the incoming one, and by a correction."""
    from refocal.losses.gpu.kernels import sums

    block = 4096
    programs = min(-(-size // block), 4 * multiprocessors(device))
    return Launch(sums.scale_all, programs, (size,), warps=8, CORRECTED=corrected, BLOCK=block)


def _is_supported(spec: FocalSpec) -> bool:
    """Whether the shapes fit together and a kernel computes this loss."""
    shape, classes = spec.shape, spec.shape[1]
    if spec.target_shape != (shape[:1] + shape[2:] if spec.has_indices else shape) or not math.prod(shape):
        return False
    # PyTorch's cross-entropy computes gamma = 0.
    gamma_fits = len(spec.gamma) == classes if isinstance(spec.gamma, tuple) else spec.gamma > 0
    # PyTorch rejects class probabilities together with an index to ignore.
    target_fits = spec.target_dtype == torch.int64 if spec.has_indices else spec.ignore_index < 0
    # PyTorch rejects or converts a weight of another type.
    weight_fits = spec.weight_dtype is None or (spec.weight_shape, spec.weight_dtype) == (shape[1:2], spec.loss_dtype)
    if not (gamma_fits and target_fits and weight_fits) or spec.loss_dtype == torch.float64:
        return False
    return spec.hard or classes <= LONGEST_ROW_ON_CHIP


def _is_flat(spec: FocalSpec, layout: Layout) -> bool:
    """Whether rows of a hard target are short, side by side, and of a length that is not a multiple of 16 bytes."""
    classes = spec.shape[1]
    odd = classes * spec.dtype.itemsize % ALIGNMENT != 0
    return spec.hard and odd and not layout.span and layout.stride == classes and classes <= _LONGEST_FLAT_ROW


def _plan_computation(
    spec: FocalSpec, layout: Layout, target_layout: Layout, tiling: Tiling, *, beside: bool
) -> Launch:
    """The kernel that computes losses and gradient."""
    classes, gamma = spec.shape[1], spec.gamma
    constants: dict[str, Any] = {
        "CLASSES": classes,
        "STRIDE": layout.stride,
        "COUNTED": spec.counted,
        "BESIDE": beside,
        "GAMMA_BY_CLASS": isinstance(gamma, tuple),
        "WEIGHTED": spec.weight_dtype is not None,
        "WHOLE": 0 if isinstance(gamma, tuple) else whole(gamma),
        "DETACHED": spec.detached,
        "GRADIENT": spec.gradient,
        "INCOMING": spec.incoming,
    }
    rows = math.prod(spec.shape) // classes
    numbers = (rows, 0.0 if isinstance(gamma, tuple) else gamma, spec.ignore_index, spec.expected)
    if not spec.hard:
        return _plan_soft(spec, layout, target_layout, tiling, (*numbers, spec.label_smoothing), constants)
    if classes > LONGEST_ROW_ON_CHIP:
        return _plan_chunks(spec, layout, rows, numbers, constants)
    return _plan_hard(spec, layout, tiling, numbers, constants)


def _is_ragged(spec: FocalSpec, layout: Layout) -> bool:
    """Whether rows start at addresses from which few classes can be loaded together."""
    return spec.shape[1] % _WIDTH != 0 or layout.stride % _WIDTH != 0


def _plan_hard(
    spec: FocalSpec, layout: Layout, tiling: Tiling, numbers: tuple[float, ...], constants: dict[str, Any]
) -> Launch:
    """The kernel for one class per row, with whole rows on the chip."""
    from refocal.losses.gpu.kernels import flat, hard

    block, tile_rows, warps, programs = tiling
    constants["BLOCK"] = block
    if block > LONGEST_TILED_ROW:
        ragged = _is_ragged(spec, layout)
        if block == LONGEST_ROW_ON_CHIP and spec.dtype.itemsize == 2 and not ragged:
            # One program fills a multiprocessor, whose memory has room for the next rows.
            resident = min(programs, multiprocessors(spec.device))
            return Launch(hard.whole_rows, resident, numbers, warps=warps, STAGES=3, **constants)
        if ragged and block == LONGEST_ROW_ON_CHIP // 2:
            warps //= 2
        return Launch(hard.whole_rows, programs, numbers, warps=warps, STAGES=1, **constants)
    constants |= {"ROWS": tile_rows, "BY_ROW": spec.reduction == "none" and not spec.incoming}
    if _is_flat(spec, layout):
        del constants["STRIDE"]
        constants |= {"LANES": next_power(tile_rows), "FLAT": next_power(tile_rows * spec.shape[1])}
        return Launch(flat.flat_rows, programs, numbers, warps=warps, **constants)
    constants |= {"SPAN": layout.span, "IMAGE": layout.image}
    return Launch(hard.tiles_of_rows, programs, numbers, warps=warps, **constants)


def _plan_chunks(
    spec: FocalSpec, layout: Layout, rows: int, numbers: tuple[float, ...], constants: dict[str, Any]
) -> Launch:
    """The kernel for long rows. The L2 cache holds those in work until they are read a second time."""
    from refocal.losses.gpu.kernels import long

    classes, resident = spec.shape[1], multiprocessors(spec.device)
    lanes, warps, programs = 2048, 32, resident
    constants["WIDTH"] = _WIDTH
    if not _is_ragged(spec, layout):
        return Launch(long.aligned_rows, min(rows, programs), numbers, warps=warps, LANES=lanes, **constants)
    if 2 * resident * classes * spec.dtype.itemsize <= _MOST_BYTES_READ_AGAIN:  # programs hide each other's waiting
        lanes, warps, programs = 1024, 8, 4 * resident
    full = (classes - 2 * (_WIDTH - 1)) // (lanes * _WIDTH) * (lanes * _WIDTH)
    constants |= {"LANES": lanes, "FULL": full, "TAIL": next_power(max(classes - full, _WIDTH))}
    return Launch(long.ragged_rows, min(rows, programs), numbers, warps=warps, **constants)


def _plan_soft(  # noqa: PLR0917 as `_plan_hard`
    spec: FocalSpec,
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
    if spec.has_indices and block > LONGEST_TILED_ROW and spec.weight_dtype is None and isinstance(spec.gamma, float):
        del constants["GAMMA_BY_CLASS"], constants["WEIGHTED"]
        return Launch(smoothed.smoothed_rows, programs, numbers, warps=warps, **constants)
    constants |= {"ROWS": tile_rows, "SPAN": layout.span, "IMAGE": layout.image}
    constants |= {"TARGET_IMAGE": target_layout.image, "TARGET_STRIDE": target_layout.stride}
    constants |= {"INDICES": spec.has_indices, "SMOOTHED": spec.label_smoothing > 0}
    constants["BY_ROW"] = spec.reduction == "none" and not spec.incoming
    return Launch(soft.rows_on_chip, programs, numbers, warps=warps, **constants)


def takes_tickets(losses: int) -> bool:
    """Whether several programs add up so many losses."""
    from refocal.losses.gpu.kernels.sums import MOST_ALONE

    return losses > int(MOST_ALONE.value)


def _plan_sum(losses: int, expected: float, *, counted: bool, beside: bool) -> Launch:
    """The kernel that adds up losses in a buffer, with shares beside them or counts made before."""
    from refocal.losses.gpu.kernels import sums

    alone = not takes_tickets(losses)
    warps, block = (8, 2048) if losses <= 4096 else (32 if alone else 16, 8192)
    constants = {"COUNTED": counted, "BESIDE": beside, "ALONE": alone, "BLOCK": block}
    programs = 1 if alone else sums.COUNTS.value
    return Launch(sums.finish, programs, (losses, expected), warps=warps, **constants)


@functools.lru_cache(maxsize=64)
def _copy_gammas(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One gamma per class on the device; cached, because a copy from the host would make it wait."""
    return torch.tensor(values, dtype=torch.float32, device=device)


def whole(gamma: float) -> int:
    """Gamma if it is a small whole number, whose powers are products; else 0."""
    return int(gamma) if gamma.is_integer() and 1 <= gamma <= 8 else 0
