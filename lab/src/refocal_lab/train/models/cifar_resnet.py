"""He's residual networks for CIFAR-10, with 6n + 2 layers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from refocal_lab.train.models.layers import AveragePool, ConvNorm, Head, Layers, he_initialize


class CifarBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A of the paper).

    If the block halves the image and adds channels, the shortcut takes every second pixel and appends zero channels.
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(inputs, outputs, stride=stride)
        self.second = ConvNorm(outputs, outputs)
        self.stride = stride
        self.new_channels = outputs - inputs

    def forward(self, features: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H / stride, W / stride)."""
        inner = self.first(features, activation="relu")
        if self.stride > 1:
            features = features[:, :, :: self.stride, :: self.stride]
            features = F.pad(features, (0, 0, 0, 0, 0, self.new_channels))
        outputs: Tensor = self.second(inner, features, "relu")
        return outputs


class CifarResNet(Layers):
    """A residual network with 6n + 2 layers: three stages of n blocks with 16, 32 and 64 channels.

    Args:
        classes: Number of classes.
        shape: (channels, height, width).
        depth: Number of layers, 6n + 2.

    Reference: He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition. CVPR 2016, section 4.2;
        Charoenphakdee et al. (2021), section 6.
    """

    def __init__(self, *, classes: int, shape: tuple[int, ...], depth: int) -> None:
        blocks: list[nn.Module] = []
        inputs = 16
        for outputs in (16, 32, 64):
            for _ in range((depth - 2) // 6):
                blocks.append(CifarBlock(inputs, outputs, stride=outputs // inputs))
                inputs = outputs
        super().__init__(ConvNorm(shape[0], 16), nn.ReLU(inplace=True), *blocks, AveragePool(), Head(64, classes))
        he_initialize(self)
