"""AdaFocal: a gamma for each confidence bin, learned from validation predictions."""

from __future__ import annotations

import torch
from torch import Tensor

from refocal import _check
from refocal.losses.policies import GammaPolicy
from refocal.losses.rows import check_tensors


class AdaFocal(GammaPolicy):
    """Gamma by confidence bin, adapted after each epoch to predictions on a validation set.

    Choose it to let the network's own miscalibration set gamma. It has no closed-form posterior.

    The bins hold equal shares of the validation confidences. In each bin, gamma grows if the network is overconfident
    and shrinks if it is underconfident: gamma <- gamma exp(+-rate (confidence - accuracy)), with + for gamma > 0. When
    |gamma| falls below `switch`, gamma changes its sign, between focal and inverse focal loss.

    Args:
        bins: Number of bins.
        rate: Step size, > 0.
        initial_gamma: Gamma of every bin at the start.
        switch: Value of |gamma| below which gamma changes its sign.
        gamma_min: Lower bound.
        gamma_max: Upper bound.

    Example:
        >>> policy = AdaFocal(bins=1)
        >>> policy.step_epoch(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([0, 1]))  # overconfident by 0.4
        >>> round(policy(torch.tensor(0.7)).item(), 4)
        1.4918

    Reference: the AdaFocal baseline of Komisarenko and Kull (2024), section 5.1.
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
            given = f"gamma_min={gamma_min}, switch={switch}, gamma_max={gamma_max}, initial_gamma={initial_gamma}"
            msg = f"need gamma_min <= -switch < 0 < switch <= gamma_max, and initial_gamma between them, got {given}"
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

    @property
    def learned(self) -> dict[str, Tensor]:
        """The edges of the bins and their gammas."""
        return {"edges": self.edges, "gammas": self.gammas}

    @torch.no_grad()
    def step_epoch(
        self, probs: Tensor | None = None, labels: Tensor | None = None, *, ignore_index: int = -100
    ) -> None:
        """Adapt to the predictions on a validation set.

        Args:
            probs: Probabilities (N, K).
            labels: Class indices (N,).
            ignore_index: Samples with this class index do not count.
        """
        if probs is None or labels is None:
            msg = "AdaFocal learns from a validation set: step_epoch needs probs and labels, got None"
            raise TypeError(msg)
        check_tensors(probs=probs, labels=labels)
        confidence, correct = self._outcomes(probs, labels, _check.whole(ignore_index, "ignore_index"))
        # Bins are closed on the right: the last confidence of a bin is its edge.
        ranks = (torch.arange(1, self.bins, device=confidence.device) * len(confidence) - 1) // self.bins
        edges = confidence.sort().values[ranks]
        inside = torch.bucketize(confidence, edges)[:, None] == torch.arange(self.bins, device=edges.device)
        count = inside.sum(dim=0)
        # Autocast would take a matrix product in 16 bits, and deterministic mode refuses a weighted bincount on a GPU.
        gap = torch.where(inside, (confidence - correct)[:, None], 0).sum(dim=0) / count.clamp(min=1)
        gammas = self.gammas.float()
        positive = gammas > 0
        adapted = gammas * torch.exp(torch.where(positive, self.rate, -self.rate) * gap)
        adapted = torch.where(adapted.abs() < self.switch, torch.where(positive, -self.switch, self.switch), adapted)
        self.gammas.copy_(torch.where(count > 0, adapted.clamp(self.gamma_min, self.gamma_max), gammas))
        self.edges.copy_(edges)

    def _outcomes(self, probs: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
        """Confidence of each prediction that counts, and whether it is correct, after checking both arguments."""
        if probs.ndim != 2 or labels.shape != probs.shape[:1] or not len(labels):
            msg = (
                f"probs and labels must have shapes (N, K) and (N,), got {tuple(probs.shape)} and {tuple(labels.shape)}"
            )
            raise ValueError(msg)
        if not probs.is_floating_point():
            msg = f"probs must have a floating-point dtype, got {probs.dtype}"
            raise TypeError(msg)
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            msg = f"labels must be class indices of an integer dtype, got {labels.dtype}"
            raise TypeError(msg)
        counted = labels != ignore_index
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
        return confidence, (predicted == labels.to(predicted.device)).float()

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"bins={self.bins}, rate={self.rate}, initial_gamma={self.initial_gamma}, switch={self.switch}, "
            f"gamma_min={self.gamma_min}, gamma_max={self.gamma_max}"
        )
