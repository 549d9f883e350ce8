"""What a loss computes, as one record that every path to its value takes: plain formulas, CPU and GPU."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

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
