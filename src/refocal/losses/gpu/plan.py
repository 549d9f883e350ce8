"""Which kernels compute a softmax loss, and how they are laid out over a GPU.

What depends on shapes and settings alone is worked out once and kept: the host's time is what small batches wait for.
Batches of ever new sizes gain nothing by it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refocal.losses.gpu.launch import Launch, multiprocessors
from refocal.losses.gpu.layout import (
    LONGEST_ROW_ON_CHIP,
    LONGEST_TILED_ROW,
    Layout,
    common_stride,
    layout_of,
    tiling,
)
from refocal.losses.rows import common_dtype

_LONGEST_RAGGED_ROW_ON_CHIP = 65_536  # rows that start at odd addresses are read slowly, and better only once
# A gradient of this size stays in the L2 cache until a backward pass corrects what the mean divides by, so one launch
# does for the loss. A larger one is better written once, its targets counted before.
_MOST_BYTES_CORRECTED = 1 << 25


class Settings(NamedTuple):
    """Everything a focal loss depends on beside its data."""

    gamma: Any
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    detached: bool


@functools.lru_cache(maxsize=64)
def _gammas(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One gamma a class, on the device; kept, because a copy from the host would make it wait."""
    return torch.tensor(values, dtype=torch.float32, device=device)


def whole(gamma: float) -> int:
    """Gamma where it is a small whole number, whose powers are products; else 0."""
    return int(gamma) if gamma.is_integer() and 1 <= gamma <= 8 else 0


def at_once(dtype: torch.dtype, reduction: str) -> bool:
    """Whether the gradient is computed with the loss, for an incoming 1, and scaled later.

    Not so where one gradient comes in for each loss; nor in float16, in which gradients divided by the number of
    samples would underflow before the incoming one, which a gradient scaler made large, could lift them.
    """
    return reduction != "none" and dtype != torch.float16


class Case(NamedTuple):
    """What decides on the kernels of a softmax loss, and on how they are compiled and called."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    target_shape: torch.Size
    target_strides: tuple[int, ...]
    target_dtype: torch.dtype
    weight_shape: torch.Size | None
    weight_dtype: torch.dtype | None
    gamma: float | tuple[float, ...]
    ignore_index: int
    label_smoothing: float
    detached: bool
    reduction: str
    autocast: bool
    differentiable: bool
    incoming: int = 0  # as the kernels take it: 0, 1 or 2

    @property
    def has_indices(self) -> bool:
        """Whether the targets are class indices."""
        return not self.target_dtype.is_floating_point

    @property
    def hard(self) -> bool:
        """Whether one class a row has a loss."""
        return self.has_indices and not self.label_smoothing

    @property
    def counted(self) -> bool:
        """Whether a mean divides by a number that depends on the targets."""
        return self.reduction == "mean" and self.has_indices

    @property
    def gradient(self) -> bool:
        """Whether the gradient is computed: with the loss, or for one that has come in."""
        return self.incoming > 0 or (self.differentiable and at_once(self.dtype, self.reduction))

    @property
    def expected(self) -> float:
        """What the sum of losses is divided by, but for rows that do not count and for weights."""
        return math.prod(self.shape) / self.shape[1] if self.reduction == "mean" else 1.0

    @property
    def loss_dtype(self) -> torch.dtype:
        """The type of the loss."""
        return common_dtype(self.dtype, self.target_dtype, self.weight_dtype, autocast=self.autocast)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The launches of a softmax loss, and what it takes to call them."""

    case: Case
    losses: int  # to add up: one a row, or a tile of them
    gradient: bool
    gradient_strides: tuple[int, ...] | None  # None where they are those of the logits
    gammas: Tensor | None  # one a class, on the device
    target_has_gaps: bool  # class indices; class probabilities are read as they lie
    counted: bool
    adds: bool  # whether `compute` adds up; else, `count` comes before and `finish` after it
    loss: Tensor  # new ones are made like it
    correction: Tensor
    compute: Launch
    count: Launch
    finish: Launch
    multiply: Launch


@functools.lru_cache(maxsize=256)
def plan_for(*facts: Any) -> Plan | None:
    """The plan of a case; None where no kernel serves it, be it that its tensors do not lie or fit as they should."""
    from refocal.losses.gpu.kernels import sums

    case = Case(*facts)
    layout = layout_of(case.shape, case.strides)
    if layout is None or not _is_sound(case):
        return None
    target_layout = layout if case.has_indices else layout_of(case.shape, case.target_strides)
    if target_layout is None or layout.span != target_layout.span:
        return None
    size, classes = math.prod(case.shape), case.shape[1]
    rows = size // classes
    _, tile_rows, _, programs = tiling(rows, classes, layout.span)
    small = size * case.dtype.itemsize <= _MOST_BYTES_CORRECTED and programs <= sums.MOST_PROGRAMS.value
    adds = small and case.reduction != "none" and not case.incoming
    losses = programs if tile_rows > 1 and case.reduction != "none" else rows
    strides, gamma = layout.strides_of_gradient(case.shape), case.gamma
    return Plan(
        case=case,
        losses=losses,
        gradient=case.gradient,
        gradient_strides=None if strides == case.strides else strides,
        gammas=_gammas(gamma, case.device) if isinstance(gamma, tuple) else None,
        target_has_gaps=case.has_indices and common_stride(case.target_shape, case.target_strides, alone=1) != 1,
        counted=case.counted,
        adds=adds,
        loss=torch.empty((), dtype=case.loss_dtype, device=case.device),
        correction=torch.empty((), dtype=torch.float32, device=case.device),
        compute=_compute(case, layout, target_layout, adds=adds),
        count=Launch(
            sums.count_targets,
            sums.COUNTS.value,
            (rows, classes, case.ignore_index),
            warps=16,
            BLOCK=4096,
            WEIGHTED=case.weight_dtype is not None,
        ),
        finish=finishing(losses, case.expected, counted=case.counted, beside=False),
        multiply=multiplication(size, case.dtype, case.loss_dtype, case.device, corrected=case.counted and adds),
    )


def _is_sound(case: Case) -> bool:
    """Whether shapes fit each other, and a kernel knows this loss."""
    shape, classes = case.shape, case.shape[1]
    if case.target_shape != (shape[:1] + shape[2:] if case.has_indices else shape) or not math.prod(shape):
        return False
    # a gamma of 0 is for PyTorch's cross-entropy
    gamma_fits = len(case.gamma) == classes if isinstance(case.gamma, tuple) else case.gamma > 0
    # class probabilities with an index to ignore are for PyTorch to refuse
    target_fits = case.target_dtype == torch.int64 if case.has_indices else case.ignore_index < 0
    # a weight of another type is for PyTorch to refuse, or to bring to the loss's
    weight_fits = case.weight_dtype is None or (case.weight_shape, case.weight_dtype) == (shape[1:2], case.loss_dtype)
    if not (gamma_fits and target_fits and weight_fits) or case.loss_dtype == torch.float64:
        return False
    return case.hard or classes <= LONGEST_ROW_ON_CHIP


def _compute(case: Case, layout: Layout, target_layout: Layout, *, adds: bool) -> Launch:
    """The kernel that computes losses and gradient."""
    from refocal.losses.gpu.kernels import hard, soft

    classes = case.shape[1]
    rows = math.prod(case.shape) // classes
    constants: dict[str, Any] = {
        "CLASSES": classes,
        "STRIDE": layout.stride,
        "COUNTED": case.counted,
        "ADDS": adds,
        "GAMMA_BY_CLASS": isinstance(case.gamma, tuple),
        "WEIGHTED": case.weight_dtype is not None,
        "WHOLE": 0 if isinstance(case.gamma, tuple) else whole(case.gamma),
        "DETACHED": case.detached,
        "GRADIENT": case.gradient,
        "INCOMING": case.incoming,
    }
    numbers = (rows, 0.0 if isinstance(case.gamma, tuple) else case.gamma, case.ignore_index, case.expected)
    resident = min(rows, multiprocessors(case.device))
    if case.hard and classes > (_LONGEST_RAGGED_ROW_ON_CHIP if classes % 8 else LONGEST_ROW_ON_CHIP):
        # no more rows at once than the L2 cache holds for their second reading
        return Launch(hard.rows_in_chunks, resident, numbers, warps=32, LANES=2048, WIDTH=8, **constants)
    block, tile_rows, warps, programs = tiling(rows, classes, layout.span)
    constants["BLOCK"] = block
    if case.hard and block > LONGEST_TILED_ROW:
        if block == LONGEST_ROW_ON_CHIP and case.dtype.itemsize == 2:
            # one program fills a multiprocessor, whose memory has room for the next rows
            return Launch(hard.whole_rows, resident, numbers, warps=warps, STAGES=3, **constants)
        return Launch(hard.whole_rows, programs, numbers, warps=warps, STAGES=1, **constants)
    constants |= {"ROWS": tile_rows, "SPAN": layout.span, "IMAGE": layout.image}
    constants["BY_ROW"] = case.reduction == "none" and not case.incoming
    if case.hard:
        return Launch(hard.tiles_of_rows, programs, numbers, warps=warps, **constants)
    constants |= {"TARGET_IMAGE": target_layout.image, "TARGET_STRIDE": target_layout.stride}
    constants |= {"INDICES": case.has_indices, "SMOOTHED": case.label_smoothing > 0}
    warps = min(32, 2 * warps)  # it holds twice as much
    return Launch(soft.rows_on_chip, programs, (*numbers, case.label_smoothing), warps=warps, **constants)


@functools.lru_cache(maxsize=256)
def multiplication(
    size: int,
    dtype: torch.dtype,  # noqa: ARG001 kernels are compiled for them
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


def finishing(losses: int, expected: float, *, counted: bool, beside: bool) -> Launch:
    """The kernel that adds up many losses, which lie in a buffer, the counts beside them or made before."""
    from refocal.losses.gpu.kernels import sums

    constants = {"COUNTED": counted, "COUNTED_BESIDE": beside, "BLOCK": 8192}
    return Launch(sums.finish, sums.COUNTS.value, (losses, expected), warps=16, **constants)
