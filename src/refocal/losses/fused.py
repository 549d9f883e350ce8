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
from torch.autograd import forward_ad

from refocal.losses import launches, sigmoid_launches
from refocal.losses.compiled import INTERPRETED, on_device_of
from refocal.losses.launches import Plan, Settings
from refocal.losses.layouts import LONGEST_ROW_ON_CHIP
from refocal.losses.sigmoid_launches import SigmoidSettings
from refocal.losses.targets import reduce, rows_of

_CUDA_KERNELS = torch.version.hip is None and importlib.util.find_spec("triton") is not None
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


def runs_kernels(logits: Tensor, target: Tensor | None = None, weight: Tensor | None = None) -> bool:
    """Whether kernels can run on these tensors: on a GPU, outside of tracing and transformations."""
    if not ((logits.is_cuda and _CUDA_KERNELS) or INTERPRETED) or logits.dtype not in _DTYPES:
        return False
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() or torch._C._are_functorch_transforms_active():
        return False
    if torch._C._len_torch_dispatch_stack() or forward_ad._current_level >= 0:
        return False
    # the kernels differentiate in the logits alone; tensors of another device are for PyTorch to refuse
    device = logits.get_device()
    if target is not None and (target.requires_grad or target.get_device() != device):
        return False
    return weight is None or (not weight.requires_grad and weight.get_device() == device)


def focal_loss(  # noqa: PLR0917 small batches wait for the host, to which keywords are work
    logits: Tensor,
    target: Tensor,
    gamma: Any,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    detached: bool,
    reduction: str,
) -> Tensor | None:
    """Focal losses, or their sum or mean; None where no kernel serves these tensors as they lie, or they do not fit."""
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor) and isinstance(gamma, (float, tuple))):
        return None
    if not runs_kernels(logits, target, weight):
        return None
    dtype, device = logits.dtype, logits.device
    plan = launches.plan_for(
        logits.shape,
        logits.stride(),
        dtype,
        device,
        target.shape,
        target.stride(),
        target.dtype,
        None if weight is None else weight.shape,
        None if weight is None else weight.dtype,
        gamma,
        ignore_index,
        label_smoothing,
        detached,
        reduction,
        dtype != torch.float32 and torch.is_autocast_enabled(device.type),  # which leaves wider types alone
        logits.requires_grad and torch.is_grad_enabled(),
    )
    if plan is None:
        return None
    if INTERPRETED or device.index == torch._C._cuda_getDevice():
        return _apply_focal_loss(logits, (target, weight, plan))  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):
        return _apply_focal_loss(logits, (target, weight, plan))  # type: ignore[no-untyped-call]


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


class _FocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, how: tuple[Tensor, Tensor | None, Plan]) -> Tensor:
        target, weight, plan = how
        loss, gradient, correction = launches.loss_and_gradient(plan, logits, target, weight)
        ctx.save_for_backward(logits, target, weight)
        ctx.results = plan, gradient, correction
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, None]:
        plan, gradient, correction = ctx.results
        if gradient is not None and not torch.is_grad_enabled():
            ctx.results = plan, None, correction
            launches.multiply(plan, gradient, incoming, correction)
            return gradient, None
        logits, target, weight = ctx.saved_tensors
        case = plan.case
        if torch.is_grad_enabled():  # a second derivative is wanted: the plain formula has one
            from refocal.losses.softmax import focal_rows as plain_rows

            settings = Settings(case.gamma, weight, case.ignore_index, case.label_smoothing, case.detached)
            rows = rows_of(logits, target)
            losses = plain_rows(rows, settings).reshape(rows.shape)
            plain = reduce(losses, rows, case.reduction, weight=weight, ignore_index=case.ignore_index)
            plain = plain.to(case.loss_dtype)
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
        else:  # later, or a second pass through the same graph
            gradient = launches.gradient_alone(case, logits, target, weight, incoming=incoming, correction=correction)
        return gradient, None


# beneath `Function.apply`, which looks for transformations of `torch.func`: `runs_kernels` has, and small batches wait
_apply_focal_loss = super(torch.autograd.Function, _FocalLoss).apply


class _SigmoidFocal(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 `apply` takes no keywords
        ctx: Any, logits: Tensor, target: Tensor, settings: SigmoidSettings, reduction: str, wanted: bool
    ) -> Tensor:
        with on_device_of(logits):
            loss, ctx.gradient, ctx.correction = sigmoid_launches.loss_and_gradient(
                logits, target, settings, reduction, gradient=wanted and launches.at_once(logits.dtype, reduction)
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
