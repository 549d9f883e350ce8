"""Networks by name: those of the papers for small images and texts, and a multilayer perceptron for vectors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import nn

from refocal import _check
from refocal_lab.train.models.cifar_resnet import CifarResNet
from refocal_lab.train.models.densenet import DenseNet
from refocal_lab.train.models.gp_cnn import GlobalPoolingCNN
from refocal_lab.train.models.mlp import MLP
from refocal_lab.train.models.mobilenet import MobileNetV2
from refocal_lab.train.models.resnet import BasicBlock, Bottleneck, ResNet
from refocal_lab.train.models.tree_lstm import TreeLSTM
from refocal_lab.train.models.vgg import VGG
from refocal_lab.train.models.vit import VisionTransformer
from refocal_lab.train.own_parts import call_own, check_name, is_own

__all__ = ["build", "input_kind", "names"]

Shape = tuple[int, ...]
_NETWORKS: dict[str, Callable[..., nn.Module]] = {
    **{f"resnet{depth}": partial(CifarResNet, depth=depth) for depth in (8, 20, 32, 44, 56, 110)},
    "resnet18": partial(ResNet, block=BasicBlock, blocks=(2, 2, 2, 2)),
    "resnet18-wide2": partial(ResNet, block=BasicBlock, blocks=(2, 2, 2, 2), width=128),
    "resnet50": partial(ResNet, block=Bottleneck, blocks=(3, 4, 6, 3)),
    "resnet110-bottleneck": partial(ResNet, block=Bottleneck, blocks=(3, 4, 26, 3)),
    "wide-resnet26-10": partial(ResNet, block=BasicBlock, blocks=(4, 4, 4), stem=16, width=160),
    "densenet121": partial(DenseNet, blocks=(6, 12, 24, 16), growth=32),
    "vgg19": VGG,
    "mobilenet-v2": MobileNetV2,
    "vit-small": partial(VisionTransformer, patch=4, width=384, depth=12, heads=6),
    "mlp": partial(MLP, hidden=(100, 100)),
    "gp-cnn": GlobalPoolingCNN,
    "tree-lstm": TreeLSTM,
}
_TEXTS: dict[str, Literal["documents", "trees"]] = {"gp-cnn": "documents", "tree-lstm": "trees"}


def names() -> tuple[str, ...]:
    """The names of all networks.

    Example:
        >>> names()[:3]
        ('resnet8', 'resnet20', 'resnet32')
    """
    return tuple(_NETWORKS)


def input_kind(name: str) -> Literal["arrays", "documents", "trees"]:
    """The kind of input of a network: "arrays", "documents" or "trees"."""
    _check.one_of(name, "name", names())
    return _TEXTS.get(name, "arrays")


def build(name: str, *, classes: int = 10, shape: Shape = (3, 32, 32)) -> nn.Module:
    """Make a network with fresh weights, drawn from PyTorch's global generator.

    It takes float tensors (N, *shape) and returns logits (N, classes). `gp-cnn` takes `gp_cnn.PackedDocuments`,
    `tree-lstm` takes `tree_lstm.TreeLevels`.

    Two networks share a name in the papers: `resnet110` is He's 6n + 2 network (1.7 M parameters) of Charoenphakdee et
    al. (2021), `resnet110-bottleneck` (46 M) is the one that Mukhoti et al. (2020) trained.

    Args:
        name: One of `names()`, or `package.module:function`: a function of your own that takes `classes` and `shape`
            by keyword and returns the network.
        classes: Number of classes.
        shape: Shape of one sample: (channels, height, width) for an image; `mlp` also takes (features,); for texts the
            number of words and the dimensions of their vectors.

    Returns:
        The network, in training mode, on the CPU.

    Example:
        >>> network = build("resnet20")
        >>> sum(parameter.numel() for parameter in network.parameters())
        269722

    Reference: Charoenphakdee et al. (2021), section 6; Mukhoti et al. (2020), section 5; Komisarenko and Kull (2024),
        section 5.1; Kimura and Naganuma (2024), section 4.
    """
    check_name(name, "name", names())
    classes = _check.count(classes, "classes", least=2)
    shape = tuple(_check.count(size, "shape") for size in shape)
    if is_own(name):
        return call_own(name, "model", nn.Module, classes=classes, shape=shape)
    if name in _TEXTS:
        if len(shape) != 2:
            msg = f"shape must be (words, dimensions) for {name}, got {shape}"
            raise ValueError(msg)
    elif len(shape) != 3 and name != "mlp":
        msg = f"shape must be (channels, height, width) for {name}, got {shape}; mlp takes vectors"
        raise ValueError(msg)
    return _NETWORKS[name](classes=classes, shape=shape)
