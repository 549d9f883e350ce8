"""Layers that several networks share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from refocal_lab.train.convolution import Convolution
from refocal_lab.train.normalization import Activation, BatchNorm

_ACTIVATIONS: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.ReLU6: "relu6"}


class Layers(nn.Sequential):
    """`nn.Sequential` in which a batch norm also computes the activation after it, whose module is not called."""

    def forward(self, features: Tensor, residual: Tensor | None = None, activation: Activation = "none") -> Tensor:
        """Apply the layers in their order; then, if the last is a batch norm, the residual and the activation."""
        layers = tuple(self)
        if (residual is not None or activation != "none") and not isinstance(layers[-1], BatchNorm | ConvNorm):
            last = type(layers[-1]).__name__
            msg = f"the last layer must be a batch norm to take a residual or an activation, got {last}"
            raise TypeError(msg)
        normalized = False  # whether the layer before is a batch norm, which has computed the activation
        for layer, follower in zip(layers, (*layers[1:], None), strict=True):
            if isinstance(layer, BatchNorm | ConvNorm):
                after = (residual, activation) if follower is None else (None, _ACTIVATIONS.get(type(follower), "none"))
                features, normalized = layer(features, *after), True
            else:
                if not (normalized and type(layer) in _ACTIVATIONS):
                    features = layer(features)
                normalized = False
        return features


class ConvNorm(Layers):
    """A convolution without bias, padded to keep the size (divided by the stride), and batch norm."""

    def __init__(self, inputs: int, outputs: int, *, kernel: int = 3, stride: int = 1, groups: int = 1) -> None:
        conv = Convolution(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
        super().__init__(conv, BatchNorm(outputs))


class AveragePool(nn.Module):
    """The mean over all places of an image, (N, C, H, W) -> (N, C)."""

    def forward(self, features: Tensor) -> Tensor:
        """Pool."""
        return features.mean(dim=(2, 3))


class Head(nn.Linear):
    """The last layer of each network, from features to logits, in the precision of its own weights.

    In a network that computes in bfloat16, the logits keep the digits of float32.
    """

    def forward(self, features: Tensor) -> Tensor:
        """(N, C) -> logits (N, classes)."""
        return super().forward(features.to(self.weight.dtype))


class WordVectors(nn.Embedding):
    """Word vectors by number, drawn from a normal distribution unless given.

    Args:
        words: Number of words.
        dimensions: Dimensions of each vector.
        tuned: Whether to train given vectors further.
    """

    def __init__(self, words: int, dimensions: int, *, tuned: bool) -> None:
        super().__init__(words, dimensions)
        nn.init.normal_(self.weight, std=0.1)
        self._tuned = tuned

    @torch.no_grad()
    def start_from(self, vectors: Tensor) -> None:
        """Start from given vectors (words, dimensions)."""
        self.weight.copy_(vectors)
        self.weight.requires_grad_(self._tuned)


class Dropout(nn.Module):
    """Drops features at random during training and scales up the others, so that the mean stays.

    After `restart`, the choice follows from a seed, so that a stopped training continues with the same bits. Without
    it, the choice follows from PyTorch's generator.

    Args:
        share: Share of the features that are dropped, in [0, 1).

    Reference: Srivastava, Hinton, Krizhevsky, Sutskever, Salakhutdinov: Dropout. JMLR 15, 2014.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self._share = share
        self._generator: torch.Generator | None = None

    def restart(self, seed: int, device: torch.device) -> None:
        """Draw from a new generator with this seed."""
        self._generator = torch.Generator(device).manual_seed(seed)

    def forward(self, features: Tensor) -> Tensor:
        """Drop some of the features, of any shape, in training mode."""
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
    """Draw the weights of each convolution from a normal distribution of variance 2 / fan-out.

    Reference: He, Zhang, Ren, Sun: Delving Deep into Rectifiers. ICCV 2015, section 2.2.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def check_size(size: int, shape: tuple[int, ...], network: str) -> None:
    """Reject images that the pooling of a network would shrink to nothing."""
    if min(shape[1:]) < size:
        msg = f"shape must be at least {size} pixels high and wide for {network}, got {shape}"
        raise ValueError(msg)
