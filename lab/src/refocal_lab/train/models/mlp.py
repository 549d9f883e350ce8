"""A multilayer perceptron, for vectors and flattened images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from refocal_lab.train.models.layers import Head


class MLP(nn.Sequential):
    """A multilayer perceptron with rectifiers.

    Args:
        classes: Number of classes.
        shape: Shape of one sample, which is flattened.
        hidden: Widths of the hidden layers.

    Reference: Kimura and Naganuma (2024), section 4.3 (two hidden layers of 100 units).
    """

    def __init__(self, *, classes: int, shape: tuple[int, ...], hidden: Sequence[int]) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        inputs = math.prod(shape)
        for width in hidden:
            layers += [nn.Linear(inputs, width), nn.ReLU(inplace=True)]
            inputs = width
        super().__init__(*layers, Head(inputs, classes))
