"""How the fused kernels of softmax losses and of the posterior map are laid out over a GPU and launched.

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

from refocal.losses.compiled import Launch, multiprocessors, raw_stream
from refocal.losses.layouts import LONGEST_ROW_ON_CHIP, LONGEST_TILED_ROW, Layout, layout_of, tiling

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


class Case(NamedTuple):
    """What decides on the kernels of a softmax loss, and on how they are compiled."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    target_shape: torch.Size
    target_strides: tuple[int, ...]
    target_dtype: torch.dtype
    gamma: float
    gammas: int  # their number where each class has one, else 0
    weight_shape: torch.Size | None
    weight_dtype: torch.dtype | None
    ignore_index: int
    smoothed: bool
    detached: bool
    reduction: str
    loss_dtype: torch.dtype
    gradient: bool
    incoming: int  # as the kernels take it: 0, 1 or 2

    @property
    def has_indices(self) -> bool:
        """Whether the targets are class indices."""
        return not self.target_dtype.is_floating_point

    @property
    def hard(self) -> bool:
        """Whether one class a row has a loss."""
        return self.has_indices and not self.smoothed

    @property
    def counted(self) -> bool:
        """Whether a mean divides by a number that depends on the targets."""
        return self.reduction == "mean" and self.has_indices


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The launches of a softmax loss, and what it takes to call them."""

    rows: int
    classes: int
    parts: int  # losses to add up: one a row, or a tile of them
    gradient_strides: tuple[int, ...]
    expected: float  # what a sum of losses is divided by, but for rows that do not count and for weights
    has_indices: bool
    hard: bool
    counted: bool
    adds: bool  # whether `compute` adds up; else, `count` comes before and `finish` after it
    compute: Launch
    count: Launch
    finish: Launch
    multiply: Launch


@functools.lru_cache(maxsize=256)
def plan_for(case: Case) -> Plan | None:
    """The plan of a case; None where no kernel serves it, be it that its tensors do not lie or fit as they should."""
    from refocal.losses.kernels import sums

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
    parts = sums.COUNTS.value
    return Plan(
        rows=rows,
        classes=classes,
        parts=programs if tile_rows > 1 and case.reduction != "none" else rows,
        gradient_strides=layout.strides_of_gradient(case.shape),
        expected=float(rows) if case.reduction == "mean" else 1.0,
        has_indices=case.has_indices,
        hard=case.hard,
        counted=case.counted,
        adds=adds,
        compute=_compute(case, layout, target_layout, adds=adds),
        count=Launch(sums.count_targets, parts, warps=16, BLOCK=4096, WEIGHTED=case.weight_dtype is not None),
        finish=Launch(sums.finish, parts, warps=16, COUNTED=case.counted, COUNTED_BESIDE=False, BLOCK=8192),
        multiply=multiplication(size, case.dtype, case.loss_dtype, case.device, corrected=case.counted and adds),
    )


def _is_sound(case: Case) -> bool:
    """Whether shapes fit each other, and a kernel knows this loss."""
    shape, classes = case.shape, case.shape[1]
    if case.target_shape != (shape[:1] + shape[2:] if case.has_indices else shape) or not math.prod(shape):
        return False
    gamma_fits = case.gammas == classes if case.gammas else case.gamma > 0  # 0 is for PyTorch's cross-entropy
    # class probabilities with an index to ignore are for PyTorch to refuse
    target_fits = case.target_dtype == torch.int64 if case.has_indices else case.ignore_index < 0
    # a weight of another type is for PyTorch to refuse, or to bring to the loss's
    weight_fits = case.weight_dtype is None or (case.weight_shape, case.weight_dtype) == (shape[1:2], case.loss_dtype)
    if not (gamma_fits and target_fits and weight_fits) or case.loss_dtype == torch.float64:
        return False
    return case.hard or classes <= LONGEST_ROW_ON_CHIP


def _compute(case: Case, layout: Layout, target_layout: Layout, *, adds: bool) -> Launch:
    """The kernel that computes losses and gradient."""
    from refocal.losses.kernels import hard, soft

    classes = case.shape[1]
    rows = math.prod(case.shape) // classes
    constants: dict[str, Any] = {
        "CLASSES": classes,
        "STRIDE": layout.stride,
        "COUNTED": case.counted,
        "ADDS": adds,
        "GAMMA_BY_CLASS": case.gammas > 0,
        "WEIGHTED": case.weight_dtype is not None,
        "WHOLE": whole(case.gamma),
        "DETACHED": case.detached,
        "GRADIENT": case.gradient,
        "INCOMING": case.incoming,
    }
    at_once = min(rows, multiprocessors(case.device))
    if case.hard and classes > (_LONGEST_RAGGED_ROW_ON_CHIP if classes % 8 else LONGEST_ROW_ON_CHIP):
        # no more rows at once than the L2 cache holds for their second reading
        return Launch(hard.rows_in_chunks, at_once, warps=32, LANES=2048, WIDTH=8, **constants)
    block, tile_rows, warps, programs = tiling(rows, classes, layout.span)
    constants["BLOCK"] = block
    if case.hard and block > LONGEST_TILED_ROW:
        if block == LONGEST_ROW_ON_CHIP and case.dtype.itemsize == 2:
            # one program fills a multiprocessor, whose memory has room for the next rows
            return Launch(hard.whole_rows, at_once, warps=warps, STAGES=3, **constants)
        return Launch(hard.whole_rows, programs, warps=warps, STAGES=1, **constants)
    constants |= {"ROWS": tile_rows, "SPAN": layout.span, "IMAGE": layout.image}
    constants["BY_ROW"] = case.reduction == "none" and not case.incoming
    if case.hard:
        return Launch(hard.tiles_of_rows, programs, warps=warps, **constants)
    constants |= {"TARGET_IMAGE": target_layout.image, "TARGET_STRIDE": target_layout.stride}
    constants |= {"INDICES": case.has_indices, "SMOOTHED": case.smoothed}
    return Launch(soft.rows_on_chip, programs, warps=min(32, 2 * warps), **constants)  # it holds twice as much


def case_of(
    logits: Tensor, target: Tensor, settings: Settings, reduction: str, loss_dtype: torch.dtype, *, gradient: bool
) -> Case:
    """The case of a call."""
    gamma, weight, ignore_index, smoothing, detached = settings
    by_class = isinstance(gamma, tuple)
    return Case(
        logits.shape,
        logits.stride(),
        logits.dtype,
        logits.device,
        target.shape,
        target.stride(),
        target.dtype,
        0.0 if by_class else gamma,
        len(gamma) if by_class else 0,
        None if weight is None else weight.shape,
        None if weight is None else weight.dtype,
        ignore_index,
        smoothing > 0,
        detached,
        reduction,
        loss_dtype,
        gradient,
        0,
    )


def loss_and_gradient(
    plan: Plan, case: Case, logits: Tensor, target: Tensor, settings: Settings
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, reduced; its gradient in the logits for an incoming 1; and the correction of a mean's gradient."""
    gradient = _empty_gradient(plan, logits) if case.gradient else None
    correction = logits.new_empty((), dtype=torch.float32) if plan.counted else None
    if plan.adds:
        work = _scratch(logits)
        loss = logits.new_empty((), dtype=case.loss_dtype)
        _run(plan, case, logits, target, settings, gradient, work, loss, correction)
        return loss, gradient, correction
    return _large_loss(plan, case, logits, target, settings, gradient, correction), gradient, correction


def _large_loss(  # noqa: PLR0917 as `_run`
    plan: Plan,
    case: Case,
    logits: Tensor,
    target: Tensor,
    settings: Settings,
    gradient: Tensor | None,
    correction: Tensor | None,
) -> Tensor:
    """The loss by three launches, which count targets, compute, and add up; its gradient is left in `gradient`."""
    from refocal.losses.kernels.sums import LOSSES

    empty = (
        logits.new_empty if plan.counted or case.reduction == "none" else logits.new_zeros
    )  # counting sets the ticket
    work = empty(LOSSES.value + plan.parts, dtype=torch.float32)
    if plan.counted:
        weight = work if settings.weight is None else settings.weight.contiguous()
        plan.count((target.contiguous(), weight, work), plan.rows, plan.classes, settings.ignore_index)
    _run(plan, case, logits, target, settings, gradient, work, None, correction)
    if case.reduction == "none":
        return work[LOSSES.value :].reshape(case.shape[:1] + case.shape[2:]).to(case.loss_dtype, copy=True)
    loss = logits.new_empty((), dtype=case.loss_dtype)
    plan.finish((work, loss, loss if correction is None else correction), plan.parts, plan.expected)
    return loss


def multiply(plan: Plan, gradient: Tensor, incoming: Tensor, correction: Tensor | None) -> None:
    """Multiply a gradient computed with the loss by the one that comes in, in place."""
    plan.multiply((gradient, incoming, incoming if correction is None else correction), plan.rows * plan.classes)


def gradient_alone(
    case: Case,
    logits: Tensor,
    target: Tensor,
    settings: Settings,
    *,
    incoming: Tensor,
    correction: Tensor | None,
) -> Tensor:
    """The gradient in the logits, given the one that comes in and the correction."""
    case = case._replace(gradient=True, incoming=1 if case.reduction != "none" else 2)
    plan = plan_for(case)
    assert plan is not None, "the loss had one"
    gradient = _empty_gradient(plan, logits)
    incoming = incoming.contiguous()
    _run(plan, case, logits, target, settings, gradient, incoming, None, correction)
    return gradient


def _empty_gradient(plan: Plan, logits: Tensor) -> Tensor:
    return torch.empty_strided(logits.shape, plan.gradient_strides, dtype=logits.dtype, device=logits.device)


def _run(  # noqa: PLR0917 keywords take their time, too
    plan: Plan,
    case: Case,
    logits: Tensor,
    target: Tensor,
    settings: Settings,
    gradient: Tensor | None,
    work: Tensor,
    loss: Tensor | None,
    correction: Tensor | None,
) -> None:
    """Launch the kernel that computes; where a gradient comes in, `work` is that."""
    gamma, weight, ignore_index, smoothing, _ = settings
    tensors = (  # where one is not used, any will do
        logits,
        target.contiguous() if plan.has_indices else target,
        work if gradient is None else gradient,
        work,
        work if loss is None else loss,
        work if correction is None else correction,
        _gammas(gamma, case.device) if case.gammas else work,
        work if weight is None else weight.contiguous(),
        work,
    )
    numbers = (plan.rows, case.gamma, ignore_index, plan.expected)
    plan.compute(tensors, *(numbers if plan.hard else (*numbers, float(smoothing))))


def _scratch(tensor: Tensor) -> Tensor:
    """The buffer, ticket at 0, of kernels that add up: one for each stream, whose kernels follow each other.

    A CUDA graph may be replayed on any stream, beside any other work: it gets one of its own.
    """
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return _new_scratch(tensor.device)
    return _scratch_of_stream(tensor.device, raw_stream(tensor))


def _new_scratch(device: torch.device) -> Tensor:
    from refocal.losses.kernels.sums import SIZE_TO_ADD

    return torch.zeros(SIZE_TO_ADD.value, dtype=torch.float32, device=device)


@functools.lru_cache(maxsize=256)
def _scratch_of_stream(device: torch.device, stream: int) -> Tensor:  # noqa: ARG001 one for each
    return _new_scratch(device)


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
    from refocal.losses.kernels import sums

    block = 4096
    programs = min(-(-size // block), 4 * multiprocessors(device))
    return Launch(sums.scale_all, programs, warps=8, CORRECTED=corrected, BLOCK=block)


class _MapCase(NamedTuple):
    """What decides on the kernel of a posterior map, and on how it is compiled."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    gamma: float


@functools.lru_cache(maxsize=256)
def _map_plan(case: _MapCase) -> tuple[Launch, int, tuple[int, ...]] | None:
    from refocal.losses.kernels import posterior

    layout = layout_of(case.shape, case.strides)
    if layout is None:
        return None
    classes = case.shape[1]
    rows = math.prod(case.shape) // classes
    block, tile_rows, warps, programs = tiling(rows, classes, layout.span)
    constants = {
        "CLASSES": classes,
        "SPAN": layout.span,
        "IMAGE": layout.image,
        "STRIDE": layout.stride,
        "WHOLE": whole(case.gamma),
    }
    launch = Launch(posterior.rows_on_chip, programs, warps=warps, BLOCK=block, ROWS=tile_rows, **constants)
    return launch, rows, layout.strides_of_gradient(case.shape)


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma over dimension 1."""
    plan = _map_plan(_MapCase(logits.shape, logits.stride(), logits.dtype, logits.device, gamma))
    if plan is None:
        rows = logits.movedim(1, -1).contiguous()
        return posterior_map(rows.reshape(-1, rows.shape[-1]), gamma).reshape(rows.shape).movedim(-1, 1)
    launch, count, strides = plan
    probs = torch.empty_strided(logits.shape, strides, dtype=logits.dtype, device=logits.device)
    launch((logits, probs), count, gamma)
    return probs
