"""What a loss computes, as one record that every path to its value takes: plain formulas, CPU and GPU."""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Reduction = Literal["none", "mean", "sum"]


class LossSpec(NamedTuple):
    """Everything a loss depends on besides its tensors. A loss that lacks a setting leaves it at its default.

    Attributes:
        gamma: A number, a tuple with one number per class, or a policy.
        ignore_index: Target that does not count.
        label_smoothing: Share of the uniform distribution in the target.
        detached: Whether the gradient through (1 - p)^gamma is stopped.
        reduction: "none", "mean" or "sum", as in `nn.CrossEntropyLoss`.
        alpha: Weight of the positives of a sigmoid loss: a number, a tuple with one number per class, or None.
        softcap: Bound c of the scores of a linear loss, c tanh(score / c); 0 for none.
    """

    gamma: Any
    ignore_index: int
    label_smoothing: float = 0.0
    detached: bool = False
    reduction: Reduction = "none"
    alpha: Any = None
    softcap: float = 0.0


class SpecByClass(LossSpec):
    """A spec with one gamma per class, as a key: its hash does not read them, because that would take long."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(self[1:])


def copy_gammas(spec: LossSpec, dtype: torch.dtype, device: torch.device) -> Tensor:
    """One gamma per class (K,) on a device, outside of tracing. The copy is kept: another would make the host wait."""
    return _copy_gammas(SpecByClass(*spec), dtype, device)


@functools.lru_cache(maxsize=64)
def _copy_gammas(spec: SpecByClass, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # a later call may be differentiated
        return torch.tensor(spec.gamma, dtype=dtype, device=device)
