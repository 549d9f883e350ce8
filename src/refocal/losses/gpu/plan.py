"""The planner: which kernels compute a call, and how they are laid out over a GPU.

Small batches are host-bound, so a plan is worked out once per spec and cached. Batches whose size changes every time
gain nothing from the cache.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import torch
from torch import Tensor

from refocal.losses.gpu.launch import Launch, multiprocessors
from refocal.losses.gpu.layout import (
    LONGEST_ROW_ON_CHIP,
    LONGEST_TILED_ROW,
    Layout,
    choose_tiling,
    common_stride,
    find_layout,
)
from refocal.losses.gpu.spec import FocalSpec, PosteriorSpec, SigmoidSpec

SIGMOID_BLOCK = 2048  # scores per program
_LONGEST_RAGGED_ROW_ON_CHIP = 65_536  # rows that start at odd addresses are slow to read, so they are read once
# A gradient up to this size stays in the L2 cache until the backward pass corrects the divisor of a mean. One launch
# then suffices for the loss. For a larger gradient, counting the targets first and writing it once is faster.
_MOST_BYTES_CORRECTED = 1 << 25


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
    adds: bool  # whether `compute` adds up the losses; if not, `count` runs before it and `finish` after it
    loss: Tensor  # a template for new tensors
    correction: Tensor  # likewise
    compute: Launch
    count: Launch
    finish: Launch
    multiply: Launch


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
    _, tile_rows, _, programs = choose_tiling(rows, classes, layout.span)
    small = size * spec.dtype.itemsize <= _MOST_BYTES_CORRECTED and programs <= sums.MOST_PROGRAMS.value
    adds = small and spec.reduction != "none" and not spec.incoming
    losses = programs if tile_rows > 1 and spec.reduction != "none" else rows
    strides, gamma = layout.gradient_strides(spec.shape), spec.gamma
    return FocalPlan(
        spec=spec,
        losses=losses,
        gradient=spec.gradient,
        gradient_strides=None if strides == spec.strides else strides,
        gammas=_copy_gammas(gamma, spec.device) if isinstance(gamma, tuple) else None,
        target_has_gaps=spec.has_indices and common_stride(spec.target_shape, spec.target_strides, alone=1) != 1,
        counted=spec.counted,
        adds=adds,
        loss=torch.empty((), dtype=spec.loss_dtype, device=spec.device),
        correction=torch.empty((), dtype=torch.float32, device=spec.device),
        compute=_plan_computation(spec, layout, target_layout, adds=adds),
        count=Launch(
            sums.count_targets,
            sums.COUNTS.value,
            (rows, classes, spec.ignore_index),
            warps=16,
            BLOCK=4096,
            WEIGHTED=spec.weight_dtype is not None,
        ),
        finish=_plan_sum(losses, spec.expected, counted=spec.counted, beside=False),
        multiply=plan_multiplication(size, spec.dtype, spec.loss_dtype, spec.device, corrected=spec.counted and adds),
    )


@functools.lru_cache(maxsize=256)
def plan_sigmoid_loss(spec: SigmoidSpec) -> tuple[Launch, Launch]:
    """The kernels that compute losses and gradient, and that add up the losses."""
    from refocal.losses.gpu.kernels import sigmoid

    gamma, alpha, ignore_index = spec.settings
    programs, mean = -(-spec.size // SIGMOID_BLOCK), spec.reduction == "mean"
    compute = Launch(
        sigmoid.sigmoid_focal,
        programs,
        (spec.size, gamma, 0.0 if alpha is None else alpha, float(ignore_index), 1.0 / spec.size if mean else 1.0),
        warps=4,
        BLOCK=SIGMOID_BLOCK,
        BALANCED=alpha is not None,
        WHOLE=_whole(gamma),
        LOSS=spec.loss,
        GRADIENT=spec.gradient,
        INCOMING=not spec.loss,
        BY_ELEMENT=spec.reduction == "none",
        COUNTED=mean,
    )
    return compute, _plan_sum(programs, float(spec.size) if mean else 1.0, counted=mean, beside=mean)


@functools.lru_cache(maxsize=256)
def plan_posterior_map(spec: PosteriorSpec) -> tuple[Launch, tuple[int, ...]] | None:
    """The kernel of a posterior map and the strides of its result; None if no kernel supports this layout."""
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
        "WHOLE": _whole(spec.gamma),
    }
    numbers = (rows, spec.gamma)
    launch = Launch(posterior.rows_on_chip, programs, numbers, warps=warps, BLOCK=block, ROWS=tile_rows, **constants)
    return launch, layout.gradient_strides(spec.shape)


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


def _plan_computation(spec: FocalSpec, layout: Layout, target_layout: Layout, *, adds: bool) -> Launch:
    """The kernel that computes losses and gradient."""
    from refocal.losses.gpu.kernels import hard, soft

    classes = spec.shape[1]
    rows = math.prod(spec.shape) // classes
    constants: dict[str, Any] = {
        "CLASSES": classes,
        "STRIDE": layout.stride,
        "COUNTED": spec.counted,
        "ADDS": adds,
        "GAMMA_BY_CLASS": isinstance(spec.gamma, tuple),
        "WEIGHTED": spec.weight_dtype is not None,
        "WHOLE": 0 if isinstance(spec.gamma, tuple) else _whole(spec.gamma),
        "DETACHED": spec.detached,
        "GRADIENT": spec.gradient,
        "INCOMING": spec.incoming,
    }
    numbers = (rows, 0.0 if isinstance(spec.gamma, tuple) else spec.gamma, spec.ignore_index, spec.expected)
    resident = min(rows, multiprocessors(spec.device))
    if spec.hard and classes > (_LONGEST_RAGGED_ROW_ON_CHIP if classes % 8 else LONGEST_ROW_ON_CHIP):
        # The L2 cache holds this many rows until they are read a second time.
        return Launch(hard.rows_in_chunks, resident, numbers, warps=32, LANES=2048, WIDTH=8, **constants)
    block, tile_rows, warps, programs = choose_tiling(rows, classes, layout.span)
    constants["BLOCK"] = block
    if spec.hard and block > LONGEST_TILED_ROW:
        if block == LONGEST_ROW_ON_CHIP and spec.dtype.itemsize == 2:
            # One program fills a multiprocessor, whose memory has room for the next rows.
            return Launch(hard.whole_rows, resident, numbers, warps=warps, STAGES=3, **constants)
        return Launch(hard.whole_rows, programs, numbers, warps=warps, STAGES=1, **constants)
    constants |= {"ROWS": tile_rows, "SPAN": layout.span, "IMAGE": layout.image}
    constants["BY_ROW"] = spec.reduction == "none" and not spec.incoming
    if spec.hard:
        return Launch(hard.tiles_of_rows, programs, numbers, warps=warps, **constants)
    constants |= {"TARGET_IMAGE": target_layout.image, "TARGET_STRIDE": target_layout.stride}
    constants |= {"INDICES": spec.has_indices, "SMOOTHED": spec.label_smoothing > 0}
    warps = min(32, 2 * warps)  # this kernel holds twice as much per row
    return Launch(soft.rows_on_chip, programs, (*numbers, spec.label_smoothing), warps=warps, **constants)


def _plan_sum(losses: int, expected: float, *, counted: bool, beside: bool) -> Launch:
    """The kernel that adds up many losses in a buffer, with counts beside them or made before."""
    from refocal.losses.gpu.kernels import sums

    constants = {"COUNTED": counted, "COUNTED_BESIDE": beside, "BLOCK": 8192}
    return Launch(sums.finish, sums.COUNTS.value, (losses, expected), warps=16, **constants)


@functools.lru_cache(maxsize=64)
def _copy_gammas(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One gamma per class on the device; cached, because a copy from the host would make it wait."""
    return torch.tensor(values, dtype=torch.float32, device=device)


def _whole(gamma: float) -> int:
    """Gamma if it is a small whole number, whose powers are products; else 0."""
    return int(gamma) if gamma.is_integer() and 1 <= gamma <= 8 else 0
