"""Which calls the fused kernels serve, and their place in automatic differentiation.

A fused loss computes its gradient in the forward pass, already divided by what a mean divides by, so that a backward
pass with incoming gradient 1 costs nothing. Where a second derivative, tracing or `torch.func` is asked for, the plain
formulas of `refocal.losses.focal` and `.sigmoid` serve instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from refocal._arrays import is_transformed
from refocal.losses.gpu import execute, map_launches, sigmoid_launches
from refocal.losses.gpu.launch import HAS_TRITON, INTERPRETED, on_device_of
from refocal.losses.gpu.layout import LONGEST_ROW_ON_CHIP
from refocal.losses.gpu.plan import Plan, Settings, at_once, plan_for
from refocal.losses.gpu.sigmoid_launches import SigmoidSettings
from refocal.losses.rows import reduce, rows_of

_CUDA_KERNELS = HAS_TRITON and torch.version.hip is None
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_TYPES = (Tensor, nn.Parameter)


def serves_sigmoid(logits: Tensor, target: Tensor, gamma: Any, alpha: Any) -> bool:
    """Whether a kernel computes this sigmoid loss."""
    fixed = isinstance(gamma, float) and not isinstance(alpha, tuple)
    return fixed and logits.numel() > 0 and runs_kernels(logits, target)


def serves_map(logits: Tensor, gamma: Any) -> bool:
    """Whether a kernel computes this posterior map: batches of logits without gradient, one moderate gamma."""
    if logits.ndim < 2 or logits.requires_grad or not isinstance(gamma, (int, float)) or not 0 <= gamma <= 100:
        return False
    if not _runs_on(logits) or is_transformed(logits):
        return False
    return 2 <= logits.shape[1] <= LONGEST_ROW_ON_CHIP and logits.numel() > 0


def runs_kernels(logits: Any, target: Any, weight: Any = None) -> bool:
    """Whether kernels can run on these tensors: on a GPU, outside of tracing and transformations."""
    return _runs_on(logits) and _goes_along(target, logits) and (weight is None or _goes_along(weight, logits))


def runs_in_one_pass(logits: Any, target: Any, weight: Any = None) -> bool:
    """Whether these are tensors in main memory, outside of tracing and transformations."""
    if not (logits.is_cpu and _is_plain(logits)) or any(map(is_transformed, (logits, target, weight))):
        return False
    return _goes_along(target, logits) and (weight is None or _goes_along(weight, logits))


def _runs_on(logits: Any) -> bool:
    if type(logits) not in _TYPES or not ((logits.is_cuda and _CUDA_KERNELS) or INTERPRETED):
        return False
    return logits.dtype in _DTYPES and _is_plain(logits)


def _is_plain(logits: Any) -> bool:
    """Whether operations on a tensor are carried out one by one, and are differentiated backward if at all."""
    if type(logits) not in _TYPES or torch.compiler.is_compiling():
        return False
    if torch._C._get_tracing_state() or torch._C._are_functorch_transforms_active():
        return False
    return not torch._C._len_torch_dispatch_stack() and forward_ad._current_level < 0


def _goes_along(tensor: Any, logits: Tensor) -> bool:
    """Whether kernels can read a tensor beside the logits, in which alone they differentiate.

    Tensors of another device are for PyTorch to refuse.
    """
    if type(tensor) is not Tensor and not _has_address(tensor):
        return False
    return not tensor.requires_grad and tensor.get_device() == logits.get_device()


def _has_address(value: Any) -> bool:
    """Whether it is a tensor, and not one that leaves operations to others, as FakeTensor and DTensor do."""
    return isinstance(value, Tensor) and type(value).__torch_dispatch__ is Tensor.__torch_dispatch__


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
    if not runs_kernels(logits, target, weight) or not isinstance(gamma, (float, tuple)):
        return None
    dtype, device = logits.dtype, logits.device
    plan = plan_for(
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
    try:
        if INTERPRETED or device.index == torch._C._cuda_getDevice():
            return _apply_focal_loss(logits, (target, weight, plan))  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            return _apply_focal_loss(logits, (target, weight, plan))  # type: ignore[no-untyped-call]
    except RuntimeError:
        # what escaped from a transformation of `torch.func` has no address; to look for it before takes too long
        if any(map(is_transformed, (logits, target, weight))):
            return None
        raise


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
        return map_launches.posterior_map(logits, gamma)


class _FocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, how: tuple[Tensor, Tensor | None, Plan]) -> Tensor:
        target, weight, plan = how
        loss, gradient, correction = execute.loss_and_gradient(plan, logits, target, weight)
        ctx.save_for_backward(logits, target, weight)
        ctx.results = plan, gradient, correction
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        plan, gradient, correction = ctx.results
        ctx.results = plan, None, correction
        plainly = _by_plain_formula(incoming)
        if gradient is not None and not plainly:
            execute.multiply(plan, gradient, incoming, correction)
            return gradient, None
        logits, target, weight = ctx.saved_tensors
        case = plan.case
        if not plainly:  # later, or a second pass through the same graph
            gradient = execute.gradient_alone(case, logits, target, weight, incoming=incoming, correction=correction)
            return gradient, None

        def plain() -> Tensor:
            from refocal.losses.focal import focal_rows

            settings = Settings(case.gamma, weight, case.ignore_index, case.label_smoothing, case.detached)
            rows = rows_of(logits, target)
            losses = focal_rows(rows, settings).reshape(rows.shape)
            reduced = reduce(losses, rows, case.reduction, weight=weight, ignore_index=case.ignore_index)
            return reduced.to(case.loss_dtype)

        return _gradient_of(plain, logits, incoming), None


def _by_plain_formula(incoming: Tensor) -> bool:
    """Whether a gradient is to be differentiated again; or many come in at once, in a tensor without an address."""
    return torch.is_grad_enabled() or not torch._C._has_storage(incoming)


def _gradient_of(plain: Callable[[], Tensor], logits: Tensor, incoming: Tensor) -> Tensor:
    """The gradient of a plain formula."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        loss = plain()
    (gradient,) = torch.autograd.grad(loss, logits, incoming, create_graph=again)
    return gradient


# Beneath `Function.apply`, which looks for transformations of `torch.func` and for what escaped from them: `focal_loss`
# does, and small batches wait.
_apply_focal_loss = super(torch.autograd.Function, _FocalLoss).apply


class _SigmoidFocal(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 `apply` takes no keywords
        ctx: Any, logits: Tensor, target: Tensor, settings: SigmoidSettings, reduction: str, wanted: bool
    ) -> Tensor:
        with on_device_of(logits):
            loss, ctx.gradient, ctx.correction = sigmoid_launches.loss_and_gradient(
                logits, target, settings, reduction, gradient=wanted and at_once(logits.dtype, reduction)
            )
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction = settings, reduction
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None, None]:
        gradient, ctx.gradient = ctx.gradient, None
        plainly = _by_plain_formula(incoming)
        if gradient is not None and not plainly:
            return sigmoid_launches.multiply(gradient, incoming, ctx.correction), None, None, None, None
        logits, target = ctx.saved_tensors
        settings, reduction = ctx.settings, ctx.reduction
        if not plainly:
            gradient = sigmoid_launches.gradient_alone(
                logits, target, settings, reduction, incoming=incoming, correction=ctx.correction
            )
            return gradient, None, None, None, None

        def plain() -> Tensor:
            from refocal.losses.sigmoid_focal import sigmoid_focal_elements

            losses = sigmoid_focal_elements(logits, target, *settings)
            if reduction != "none":
                losses = losses.sum()
            if reduction == "mean":
                losses = losses / (target != settings.ignore_index).sum()
            return losses.to(incoming.dtype)

        return _gradient_of(plain, logits, incoming), None, None, None, None
