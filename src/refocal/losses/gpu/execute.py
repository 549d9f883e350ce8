"""The executor of a plan: allocates the results of a call and launches its kernels."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from refocal.losses.gpu.launch import ALIGNMENT, Launch, current_stream, is_capturing
from refocal.losses.gpu.plan import FocalPlan, PosteriorPlan, SigmoidPlan

_prepared: set[tuple[object, ...]] = set()  # variants of the kernels that are compiled for captured graphs


def run_focal_loss(
    plan: FocalPlan, logits: Tensor, target: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, reduced; its gradient for an incoming gradient of 1; and the correction of a mean's gradient."""
    if plan.target_has_gaps:
        target = target.contiguous()
    if weight is not None:
        weight = weight.contiguous()
    gradient = _allocate_gradient(plan, logits) if plan.gradient else None
    correction = torch.empty_like(plan.correction) if plan.counted else None
    launch = plan.compute_and_add
    if launch is None or is_capturing():  # in a captured graph, a launch of its own adds up faster
        return _run_separately(plan, logits, target, weight, gradient, correction), gradient, correction
    loss, device = torch.empty_like(plan.loss), logits.get_device()
    stream = current_stream(device)
    work, tickets = _find_scratch(device, stream)  # kernels of a stream run one after another and share it
    gammas, start, logits_at, target_at = plan.gammas, launch.starts.get(stream), logits.data_ptr(), target.data_ptr()
    weight_at = 0 if weight is None else weight.data_ptr()
    if start is None or (logits_at | target_at | weight_at) % ALIGNMENT:
        compute = plan.compute.variant(logits, target, gradient, correction, gammas, weight)
        variants = compute, plan.finish.variant(loss)
        if variants not in _prepared:  # compile what a captured graph will launch: nothing can be during a capture
            _run_separately(plan, logits, target, weight, gradient, correction)
            _prepared.add(variants)
        launch(logits, target, gradient, work, tickets, loss, correction, gammas, weight, None)
    else:
        start(
            logits_at,
            target_at,
            0 if gradient is None else gradient.data_ptr(),
            work.data_ptr(),
            tickets.data_ptr(),
            loss.data_ptr(),
            0 if correction is None else correction.data_ptr(),
            0 if gammas is None else gammas.data_ptr(),
            weight_at,
            0,
            *launch.tail,
        )
    return loss, gradient, correction


def _run_separately(  # noqa: PLR0917 the caller's arguments
    plan: FocalPlan,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    gradient: Tensor | None,
    correction: Tensor | None,
) -> Tensor:
    """The loss by separate launches: they count the targets of a large batch, compute, and add up.

    Writes `gradient` and `correction`.
    """
    from refocal.losses.gpu.kernels.sums import LOSSES

    call = plan.call
    allocate = logits.new_zeros if plan.cleared else logits.new_empty
    work = allocate(LOSSES.value + (2 if plan.small else 1) * plan.losses, dtype=torch.float32)
    if plan.counted and not plan.small:
        plan.count(target, weight, work)
    plan.compute(logits, target, gradient, work, None, None, correction, plan.gammas, weight, None)
    if call.spec.reduction == "none":
        return work[LOSSES.value :].reshape(call.shape[:1] + call.shape[2:]).to(call.loss_dtype, copy=True)
    loss = torch.empty_like(plan.loss)
    plan.finish(work, loss, correction)
    return loss


def run_focal_gradient(
    plan: FocalPlan,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    incoming: Tensor,
    correction: Tensor | None,
) -> Tensor:
    """The gradient alone, for an incoming gradient and a correction."""
    if plan.target_has_gaps:
        target = target.contiguous()
    if weight is not None:
        weight = weight.contiguous()
    gradient = _allocate_gradient(plan, logits)
    plan.compute(logits, target, gradient, None, None, None, correction, plan.gammas, weight, incoming.contiguous())
    return gradient


def run_scaling(launch: Launch, gradient: Tensor, incoming: Tensor, correction: Tensor | None) -> None:
    """Multiply a gradient that was computed with the loss by the incoming one and the correction, in place."""
    gradient_at, incoming_at = gradient.data_ptr(), incoming.data_ptr()
    start = launch.starts.get(current_stream(gradient.get_device()))
    if start is None or (gradient_at | incoming_at) % ALIGNMENT:
        launch(gradient, incoming, correction)
    else:
        start(gradient_at, incoming_at, 0 if correction is None else correction.data_ptr(), *launch.tail)


def _allocate_gradient(plan: FocalPlan, logits: Tensor) -> Tensor:
    if plan.gradient_strides is None:
        return torch.empty_like(logits)
    return torch.empty_strided(logits.shape, plan.gradient_strides, dtype=logits.dtype, device=logits.device)


@functools.lru_cache(maxsize=256)
def _find_scratch(device: int, stream: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001 one for each stream
    """A buffer, and tickets at 0, for kernels of small batches that add up."""
    from refocal.losses.gpu.kernels.sums import GROUP, LOSSES, MOST_TO_ADD_UP, TICKETS

    place = "cpu" if device < 0 else device
    work = torch.empty(LOSSES.value + 2 * (MOST_TO_ADD_UP.value + GROUP.value), dtype=torch.float32, device=place)
    return work, torch.zeros(TICKETS.value, dtype=torch.int32, device=place)


def run_sigmoid_loss(plan: SigmoidPlan, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, reduced; its gradient for an incoming gradient of 1; and the correction of a mean's gradient."""
    from refocal.losses.gpu.kernels.sums import LOSSES

    call = plan.call
    allocate = logits.new_zeros if plan.cleared else logits.new_empty
    work = allocate(LOSSES.value + 2 * plan.programs, dtype=torch.float32)
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device) if call.gradient else None
    by_element, mean = call.spec.reduction == "none", call.spec.reduction == "mean"
    loss = torch.empty(logits.shape if by_element else (), dtype=call.loss_dtype, device=logits.device)
    correction = torch.empty((), dtype=torch.float32, device=logits.device) if mean else None
    plan.compute(logits.contiguous(), target.contiguous(), gradient, work, loss, None, None)
    if not by_element:
        plan.finish(work, loss, correction)
    return loss, gradient, correction


def run_sigmoid_gradient(
    plan: SigmoidPlan, logits: Tensor, target: Tensor, *, incoming: Tensor, correction: Tensor | None
) -> Tensor:
    """The gradient alone, for an incoming gradient and a correction."""
    gradient = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    plan.compute(logits.contiguous(), target.contiguous(), gradient, None, None, correction, incoming.contiguous())
    return gradient


def run_posterior_map(plan: PosteriorPlan, logits: Tensor) -> Tensor:
    """Psi^gamma over dimension 1."""
    probs = torch.empty_strided(logits.shape, plan.strides, dtype=logits.dtype, device=logits.device)
    plan.compute(logits, probs)
    return probs


def run_chunk(  # noqa: PLR0917 the tensors of the kernel
    launch: Launch, logits: Tensor, target: Tensor, weight: Tensor | None, gammas: Tensor | None, scale: Tensor
) -> Tensor:
    """The losses (n,) of a chunk of logits (n, V), which `scale` times the gradient may replace."""
    weight = None if weight is None else weight.contiguous()
    gammas = None if gammas is None else gammas.float()
    losses = torch.empty(len(target), dtype=torch.float32, device=logits.device)
    launch(logits, target.contiguous(), losses, scale.float().contiguous(), gammas, weight)
    return losses


def run_normalizers(launch: Launch, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The top score, how many classes have it, and the others' sums of exp(x - top) and of h, each (n, 1)."""
    top, rest, others = torch.empty(3, len(logits), 1, dtype=torch.float32, device=logits.device)
    ties = torch.empty(len(logits), 1, dtype=torch.int32, device=logits.device)
    launch(logits, top, ties, rest, others)
    return top, ties, rest, others
