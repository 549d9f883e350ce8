"""MobileNet-v2 for small images."""

from __future__ import annotations

from torch import Tensor, nn

from refocal_lab.train.models.layers import AveragePool, ConvNorm, Head, Layers, he_initialize

# expansion, channels, blocks, stride; the ImageNet network also has stride 2 in the stem and in the second group
_GROUPS = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class InvertedResidual(nn.Module):
    """Widen, convolve channel by channel, and narrow without an activation; add the input if the shapes are equal."""

    def __init__(self, inputs: int, outputs: int, *, expansion: int, stride: int) -> None:
        super().__init__()
        width = expansion * inputs
        widen = [ConvNorm(inputs, width, kernel=1), nn.ReLU6(inplace=True)] if expansion > 1 else []
        self.branch = Layers(
            *widen,
            ConvNorm(width, width, stride=stride, groups=width),
            nn.ReLU6(inplace=True),
            ConvNorm(width, outputs, kernel=1),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, features: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H / stride, W / stride)."""
        outputs: Tensor = self.branch(features, features if self.residual else None)
        return outputs


class MobileNetV2(Layers):
    """Seventeen inverted residuals between two convolutions, without dropout; 32x32 images end as 4x4.

    Args:
        classes: Number of classes.
        shape: (channels, height, width).

    Reference: Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2: Inverted Residuals and Linear Bottlenecks. CVPR 2018,
        Table 2.
    """

    def __init__(self, *, classes: int, shape: tuple[int, ...]) -> None:
        inputs = 32
        layers: list[nn.Module] = [ConvNorm(shape[0], inputs), nn.ReLU6(inplace=True)]
        for expansion, outputs, count, stride in _GROUPS:
            for index in range(count):
                layers.append(InvertedResidual(inputs, outputs, expansion=expansion, stride=1 if index else stride))
                inputs = outputs
        super().__init__(
            *layers,
            ConvNorm(inputs, 1280, kernel=1),
            nn.ReLU6(inplace=True),
            AveragePool(),
            Head(1280, classes),
        )
        he_initialize(self)
