"""VGG-19 with batch norm, for images of 32 pixels and more."""

from __future__ import annotations

from torch import nn

from refocal_lab.train.models.layers import AveragePool, Head, Layers, check_size, he_initialize
from refocal_lab.train.normalization import BatchNorm


class VGG(Layers):
    """Sixteen 3x3 convolutions in five groups with pooling after each, and one linear layer.

    On 32x32 images the last pooling leaves one pixel. The three linear layers of the ImageNet network, which are made
    for 7x7 pixels, therefore shrink to one.

    Args:
        classes: Number of classes.
        shape: (channels, height, width).

    Reference: Simonyan, Zisserman: Very Deep Convolutional Networks for Large-Scale Image Recognition. ICLR 2015,
        Table 1, column E.
    """

    def __init__(self, *, classes: int, shape: tuple[int, ...]) -> None:
        check_size(32, shape, "vgg19")
        layers: list[nn.Module] = []
        inputs = shape[0]
        for outputs, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
            for _ in range(count):
                layers += [nn.Conv2d(inputs, outputs, 3, padding=1), BatchNorm(outputs), nn.ReLU(inplace=True)]
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, AveragePool(), Head(inputs, classes))
        he_initialize(self)
