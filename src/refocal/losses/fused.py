"""Which calls the fused kernels serve, how they are launched, and their place in automatic differentiation.

A fused loss computes its gradient in the forward pass, already divided by what a mean divides by, so that a backward
pass with incoming gradient 1 costs nothing. Where a second derivative, tracing or `torch.func` is asked for, the plain
formulas of `refocal.losses.softmax` and `.sigmoid` serve instead.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refocal.losses.targets import Rows, reduce

_LONGEST_TILED_ROW = 512
_LONGEST_ROW_ON_CHIP = 32_768
_LONGEST_RAGGED_ROW_ON_CHIP = 65_536  # rows that start at odd addresses are read slowly, and better only once
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it once, when it is imported
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Settings(NamedTuple):
    """Everything a focal loss depends on beside its data."""

    gamma: Any
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    detached: bool


def serves(rows: Rows, gamma: Any) -> bool:
    """Whether a kernel computes this loss: on a GPU, for fixed gammas, outside of tracing and transformations."""
    soft_fits = rows.has_indices or rows.logits.shape[1] <= _LONGEST_ROW_ON_CHIP
    return isinstance(gamma, (float, tuple)) and soft_fits and rows.logits.shape[0] > 0 and _runs_kernels(rows.logits)


def serves_sigmoid(logits: Tensor, gamma: Any, alpha: Any) -> bool:
    """Whether a kernel computes this sigmoid loss."""
    return isinstance(gamma, float) and not isinstance(alpha, tuple) and logits.numel() > 0 and _runs_kernels(logits)


def serves_map(logits: Tensor, gamma: Any) -> bool:
    """Whether a kernel computes this posterior map: two-dimensional logits without gradient, one gamma >= 0."""
    if logits.ndim != 2 or logits.requires_grad or not isinstance(gamma, (int, float)) or gamma < 0:
        return False
    return 2 <= logits.shape[1] <= _LONGEST_ROW_ON_CHIP and logits.shape[0] > 0 and _runs_kernels(logits)


def _runs_kernels(tensor: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return _HAS_TRITON and tensor.dtype in _DTYPES and (tensor.is_cuda or _INTERPRETED)


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


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 1).bit_length()


class Tiling(NamedTuple):
    """How rows are laid out over programs: `block` columns of each of `rows` rows, in that many warps."""

    block: int
    rows: int
    warps: int
    programs: int


def tiling(count: int, classes: int) -> Tiling:
    """Whole rows on the chip; measured to be fast on an H200: short rows, some 512 elements a warp; others, 1,024."""
    block = _power_of_two(classes)
    if block <= _LONGEST_TILED_ROW:
        rows = (1024 if block in (32, 512) else 512) // block
        return Tiling(block, rows, 1, -(-count // rows))
    return Tiling(block, 1, min(block // 1024, 16 if block <= 32_768 else 32), count)


def focal_rows(rows: Rows, settings: Settings, *, reduction: str) -> Tensor:
    """Focal losses (N,), or their sum or mean, by the fused kernels."""
    return _FocalRows.apply(rows.logits, rows.target, settings, reduction)  # type: ignore[no-untyped-call]


def sigmoid_focal(
    logits: Tensor, target: Tensor, gamma: Any, alpha: Any, ignore_index: int, *, reduction: str
) -> Tensor:
    """Sigmoid focal losses, or their sum or mean, by the fused kernel."""
    return _SigmoidFocal.apply(logits, target, (gamma, alpha, ignore_index), reduction)  # type: ignore[no-untyped-call]


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma of each row, by the fused kernel."""
    from refocal.losses.kernels import posterior

    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    count, classes = logits.shape
    probs = torch.empty((count, classes), dtype=logits.dtype, device=logits.device)
    plan = tiling(count, classes)
    posterior.rows_on_chip[(plan.programs,)](
        logits,
        probs,
        count,
        gamma,
        CLASSES=classes,
        STRIDE=logits.stride(0),
        BLOCK=plan.block,
        ROWS=plan.rows,
        WHOLE=_whole(gamma),
        num_warps=plan.warps,
    )
    return probs


class _FocalRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, settings: Settings, reduction: str) -> Tensor:
        loss, gradient = _launch(logits, target, settings, reduction, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction, ctx.gradient = settings, reduction, gradient
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled():  # a second derivative is wanted: the plain formula has one
            from refocal.losses.softmax import focal_rows as plain_rows

            logits, target = ctx.saved_tensors
            rows = Rows(logits, target, (logits.shape[0],))
            weight, ignore_index = ctx.settings.weight, ctx.settings.ignore_index
            plain = reduce(
                plain_rows(rows, ctx.settings), rows, ctx.reduction, weight=weight, ignore_index=ignore_index
            )
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
            return gradient, None, None, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:  # a second pass through the same graph
            logits, target = ctx.saved_tensors
            _, gradient = _launch(logits, target, ctx.settings, ctx.reduction, gradient=True)
        if ctx.reduction == "none":
            return gradient * incoming[:, None], None, None, None
        return _scaled(gradient, incoming, None), None, None, None


class _SigmoidFocal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, settings: tuple[float, float | None, int], reduction: str
    ) -> Tensor:
        loss, gradient, work = _launch_sigmoid(logits, target, settings, reduction, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction, ctx.gradient, ctx.work = settings, reduction, gradient, work
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled():
            from refocal.losses.sigmoid import sigmoid_focal_elements

            logits, target = ctx.saved_tensors
            plain = sigmoid_focal_elements(logits, target, *ctx.settings)
            if ctx.reduction != "none":
                plain = plain.sum()
            if ctx.reduction == "mean":
                plain = plain / (target != ctx.settings[2]).sum()
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
            return gradient, None, None, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            logits, target = ctx.saved_tensors
            _, gradient, _ = _launch_sigmoid(logits, target, ctx.settings, ctx.reduction, gradient=True)
        if ctx.reduction == "none":
            return gradient * incoming, None, None, None
        return _scaled(gradient, incoming, ctx.work), None, None, None


def _launch(
    logits: Tensor, target: Tensor, settings: Settings, reduction: str, *, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The loss, reduced, and the gradient in the logits."""
    from refocal.losses.kernels import elementwise, soft

    count, classes = logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    weight = None if settings.weight is None else settings.weight.contiguous()
    indices = target.ndim == 1
    counted = reduction == "mean" and indices
    empty = logits.new_empty if counted or reduction == "none" else logits.new_zeros  # counting sets the ticket
    work = empty(elementwise.LOSSES.value + count, dtype=torch.float32)
    if counted:
        elementwise.count_targets[(elementwise.COUNTS.value,)](
            target,
            work if weight is None else weight,
            work,
            count,
            settings.ignore_index,
            BLOCK=4096,
            WEIGHTED=weight is not None,
            num_warps=16,
        )
    result = torch.empty((count, classes), dtype=logits.dtype, device=logits.device) if gradient else None
    by_class = isinstance(settings.gamma, tuple)
    gamma = 0.0 if by_class else settings.gamma
    # where a pointer is not used, any will do
    pointers = (
        work if result is None else result,
        work,
        _gammas(settings.gamma, logits.device) if by_class else work,
        work if weight is None else weight,
    )
    options = {
        "CLASSES": classes,
        "STRIDE": logits.stride(0),
        "SCALED": counted,
        "GAMMA_BY_CLASS": by_class,
        "WEIGHTED": weight is not None,
        "WHOLE": 0 if by_class else _whole(gamma),
        "DETACHED": settings.detached,
        "GRADIENT": gradient,
    }
    if indices and not settings.label_smoothing:
        _launch_hard((logits, target, *pointers), gamma, settings.ignore_index, options)
    else:
        target = target if indices or target.stride(1) == 1 else target.contiguous()
        plan = tiling(count, classes)
        soft.rows_on_chip[(plan.programs,)](
            logits,
            target,
            *pointers,
            count,
            gamma,
            settings.ignore_index,
            float(settings.label_smoothing),
            1.0 / count if reduction == "mean" else 1.0,
            TARGET_STRIDE=0 if indices else target.stride(0),
            BLOCK=plan.block,
            ROWS=plan.rows,
            INDICES=indices,
            SMOOTHED=settings.label_smoothing > 0,
            num_warps=min(32, 2 * plan.warps),  # it holds twice as much of each row
            **options,
        )
    if reduction == "none":
        return work[elementwise.LOSSES.value :].to(logits.dtype), result
    return _finished(work, count, expected=count if reduction == "mean" else 1, counted=counted, like=logits), result


def _launch_hard(pointers: tuple[Tensor, ...], gamma: float, ignore_index: int, options: dict[str, Any]) -> None:
    from refocal.losses.kernels import hard

    logits = pointers[0]
    count, classes = logits.shape
    numbers = (count, gamma, ignore_index)
    longest = _LONGEST_ROW_ON_CHIP if classes % 8 == 0 else _LONGEST_RAGGED_ROW_ON_CHIP
    if classes > longest:
        # no more rows at once than the L2 cache holds for their second reading
        programs = min(count, _multiprocessors(logits.device))
        hard.rows_in_chunks[(programs,)](*pointers, *numbers, LANES=2048, WIDTH=8, num_warps=32, **options)
        return
    plan = tiling(count, classes)
    options |= {"BLOCK": plan.block, "num_warps": plan.warps}
    if plan.block <= _LONGEST_TILED_ROW:
        hard.tiles_of_rows[(plan.programs,)](*pointers, *numbers, ROWS=plan.rows, **options)
    elif plan.block == _LONGEST_ROW_ON_CHIP and logits.itemsize == 2:
        # one program fills a multiprocessor, and its memory has room for the next rows
        programs = min(count, _multiprocessors(logits.device))
        hard.whole_rows[(programs,)](*pointers, *numbers, STAGES=3, **options)
    else:
        hard.whole_rows[(plan.programs,)](*pointers, *numbers, STAGES=1, **options)


def _finished(
    work: Tensor, size: int, *, expected: float, counted: bool, like: Tensor, counted_beside: bool = False
) -> Tensor:
    """The sum of the losses in `work`, divided by their count where they were counted, else by what is expected."""
    from refocal.losses.kernels import elementwise

    loss = torch.empty((), dtype=like.dtype, device=like.device)
    elementwise.finish[(elementwise.COUNTS.value,)](
        work, loss, size, float(expected), COUNTED=counted, COUNTED_BESIDE=counted_beside, BLOCK=8192, num_warps=16
    )
    return loss


def _launch_sigmoid(
    logits: Tensor, target: Tensor, settings: tuple[float, float | None, int], reduction: str, *, gradient: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, reduced; the gradient, divided by the number of scores; and the buffer with its correction, if any."""
    from refocal.losses.kernels import elementwise

    gamma, alpha, ignore_index = settings
    logits, target = logits.contiguous(), target.contiguous()
    size, block = logits.numel(), 4096
    programs = -(-size // block)
    result = torch.empty_like(logits) if gradient else None
    by_element, mean = reduction == "none", reduction == "mean"
    losses = torch.empty_like(logits) if by_element else None
    work = logits.new_zeros(elementwise.LOSSES.value + 2 * programs, dtype=torch.float32)
    elementwise.sigmoid_focal[(programs,)](
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
        BLOCK=block,
        BALANCED=alpha is not None,
        WHOLE=_whole(gamma),
        GRADIENT=gradient,
        BY_ELEMENT=by_element,
        num_warps=8,
    )
    if losses is not None:
        return losses, result, None
    loss = _finished(work, programs, expected=size if mean else 1, counted=mean, like=logits, counted_beside=mean)
    return loss, result, work if mean else None


def _scaled(gradient: Tensor, incoming: Tensor, work: Tensor | None) -> Tensor:
    """The stored gradient times the incoming one, and the correction in `work` where there is one, in place."""
    from refocal.losses.kernels import elementwise

    block = 4096
    programs = min(-(-gradient.numel() // block), 4 * _multiprocessors(gradient.device))
    elementwise.scale_all[(programs,)](
        gradient,
        incoming,
        incoming if work is None else work,
        gradient.numel(),
        CORRECTED=work is not None,
        BLOCK=block,
        num_warps=8,
    )
    return gradient
