"""Residual networks of the ImageNet kind with a stem for small images: a 3x3 convolution, no pooling."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from refocal_lab.train.models.layers import AveragePool, ConvNorm, Head, Layers


class _Residual(nn.Module):
    """The sum of a branch and a shortcut; the shortcut is a 1x1 convolution if the shape changes."""

    def __init__(self, branch: Layers, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.branch = branch
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, kernel=1, stride=stride)

    def forward(self, features: Tensor) -> Tensor:
        """Add the branch to the shortcut."""
        outputs: Tensor = self.branch(features, self.shortcut(features), "relu")
        return outputs


class BasicBlock(_Residual):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        branch = Layers(ConvNorm(inputs, width, stride=stride), nn.ReLU(inplace=True), ConvNorm(width, width))
        super().__init__(branch, inputs, width, stride)


class Bottleneck(_Residual):
    """A 1x1, a 3x3 and a 1x1 convolution; the last has four times as many channels."""

    expansion = 4

    def __init__(self, inputs: int, width: int, *, stride: int) -> None:
        outputs = self.expansion * width
        branch = Layers(
            ConvNorm(inputs, width, kernel=1),
            nn.ReLU(inplace=True),
            ConvNorm(width, width, stride=stride),
            nn.ReLU(inplace=True),
            ConvNorm(width, outputs, kernel=1),
        )
        super().__init__(branch, inputs, outputs, stride)


class ResNet(Layers):
    """Stages of residual blocks; each stage after the first halves the image and doubles the width.

    The initial weights are PyTorch's defaults, as in the code of Mukhoti et al. (2020).

    Args:
        classes: Number of classes.
        shape: (channels, height, width).
        block: Kind of block.
        blocks: Number of blocks of each stage.
        stem: Channels after the first convolution.
        width: Width of the first stage.

    Reference: He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition. CVPR 2016, Table 1; Zagoruyko,
        Komodakis: Wide Residual Networks. BMVC 2016 (with the activation after the sum, as in Mukhoti et al., 2020).
    """

    def __init__(
        self,
        *,
        classes: int,
        shape: tuple[int, ...],
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        stem: int | None = None,
        width: int = 64,
    ) -> None:
        inputs = width if stem is None else stem
        layers: list[nn.Module] = [ConvNorm(shape[0], inputs), nn.ReLU(inplace=True)]
        for stage, count in enumerate(blocks):
            for index in range(count):
                layers.append(block(inputs, width, stride=2 if stage and not index else 1))
                inputs = width * block.expansion
            width *= 2
        super().__init__(*layers, AveragePool(), Head(inputs, classes))
