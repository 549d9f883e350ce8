"""The settings of a softmax loss as one record, which every path to its value takes: plain, CPU and GPU."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from torch import Tensor

Reduction = Literal["none", "mean", "sum"]


class Settings(NamedTuple):
    """Everything a softmax loss depends on besides its data.

    Attributes:
        gamma: A number, a tuple with one number per class, or a policy.
        weight: Class weights (K,), or None.
        ignore_index: Class index that does not count.
        label_smoothing: Share of the uniform distribution in the target.
        detached: Whether the gradient through (1 - p)^gamma is stopped.
    """

    gamma: Any
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float = 0.0
    detached: bool = False
