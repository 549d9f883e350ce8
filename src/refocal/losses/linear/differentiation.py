"""The place of a linear loss in automatic differentiation.

A sum or mean computes its gradients together with the loss, while the logits of a chunk are there. Otherwise each loss
has an incoming gradient of its own, which is known only in the backward pass, where the logits are computed again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from refocal.losses.eager import is_eager
from refocal.losses.gpu.calls import computes_gradient_at_once
from refocal.losses.gpu.dispatch import scale_gradient
from refocal.losses.internals import has_storage, is_in_forward_mode
from refocal.losses.linear.operator import linear_focal
from refocal.losses.spec import LossSpec


class LinearCall(NamedTuple):
    """What a linear loss computes, in how much memory and in which types; see `linear_focal`."""

    spec: LossSpec
    chunk_bytes: int
    sum_dtype: torch.dtype
    dtype: torch.dtype

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the operator, which takes plain values."""
        spec = self.spec
        settings = (spec.gamma, spec.ignore_index, spec.label_smoothing, spec.detached, spec.softcap)
        return *settings, self.chunk_bytes, self.sum_dtype, self.dtype


class Constants(NamedTuple):
    """The tensors of a linear loss that have no gradient: targets, class weights, and one gamma per class."""

    target: Tensor
    weight: Tensor | None
    gammas: Tensor | None


class LinearInputs(NamedTuple):
    """The tensors of a linear loss that have a gradient: hidden states (N, D), weights (V, D) and bias (V,)."""

    hidden: Tensor
    head: Tensor
    bias: Tensor | None


def differentiable_loss(inputs: LinearInputs, constants: Constants, call: LinearCall) -> Tensor:
    """Losses (N,), or their sum or mean, differentiable once in hidden states, head and bias."""
    if is_in_forward_mode():
        _reject_tangents(inputs)
    wide = torch.promote_types(call.dtype, torch.float32)
    scale = torch.ones((), dtype=wide, device=inputs.hidden.device)
    if call.spec.reduction == "mean":
        scale = scale / _find_divisor(constants, call.spec.ignore_index, wide)
    wanted = torch.is_grad_enabled()
    losses: Tensor = _LinearFocalLoss.apply(*inputs, scale, *constants, call, wanted)  # type: ignore[no-untyped-call]
    return losses


def _reject_tangents(inputs: LinearInputs) -> None:
    tangents = [forward_ad.unpack_dual(each).tangent for each in inputs if each is not None]  # type: ignore[no-untyped-call]
    if any(tangent is not None for tangent in tangents):
        msg = "linear_focal_loss has no derivatives in forward mode: use focal_loss(hidden @ head.T, ...)"
        raise RuntimeError(msg)


def _find_divisor(constants: Constants, ignore_index: int, dtype: torch.dtype) -> Tensor:
    """The divisor of a mean: the number of rows that count, or the sum of their class weights."""
    target, weight = constants.target, constants.weight
    counted = target != ignore_index
    if weight is None:
        return counted.sum()
    existing = target.clamp(0, len(weight) - 1)  # the operator treats classes that do not exist
    return torch.where(counted, weight.to(dtype)[existing], 0).sum()


class _LinearFocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 `apply` takes no keyword arguments
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        bias: Tensor | None,
        scale: Tensor,
        target: Tensor,
        weight: Tensor | None,
        gammas: Tensor | None,
        call: LinearCall,
        wanted: bool,
    ) -> Tensor:
        reduction = call.spec.reduction
        at_once = wanted and computes_gradient_at_once(call.dtype, reduction)
        needed = [at_once and need for need in ctx.needs_input_grad[:3]]
        tensors = (hidden, head, target, bias, weight, gammas)
        losses, *gradients = linear_focal(*tensors, scale, *call.arguments, needed)
        ctx.save_for_backward(*tensors, scale)
        ctx.call, ctx.gradients = call, tuple(gradients) if at_once else None
        return losses if reduction == "none" else losses.sum() * scale

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        gradients, ctx.gradients = ctx.gradients, None  # a second pass through the same graph computes them again
        create_graph, needed = torch.is_grad_enabled(), ctx.needs_input_grad[:3]
        with torch.no_grad():
            if gradients is None:
                *tensors, scale = ctx.saved_tensors
                _, *gradients = linear_focal(*tensors, scale * incoming, *ctx.call.arguments, list(needed))
            else:
                gradients = [_scale(gradient, incoming) for gradient in gradients]
        if create_graph:
            hidden, head, _, bias, *_ = ctx.saved_tensors
            sources = (incoming, hidden, head, bias)
            gradients = [_OnceDifferentiated.apply(each, *sources) for each in gradients]  # type: ignore[no-untyped-call]
        found = [each if need else None for each, need in zip(gradients, needed, strict=True)]
        return (*found, *[None] * 6)


class _OnceDifferentiated(torch.autograd.Function):
    """A gradient that depends on the incoming one, hidden states, head and bias, but has no derivatives in them."""

    @staticmethod
    def forward(  # noqa: PLR0917 `apply` takes no keyword arguments
        ctx: Any,  # noqa: ARG004
        gradient: Tensor,
        incoming: Tensor,  # noqa: ARG004
        hidden: Tensor,  # noqa: ARG004
        head: Tensor,  # noqa: ARG004
        bias: Tensor | None,  # noqa: ARG004
    ) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> None:  # noqa: ARG004
        msg = "linear_focal_loss has no second derivatives: use focal_loss(hidden @ head.T, ...)"
        raise RuntimeError(msg)


def _scale(gradient: Tensor, incoming: Tensor) -> Tensor:
    # Our kernels do not write to traced or compiled tensors in place. A batch of incoming gradients, which has no
    # storage, does not fit into one gradient.
    if not (is_eager(incoming) and has_storage(incoming)):
        return gradient * incoming
    return scale_gradient(gradient, incoming)
