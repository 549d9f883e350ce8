"""Layers that several networks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from refocal_lab.train.convolution import Convolution


class ConvNorm(nn.Sequential):
    """Convolution without bias, padded to keep the size (divided by the stride), and batch norm."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> None:
        conv = Convolution(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs))


class AveragePool(nn.Module):
    """Mean over all places of an image, (N, C, H, W) -> (N, C)."""

    def forward(self, features: Tensor) -> Tensor:
        """Pool."""
        return features.mean(dim=(2, 3))


class Head(nn.Linear):
    """The last layer of every network: features to logits, in the precision of its own weights.

    Where a network computes in bfloat16, its logits keep the digits of float32.
    """

    def forward(self, features: Tensor) -> Tensor:
        """(N, C) -> logits (N, classes)."""
        return super().forward(features.to(self.weight.dtype))


class WordVectors(nn.Embedding):
    """Vectors of words by their numbers, drawn from a normal distribution until others are given.

    Args:
        words: How many there are.
        dimensions: Of each.
        tuned: Go on training those that are given.
    """

    def __init__(self, words: int, dimensions: int, *, tuned: bool) -> None:
        super().__init__(words, dimensions)
        nn.init.normal_(self.weight, std=0.1)
        self._tuned = tuned

    @torch.no_grad()
    def start_from(self, vectors: Tensor) -> None:
        """Take these vectors (words, dimensions), and train them no further unless they are to be tuned."""
        self.weight.copy_(vectors)
        self.weight.requires_grad_(self._tuned)


class Dropout(nn.Module):
    """Leaves out features at random while a network is trained; the others are enlarged, so that the mean stays.

    Which ones follows from a seed, so that a training can be stopped and go on; without one, from PyTorch's generator.

    Args:
        share: Of the features that are left out, in [0, 1).

    Reference: Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov: Dropout. JMLR 15, 2014.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share
        self._generator: torch.Generator | None = None

    def restart(self, seed: int, device: torch.device) -> None:
        """Draw from this seed on."""
        self._generator = torch.Generator(device).manual_seed(seed)

    def forward(self, features: Tensor) -> Tensor:
        """Features of the same shape."""
        if not self.training:
            return features
        kept = torch.empty_like(features).bernoulli_(1 - self._share, generator=self._generator)
        return features * kept.div_(1 - self._share)


def find_head(network: nn.Module) -> nn.Linear | None:
    """The last layer of a network: its `Head`, else its last linear layer; None if it has none."""
    linear = [module for module in network.modules() if isinstance(module, nn.Linear)]
    heads = [module for module in linear if isinstance(module, Head)]
    return next(iter(heads or linear[-1:]), None)


def he_initialize(network: nn.Module) -> None:
    """Normal weights of variance 2 / fan-out in every convolution.

    Reference: He, Zhang, Ren, Sun: Delving Deep into Rectifiers. ICCV 2015, section 2.2.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def check_size(size: int, shape: tuple[int, ...], network: str) -> None:
    """Refuse images that the network's pooling would shrink to nothing."""
    if min(shape[1:]) < size:
        msg = f"shape must be at least {size} pixels high and wide for {network}, got {shape}"
        raise ValueError(msg)
