"""Focusing parameters that are not one number: by sample, by epoch, or learned from validation predictions.

A policy gives each sample a gamma from the probability p of its class. Where gamma < 0 the loss is the inverse focal
loss -(1 + p)^|gamma| log p. No gradient flows through the choice of gamma.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from refocal import _check
from refocal.losses.targets import check_tensors


class GammaPolicy(nn.Module):
    """Abstract: a rule that gives each sample its gamma."""

    @abstractmethod
    def forward(self, p: Tensor) -> Tensor | float:
        """Gamma of each sample, from the probability of its class."""

    @property
    def current_gamma(self) -> float | None:
        """The one gamma that every sample has now; None if it depends on the sample."""
        return None

    @property
    def closed_form_gamma(self) -> float | None:
        """The one gamma that the network was trained with last; then its posterior map is that of focal loss."""
        return None


class SampleWise(GammaPolicy):
    """Piecewise constant gamma: `gammas[k]` between `edges[k - 1]` and `edges[k]`.

    Args:
        edges: Increasing probabilities in (0, 1).
        gammas: One value more than edges.
        closed: Which end belongs to an interval: "left" for [a, b), "right" for (a, b].

    Example:
        >>> FLSD53(torch.tensor([0.1, 0.2, 0.9])).tolist()
        [5.0, 3.0, 3.0]

    Reference: 002, section 5.
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


FLSD53 = SampleWise((0.2,), (5.0, 3.0))  # the NeurIPS version of 002: 5 for p < 0.2
FLA53 = SampleWise((0.19,), (5.0, 3.0), closed="right")  # 002, policy (b)
FLA532 = SampleWise((0.19, 0.5), (5.0, 3.0, 2.0), closed="right")  # 002, policy (a)


class Scheduled(GammaPolicy):
    """Gamma by epoch: `gammas[k]` until epoch `milestones[k]`; call `step_epoch` after each epoch.

    The posterior map is that of the last epoch counted. After `milestones[k]` epochs, the network has been trained with
    `gammas[k]` only, although the next epoch uses `gammas[k + 1]`.

    Args:
        milestones: Increasing numbers of epochs.
        gammas: One value more than milestones.

    Example:
        >>> policy = Scheduled((1,), (5.0, 3.0))
        >>> before = policy(torch.tensor(0.5))
        >>> policy.step_epoch()
        >>> before, policy(torch.tensor(0.5))
        (5.0, 3.0)

    Reference: 002, section 5.
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
        # the present epoch's place in `gammas`, as a tensor: a compiled loss reads it and need not be compiled anew
        self.register_buffer("_place", torch.zeros(1, dtype=torch.long), persistent=False)

    def forward(self, p: Tensor) -> Tensor | float:
        """Gamma of the present epoch: a number, or a tensor inside of compiled programs."""
        if torch.compiler.is_compiling():
            return torch.tensor(self.gammas, dtype=p.dtype, device=p.device)[self._place.to(p.device)]
        return self.gammas[self._place_after(self._epoch)]

    def step_epoch(self) -> None:
        """Count an epoch."""
        self._start_after(self._epoch + 1)

    @property
    def current_gamma(self) -> float | None:
        """Gamma of the present epoch; None inside of compiled programs, where it is no constant."""
        return None if torch.compiler.is_compiling() else self.gammas[self._place_after(self._epoch)]

    @property
    def closed_form_gamma(self) -> float:
        """Gamma of the last epoch counted, or of the first one before any is."""
        return self.gammas[self._place_after(max(self._epoch - 1, 0))]

    def _place_after(self, epochs: int) -> int:
        """Where in `gammas` the epoch stands that follows so many."""
        return sum(epochs >= milestone for milestone in self.milestones)

    def _start_after(self, epochs: int) -> None:
        self._epoch = epochs
        self._place.fill_(self._place_after(epochs))

    def get_extra_state(self) -> dict[str, int]:
        """What `state_dict` carries."""
        return {"epoch": self._epoch}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Go on from a `state_dict`."""
        self._start_after(int(state["epoch"]))

    def extra_repr(self) -> str:
        """The settings."""
        return f"milestones={self.milestones}, gammas={self.gammas}, epoch={self._epoch}"


def fls531() -> Scheduled:
    """002's schedule 5, 3, 1: by 100, 150 and 100 epochs."""
    return Scheduled((100, 250), (5.0, 3.0, 1.0))


def fls532() -> Scheduled:
    """002's schedule 5, 3, 2: by 100, 150 and 100 epochs."""
    return Scheduled((100, 250), (5.0, 3.0, 2.0))


class AdaFocal(GammaPolicy):
    """Gamma by confidence bin, adapted once an epoch to what validation predictions show.

    In each of the equal-mass bins of the validation confidences, gamma grows where the network is overconfident and
    shrinks where it is underconfident: gamma <- gamma exp(+-rate (confidence - accuracy)), + where gamma > 0. Where its
    modulus falls below `switch` it changes sign, between focal and inverse focal loss.

    Args:
        bins: Number of bins.
        rate: Step size, > 0.
        initial_gamma: Gamma of every bin at first.
        switch: Modulus at which gamma changes sign.
        gamma_min: Lower bound.
        gamma_max: Upper bound.

    Example:
        >>> policy = AdaFocal(bins=1)
        >>> policy.update(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))  # 0.4 overconfident
        >>> round(policy(torch.tensor(0.7)).item(), 4)
        1.4918

    Reference: the AdaFocal baseline of 003, section 5.1.
    """

    edges: Tensor
    gammas: Tensor

    def __init__(
        self,
        *,
        bins: int = 15,
        rate: float = 1.0,
        initial_gamma: float = 1.0,
        switch: float = 0.2,
        gamma_min: float = -2.0,
        gamma_max: float = 20.0,
    ) -> None:
        super().__init__()
        self.bins, self.rate = _check.count(bins, "bins"), _check.positive(rate, "rate")
        initial_gamma, switch = _check.finite(initial_gamma, "initial_gamma"), _check.finite(switch, "switch")
        gamma_min, gamma_max = _check.finite(gamma_min, "gamma_min"), _check.finite(gamma_max, "gamma_max")
        if not gamma_min <= -switch < 0 < switch <= gamma_max or not gamma_min <= initial_gamma <= gamma_max:
            given = f"{gamma_min}, {switch}, {gamma_max}, {initial_gamma}"
            msg = f"need gamma_min <= -switch < 0 < switch <= gamma_max with initial_gamma between, got {given}"
            raise ValueError(msg)
        self.initial_gamma, self.switch = initial_gamma, switch
        self.gamma_min, self.gamma_max = gamma_min, gamma_max
        self.register_buffer("edges", torch.linspace(0, 1, self.bins + 1)[1:-1].clone())
        self.register_buffer("gammas", torch.full((self.bins,), initial_gamma))

    def forward(self, p: Tensor) -> Tensor:
        """Gamma of each sample."""
        check_tensors(p=p)
        index = torch.bucketize(p.detach(), self.edges.to(p.dtype))
        return self.gammas.to(p.dtype)[index]

    @torch.no_grad()
    def update(self, probs: Tensor, labels: Tensor, *, ignore_index: int = -100) -> None:
        """Adapt to the predictions on a validation set.

        Args:
            probs: Probabilities (N, K).
            labels: Class indices (N,).
            ignore_index: Samples with this class index do not count.
        """
        check_tensors(probs=probs, labels=labels)
        if probs.ndim != 2 or labels.shape != probs.shape[:1] or not len(labels):
            msg = (
                f"probs and labels must have shapes (N, K) and (N,), got {tuple(probs.shape)} and {tuple(labels.shape)}"
            )
            raise ValueError(msg)
        if not probs.is_floating_point():
            msg = f"probs must have a floating-point dtype, got {probs.dtype}"
            raise TypeError(msg)
        counted = labels != _check.whole(ignore_index, "ignore_index")
        probs, labels = probs[counted.to(probs.device)], labels[counted]
        if not len(labels):
            msg = f"labels must not all be ignore_index={ignore_index}"
            raise ValueError(msg)
        outside = labels[(labels < 0) | (labels >= probs.shape[1])]
        if len(outside):
            allowed = f"0 ... {probs.shape[1] - 1} or be ignore_index={ignore_index}"
            msg = f"labels must lie in {allowed}, got {outside[0].item()}"
            raise ValueError(msg)
        if not bool(((probs >= 0) & (probs <= 1 + _check.sum_tolerance(torch.finfo(probs.dtype).bits))).all()):
            msg = "probs must lie in [0, 1]: give probabilities, not logits, and none that is NaN"
            raise ValueError(msg)
        confidence, predicted = probs.to(self.edges.device, torch.float32).max(dim=1)
        correct = (predicted == labels.to(predicted.device)).float()
        # an edge is the last of its bin, which is closed on the right
        ranks = (torch.arange(1, self.bins, device=confidence.device) * len(confidence) - 1) // self.bins
        edges = confidence.sort().values[ranks]
        inside = torch.bucketize(confidence, edges)[:, None] == torch.arange(self.bins, device=edges.device)
        count = inside.sum(dim=0)
        # neither a product of matrices, which autocast takes in 16 bits, nor a weighted bincount, which deterministic
        # mode refuses on a GPU
        gap = torch.where(inside, (confidence - correct)[:, None], 0).sum(dim=0) / count.clamp(min=1)
        gammas = self.gammas.float()
        positive = gammas > 0
        adapted = gammas * torch.exp(torch.where(positive, self.rate, -self.rate) * gap)
        adapted = torch.where(adapted.abs() < self.switch, torch.where(positive, -self.switch, self.switch), adapted)
        self.gammas.copy_(torch.where(count > 0, adapted.clamp(self.gamma_min, self.gamma_max), gammas))
        self.edges.copy_(edges)

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"bins={self.bins}, rate={self.rate}, initial_gamma={self.initial_gamma}, switch={self.switch}, "
            f"gamma_min={self.gamma_min}, gamma_max={self.gamma_max}"
        )
