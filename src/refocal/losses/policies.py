"""Focusing parameters that change during training: by sample, by epoch, or learned from validation predictions.

`FocalLoss` takes a policy in the place of a number. A policy chooses the gamma of each sample from the probability p of
its class. A negative gamma means the inverse focal loss -(1 + p)^|gamma| log p. No gradient flows through the choice.

A loss, a training loop and a run's card all talk to a policy through `GammaPolicy`. To write your own policy, derive
from it and define `forward`; every other method has a default.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from refocal import _check
from refocal.losses.rows import check_tensors


class GammaPolicy(nn.Module):
    """Abstract: a rule that chooses gamma while a network is trained.

    A loss calls `forward`, reads `current_gamma` to choose a faster formula, and reads `closed_form_gamma` for its
    posterior map. A training loop calls `step_epoch` after each epoch and `resume` when it continues a run. `learned`
    names the tensors that a checkpoint must hold because they follow from the data, not from the number of epochs.
    """

    @abstractmethod
    def forward(self, p: Tensor) -> Tensor | float:
        """Gamma of each sample, from the probability of its class."""

    @property
    def current_gamma(self) -> float | None:
        """The gamma that all samples share in this epoch; None if it depends on the sample."""
        return None

    @property
    def closed_form_gamma(self) -> float | None:
        """The gamma whose focal posterior map fits the network as trained so far; None if no closed form exists."""
        return None

    @property
    def learned(self) -> dict[str, Tensor]:
        """The tensors that the policy learns from validation predictions, by name; empty if it learns nothing."""
        return {}

    def step_epoch(self, probs: Tensor | None = None, labels: Tensor | None = None) -> None:
        """End an epoch. A policy that learns needs the predictions on a validation set; others ignore them.

        Args:
            probs: Probabilities (N, K) of a validation set.
            labels: Its class indices (N,).
        """

    def resume(self, epochs: int) -> None:
        """Continue after `epochs` epochs. Learned tensors come from the checkpoint instead."""


def find_policy(loss: nn.Module) -> GammaPolicy | None:
    """The policy that chooses the gamma of a loss; None if its gamma is fixed.

    Example:
        >>> from refocal.losses import FocalLoss
        >>> find_policy(FocalLoss(FLSD53)) is FLSD53, find_policy(FocalLoss(2.0))
        (True, None)
    """
    gamma = getattr(loss, "gamma", None)
    return gamma if isinstance(gamma, GammaPolicy) else None


class SampleWise(GammaPolicy):
    """Piecewise constant gamma: `gammas[k]` for probabilities between `edges[k - 1]` and `edges[k]`.

    Choose it to focus harder on samples that the network gets wrong. It has no closed-form posterior.

    Args:
        edges: Increasing probabilities in (0, 1).
        gammas: One value more than edges.
        closed: Which end belongs to an interval: "left" for [a, b), "right" for (a, b].

    Example:
        >>> FLSD53(torch.tensor([0.1, 0.2, 0.9])).tolist()
        [5.0, 3.0, 3.0]

    Reference: Mukhoti et al. (2020), section 5.
    """

    def __init__(
        self, edges: Sequence[float], gammas: Sequence[float], *, closed: Literal["left", "right"] = "left"
    ) -> None:
        super().__init__()
        self.edges = tuple(_check.finite(edge, "edges") for edge in edges)
        self.gammas = tuple(_check.scalar_gamma(gamma, least=0.0) for gamma in gammas)
        self.closed = closed
        if len(self.gammas) != len(self.edges) + 1:
            msg = f"gammas must have one value more than edges, got {len(self.gammas)} and {len(self.edges)}"
            raise ValueError(msg)
        inside = (0.0, *self.edges, 1.0)
        if any(low >= high for low, high in itertools.pairwise(inside)):
            msg = f"edges must increase inside (0, 1), got {self.edges}"
            raise ValueError(msg)
        if closed not in ("left", "right"):
            msg = f"closed must be 'left' or 'right', got {closed!r}"
            raise ValueError(msg)

    def forward(self, p: Tensor) -> Tensor:
        """Gamma of each sample."""
        check_tensors(p=p)
        gamma = torch.full_like(p, self.gammas[0])
        for edge, value in zip(self.edges, self.gammas[1:], strict=True):
            above = p >= edge if self.closed == "left" else p > edge
            gamma = torch.where(above, value, gamma)
        return gamma

    def extra_repr(self) -> str:
        """The settings."""
        return f"edges={self.edges}, gammas={self.gammas}, closed={self.closed!r}"


FLSD53 = SampleWise((0.2,), (5.0, 3.0))  # the NeurIPS version of Mukhoti et al. (2020): 5 for p < 0.2
FLA53 = SampleWise((0.19,), (5.0, 3.0), closed="right")  # Mukhoti et al. (2020), policy (b)
FLA532 = SampleWise((0.19, 0.5), (5.0, 3.0, 2.0), closed="right")  # Mukhoti et al. (2020), policy (a)


class Scheduled(GammaPolicy):
    """Gamma by epoch: `gammas[k]` until epoch `milestones[k]`. Call `step_epoch` after each epoch.

    Choose it to start with strong focusing and to end with little. The posterior map is that of the last epoch
    completed: after `milestones[k]` epochs the network has been trained with `gammas[k]` only, although the next epoch
    uses `gammas[k + 1]`.

    Args:
        milestones: Increasing numbers of epochs.
        gammas: One value more than milestones.

    Example:
        >>> policy = Scheduled((1,), (5.0, 3.0))
        >>> before = policy(torch.tensor(0.5))
        >>> policy.step_epoch()
        >>> before, policy(torch.tensor(0.5))
        (5.0, 3.0)

    Reference: Mukhoti et al. (2020), section 5.
    """

    _place: Tensor

    def __init__(self, milestones: Sequence[int], gammas: Sequence[float]) -> None:
        super().__init__()
        self.milestones = tuple(_check.whole(milestone, "milestones") for milestone in milestones)
        self.gammas = tuple(_check.scalar_gamma(gamma, least=0.0) for gamma in gammas)
        if len(self.gammas) != len(self.milestones) + 1:
            msg = f"gammas must have one value more than milestones, got {len(self.gammas)} and {len(self.milestones)}"
            raise ValueError(msg)
        if list(self.milestones) != sorted({each for each in self.milestones if each > 0}):
            msg = f"milestones must be positive and increase, got {self.milestones}"
            raise ValueError(msg)
        self._epoch = 0
        # The index of this epoch's gamma is a tensor, so that a compiled loss can read it without being recompiled.
        self.register_buffer("_place", torch.zeros(1, dtype=torch.long), persistent=False)

    def forward(self, p: Tensor) -> Tensor | float:
        """Gamma of this epoch: a number, or a tensor inside compiled code."""
        if torch.compiler.is_compiling():
            return torch.tensor(self.gammas, dtype=p.dtype, device=p.device)[self._place.to(p.device)]
        return self.gammas[self._place_after(self._epoch)]

    @property
    def current_gamma(self) -> float | None:
        """Gamma of this epoch; None inside compiled code, where it is not a constant."""
        return None if torch.compiler.is_compiling() else self.gammas[self._place_after(self._epoch)]

    @property
    def closed_form_gamma(self) -> float:
        """Gamma of the last epoch completed; of the first epoch if none is."""
        return self.gammas[self._place_after(max(self._epoch - 1, 0))]

    def step_epoch(self, probs: Tensor | None = None, labels: Tensor | None = None) -> None:  # noqa: ARG002
        """Count an epoch."""
        self.resume(self._epoch + 1)

    def resume(self, epochs: int) -> None:
        """Continue after `epochs` epochs."""
        self._epoch = _check.count(epochs, "epochs", least=0)
        self._place.fill_(self._place_after(self._epoch))

    def _place_after(self, epochs: int) -> int:
        """The index into `gammas` of the epoch that follows `epochs` others."""
        return sum(epochs >= milestone for milestone in self.milestones)

    def get_extra_state(self) -> dict[str, int]:
        """The number of epochs, for `state_dict`."""
        return {"epoch": self._epoch}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Continue from a `state_dict`."""
        self.resume(int(state["epoch"]))

    def extra_repr(self) -> str:
        """The settings."""
        return f"milestones={self.milestones}, gammas={self.gammas}, epoch={self._epoch}"


def fls531() -> Scheduled:
    """The schedule 5, 3, 1 of Mukhoti et al. (2020), for 100, 150 and 100 epochs."""
    return Scheduled((100, 250), (5.0, 3.0, 1.0))


def fls532() -> Scheduled:
    """The schedule 5, 3, 2 of Mukhoti et al. (2020), for 100, 150 and 100 epochs."""
    return Scheduled((100, 250), (5.0, 3.0, 2.0))
