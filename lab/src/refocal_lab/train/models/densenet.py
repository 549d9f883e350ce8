"""Densely connected networks for small images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from refocal_lab.train.models.layers import AveragePool, Head, Layers, check_size
from refocal_lab.train.normalization import BatchNorm


class DenseLayer(nn.Module):
    """Computes `growth` new channels from all earlier ones, through a bottleneck, and appends them."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.branch = Layers(
            BatchNorm(inputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            BatchNorm(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, features: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C + growth, H, W)."""
        return torch.cat((features, self.branch(features)), dim=1)


class DenseNet(Layers):
    """Dense blocks, with transitions between them that halve the channels and the image.

    The stem is a 3x3 convolution without pooling or norm, as in the code of Mukhoti et al. (2020).

    Args:
        classes: Number of classes.
        shape: (channels, height, width).
        blocks: Number of layers of each block.
        growth: Channels that each layer adds.

    Reference: Huang, Liu, van der Maaten, Weinberger: Densely Connected Convolutional Networks. CVPR 2017, Table 1.
    """

    def __init__(self, *, classes: int, shape: tuple[int, ...], blocks: Sequence[int], growth: int) -> None:
        check_size(2 ** (len(blocks) - 1), shape, "densenet121")
        channels = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(shape[0], channels, 3, padding=1, bias=False)]
        for block, count in enumerate(blocks):
            if block:
                layers += [
                    BatchNorm(channels),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(channels, channels // 2, 1, bias=False),
                    nn.AvgPool2d(2),
                ]
                channels //= 2
            for _ in range(count):
                layers.append(DenseLayer(channels, growth))
                channels += growth
        super().__init__(
            *layers,
            BatchNorm(channels),
            nn.ReLU(inplace=True),
            AveragePool(),
            Head(channels, classes),
        )
