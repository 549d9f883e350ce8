"""Sums over all pairs of samples of a Laplacian kernel, differentiable, in O(n log n) time and memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from refocal.losses.internals import is_in_forward_mode, is_inside_transformation

_FEW = 256  # up to this many samples, the matrix of all pairs is faster than many small steps


def laplacian_form(places: Tensor, values: Tensor, *, width: float) -> Tensor:
    """sum_ij v_i v_j exp(-|x_i - x_j| / width) over all pairs of samples.

    A tied pair, x_i = x_j, has kernel 1 and no derivative in x.

    Args:
        places: x (n,).
        values: v (n,).
        width: Width of the kernel, > 0.

    Returns:
        One number.

    Example:
        >>> laplacian_form(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 2.0]), width=0.4).item()
        9.0
    """
    if (
        torch.compiler.is_compiling()
        or is_inside_transformation()
        or is_in_forward_mode()  # nested derivatives of a Function are silently wrong there
    ):
        return _plain_form(places, values, width)
    form: Tensor = _LaplacianForm.apply(places, values, width)  # type: ignore[no-untyped-call]
    return form


def _plain_form(places: Tensor, values: Tensor, width: float) -> Tensor:
    """The form by plain tensor operations, which can be differentiated any number of times, in both modes."""
    if len(places) <= _FEW:
        kernel = torch.exp((places[:, None] - places).abs() / -width)
        return (values[:, None] * kernel * values).sum()
    order = places.detach().argsort()
    x, v = places[order], values[order]
    before, _ = _ties(x)
    sums = _running_sums(x, v, width)
    # For sample i: twice the sum over all samples below it, plus the sum over its ties, which does not depend on the
    # places. The index is clamped because index -1 means the largest place, whose exponential may overflow.
    nearest, group = before.clamp(min=0), before + 1
    below = torch.where(before >= 0, sums[nearest] * torch.exp((x[nearest] - x) / width), 0)
    tied = torch.zeros_like(v).index_add(0, group, v)[group]
    return (v * (2 * below + tied)).sum()


def _running_sums(x: Tensor, v: Tensor, width: float) -> Tensor:
    """sum_{j <= i} v_j exp(-(x_i - x_j) / width) for each i, with x in ascending order.

    These are sums over windows that end at i, and each round doubles the windows. No exponent is positive, so nothing
    overflows.
    """
    sums, step = v, 1
    while step < len(x):
        decay = torch.exp((x[:-step] - x[step:]) / width)
        sums = torch.cat([sums[:step], sums[step:] + decay * sums[:-step]])
        step *= 2
    return sums


def _ties(x: Tensor) -> tuple[Tensor, Tensor]:
    """For each of ascending places: the index of the last smaller one (-1 if none) and of the last equal one."""
    x = x.detach()
    index = torch.arange(len(x), device=x.device)
    differs = x[1:] != x[:-1]
    first = torch.where(torch.cat([differs.new_ones(1), differs]), index, 0)
    last = torch.where(torch.cat([differs, differs.new_ones(1)]), index, len(x))
    return first.cummax(dim=0).values - 1, last.flip(0).cummin(dim=0).values.flip(0)


def _slopes(places: Tensor, values: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """For each sample i, sum_j v_j exp(-|x_i - x_j| / width), and the same with the sign of x_i - x_j."""
    if len(places) <= _FEW:
        difference = places[:, None] - places
        products = torch.exp(difference.abs() / -width) * values
        return products.sum(dim=1), (products * difference.sign()).sum(dim=1)
    order = places.argsort()
    x, v = places[order], values[order]
    before, end = _ties(x)
    after = end + 1
    left, right = _running_sums(x, v, width), _running_sums(-x.flip(0), v.flip(0), width).flip(0)
    below = torch.where(before >= 0, left[before] * torch.exp((x[before] - x) / width), 0)
    after = torch.where(after < len(x), after, 0)
    above = torch.where(after > 0, right[after] * torch.exp((x - x[after]) / width), 0)
    smooth, tilt = torch.empty_like(v), torch.empty_like(v)
    smooth[order], tilt[order] = left + right - v, below - above
    return smooth, tilt


class _LaplacianForm(torch.autograd.Function):
    """The form with its gradient, which needs the same sums as its value."""

    @staticmethod
    def forward(ctx: Any, places: Tensor, values: Tensor, width: float) -> Tensor:
        smooth, tilt = _slopes(places, values, width)
        ctx.save_for_backward(places, values, smooth, tilt)
        ctx.width = width
        return (values * smooth).sum()

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, Tensor, None]:
        places, values, smooth, tilt = ctx.saved_tensors
        if torch.is_grad_enabled():  # the gradient is differentiated again
            # Values may depend on places. Views keep the two apart: each derivative holds the other fixed.
            places, values = places.view_as(places), values.view_as(values)
            form = _plain_form(places, values, ctx.width)
            in_places, in_values = torch.autograd.grad(form, (places, values), incoming, create_graph=True)
            return in_places, in_values, None
        incoming = 2 * incoming
        return incoming / -ctx.width * values * tilt, incoming * smooth, None
