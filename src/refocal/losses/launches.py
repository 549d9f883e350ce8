"""How the fused kernels are laid out over a GPU and launched.

What depends on shapes and settings alone is worked out once and kept: the host's time is what small batches wait for.
Batches of ever new sizes gain nothing by it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refocal.losses.compiled import Launch, kind_of, multiprocessors
from refocal.losses.targets import loss_dtype

LONGEST_ROW_ON_CHIP = 32_768
_LONGEST_RAGGED_ROW_ON_CHIP = 65_536  # rows that start at odd addresses are read slowly, and better only once
_LONGEST_TILED_ROW = 512
_SIGMOID_BLOCK = 2048


class Settings(NamedTuple):
    """Everything a focal loss depends on beside its data."""

    gamma: Any
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    detached: bool


class SigmoidSettings(NamedTuple):
    """Everything a sigmoid focal loss depends on beside its data."""

    gamma: float
    alpha: float | None
    ignore_index: int


@functools.lru_cache(maxsize=64)
def _gammas(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One gamma a class, on the device; kept, because a copy from the host would make it wait."""
    return torch.tensor(values, dtype=torch.float32, device=device)


def _whole(gamma: float) -> int:
    """Gamma where it is a small whole number, whose powers are products; else 0."""
    return int(gamma) if gamma.is_integer() and 1 <= gamma <= 8 else 0


class Tiling(NamedTuple):
    """How rows are laid out over programs: `block` columns of each of `rows` rows, in that many warps."""

    block: int
    rows: int
    warps: int
    programs: int


def tiling(count: int, classes: int) -> Tiling:
    """Whole rows on the chip; measured to be fast on an H200: short rows, some 512 elements a warp; others, 1,024."""
    block = 1 << max(classes - 1, 1).bit_length()
    if block <= _LONGEST_TILED_ROW:
        rows = (1024 if block in (32, 512) else 512) // block
        return Tiling(block, rows, 1, -(-count // rows))
    return Tiling(block, 1, min(block // 1024, 16 if block <= LONGEST_ROW_ON_CHIP else 32), count)


class _Case(NamedTuple):
    """What decides on the kernels of a softmax loss, and on how they are compiled."""

    kind: tuple[Any, ...]
    rows: int
    classes: int
    stride: int
    target_stride: int
    has_indices: bool
    reduction: str
    ignore_index: int
    smoothed: bool
    weighted: bool
    by_class: bool
    whole: int
    detached: bool
    gradient: bool
    incoming: int  # as the kernels take it: 0, 1 or 2
    itemsize: int

    @property
    def counted(self) -> bool:
        """Whether a mean divides by a number that depends on the targets."""
        return self.reduction == "mean" and self.has_indices

    @property
    def hard(self) -> bool:
        """Whether one class a row has a loss."""
        return self.has_indices and not self.smoothed


@functools.lru_cache(maxsize=256)
def _row_launches(case: _Case, device: torch.device) -> tuple[Launch, Launch, Launch]:
    """The kernels that count targets, compute losses and gradient, and add up."""
    from refocal.losses.kernels import elementwise

    parts = elementwise.COUNTS.value
    count_targets = Launch(elementwise.count_targets, parts, warps=16, BLOCK=4096, WEIGHTED=case.weighted)
    finish = Launch(elementwise.finish, parts, warps=16, COUNTED=case.counted, COUNTED_BESIDE=False, BLOCK=8192)
    return count_targets, _row_launch(case, device), finish


def _row_launch(case: _Case, device: torch.device) -> Launch:
    from refocal.losses.kernels import hard, soft

    constants: dict[str, Any] = {
        "CLASSES": case.classes,
        "STRIDE": case.stride,
        "SCALED": case.counted,
        "GAMMA_BY_CLASS": case.by_class,
        "WEIGHTED": case.weighted,
        "WHOLE": case.whole,
        "DETACHED": case.detached,
        "GRADIENT": case.gradient,
        "INCOMING": case.incoming,
    }
    plan = tiling(case.rows, case.classes)
    at_once = min(case.rows, multiprocessors(device))
    if case.hard and case.classes > (_LONGEST_RAGGED_ROW_ON_CHIP if case.classes % 8 else LONGEST_ROW_ON_CHIP):
        # no more rows at once than the L2 cache holds for their second reading
        return Launch(hard.rows_in_chunks, at_once, warps=32, LANES=2048, WIDTH=8, **constants)
    constants["BLOCK"] = plan.block
    if not case.hard:
        constants |= {"TARGET_STRIDE": case.target_stride, "INDICES": case.has_indices, "SMOOTHED": case.smoothed}
        warps = min(32, 2 * plan.warps)  # it holds twice as much of each row
        return Launch(soft.rows_on_chip, plan.programs, warps=warps, ROWS=plan.rows, **constants)
    if plan.block <= _LONGEST_TILED_ROW:
        return Launch(hard.tiles_of_rows, plan.programs, warps=plan.warps, ROWS=plan.rows, **constants)
    if plan.block == LONGEST_ROW_ON_CHIP and case.itemsize == 2:
        # one program fills a multiprocessor, whose memory has room for the next rows
        return Launch(hard.whole_rows, at_once, warps=plan.warps, STAGES=3, **constants)
    return Launch(hard.whole_rows, plan.programs, warps=plan.warps, STAGES=1, **constants)


def focal_rows(
    logits: Tensor,
    target: Tensor,
    settings: Settings,
    reduction: str,
    *,
    gradient: bool,
    incoming: Tensor | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """The focal loss of rows, reduced, and its gradient in the logits; given the incoming gradient, the latter alone.

    Without an incoming gradient the gradient is that of an incoming 1.
    """
    from refocal.losses.kernels.elementwise import LOSSES

    count, classes = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    has_indices = target.ndim == 1
    target = target.contiguous() if has_indices or target.stride(1) != 1 else target
    weight = None if settings.weight is None else settings.weight.contiguous()
    incoming = None if incoming is None else incoming.contiguous()
    by_class = isinstance(settings.gamma, tuple)
    gamma = 0.0 if by_class else settings.gamma
    case = _Case(
        kind=(loss_dtype(logits), *kind_of(logits, target, weight, incoming)),
        rows=count,
        classes=classes,
        stride=logits.stride(0),
        target_stride=target.stride(0),
        has_indices=has_indices,
        reduction=reduction,
        ignore_index=settings.ignore_index,
        smoothed=settings.label_smoothing > 0,
        weighted=weight is not None,
        by_class=by_class,
        whole=0 if by_class else _whole(gamma),
        detached=settings.detached,
        gradient=gradient,
        incoming=0 if incoming is None else 1 + incoming.ndim,
        itemsize=logits.itemsize,
    )
    count_targets, compute, finish = _row_launches(case, logits.device)
    empty = logits.new_empty if case.counted or reduction == "none" else logits.new_zeros  # counting sets the ticket
    work = empty(LOSSES.value + count, dtype=torch.float32)
    result = torch.empty((count, classes), dtype=logits.dtype, device=logits.device) if gradient else None
    # where a pointer is not used, any will do
    weight = work if weight is None else weight
    soft_numbers = (settings.label_smoothing + 0.0, 1.0 / count if reduction == "mean" else 1.0)
    if case.counted:
        count_targets(target, weight, work, count, classes, settings.ignore_index)
    compute(
        logits,
        target,
        work if result is None else result,
        work,
        _gammas(settings.gamma, logits.device) if by_class else work,
        weight,
        work if incoming is None else incoming,
        count,
        gamma,
        settings.ignore_index,
        *(() if case.hard else soft_numbers),
    )
    if incoming is not None:
        return None, result
    if reduction == "none":
        return work[LOSSES.value :].to(loss_dtype(logits), copy=True), result
    loss = torch.empty((), dtype=loss_dtype(logits), device=logits.device)
    finish(work, loss, count, float(count) if reduction == "mean" else 1.0)
    return loss, result


class _SigmoidCase(NamedTuple):
    """What decides on the kernels of a sigmoid loss, and on how they are compiled."""

    kind: tuple[Any, ...]
    size: int
    ignore_index: int
    whole: int
    balanced: bool
    reduction: str
    loss: bool
    gradient: bool


@functools.lru_cache(maxsize=256)
def _sigmoid_launches(case: _SigmoidCase) -> tuple[Launch, Launch]:
    """The kernels that compute losses and gradient, and add up."""
    from refocal.losses.kernels import elementwise

    compute = Launch(
        elementwise.sigmoid_focal,
        -(-case.size // _SIGMOID_BLOCK),
        warps=4,
        BLOCK=_SIGMOID_BLOCK,
        BALANCED=case.balanced,
        WHOLE=case.whole,
        LOSS=case.loss,
        GRADIENT=case.gradient,
        INCOMING=not case.loss,
        BY_ELEMENT=case.reduction == "none",
    )
    mean = case.reduction == "mean"
    parts = elementwise.COUNTS.value
    return compute, Launch(elementwise.finish, parts, warps=16, COUNTED=mean, COUNTED_BESIDE=mean, BLOCK=8192)


def sigmoid_focal(
    logits: Tensor, target: Tensor, settings: SigmoidSettings, reduction: str, *, gradient: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The loss, reduced; the gradient of an incoming 1, over the number of scores; the buffer with its correction."""
    from refocal.losses.kernels.elementwise import LOSSES

    size = logits.numel()
    programs = -(-size // _SIGMOID_BLOCK)
    work = logits.new_zeros(LOSSES.value + 2 * programs, dtype=torch.float32)
    result = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device) if gradient else None
    by_element, mean = reduction == "none", reduction == "mean"
    loss = torch.empty(logits.shape if by_element else (), dtype=loss_dtype(logits), device=logits.device)
    finish = _run_sigmoid(logits, target, settings, reduction, work=work, loss=loss, result=result, incoming=None)
    if not by_element:
        finish(work, loss, programs, float(size) if mean else 1.0)
    return loss, result, work


def sigmoid_gradient(
    logits: Tensor,
    target: Tensor,
    settings: SigmoidSettings,
    reduction: str,
    *,
    incoming: Tensor,
    work: Tensor,
) -> Tensor:
    """The gradient, times the incoming one and the correction in `work`."""
    result = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    incoming = incoming.contiguous()
    _run_sigmoid(logits, target, settings, reduction, work=work, loss=None, result=result, incoming=incoming)
    return result


def _run_sigmoid(
    logits: Tensor,
    target: Tensor,
    settings: SigmoidSettings,
    reduction: str,
    *,
    work: Tensor,
    loss: Tensor | None,
    result: Tensor | None,
    incoming: Tensor | None,
) -> Launch:
    gamma, alpha, ignore_index = settings
    logits, target = logits.contiguous(), target.contiguous()
    size = logits.numel()
    case = _SigmoidCase(
        kind=(loss_dtype(logits), *kind_of(logits, target, incoming)),
        size=size,
        ignore_index=ignore_index,
        whole=_whole(gamma),
        balanced=alpha is not None,
        reduction=reduction,
        loss=loss is not None,
        gradient=result is not None,
    )
    compute, finish = _sigmoid_launches(case)
    compute(
        logits,
        target,
        work if result is None else result,
        work,
        work if loss is None else loss,
        work if incoming is None else incoming,
        size,
        gamma,
        0.0 if alpha is None else alpha,
        float(ignore_index),
        1.0 / size if reduction == "mean" else 1.0,
    )
    return finish


class _ScaleCase(NamedTuple):
    """What decides on the kernel that scales a gradient, and on how it is compiled."""

    kind: tuple[Any, ...]
    size: int
    corrected: bool
    device: torch.device


@functools.lru_cache(maxsize=256)
def _scale_launch(case: _ScaleCase) -> Launch:
    from refocal.losses.kernels import elementwise

    block = 4096
    programs = min(-(-case.size // block), 4 * multiprocessors(case.device))
    return Launch(elementwise.scale_all, programs, warps=8, CORRECTED=case.corrected, BLOCK=block)


def scale(gradient: Tensor, incoming: Tensor, work: Tensor | None) -> Tensor:
    """The stored gradient times the incoming one, and the correction in `work` where there is one, in place."""
    size = gradient.numel()
    launch = _scale_launch(_ScaleCase(kind_of(gradient, incoming), size, work is not None, gradient.device))
    launch(gradient, incoming, incoming if work is None else work, size)
    return gradient


class _MapCase(NamedTuple):
    """What decides on the kernel of a posterior map, and on how it is compiled."""

    kind: tuple[Any, ...]
    rows: int
    classes: int
    stride: int
    whole: int


@functools.lru_cache(maxsize=256)
def _map_launch(case: _MapCase) -> Launch:
    from refocal.losses.kernels import posterior

    plan = tiling(case.rows, case.classes)
    constants = {"CLASSES": case.classes, "STRIDE": case.stride, "WHOLE": case.whole}
    return Launch(
        posterior.rows_on_chip, plan.programs, warps=plan.warps, BLOCK=plan.block, ROWS=plan.rows, **constants
    )


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma of each row."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    count, classes = logits.shape
    probs = torch.empty((count, classes), dtype=logits.dtype, device=logits.device)
    launch = _map_launch(_MapCase(kind_of(logits), count, classes, logits.stride(0), _whole(gamma)))
    launch(logits, probs, count, gamma)
    return probs
