"""The kernels of the linear losses: which chunks of logits they support, their plans, and their launches."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from refocal.losses.gpu import execute
from refocal.losses.gpu.launch import HAS_TRITON, INTERPRETED, Launch, multiprocessors, on_device_of
from refocal.losses.gpu.plan import whole
from refocal.losses.settings import Settings

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LONG_ROW = 65_536
_MOST_SCALED = 1 << 30  # elements that 32-bit offsets reach


class LinearSpec(NamedTuple):
    """What a step of a linear loss asks for, without its data."""

    rows: int
    classes: int
    stride: int
    dtype: torch.dtype
    device: torch.device
    gamma: float
    ignore_index: int
    softcap: float
    detached: bool
    gamma_by_class: bool
    weighted: bool
    gradient: bool
    scale_by_row: bool


def supports(logits: Tensor, settings: Settings) -> bool:
    """Whether a kernel computes this step."""
    return _runs_on(logits) and not settings.label_smoothing


def _runs_on(tensor: Tensor) -> bool:
    on_gpu = (tensor.is_cuda and HAS_TRITON and torch.version.hip is None) or INTERPRETED
    return on_gpu and tensor.dtype in _DTYPES


def consume_logits(
    logits: Tensor, target: Tensor, settings: Settings, *, softcap: float, scale: Tensor, gradient: bool
) -> Tensor:
    """Losses (n,) of logits (n, V); with `gradient`, `scale` times it takes the place of the logits."""
    gamma = settings.gamma
    weight = None if settings.weight is None else settings.weight.contiguous()
    gammas = gamma.float() if isinstance(gamma, Tensor) else None
    launch = _plan_step(
        LinearSpec(
            rows=logits.shape[0],
            classes=logits.shape[1],
            stride=logits.stride(0),
            dtype=logits.dtype,
            device=logits.device,
            gamma=0.0 if gammas is not None else gamma,
            ignore_index=settings.ignore_index,
            softcap=softcap,
            detached=settings.detached,
            gamma_by_class=gammas is not None,
            weighted=weight is not None,
            gradient=gradient,
            scale_by_row=scale.ndim > 0,
        ),
        None if weight is None else weight.dtype,
    )
    losses = torch.empty(len(target), dtype=torch.float32, device=logits.device)
    with on_device_of(logits):
        launch(logits, target.contiguous(), losses, scale.float().contiguous(), gammas, weight)
    return losses


@functools.lru_cache(maxsize=64)
def _plan_step(spec: LinearSpec, weight_dtype: torch.dtype | None) -> Launch:  # noqa: ARG001 a kernel for each type
    from refocal.losses.gpu.kernels import linear

    programs, warps, lanes = _tile(spec.rows, spec.classes, spec.device)
    return Launch(
        linear.loss_and_gradient,
        programs,
        (spec.rows, spec.gamma, spec.ignore_index, spec.softcap),
        warps=warps,
        CLASSES=spec.classes,
        STRIDE=spec.stride,
        LANES=lanes,
        WIDTH=8,
        CAPPED=spec.softcap > 0,
        GAMMA_BY_CLASS=spec.gamma_by_class,
        WEIGHTED=spec.weighted,
        WHOLE=0 if spec.gamma_by_class else whole(spec.gamma),
        DETACHED=spec.detached,
        GRADIENT=spec.gradient,
        SCALE_BY_ROW=spec.scale_by_row,
    )


def _tile(rows: int, classes: int, device: torch.device) -> tuple[int, int, int]:
    """Programs, warps of a program, and lanes of 8 classes that a program reads at once.

    The L2 cache holds as many long rows as there are multiprocessors until they are read a second time. These sizes
    are the fastest on an H200.
    """
    if classes > _LONG_ROW:
        return min(rows, multiprocessors(device)), 32, 2048
    lanes = min(512, max(32, 1 << (-(-classes // 8) - 1).bit_length()))
    return min(rows, 4 * multiprocessors(device)), min(8, lanes // 32), lanes


def scale_gradient(gradient: Tensor, incoming: Tensor) -> Tensor:
    """A gradient times the incoming one, in place; a kernel that finds 1 leaves it as it is."""
    if not (_runs_on(gradient) and gradient.numel()):
        return gradient.mul_(incoming)
    with on_device_of(gradient):
        for part in torch.split(gradient.view(-1), _MOST_SCALED):
            execute.scale_gradient(part, incoming, None)
    return gradient


def supports_normalizers(logits: Tensor) -> bool:
    """Whether a kernel finds the normalizers of these logits."""
    return _runs_on(logits)


def find_normalizers(logits: Tensor, gamma: float, softcap: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The top score, how many classes have it, and the others' sums of exp(x - top) and of h, each (n, 1)."""
    launch = _plan_normalizers(*logits.shape, logits.stride(0), logits.dtype, logits.device, gamma, softcap)
    top, rest, others = torch.empty(3, len(logits), 1, dtype=torch.float32, device=logits.device)
    ties = torch.empty(len(logits), 1, dtype=torch.int32, device=logits.device)
    with on_device_of(logits):
        launch(logits, top, ties, rest, others)
    return top, ties, rest, others


@functools.lru_cache(maxsize=64)
def _plan_normalizers(  # noqa: PLR0917 of a cached function
    rows: int,
    classes: int,
    stride: int,
    dtype: torch.dtype,  # noqa: ARG001 a kernel for each type
    device: torch.device,
    gamma: float,
    softcap: float,
) -> Launch:
    from refocal.losses.gpu.kernels import linear

    programs, warps, lanes = _tile(rows, classes, device)
    numbers = (rows, gamma, softcap)
    constants = {"CLASSES": classes, "STRIDE": stride, "LANES": lanes, "WIDTH": 8, "CAPPED": softcap > 0}
    return Launch(linear.normalizers, programs, numbers, warps=warps, WHOLE=whole(gamma), **constants)
