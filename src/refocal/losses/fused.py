"""Which calls the fused kernels serve, and their place in automatic differentiation.

A fused loss computes its gradient in the forward pass, already divided by what a mean divides by, so that a backward
pass with incoming gradient 1 costs nothing. Where a second derivative, tracing or `torch.func` is asked for, the plain
formulas of `refocal.losses.softmax` and `.sigmoid` serve instead.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from refocal.losses import launches
from refocal.losses.compiled import INTERPRETED, on_device_of
from refocal.losses.launches import LONGEST_ROW_ON_CHIP, Settings, SigmoidSettings
from refocal.losses.targets import Rows, reduce

_HAS_TRITON = importlib.util.find_spec("triton") is not None
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def serves(rows: Rows, settings: Settings) -> bool:
    """Whether a kernel computes this loss: on a GPU, for fixed gammas, outside of tracing and transformations."""
    hard = rows.has_indices and not settings.label_smoothing
    fits = hard or rows.logits.shape[1] <= LONGEST_ROW_ON_CHIP
    fixed = isinstance(settings.gamma, (float, tuple))
    return fixed and fits and rows.logits.shape[0] > 0 and _runs_kernels(rows.logits, rows.target, settings.weight)


def serves_sigmoid(logits: Tensor, target: Tensor, gamma: Any, alpha: Any) -> bool:
    """Whether a kernel computes this sigmoid loss."""
    fixed = isinstance(gamma, float) and not isinstance(alpha, tuple)
    return fixed and logits.numel() > 0 and _runs_kernels(logits, target)


def serves_map(logits: Tensor, gamma: Any) -> bool:
    """Whether a kernel computes this posterior map: two-dimensional logits without gradient, one moderate gamma."""
    if logits.ndim != 2 or logits.requires_grad or not isinstance(gamma, (int, float)) or not 0 <= gamma <= 100:
        return False
    return _runs_kernels(logits) and 2 <= logits.shape[1] <= LONGEST_ROW_ON_CHIP and logits.shape[0] > 0


def _runs_kernels(logits: Tensor, *others: Tensor | None) -> bool:
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or torch.autograd.forward_ad._current_level >= 0:
        return False
    given = [tensor for tensor in others if tensor is not None]
    if any(tensor.requires_grad for tensor in given):  # the kernels differentiate in the logits alone
        return False
    if any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in (logits, *given)):
        return False
    on_gpu = logits.is_cuda and torch.version.hip is None
    return _HAS_TRITON and logits.dtype in _DTYPES and (on_gpu or INTERPRETED)


def focal_rows(rows: Rows, settings: Settings, *, reduction: str) -> Tensor:
    """Focal losses (N,), or their sum or mean, by the fused kernels."""
    wanted = torch.is_grad_enabled() and rows.logits.requires_grad
    return _FocalRows.apply(rows.logits, rows.target, settings, reduction, wanted)  # type: ignore[no-untyped-call]


def sigmoid_focal(
    logits: Tensor, target: Tensor, gamma: Any, alpha: Any, ignore_index: int, *, reduction: str
) -> Tensor:
    """Sigmoid focal losses, or their sum or mean, by the fused kernel."""
    wanted = torch.is_grad_enabled() and logits.requires_grad
    settings = SigmoidSettings(gamma, alpha, ignore_index)
    return _SigmoidFocal.apply(logits, target, settings, reduction, wanted)  # type: ignore[no-untyped-call]


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma of each row, by the fused kernel."""
    with on_device_of(logits):
        return launches.posterior_map(logits, gamma)


def _at_once(logits: Tensor, reduction: str) -> bool:
    """Whether the gradient is computed with the loss, for an incoming 1, and scaled later.

    Not so where one gradient comes in for each loss; nor in float16, in which gradients divided by the number of
    samples would underflow before the incoming one, which a gradient scaler made large, could lift them.
    """
    return reduction != "none" and logits.dtype != torch.float16


class _FocalRows(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 `apply` takes no keywords
        ctx: Any, logits: Tensor, target: Tensor, settings: Settings, reduction: str, wanted: bool
    ) -> Tensor:
        with on_device_of(logits):
            loss, ctx.gradient = launches.focal_rows(
                logits, target, settings, reduction, gradient=wanted and _at_once(logits, reduction)
            )
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction = settings, reduction
        assert loss is not None
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is not None and not torch.is_grad_enabled():
            return launches.scale(gradient, incoming, None), None, None, None, None
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: the plain formula has one
            from refocal.losses.softmax import focal_rows as plain_rows

            rows = Rows(logits, target, (logits.shape[0],))
            weight, ignore_index = ctx.settings.weight, ctx.settings.ignore_index
            plain = reduce(
                plain_rows(rows, ctx.settings), rows, ctx.reduction, weight=weight, ignore_index=ignore_index
            )
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
        else:  # later, or a second pass through the same graph
            _, gradient = launches.focal_rows(
                logits, target, ctx.settings, ctx.reduction, gradient=True, incoming=incoming
            )
        return gradient, None, None, None, None


class _SigmoidFocal(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917
        ctx: Any, logits: Tensor, target: Tensor, settings: SigmoidSettings, reduction: str, wanted: bool
    ) -> Tensor:
        with on_device_of(logits):
            loss, ctx.gradient, ctx.work = launches.sigmoid_focal(
                logits, target, settings, reduction, gradient=wanted and _at_once(logits, reduction)
            )
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction = settings, reduction
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None, None]:
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is not None and not torch.is_grad_enabled():
            return launches.scale(gradient, incoming, ctx.work), None, None, None, None
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():
            from refocal.losses.sigmoid import sigmoid_focal_elements

            plain = sigmoid_focal_elements(logits, target, *ctx.settings)
            if ctx.reduction != "none":
                plain = plain.sum()
            if ctx.reduction == "mean":
                plain = plain / (target != ctx.settings[2]).sum()
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
        else:
            gradient = launches.sigmoid_gradient(
                logits, target, ctx.settings, ctx.reduction, incoming=incoming, work=ctx.work
            )
        return gradient, None, None, None, None
