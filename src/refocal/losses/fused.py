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
from refocal.losses.launches import INTERPRETED, LONGEST_ROW_ON_CHIP, Settings, on_device_of
from refocal.losses.targets import Rows, reduce

_HAS_TRITON = importlib.util.find_spec("triton") is not None
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def serves(rows: Rows, gamma: Any) -> bool:
    """Whether a kernel computes this loss: on a GPU, for fixed gammas, outside of tracing and transformations."""
    soft_fits = rows.has_indices or rows.logits.shape[1] <= LONGEST_ROW_ON_CHIP
    return isinstance(gamma, (float, tuple)) and soft_fits and rows.logits.shape[0] > 0 and _runs_kernels(rows.logits)


def serves_sigmoid(logits: Tensor, gamma: Any, alpha: Any) -> bool:
    """Whether a kernel computes this sigmoid loss."""
    return isinstance(gamma, float) and not isinstance(alpha, tuple) and logits.numel() > 0 and _runs_kernels(logits)


def serves_map(logits: Tensor, gamma: Any) -> bool:
    """Whether a kernel computes this posterior map: two-dimensional logits without gradient, one gamma >= 0."""
    if logits.ndim != 2 or logits.requires_grad or not isinstance(gamma, (int, float)) or gamma < 0:
        return False
    return 2 <= logits.shape[1] <= LONGEST_ROW_ON_CHIP and logits.shape[0] > 0 and _runs_kernels(logits)


def _runs_kernels(tensor: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return False
    return _HAS_TRITON and tensor.dtype in _DTYPES and (tensor.is_cuda or INTERPRETED)


def focal_rows(rows: Rows, settings: Settings, *, reduction: str) -> Tensor:
    """Focal losses (N,), or their sum or mean, by the fused kernels."""
    return _FocalRows.apply(rows.logits, rows.target, settings, reduction)  # type: ignore[no-untyped-call]


def sigmoid_focal(
    logits: Tensor, target: Tensor, gamma: Any, alpha: Any, ignore_index: int, *, reduction: str
) -> Tensor:
    """Sigmoid focal losses, or their sum or mean, by the fused kernel."""
    return _SigmoidFocal.apply(logits, target, (gamma, alpha, ignore_index), reduction)  # type: ignore[no-untyped-call]


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma of each row, by the fused kernel."""
    with on_device_of(logits):
        return launches.posterior_map(logits, gamma)


class _FocalRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, settings: Settings, reduction: str) -> Tensor:
        with on_device_of(logits):
            loss, gradient = launches.focal_rows(logits, target, settings, reduction, gradient=ctx.needs_input_grad[0])
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction, ctx.gradient = settings, reduction, gradient
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled():  # a second derivative is wanted: the plain formula has one
            from refocal.losses.softmax import focal_rows as plain_rows

            logits, target = ctx.saved_tensors
            rows = Rows(logits, target, (logits.shape[0],))
            weight, ignore_index = ctx.settings.weight, ctx.settings.ignore_index
            plain = reduce(
                plain_rows(rows, ctx.settings), rows, ctx.reduction, weight=weight, ignore_index=ignore_index
            )
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
            return gradient, None, None, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:  # a second pass through the same graph
            logits, target = ctx.saved_tensors
            _, gradient = launches.focal_rows(logits, target, ctx.settings, ctx.reduction, gradient=True)
        if ctx.reduction == "none":
            return gradient * incoming[:, None], None, None, None
        return launches.scale(gradient, incoming, None), None, None, None


class _SigmoidFocal(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, settings: tuple[float, float | None, int], reduction: str
    ) -> Tensor:
        with on_device_of(logits):
            loss, gradient, work = launches.sigmoid_focal(
                logits, target, settings, reduction, gradient=ctx.needs_input_grad[0]
            )
        ctx.save_for_backward(logits, target)
        ctx.settings, ctx.reduction, ctx.gradient, ctx.work = settings, reduction, gradient, work
        return loss

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None, None]:
        if torch.is_grad_enabled():
            from refocal.losses.sigmoid import sigmoid_focal_elements

            logits, target = ctx.saved_tensors
            plain = sigmoid_focal_elements(logits, target, *ctx.settings)
            if ctx.reduction != "none":
                plain = plain.sum()
            if ctx.reduction == "mean":
                plain = plain / (target != ctx.settings[2]).sum()
            (gradient,) = torch.autograd.grad(plain, logits, incoming, create_graph=True)
            return gradient, None, None, None
        gradient, ctx.gradient = ctx.gradient, None
        if gradient is None:
            logits, target = ctx.saved_tensors
            _, gradient, _ = launches.sigmoid_focal(logits, target, ctx.settings, ctx.reduction, gradient=True)
        if ctx.reduction == "none":
            return gradient * incoming, None, None, None
        return launches.scale(gradient, incoming, ctx.work), None, None, None
