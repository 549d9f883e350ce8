"""How the fused kernels are laid out over a GPU and launched.

What depends on shapes and settings alone is worked out once and kept: the host's time is what small batches wait for.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

LONGEST_ROW_ON_CHIP = 32_768
_LONGEST_RAGGED_ROW_ON_CHIP = 65_536  # rows that start at odd addresses are read slowly, and better only once
_LONGEST_TILED_ROW = 512
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it once, when it is imported


class Settings(NamedTuple):
    """Everything a focal loss depends on beside its data."""

    gamma: Any
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    detached: bool


class _Launch:
    """A kernel with its grid and constants, for arguments of one kind: types, alignments and whole numbers.

    Triton looks for the compiled kernel at each launch, which takes as long as the launch; this remembers it.
    """

    def __init__(self, kernel: Any, programs: int, *, warps: int, **constants: Any) -> None:
        self._kernel, self._programs, self._warps, self._constants = kernel, programs, warps, constants
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> None:
        if self._compiled is not None:
            self._compiled(*arguments, *self._constants.values())
            return
        compiled = self._kernel[(self._programs,)](*arguments, num_warps=self._warps, **self._constants)
        if _remembers_kernels():
            self._constants = {name: self._constants[name] for name in self._kernel.arg_names[len(arguments) :]}
            self._compiled = compiled[(self._programs, 1, 1)]


@functools.cache
def _remembers_kernels() -> bool:
    """Whether a compiled kernel is called with all its arguments, constants included: so it is from Triton 3.6 on."""
    version = tuple(int(part) for part in importlib.metadata.version("triton").split(".")[:2])
    return not INTERPRETED and version >= (3, 6)


def _kind(*tensors: Tensor | None) -> tuple[Any, ...]:
    """What Triton compiles for: type, and whether the address is a multiple of 16; and the device."""
    kinds = ((None, True) if tensor is None else (tensor.dtype, tensor.data_ptr() % 16 == 0) for tensor in tensors)
    return (torch.cuda.current_device() if torch.cuda.is_available() else None, *kinds)


def on_device_of(tensor: Tensor) -> Any:
    """Kernels are launched on the current device: make it the tensor's."""
    here = not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device()
    return contextlib.nullcontext() if here else torch.cuda.device(tensor.device)


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


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

    @property
    def counted(self) -> bool:
        """Whether a mean divides by a number that depends on the targets."""
        return self.reduction == "mean" and self.has_indices

    @property
    def hard(self) -> bool:
        """Whether one class a row has a loss."""
        return self.has_indices and not self.smoothed


@functools.lru_cache(maxsize=256)
def _row_launches(case: _Case, device: torch.device) -> tuple[_Launch, _Launch, _Launch]:
    """The kernels that count targets, compute losses and gradient, and add up."""
    from refocal.losses.kernels import elementwise

    parts = elementwise.COUNTS.value
    count_targets = _Launch(elementwise.count_targets, parts, warps=16, BLOCK=4096, WEIGHTED=case.weighted)
    finish = _Launch(elementwise.finish, parts, warps=16, COUNTED=case.counted, COUNTED_BESIDE=False, BLOCK=8192)
    return count_targets, _row_launch(case, device), finish


def _row_launch(case: _Case, device: torch.device) -> _Launch:
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
    }
    plan = tiling(case.rows, case.classes)
    at_once = min(case.rows, _multiprocessors(device))
    if case.hard and case.classes > (_LONGEST_RAGGED_ROW_ON_CHIP if case.classes % 8 else LONGEST_ROW_ON_CHIP):
        # no more rows at once than the L2 cache holds for their second reading
        return _Launch(hard.rows_in_chunks, at_once, warps=32, LANES=2048, WIDTH=8, **constants)
    constants["BLOCK"] = plan.block
    if not case.hard:
        constants |= {"TARGET_STRIDE": case.target_stride, "INDICES": case.has_indices, "SMOOTHED": case.smoothed}
        warps = min(32, 2 * plan.warps)  # it holds twice as much of each row
        return _Launch(soft.rows_on_chip, plan.programs, warps=warps, ROWS=plan.rows, **constants)
    if plan.block <= _LONGEST_TILED_ROW:
        return _Launch(hard.tiles_of_rows, plan.programs, warps=plan.warps, ROWS=plan.rows, **constants)
    if plan.block == LONGEST_ROW_ON_CHIP and case.kind[1][0].itemsize == 2:
        # one program fills a multiprocessor, whose memory has room for the next rows
        return _Launch(hard.whole_rows, at_once, warps=plan.warps, STAGES=3, **constants)
    return _Launch(hard.whole_rows, plan.programs, warps=plan.warps, STAGES=1, **constants)


def focal_rows(
    logits: Tensor, target: Tensor, settings: Settings, reduction: str, *, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The focal loss of rows, reduced, and its gradient in the logits."""
    from refocal.losses.kernels.elementwise import LOSSES

    count, classes = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    has_indices = target.ndim == 1
    target = target.contiguous() if has_indices or target.stride(1) != 1 else target
    weight = None if settings.weight is None else settings.weight.contiguous()
    by_class = isinstance(settings.gamma, tuple)
    gamma = 0.0 if by_class else settings.gamma
    case = _Case(
        kind=_kind(logits, target, weight),
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
    )
    count_targets, compute, finish = _row_launches(case, logits.device)
    empty = logits.new_empty if case.counted or reduction == "none" else logits.new_zeros  # counting sets the ticket
    work = empty(LOSSES.value + count, dtype=torch.float32)
    result = torch.empty((count, classes), dtype=logits.dtype, device=logits.device) if gradient else None
    # where a pointer is not used, any will do
    weight = work if weight is None else weight
    gammas = _gammas(settings.gamma, logits.device) if by_class else work
    soft_numbers = (settings.label_smoothing + 0.0, 1.0 / count if reduction == "mean" else 1.0)
    if case.counted:
        count_targets(target, weight, work, count, settings.ignore_index)
    compute(
        logits,
        target,
        work if result is None else result,
        work,
        gammas,
        weight,
        count,
        gamma,
        settings.ignore_index,
        *(() if case.hard else soft_numbers),
    )
    if reduction == "none":
        return work[LOSSES.value :].to(logits.dtype), result
    loss = torch.empty((), dtype=logits.dtype, device=logits.device)
    finish(work, loss, count, float(count) if reduction == "mean" else 1.0)
    return loss, result


@functools.lru_cache(maxsize=256)
def _sigmoid_launches(
    _kind: Any, size: int, whole: int, reduction: str, balanced: bool, gradient: bool
) -> tuple[_Launch, _Launch, int]:
    """The kernels that compute losses and gradient, and add up; and the number of programs of the first."""
    from refocal.losses.kernels import elementwise

    block = 4096
    programs = -(-size // block)
    constants = {"BLOCK": block, "BALANCED": balanced, "WHOLE": whole, "GRADIENT": gradient}
    compute = _Launch(elementwise.sigmoid_focal, programs, warps=8, BY_ELEMENT=reduction == "none", **constants)
    mean = reduction == "mean"
    finish = _Launch(
        elementwise.finish, elementwise.COUNTS.value, warps=16, COUNTED=mean, COUNTED_BESIDE=mean, BLOCK=8192
    )
    return compute, finish, programs


def sigmoid_focal(
    logits: Tensor, target: Tensor, settings: tuple[float, float | None, int], reduction: str, *, gradient: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, reduced; the gradient, divided by the number of scores; and the buffer with its correction, if any."""
    from refocal.losses.kernels.elementwise import LOSSES

    gamma, alpha, ignore_index = settings
    logits, target = logits.contiguous(), target.contiguous()
    size = logits.numel()
    by_element, mean = reduction == "none", reduction == "mean"
    compute, finish, programs = _sigmoid_launches(
        _kind(logits, target), size, _whole(gamma), reduction, alpha is not None, gradient
    )
    result = torch.empty_like(logits) if gradient else None
    losses = torch.empty_like(logits) if by_element else None
    work = logits.new_zeros(LOSSES.value + 2 * programs, dtype=torch.float32)
    compute(
        logits,
        target,
        work if result is None else result,
        work,
        work if losses is None else losses,
        size,
        gamma,
        0.0 if alpha is None else alpha,
        float(ignore_index),
        1.0 / size if mean else 1.0,
    )
    if losses is not None:
        return losses, result, None
    loss = torch.empty((), dtype=logits.dtype, device=logits.device)
    finish(work, loss, programs, float(size) if mean else 1.0)
    return loss, result, work if mean else None


@functools.lru_cache(maxsize=256)
def _scale_launch(_kind: Any, size: int, corrected: bool, device: torch.device) -> _Launch:
    from refocal.losses.kernels import elementwise

    block = 4096
    programs = min(-(-size // block), 4 * _multiprocessors(device))
    return _Launch(elementwise.scale_all, programs, warps=8, CORRECTED=corrected, BLOCK=block)


def scale(gradient: Tensor, incoming: Tensor, work: Tensor | None) -> Tensor:
    """The stored gradient times the incoming one, and the correction in `work` where there is one, in place."""
    size = gradient.numel()
    launch = _scale_launch(_kind(gradient, incoming), size, work is not None, gradient.device)
    launch(gradient, incoming, incoming if work is None else work, size)
    return gradient


@functools.lru_cache(maxsize=256)
def _map_launch(_kind: Any, count: int, classes: int, stride: int, whole: int) -> _Launch:
    from refocal.losses.kernels import posterior

    plan = tiling(count, classes)
    constants = {"CLASSES": classes, "STRIDE": stride, "BLOCK": plan.block, "ROWS": plan.rows, "WHOLE": whole}
    return _Launch(posterior.rows_on_chip, plan.programs, warps=plan.warps, **constants)


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma of each row."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    count, classes = logits.shape
    probs = torch.empty((count, classes), dtype=logits.dtype, device=logits.device)
    launch = _map_launch(_kind(logits), count, classes, logits.stride(0), _whole(gamma))
    launch(logits, probs, count, gamma)
    return probs
