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

from refocal.losses import launches, sigmoid_launches
from refocal.losses.compiled import INTERPRETED, on_device_of
from refocal.losses.launches import Case, Plan, Settings
from refocal.losses.layouts import LONGEST_ROW_ON_CHIP
from refocal.losses.sigmoid_launches import SigmoidSettings
from refocal.losses.targets import loss_dtype, reduce, rows_of

_HAS_TRITON = importlib.util.find_spec("triton") is not None
_NVIDIA = torch.version.hip is None
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def serves_sigmoid(logits: Tensor, target: Tensor, gamma: Any, alpha: Any) -> bool:
    """Whether a kernel computes this sigmoid loss."""
    fixed = isinstance(gamma, float) and not isinstance(alpha, tuple)
    return fixed and logits.numel() > 0 and runs_kernels(logits, target)


def serves_map(logits: Tensor, gamma: Any) -> bool:
    """Whether a kernel computes this posterior map: batches of logits without gradient, one moderate gamma."""
    if logits.ndim < 2 or logits.requires_grad or not isinstance(gamma, (int, float)) or not 0 <= gamma <= 100:
        return False
    return runs_kernels(logits) and 2 <= logits.shape[1] <= LONGEST_ROW_ON_CHIP and logits.numel() > 0


def runs_kernels(logits: Tensor, *others: Tensor | None) -> bool:
    """Whether kernels can run on these tensors: on a GPU, outside of tracing and transformations."""
    if not _HAS_TRITON or logits.dtype not in _DTYPES or not ((logits.is_cuda and _NVIDIA) or INTERPRETED):
        return False
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or torch.autograd.forward_ad._current_level >= 0:
        return False
    wrapped, device = torch._C._functorch.is_functorch_wrapped_tensor, logits.get_device()
    for tensor in others:
        # the kernels differentiate in the logits alone; tensors of another device are for PyTorch to refuse
        if tensor is not None and (tensor.requires_grad or wrapped(tensor) or tensor.get_device() != device):
            return False
    return not wrapped(logits)


def focal_loss(logits: Tensor, target: Tensor, settings: Settings, *, reduction: str) -> Tensor | None:
    """Focal losses, or their sum or mean; None where no kernel serves these tensors as they lie, or they do not fit."""
    if not runs_kernels(logits, target, settings.weight) or not isinstance(settings.gamma, (float, tuple)):
        return None
    gradient = logits.requires_grad and _at_once(logits, reduction) and torch.is_grad_enabled()
    dtype = loss_dtype(logits, target, settings.weight)
    case = launches.case_of(logits, target, settings, reduction, dtype, gradient=gradient)
    plan = launches.plan_for(case)
    if plan is None:
        return None
    return _FocalLoss.apply(logits, target, (settings, case, plan))  # type: ignore[no-untyped-call]


def sigmoid_focal(
    logits: Tensor, target: Tensor, gamma: Any, alpha: Any, ignore_index: int, *, reduction: str
) -> Tensor:
    """Sigmoid focal losses, or their sum or mean, by the fused kernel."""
    wanted = torch.is_grad_enabled() and logits.requires_grad
    settings = SigmoidSettings(gamma, alpha, ignore_index)
    return _SigmoidFocal.apply(logits, target, settings, reduction, wanted)  # type: ignore[no-untyped-call]


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma over dimension 1, by the fused kernel."""
    with on_device_of(logits):
        return launches.posterior_map(logits, gamma)


def _at_once(logits: Tensor, reduction: str) -> bool:
    """Whether the gradient is computed with the loss, for an incoming 1, and scaled later.

    Not so where one gradient comes in for each loss; nor in float16, in which gradients divided by the number of
    samples would underflow before the incoming one, which a gradient scaler made large, could lift them.
    """
    return reduction != "none" and logits.dtype != torch.float16


class _FocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, how: tuple[Settings, Case, Plan]) -> Tensor:
        settings, case, plan = how
        with on_device_of(logits):
            loss, ctx.gradient, ctx.correction = launches.loss_and_gradient(plan, case, logits, target, settings)
        ctx.save_for_backward(logits, target)
        ctx.how = how
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, None, None]:
        settings, case, plan = ctx.how
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is not None and not torch.is_grad_enabled():
            launches.multiply(plan, gradient, incoming, ctx.correction)
            return gradient, None, None
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is wanted: the plain formula has one
            from refocal.losses.softmax import focal_rows as plain_rows

            rows = rows_of(logits, target)
            losses = plain_rows(rows, settings).reshape(rows.shape)
            weight, ignore_index = settings.weight, settings.ignore_index
            plain = reduce(losses, rows, case.reduction, weight=weight, ignore_index=ignore_index).to(case.loss_dtype)
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
        else:  # later, or a second pass through the same graph
            gradient = launches.gradient_alone(
                case, logits, target, settings, incoming=incoming, correction=ctx.correction
            )
        return gradient, None, None


class _SigmoidFocal(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 `apply` takes no keywords
        ctx: Any, logits: Tensor, target: Tensor, settings: SigmoidSettings, reduction: str, wanted: bool
    ) -> Tensor:
        with on_device_of(logits):
            loss, ctx.gradient, ctx.correction = sigmoid_launches.loss_and_gradient(
                logits, target, settings, reduction, gradient=wanted and _at_once(logits, reduction)
            )
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction = settings, reduction
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None, None]:
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is not None and not torch.is_grad_enabled():
            return sigmoid_launches.multiply(gradient, incoming, ctx.correction), None, None, None, None
        logits, target = ctx.saved_tensors
        if torch.is_grad_enabled():
            from refocal.losses.sigmoid import sigmoid_focal_elements

            plain = sigmoid_focal_elements(logits, target, *ctx.settings)
            if ctx.reduction != "none":
                plain = plain.sum()
            if ctx.reduction == "mean":
                plain = plain / (target != ctx.settings[2]).sum()
            (gradient,) = torch.autograd.grad(plain.to(incoming.dtype), logits, incoming, create_graph=True)
        else:
            gradient = sigmoid_launches.gradient_alone(
                logits, target, ctx.settings, ctx.reduction, incoming=incoming, correction=ctx.correction
            )
        return gradient, None, None, None, None
