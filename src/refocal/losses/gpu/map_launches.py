"""How the fused kernel of the posterior map is laid out over a GPU and launched."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from refocal.losses.gpu.launch import Launch
from refocal.losses.gpu.layout import layout_of, tiling
from refocal.losses.gpu.plan import whole


class _Case(NamedTuple):
    """What decides on the kernel of a posterior map, and on how it is compiled and called."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    gamma: float


@functools.lru_cache(maxsize=256)
def _plan(case: _Case) -> tuple[Launch, tuple[int, ...]] | None:
    from refocal.losses.gpu.kernels import posterior

    layout = layout_of(case.shape, case.strides)
    if layout is None:
        return None
    classes = case.shape[1]
    rows = math.prod(case.shape) // classes
    block, tile_rows, warps, programs = tiling(rows, classes, layout.span)
    constants = {
        "CLASSES": classes,
        "SPAN": layout.span,
        "IMAGE": layout.image,
        "STRIDE": layout.stride,
        "WHOLE": whole(case.gamma),
    }
    numbers = (rows, case.gamma)
    launch = Launch(posterior.rows_on_chip, programs, numbers, warps=warps, BLOCK=block, ROWS=tile_rows, **constants)
    return launch, layout.strides_of_gradient(case.shape)


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma over dimension 1."""
    plan = _plan(_Case(logits.shape, logits.stride(), logits.dtype, logits.device, gamma))
    if plan is None:
        rows = logits.movedim(1, -1).contiguous()
        return posterior_map(rows.reshape(-1, rows.shape[-1]), gamma).reshape(rows.shape).movedim(-1, 1)
    launch, strides = plan
    probs = torch.empty_strided(logits.shape, strides, dtype=logits.dtype, device=logits.device)
    launch(logits, probs)
    return probs
