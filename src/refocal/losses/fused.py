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

_LONGEST_ROW_ON_CHIP = 32_768
_PARTS = 128  # programs, and so partial sums, of a sum
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
    """How rows are laid out over programs."""

    block: int
    rows: int
    warps: int
    stages: int
    programs: int


def tiling(rows: int, classes: int, device: torch.device) -> Tiling:
    """Whole rows on the chip; measured to be fast on an H200.

    Short rows: small programs, a tile each, one warp for 1,024 elements. Long rows: as many programs as run at once,
    each loading its next row while it works on one.
    """
    block = _power_of_two(classes)
    if block <= 1024:
        per_tile = max(1, 512 // block)
        return Tiling(block, per_tile, 1 if per_tile == 1 else 2, 1, -(-rows // per_tile))
    if block <= 8192:
        return Tiling(block, 1, block // 1024, 1, rows)
    return Tiling(block, 1, min(32, block // 1024), 3, min(rows, 2 * _multiprocessors(device)))


def chunking(rows: int, device: torch.device) -> Tiling:
    """Long rows by chunks: no more at once than the L2 cache holds for their second reading."""
    return Tiling(16_384, 1, 32, 1, min(rows, _multiprocessors(device)))


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
    plan = tiling(count, classes, logits.device)
    posterior.rows_on_chip[(plan.programs,)](
        logits,
        probs,
        count,
        logits.stride(0),
        gamma,
        CLASSES=classes,
        BLOCK=plan.block,
        ROWS=plan.rows,
        STAGES=plan.stages,
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
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: the plain formula has one
            from refocal.losses.softmax import focal_rows as plain_rows

            rows = Rows(logits, target, (logits.shape[0],))
            weight, ignore_index = ctx.settings.weight, ctx.settings.ignore_index
            plain = reduce(
                plain_rows(rows, ctx.settings), rows, ctx.reduction, weight=weight, ignore_index=ignore_index
            )
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
            return gradient, None, None, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:  # a second pass through the same graph
            _, gradient = _launch(logits, target, ctx.settings, ctx.reduction, gradient=True)
        if ctx.reduction == "none":
            return gradient * incoming[:, None], None, None, None
        return _scaled(gradient, incoming, None), None, None, None


class _SigmoidFocal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, settings: tuple[float, float | None, int], reduction: str
    ) -> Tensor:
        loss, gradient, ratio = _launch_sigmoid(logits, target, settings, reduction, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction, ctx.gradient, ctx.ratio = settings, reduction, gradient, ratio
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():
            from refocal.losses.sigmoid import sigmoid_focal_elements

            plain = sigmoid_focal_elements(logits, target, *ctx.settings)
            if ctx.reduction != "none":
                plain = plain.sum()
            if ctx.reduction == "mean":
                plain = plain / (target != ctx.settings[2]).sum()
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
            return gradient, None, None, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            _, gradient, _ = _launch_sigmoid(logits, target, ctx.settings, ctx.reduction, gradient=True)
        if ctx.reduction == "none":
            return gradient * incoming, None, None, None
        return _scaled(gradient, incoming, ctx.ratio), None, None, None


def _launch(
    logits: Tensor, target: Tensor, settings: Settings, reduction: str, *, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """The loss, reduced, and the gradient in the logits."""
    from refocal.losses.kernels import hard, soft

    device, (count, classes) = logits.device, logits.shape
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    weight = None if settings.weight is None else settings.weight.contiguous()
    hard_target = target.ndim == 1 and not settings.label_smoothing
    chunked = hard_target and classes > _LONGEST_ROW_ON_CHIP
    plan = chunking(count, device) if chunked else tiling(count, classes, device)
    result = torch.empty((count, classes), dtype=logits.dtype, device=device) if gradient else None
    losses = torch.empty(count, dtype=torch.float32, device=device)
    number = _number(target, weight, settings.ignore_index) if reduction == "mean" else None
    by_class = isinstance(settings.gamma, tuple)
    gammas = _gammas(settings.gamma, device) if by_class else losses
    # where a pointer is not used, any will do
    pointers = (
        losses if result is None else result,
        losses,
        gammas,
        losses if weight is None else weight,
        losses if number is None else number,
    )
    gamma = 0.0 if by_class else float(settings.gamma)
    options = {
        "CLASSES": classes,
        "BLOCK": plan.block,
        "SCALED": number is not None,
        "GAMMA_BY_CLASS": by_class,
        "WEIGHTED": weight is not None,
        "DETACHED": settings.detached,
        "GRADIENT": gradient,
        "STAGES": plan.stages,
        "num_warps": plan.warps,
    }
    grid = (plan.programs,)
    numbers = (count, logits.stride(0))
    if hard_target:
        kernel = hard.rows_in_chunks if chunked else hard.rows_on_chip
        if plan.rows > 1:
            kernel, options["ROWS"] = hard.tiles_of_rows, plan.rows
            del options["STAGES"]
        kernel[grid](logits, target, *pointers, *numbers, gamma, settings.ignore_index, **options)
    else:
        indices = target.ndim == 1
        target = target if indices or target.stride(1) == 1 else target.contiguous()
        soft.rows_on_chip[grid](
            logits,
            target,
            *pointers,
            *numbers,
            0 if indices else target.stride(0),
            gamma,
            settings.ignore_index,
            float(settings.label_smoothing),
            ROWS=plan.rows,
            WHOLE=0 if by_class else _whole(gamma),
            INDICES=indices,
            SMOOTHED=settings.label_smoothing > 0,
            **options,
        )
    if reduction == "none":
        return losses.to(logits.dtype), result
    return _finish(losses, number, dtype=logits.dtype, expected=1.0)[0], result


def _number(target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
    """What `nn.CrossEntropyLoss` divides by: rows, or the weights of their classes."""
    from refocal.losses.kernels import elementwise

    if target.ndim == 2:
        return torch.full((1,), float(len(target)), device=target.device)
    parts = torch.empty(_PARTS, dtype=torch.float32, device=target.device)
    elementwise.count_targets[(_PARTS,)](
        target,
        parts if weight is None else weight,
        parts,
        len(target),
        ignore_index,
        BLOCK=1024,
        WEIGHTED=weight is not None,
    )
    return _add(parts, programs=1)


def _add(values: Tensor, *, programs: int) -> Tensor:
    """Partial sums of a vector, one a program."""
    from refocal.losses.kernels import elementwise

    sums = torch.empty(programs, dtype=torch.float32, device=values.device)
    elementwise.add_parts[(programs,)](values, sums, values.numel(), BLOCK=1024)
    return sums


def _finish(
    losses: Tensor, counts: Tensor | None, *, dtype: torch.dtype, expected: float
) -> tuple[Tensor, Tensor | None]:
    """The sum of losses, or their mean; with a mean, also the expected count divided by the true one."""
    from refocal.losses.kernels import elementwise

    parts = _add(losses, programs=_PARTS)
    loss = torch.empty((), dtype=dtype, device=losses.device)
    ratio = None if counts is None else torch.empty((), dtype=torch.float32, device=losses.device)
    elementwise.finish[(1,)](
        parts,
        parts if counts is None else counts,
        loss,
        parts if ratio is None else ratio,
        expected,
        PARTS=_PARTS,
        COUNTS=0 if counts is None else counts.numel(),
    )
    return loss, ratio


def _launch_sigmoid(
    logits: Tensor, target: Tensor, settings: tuple[float, float | None, int], reduction: str, *, gradient: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, reduced; the gradient, divided by the number of scores; and the correction for ignored ones."""
    from refocal.losses.kernels import elementwise

    gamma, alpha, ignore_index = settings
    logits, target = logits.contiguous(), target.contiguous()
    size, block = logits.numel(), 2048
    programs = -(-size // block)
    result = torch.empty_like(logits) if gradient else None
    by_element = reduction == "none"
    losses = torch.empty_like(logits) if by_element else torch.empty(programs, device=logits.device)
    counts = losses if by_element else torch.empty_like(losses)
    elementwise.sigmoid_focal[(programs,)](
        logits,
        target,
        losses if result is None else result,
        losses,
        counts,
        size,
        gamma,
        0.0 if alpha is None else alpha,
        float(ignore_index),
        1.0 / size if reduction == "mean" else 1.0,
        BLOCK=block,
        BALANCED=alpha is not None,
        GRADIENT=gradient,
        BY_ELEMENT=by_element,
        num_warps=8,
    )
    if by_element:
        return losses, result, None
    numbers = _add(counts, programs=_PARTS) if reduction == "mean" else None
    loss, ratio = _finish(losses, numbers, dtype=logits.dtype, expected=float(size))
    return loss, result, ratio


def _scaled(gradient: Tensor, incoming: Tensor, ratio: Tensor | None) -> Tensor:
    """The stored gradient times the incoming one, in place."""
    from refocal.losses.kernels import elementwise

    block = 4096
    programs = min(-(-gradient.numel() // block), 4 * _multiprocessors(gradient.device))
    elementwise.scale_all[(programs,)](
        gradient,
        incoming,
        incoming if ratio is None else ratio,
        gradient.numel(),
        BLOCK=block,
        CORRECTED=ratio is not None,
        num_warps=8,
    )
    return gradient
