"""Which calls the fused kernels serve, how they are launched, and their place in automatic differentiation.

A fused loss computes its gradient in the forward pass, already divided by what a mean divides by, so that a backward pass
with incoming gradient 1 costs nothing. Where a second derivative, tracing or `torch.func` is asked for, the plain formulas
of `refocal.losses.softmax` and `.sigmoid` serve instead.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refocal.losses.targets import Rows

_LONGEST_ROW_ON_CHIP = 32_768
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
    """Whether a kernel computes this posterior map: two-dimensional logits that need no gradient, one gamma."""
    if logits.ndim != 2 or logits.requires_grad or not isinstance(gamma, (int, float)):
        return False
    return 2 <= logits.shape[1] <= _LONGEST_ROW_ON_CHIP and logits.shape[0] > 0 and _runs_kernels(logits)


def _runs_kernels(tensor: Tensor) -> bool:
    if tensor.dtype not in _DTYPES or not _has_triton():
        return False
    if not tensor.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    return not (torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor))


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 1).bit_length()


class _Tiling(NamedTuple):
    """How rows are laid out over programs."""

    block: int
    rows: int
    warps: int
    stages: int
    programs: int


def _tiling(rows: int, classes: int, device: torch.device) -> _Tiling:
    """Tiles of about 2,048 elements for short rows, one row for long ones; as many programs as run at once."""
    block = _power_of_two(classes)
    per_tile = max(1, 2048 // block)
    warps = min(32, max(4, block * per_tile // 1024))
    per_processor = max(1, 64 // (2 * warps))
    programs = min(-(-rows // per_tile), _multiprocessors(device) * per_processor)
    return _Tiling(block, per_tile, warps, 3 if block <= 4096 else 1, programs)


def focal_rows(rows: Rows, settings: Settings, *, reduction: str) -> Tensor:
    """Focal losses (N,), or their sum or mean, by the fused kernels."""
    return _FocalRows.apply(rows.logits, rows.target, settings, reduction)


def sigmoid_focal(
    logits: Tensor, target: Tensor, gamma: float, alpha: float | None, ignore_index: int, *, reduction: str
) -> Tensor:
    """Sigmoid focal losses, or their sum or mean, by the fused kernel."""
    return _SigmoidFocal.apply(logits, target, gamma, alpha, ignore_index, reduction)


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma of each row, by the fused kernel."""
    from refocal.losses.kernels import posterior

    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    count, classes = logits.shape
    probs = torch.empty((count, classes), dtype=logits.dtype, device=logits.device)
    plan = _tiling(count, classes, logits.device)
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
        num_warps=plan.warps,
    )
    return probs


class _FocalRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, settings: Settings, reduction: str) -> Tensor:
        denominator = _denominator(logits, target, settings) if reduction == "mean" else None
        losses, gradient = _launch(logits, target, settings, denominator, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction, ctx.denominator, ctx.gradient = settings, reduction, denominator, gradient
        return _reduced(losses, reduction, denominator).to(logits.dtype)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: the plain formula has one
            from refocal.losses.softmax import focal_rows as plain_rows

            plain = plain_rows(Rows(logits, target, ()), ctx.settings)
            value = _reduced(plain, ctx.reduction, ctx.denominator)
            (gradient,) = torch.autograd.grad(value, logits, incoming, create_graph=True)
            return gradient, None, None, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:  # a second pass through the same graph
            _, gradient = _launch(logits, target, ctx.settings, ctx.denominator, gradient=True)
        return _scaled(gradient, incoming), None, None, None


class _SigmoidFocal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        gamma: float,
        alpha: float | None,
        ignore_index: int,
        reduction: str,
    ) -> Tensor:
        settings = (gamma, alpha, ignore_index)
        denominator = (target != ignore_index).sum().to(torch.float32) if reduction == "mean" else None
        losses, gradient = _launch_sigmoid(logits, target, settings, denominator, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction, ctx.denominator, ctx.gradient = settings, reduction, denominator, gradient
        return _reduced(losses, reduction, denominator)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():
            from refocal.losses.sigmoid import sigmoid_focal_elements

            plain = sigmoid_focal_elements(logits, target, *ctx.settings)
            value = _reduced(plain, ctx.reduction, ctx.denominator)
            (gradient,) = torch.autograd.grad(value, logits, incoming, create_graph=True)
            return gradient, None, None, None, None, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            _, gradient = _launch_sigmoid(logits, target, ctx.settings, ctx.denominator, gradient=True)
        if ctx.reduction == "none":
            gradient = gradient * incoming
        else:
            gradient = _scaled(gradient.view(-1, 1), incoming, row_length=4096).view(gradient.shape)
        return gradient, None, None, None, None, None


def _reduced(losses: Tensor, reduction: str, denominator: Tensor | None) -> Tensor:
    if reduction == "none":
        return losses
    total = losses.sum()
    return total if denominator is None else total / denominator


def _denominator(logits: Tensor, target: Tensor, settings: Settings) -> Tensor:
    """What `nn.CrossEntropyLoss` divides by: rows, or the weights of their classes."""
    if target.ndim == 2:
        return torch.full((), float(logits.shape[0]), device=logits.device)
    keep = target != settings.ignore_index
    if settings.weight is None:
        return keep.sum().to(torch.float32)
    return torch.where(keep, settings.weight.float()[torch.where(keep, target, 0)], 0).sum()


def _launch(
    logits: Tensor, target: Tensor, settings: Settings, denominator: Tensor | None, *, gradient: bool
) -> tuple[Tensor, Tensor | None]:
    """Losses (N,) in float32, and the gradient divided by the denominator."""
    from refocal.losses.kernels import hard, soft

    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    count, classes = logits.shape
    losses = torch.empty(count, dtype=torch.float32, device=logits.device)
    result = torch.empty((count, classes), dtype=logits.dtype, device=logits.device) if gradient else None
    by_class = isinstance(settings.gamma, tuple)
    gammas = torch.tensor(settings.gamma, dtype=torch.float32, device=logits.device) if by_class else losses
    weighted = settings.weight is not None
    pointers = (
        losses,
        gammas,
        settings.weight.contiguous() if settings.weight is not None else losses,
        losses if denominator is None else denominator,
    )
    options = {
        "CLASSES": classes,
        "GAMMA_BY_CLASS": by_class,
        "WEIGHTED": weighted,
        "SCALED": denominator is not None,
        "DETACHED": settings.detached,
        "GRADIENT": gradient,
    }
    gamma = 0.0 if by_class else float(settings.gamma)
    plan = _tiling(count, classes, logits.device)
    tile = {"BLOCK": plan.block, "ROWS": plan.rows, "STAGES": plan.stages, "num_warps": plan.warps}
    out = losses if result is None else result
    if target.ndim == 2 or settings.label_smoothing:
        indices = target.ndim == 1
        target = target if indices or target.stride(1) == 1 else target.contiguous()
        soft.rows_on_chip[(plan.programs,)](
            logits,
            target,
            out,
            *pointers,
            count,
            logits.stride(0),
            0 if indices else target.stride(0),
            gamma,
            settings.ignore_index,
            float(settings.label_smoothing),
            INDICES=indices,
            **options,
            **tile,
        )
    elif classes <= _LONGEST_ROW_ON_CHIP:
        hard.rows_on_chip[(plan.programs,)](
            logits, target, out, *pointers, count, logits.stride(0), gamma, settings.ignore_index, **options, **tile
        )
    else:
        programs = min(count, _multiprocessors(logits.device))
        hard.rows_in_chunks[(programs,)](
            logits,
            target,
            out,
            *pointers,
            count,
            logits.stride(0),
            gamma,
            settings.ignore_index,
            **options,
            BLOCK=8192,
            STAGES=3,
            num_warps=16,
        )
    return losses, result


def _launch_sigmoid(
    logits: Tensor,
    target: Tensor,
    settings: tuple[float, float | None, int],
    denominator: Tensor | None,
    *,
    gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    from refocal.losses.kernels import elementwise

    gamma, alpha, ignore_index = settings
    logits, target = logits.contiguous(), target.contiguous()
    losses = torch.empty_like(logits)
    result = torch.empty_like(logits) if gradient else None
    block = 1024
    elementwise.sigmoid_focal[(-(-logits.numel() // block),)](
        logits,
        target,
        losses if result is None else result,
        losses,
        losses if denominator is None else denominator,
        logits.numel(),
        gamma,
        0.0 if alpha is None else alpha,
        float(ignore_index),
        BLOCK=block,
        BALANCED=alpha is not None,
        SCALED=denominator is not None,
        GRADIENT=gradient,
        num_warps=4,
    )
    return losses, result


def _scaled(gradient: Tensor, incoming: Tensor, *, row_length: int | None = None) -> Tensor:
    """The stored gradient times the incoming one, in place."""
    from refocal.losses.kernels import elementwise

    incoming = incoming.contiguous()
    classes = gradient.shape[1] if row_length is None else row_length
    rows = gradient.shape[0] if row_length is None else gradient.numel() // classes
    if rows:
        elementwise.scale_rows[(rows,)](
            gradient, incoming, rows, CLASSES=classes, BLOCK=min(4096, _power_of_two(classes)), BY_ROW=incoming.ndim > 0
        )
    if row_length is not None and gradient.numel() % classes:
        tail = gradient.view(-1)[rows * classes :]
        tail.mul_(incoming)
    return gradient
