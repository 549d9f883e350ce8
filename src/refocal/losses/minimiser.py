"""The search for focal loss's minimiser as one operator of PyTorch, whose compiled graphs cannot hold its loop."""

from __future__ import annotations

import torch
from torch import Tensor

from refocal.core import newton
from refocal.core.posterior import MapSettings


def search_minimiser(posterior: Tensor, settings: MapSettings, *, in_logs: bool) -> Tensor:
    """`refocal.core.newton.search` for settings with gamma alone, in one piece where PyTorch compiles or exports."""
    if not torch.compiler.is_compiling():
        return newton.search(posterior, settings, in_logs=in_logs)
    gamma = [settings.gamma] if settings.one_gamma else list(settings.gamma)
    return _operator(posterior, gamma, in_logs)


_SCHEMA = "(Tensor posterior, float[] gamma, bool in_logs) -> Tensor"  # PyTorch 2.6 cannot read `list[float]`


@torch.library.custom_op("refocal::search_minimiser", mutates_args=(), schema=_SCHEMA)
def _operator(posterior: Tensor, gamma: list[float], in_logs: bool) -> Tensor:
    settings = MapSettings.checked(
        gamma if len(gamma) > 1 else gamma[0], None, 0.0, False, classes=posterior.shape[-1], least=0.0
    )
    found: Tensor = newton.search(posterior, settings, in_logs=in_logs).contiguous()
    return found


@_operator.register_fake
def _(posterior: Tensor, gamma: list[float], in_logs: bool) -> Tensor:  # noqa: ARG001
    return torch.empty_like(posterior, memory_format=torch.contiguous_format)
