"""How the kernels of a softmax loss are given their tensors and launched."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from refocal.losses.gpu.launch import ALIGNMENT, current_stream, is_capturing
from refocal.losses.gpu.plan import Case, Plan, plan_for


def loss_and_gradient(
    plan: Plan, logits: Tensor, target: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, reduced; its gradient in the logits for an incoming 1; and the correction of a mean's gradient."""
    if plan.target_has_gaps:
        target = target.contiguous()
    if weight is not None:
        weight = weight.contiguous()
    gradient = _empty_gradient(plan, logits) if plan.gradient else None
    correction = torch.empty_like(plan.correction) if plan.counted else None
    if not plan.adds:
        return _large_loss(plan, logits, target, weight, gradient, correction), gradient, correction
    loss, device = torch.empty_like(plan.loss), logits.get_device()
    stream = current_stream(device)
    # kernels of a stream follow each other and share a buffer; a graph may be replayed on any, beside any other work
    work = _new_scratch(device) if is_capturing() else _scratch_of_stream(device, stream)
    compute, gammas = plan.compute, plan.gammas
    start, logits_at, target_at = compute.starts.get(stream), logits.data_ptr(), target.data_ptr()
    weight_at = 0 if weight is None else weight.data_ptr()
    if start is None or (logits_at | target_at | weight_at) % ALIGNMENT:
        compute(logits, target, gradient, work, loss, correction, gammas, weight, None)
    else:
        start(
            logits_at,
            target_at,
            0 if gradient is None else gradient.data_ptr(),
            work.data_ptr(),
            loss.data_ptr(),
            0 if correction is None else correction.data_ptr(),
            0 if gammas is None else gammas.data_ptr(),
            weight_at,
            0,
            *compute.tail,
        )
    return loss, gradient, correction


def _large_loss(  # noqa: PLR0917 as its caller has them
    plan: Plan,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    gradient: Tensor | None,
    correction: Tensor | None,
) -> Tensor:
    """The loss by three launches, which count targets, compute, and add up; its gradient is left in `gradient`."""
    from refocal.losses.gpu.kernels.sums import LOSSES

    case = plan.case
    empty = (
        logits.new_empty if plan.counted or case.reduction == "none" else logits.new_zeros
    )  # counting sets the ticket
    work = empty(LOSSES.value + plan.losses, dtype=torch.float32)
    if plan.counted:
        plan.count(target, weight, work)
    plan.compute(logits, target, gradient, work, None, correction, plan.gammas, weight, None)
    if case.reduction == "none":
        return work[LOSSES.value :].reshape(case.shape[:1] + case.shape[2:]).to(case.loss_dtype, copy=True)
    loss = torch.empty_like(plan.loss)
    plan.finish(work, loss, correction)
    return loss


def gradient_alone(
    case: Case,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    incoming: Tensor,
    correction: Tensor | None,
) -> Tensor:
    """The gradient in the logits, given the one that comes in and the correction."""
    plan = plan_for(*case._replace(incoming=1 if case.reduction != "none" else 2))
    assert plan is not None, "the loss had one"
    if plan.target_has_gaps:
        target = target.contiguous()
    if weight is not None:
        weight = weight.contiguous()
    gradient = _empty_gradient(plan, logits)
    plan.compute(logits, target, gradient, None, None, correction, plan.gammas, weight, incoming.contiguous())
    return gradient


def _empty_gradient(plan: Plan, logits: Tensor) -> Tensor:
    if plan.gradient_strides is None:
        return torch.empty_like(logits)
    return torch.empty_strided(logits.shape, plan.gradient_strides, dtype=logits.dtype, device=logits.device)


def multiply(plan: Plan, gradient: Tensor, incoming: Tensor, correction: Tensor | None) -> None:
    """Multiply a gradient computed with the loss by the one that comes in, in place."""
    launch, incoming_at = plan.multiply, incoming.data_ptr()
    start = launch.starts.get(current_stream(gradient.get_device()))
    if start is None or incoming_at % ALIGNMENT:
        launch(gradient, incoming, correction)
    else:
        start(gradient.data_ptr(), incoming_at, 0 if correction is None else correction.data_ptr(), *launch.tail)


def _new_scratch(device: int) -> Tensor:
    """A buffer, ticket at 0, for kernels that add up."""
    from refocal.losses.gpu.kernels.sums import SIZE_TO_ADD

    return torch.zeros(SIZE_TO_ADD.value, dtype=torch.float32, device="cpu" if device < 0 else device)


@functools.lru_cache(maxsize=256)
def _scratch_of_stream(device: int, stream: int) -> Tensor:  # noqa: ARG001 one for each
    return _new_scratch(device)
