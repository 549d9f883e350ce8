"""The dispatcher: which calls the fused kernels compute, and their place in automatic differentiation.

A fused loss computes its gradient in the forward pass, already divided by the divisor of a mean. A backward pass with
incoming gradient 1 then costs nothing. Second derivatives, tracing and `torch.func` use `refocal.losses.formulas`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from refocal._arrays import is_transformed
from refocal.losses.eager import is_constant_beside, is_eager
from refocal.losses.formulas import focal_rows, sigmoid_focal
from refocal.losses.gpu import execute
from refocal.losses.gpu.calls import (
    ChunkCall,
    FocalCall,
    NormalizerCall,
    PosteriorCall,
    SigmoidCall,
    computes_gradient_at_once,
)
from refocal.losses.gpu.launch import HAS_TRITON, INTERPRETED, on_device_of
from refocal.losses.gpu.layout import LONGEST_ROW_ON_CHIP
from refocal.losses.gpu.plan import (
    FocalPlan,
    SigmoidPlan,
    plan_chunk,
    plan_focal_loss,
    plan_normalizers,
    plan_posterior_map,
    plan_scaling,
    plan_sigmoid_loss,
)
from refocal.losses.internals import apply_directly, current_device, has_storage
from refocal.losses.rows import loss_dtype, reduce, to_rows
from refocal.losses.spec import LossSpec, SpecByClass

_CUDA_KERNELS = HAS_TRITON and torch.version.hip is None
_LEAST_CAPABILITY = (8, 0)  # the oldest GPUs that Triton supports
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LARGEST_GAMMA = 100  # of a posterior map: from 128 on, (1/2)^(gamma - 1) is not a normal float32
_MOST_SCALED = 1 << 30  # elements that 32-bit offsets reach


def supports(logits: Any, target: Any, weight: Any = None) -> bool:
    """Whether kernels can run on these tensors: on a GPU, outside of tracing and transformations."""
    if not (is_eager(logits) and has_kernels(logits) and is_constant_beside(target, logits)):
        return False
    return weight is None or is_constant_beside(weight, logits)


def supports_focal(logits: Any, target: Any, weight: Any, spec: LossSpec) -> bool:
    """Whether a kernel computes this focal loss of tensors that fit together, perhaps from a copy without gaps."""
    if not isinstance(spec.gamma, (float, tuple)) or not supports(logits, target, weight):
        return False
    hard = not spec.label_smoothing and not target.is_floating_point()
    return hard or (logits.ndim > 1 and logits.shape[1] <= LONGEST_ROW_ON_CHIP)


def supports_sigmoid(logits: Tensor, target: Tensor, spec: LossSpec) -> bool:
    """Whether a kernel computes this sigmoid focal loss."""
    fixed = isinstance(spec.gamma, float) and not isinstance(spec.alpha, tuple)
    return fixed and logits.numel() > 0 and supports(logits, target)


def supports_map(logits: Tensor, gamma: Any) -> bool:
    """Whether a kernel computes this posterior map: batches of logits without gradient, one moderate gamma."""
    if logits.ndim < 2 or logits.requires_grad or not isinstance(gamma, (int, float)):
        return False
    if not 0 <= gamma <= _LARGEST_GAMMA or not (is_eager(logits) and has_kernels(logits)) or is_transformed(logits):
        return False
    return 2 <= logits.shape[1] <= LONGEST_ROW_ON_CHIP and logits.numel() > 0


def supports_normalizers(logits: Tensor, gamma: float) -> bool:
    """Whether a kernel computes the normalizers of a chunk of logits for the posterior map of this gamma."""
    return has_kernels(logits) and gamma <= _LARGEST_GAMMA


def supports_chunk(logits: Tensor, spec: LossSpec) -> bool:
    """Whether a kernel computes a chunk of logits of this linear loss."""
    return has_kernels(logits) and not spec.label_smoothing


def has_kernels(logits: Tensor) -> bool:
    """Whether there are kernels for tensors on this device and of this type."""
    if logits.is_cuda:
        return _CUDA_KERNELS and logits.dtype in _DTYPES and _compiles_for(logits.device)
    return INTERPRETED and logits.is_cpu and logits.dtype in _DTYPES


@functools.cache
def _compiles_for(gpu: torch.device) -> bool:
    """Whether Triton compiles kernels for this GPU; older ones compute the plain formulas."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability(gpu) >= _LEAST_CAPABILITY


def focal_loss(logits: Tensor, target: Tensor, weight: Tensor | None, spec: LossSpec) -> Tensor | None:
    """Focal losses, or their sum or mean; None if no kernel supports these tensors or their layout."""
    if not supports_focal(logits, target, weight, spec):
        return None
    if isinstance(spec.gamma, tuple):
        spec = SpecByClass(*spec)
    dtype, device = logits.dtype, logits.device
    call = FocalCall(  # positional arguments, because small batches are host-bound
        spec,
        logits.shape,
        logits.stride(),
        dtype,
        device,
        target.shape,
        target.stride(),
        target.dtype,
        None if weight is None else weight.shape,
        None if weight is None else weight.dtype,
        dtype != torch.float32 and torch.is_autocast_enabled(device.type),  # autocast does not change wider types
        logits.requires_grad and torch.is_grad_enabled(),
    )
    plan = plan_focal_loss(call)
    if plan is None:
        return None
    run = _apply_focal_loss if call.differentiable else _evaluate_focal_loss
    try:
        if INTERPRETED or device.index == current_device():
            loss: Tensor = run(logits, (target, weight, plan))
        else:
            with torch.cuda.device(device):
                loss = run(logits, (target, weight, plan))
    except RuntimeError:
        # A tensor that escaped from a transformation of `torch.func` has no address. Checking before takes too long.
        if any(map(is_transformed, (logits, target, weight))):
            return None
        raise
    return loss


def sigmoid_focal_loss(logits: Tensor, target: Tensor, spec: LossSpec) -> Tensor | None:
    """Sigmoid focal losses, or their sum or mean; None if no kernel supports these tensors."""
    if not supports_sigmoid(logits, target, spec):
        return None
    differentiable = logits.requires_grad and torch.is_grad_enabled()
    call = SigmoidCall(
        spec,
        logits.numel(),
        logits.dtype,
        target.dtype,
        loss_dtype(logits),
        logits.device,
        loss=True,
        gradient=differentiable and computes_gradient_at_once(logits.dtype, spec.reduction),
    )
    plan = plan_sigmoid_loss(call)
    run = _apply_sigmoid_focal_loss if differentiable else _evaluate_sigmoid_focal_loss
    try:
        with on_device_of(logits):
            loss: Tensor = run(logits, (target, plan))
    except RuntimeError:
        if any(map(is_transformed, (logits, target))):  # as in `focal_loss`
            return None
        raise
    return loss


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma over dimension 1, by the fused kernel."""
    plan = plan_posterior_map(PosteriorCall(gamma, logits.shape, logits.stride(), logits.dtype, logits.device))
    if plan is None:  # rows without gaps have a plan
        rows = logits.movedim(1, -1).contiguous()
        return posterior_map(rows.reshape(-1, rows.shape[-1]), gamma).reshape(rows.shape).movedim(-1, 1)
    with on_device_of(logits):
        return execute.run_posterior_map(plan, logits)


def consume_chunk(  # noqa: PLR0917 the tensors of the kernel
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    gammas: Tensor | None,
    scale: Tensor,
    spec: LossSpec,
    *,
    gradient: bool,
) -> Tensor:
    """Losses (n,) of a chunk of logits (n, V); with `gradient`, `scale` times it takes the place of the logits."""
    call = ChunkCall(
        spec,
        logits.shape,
        logits.stride(0),
        logits.dtype,
        logits.device,
        None if weight is None else weight.dtype,
        gamma_by_class=gammas is not None,
        gradient=gradient,
        scale_by_row=scale.ndim > 0,
    )
    with on_device_of(logits):
        return execute.run_chunk(plan_chunk(call), logits, target, weight, gammas, scale)


def find_normalizers(logits: Tensor, gamma: float, softcap: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The top score, how many classes have it, and the others' sums of exp(x - top) and of h, each (n, 1)."""
    call = NormalizerCall(gamma, softcap, logits.shape, logits.stride(0), logits.dtype, logits.device)
    with on_device_of(logits):
        return execute.run_normalizers(plan_normalizers(call), logits)


def scale_gradient(gradient: Tensor, incoming: Tensor) -> Tensor:
    """A gradient of a linear loss times the incoming one, in place; a kernel that finds 1 leaves it as it is."""
    if not (has_kernels(gradient) and gradient.numel()):
        return gradient.mul_(incoming)
    with on_device_of(gradient):
        for part in torch.split(gradient.view(-1), _MOST_SCALED):
            launch = plan_scaling(len(part), part.dtype, incoming.dtype, part.device, corrected=False)
            execute.run_scaling(launch, part, incoming, None)
    return gradient


class _FocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, planned: tuple[Tensor, Tensor | None, FocalPlan]) -> Tensor:
        target, weight, plan = planned
        loss, gradient, correction = execute.run_focal_loss(plan, logits, target, weight)
        ctx.save_for_backward(logits, target, weight)
        ctx.results = plan, gradient, correction
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        plan, gradient, correction = ctx.results
        ctx.results = plan, None, correction
        # 1. By the formula, if it is to be differentiated again.
        if _needs_formula(incoming):
            logits, target, weight = ctx.saved_tensors
            formula = functools.partial(_plain_focal_loss, logits, target, weight, plan.call)
            return _differentiate(formula, logits, incoming), None
        # 2. Computed with the loss, for an incoming gradient of 1.
        if gradient is not None:
            execute.run_scaling(plan.scale, gradient, incoming, correction)
            return gradient, None
        # 3. Computed now: it was not computed with the loss, or a first backward pass took it.
        logits, target, weight = ctx.saved_tensors
        later = plan_focal_loss(plan.call._replace(incoming=1 if plan.call.spec.reduction != "none" else 2))
        assert later is not None, "the loss had a plan"
        found = execute.run_focal_gradient(later, logits, target, weight, incoming=incoming, correction=correction)
        return found, None


def _plain_focal_loss(logits: Tensor, target: Tensor, weight: Tensor | None, call: FocalCall) -> Tensor:
    rows, spec = to_rows(logits, target), call.spec
    losses = focal_rows(rows, weight, spec).reshape(rows.shape)
    return reduce(losses, rows, spec.reduction, weight=weight, ignore_index=spec.ignore_index).to(call.loss_dtype)


def _evaluate_focal_loss(logits: Tensor, planned: tuple[Tensor, Tensor | None, FocalPlan]) -> Tensor:
    target, weight, plan = planned
    loss, _, _ = execute.run_focal_loss(plan, logits, target, weight)
    return loss


_apply_focal_loss = apply_directly(_FocalLoss)  # small batches are host-bound; `focal_loss` looks for transformations


class _SigmoidFocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, planned: tuple[Tensor, SigmoidPlan]) -> Tensor:
        target, plan = planned
        loss, gradient, correction = execute.run_sigmoid_loss(plan, logits, target)
        ctx.save_for_backward(logits, target)
        ctx.results = plan, gradient, correction
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        plan, gradient, correction = ctx.results
        ctx.results = plan, None, correction
        # The same three cases as for focal loss.
        if _needs_formula(incoming):
            logits, target = ctx.saved_tensors
            formula = functools.partial(_plain_sigmoid_focal_loss, logits, target, plan.call.spec, incoming.dtype)
            return _differentiate(formula, logits, incoming), None
        if gradient is not None:
            execute.run_scaling(plan.scale, gradient, incoming, correction)
            return gradient, None
        logits, target = ctx.saved_tensors
        later = plan_sigmoid_loss(plan.call._replace(loss_dtype=incoming.dtype, loss=False, gradient=True))
        found = execute.run_sigmoid_gradient(later, logits, target, incoming=incoming, correction=correction)
        return found, None


def _plain_sigmoid_focal_loss(logits: Tensor, target: Tensor, spec: LossSpec, dtype: torch.dtype) -> Tensor:
    return sigmoid_focal(logits, target, spec).to(dtype)


def _evaluate_sigmoid_focal_loss(logits: Tensor, planned: tuple[Tensor, SigmoidPlan]) -> Tensor:
    target, plan = planned
    loss, _, _ = execute.run_sigmoid_loss(plan, logits, target)
    return loss


_apply_sigmoid_focal_loss = apply_directly(_SigmoidFocalLoss)


def _needs_formula(incoming: Tensor) -> bool:
    """Whether a gradient is differentiated again, or a batch of gradients comes in, which has no address."""
    return torch.is_grad_enabled() or not has_storage(incoming)


def _differentiate(formula: Callable[[], Tensor], logits: Tensor, incoming: Tensor) -> Tensor:
    """The gradient of a plain formula."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        loss = formula()
    (gradient,) = torch.autograd.grad(loss, logits, incoming, create_graph=again)
    return gradient
