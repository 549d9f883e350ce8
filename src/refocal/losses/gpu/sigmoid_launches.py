"""How the fused kernel of sigmoid focal loss is launched."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from refocal.losses.gpu.launch import Launch
from refocal.losses.gpu.plan import finishing, multiplication, whole
from refocal.losses.rows import loss_dtype

_BLOCK = 2048


class SigmoidSettings(NamedTuple):
    """Everything a sigmoid focal loss depends on beside its data."""

    gamma: float
    alpha: float | None
    ignore_index: int


class _Case(NamedTuple):
    """What decides on the kernels, and on how they are compiled and called."""

    size: int
    dtype: torch.dtype
    target_dtype: torch.dtype
    loss_dtype: torch.dtype
    device: torch.device
    settings: SigmoidSettings
    reduction: str
    loss: bool
    gradient: bool


@functools.lru_cache(maxsize=256)
def _launches(case: _Case) -> tuple[Launch, Launch]:
    """The kernels that compute losses and gradient, and add up."""
    from refocal.losses.gpu.kernels import sigmoid

    gamma, alpha, ignore_index = case.settings
    programs, mean = -(-case.size // _BLOCK), case.reduction == "mean"
    compute = Launch(
        sigmoid.sigmoid_focal,
        programs,
        (case.size, gamma, 0.0 if alpha is None else alpha, float(ignore_index), 1.0 / case.size if mean else 1.0),
        warps=4,
        BLOCK=_BLOCK,
        BALANCED=alpha is not None,
        WHOLE=whole(gamma),
        LOSS=case.loss,
        GRADIENT=case.gradient,
        INCOMING=not case.loss,
        BY_ELEMENT=case.reduction == "none",
        COUNTED=mean,
    )
    return compute, finishing(programs, float(case.size) if mean else 1.0, counted=mean, beside=mean)


def loss_and_gradient(
    logits: Tensor, target: Tensor, settings: SigmoidSettings, reduction: str, *, gradient: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, reduced; the gradient of an incoming 1; and what a mean's is still to be multiplied by."""
    from refocal.losses.gpu.kernels.sums import LOSSES

    size = logits.numel()
    programs = -(-size // _BLOCK)
    work = logits.new_zeros(LOSSES.value + 2 * programs, dtype=torch.float32)
    result = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device) if gradient else None
    by_element, mean = reduction == "none", reduction == "mean"
    loss = torch.empty(logits.shape if by_element else (), dtype=loss_dtype(logits), device=logits.device)
    correction = torch.empty((), dtype=torch.float32, device=logits.device) if mean else None
    finish = _run(logits, target, settings, reduction, work=work, loss=loss, result=result)
    if not by_element:
        finish(work, loss, correction)
    return loss, result, correction


def gradient_alone(
    logits: Tensor,
    target: Tensor,
    settings: SigmoidSettings,
    reduction: str,
    *,
    incoming: Tensor,
    correction: Tensor | None,
) -> Tensor:
    """The gradient, given the one that comes in and the correction."""
    result = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    incoming = incoming.contiguous()
    _run(
        logits,
        target,
        settings,
        reduction,
        work=None,
        loss=None,
        result=result,
        incoming=incoming,
        correction=correction,
    )
    return result


def multiply(gradient: Tensor, incoming: Tensor, correction: Tensor | None) -> Tensor:
    """The gradient times the incoming one, and the correction, in place."""
    size, corrected = gradient.numel(), correction is not None
    launch = multiplication(size, gradient.dtype, incoming.dtype, gradient.device, corrected=corrected)
    launch(gradient, incoming, correction)
    return gradient


def _run(
    logits: Tensor,
    target: Tensor,
    settings: SigmoidSettings,
    reduction: str,
    *,
    work: Tensor | None,
    loss: Tensor | None,
    result: Tensor | None,
    incoming: Tensor | None = None,
    correction: Tensor | None = None,
) -> Launch:
    case = _Case(
        logits.numel(),
        logits.dtype,
        target.dtype,
        loss_dtype(logits) if incoming is None else incoming.dtype,
        logits.device,
        settings,
        reduction,
        loss=loss is not None,
        gradient=result is not None,
    )
    compute, finish = _launches(case)
    compute(logits.contiguous(), target.contiguous(), result, work, loss, correction, incoming)
    return finish
