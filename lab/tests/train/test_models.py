"""Networks: parameter counts against published ones, shapes, gradients, a slow reference, errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from refocal_lab.train import models
from refocal_lab.train.models.vit import EncoderLayer

IMAGES = [name for name in models.names() if models.input_kind(name) == "arrays" and name != "mlp"]
LIGHT = ["resnet8", "resnet20", "resnet18", "mobilenet-v2", "vgg19", "vit-small", "mlp"]


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def meta(name, **options):
    """A network with shapes but no values, because counting needs no memory."""
    with torch.device("meta"):
        return models.build(name, **options)


def replace_head(published, *, features, stem=0, classes=10):
    """A published count for ImageNet, with another head than that of 1,000 classes and another stem."""
    return published - (1000 - classes) * (features + 1) - stem


STEM = 64 * 3 * (7 * 7 - 3 * 3)  # a 7x7 convolution of 64 channels becomes a 3x3


# He et al., CVPR 2016, Table 6, in millions
@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)])
def test_cifar_resnets_have_the_published_size(depth, millions):
    found = count(meta(f"resnet{depth}"))
    assert round(found / 1e6, 1 if depth == 110 else 2) == millions
    blocks = (depth - 2) // 6
    stages = 16**2 + 32**2 + 64**2
    convolutions = 3 * 16 * 9 + 9 * (2 * blocks * stages - 32**2 - 64**2 + 16 * 32 + 32 * 64)
    norms = 2 * (16 + 2 * blocks * (16 + 32 + 64))
    assert found == convolutions + norms + 64 * 10 + 10


# torchvision's documentation ("num_params" of the weights): resnet18 11,689,512; resnet50 25,557,032; resnet101
# 44,549,160; densenet121 7,978,856; vgg19_bn 143,678,248; mobilenet_v2 3,504,872. timm's table of results:
# vit_small_patch16_224 22.05 M, exactly 22,050,664.
LAYER3 = 2 * 1024 * 256 + 9 * 256**2 + 2 * (2 * 256 + 1024)  # one bottleneck of the third stage
VGG_HEAD = (25088 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000
VIT_PATCHES = (16**2 - 4**2) * 3 * 384 + (14**2 - 8**2) * 384
PUBLISHED = {
    "resnet18": replace_head(11_689_512, features=512, stem=STEM),
    "resnet50": replace_head(25_557_032, features=2048, stem=STEM),
    "resnet110-bottleneck": replace_head(44_549_160, features=2048, stem=STEM) + 3 * LAYER3,  # 3-4-26-3, not 3-4-23-3
    "densenet121": replace_head(7_978_856, features=1024, stem=STEM + 2 * 64),  # no norm in the stem
    "vgg19": 143_678_248 - VGG_HEAD + 513 * 10,
    "mobilenet-v2": replace_head(3_504_872, features=1280),
    "vit-small": replace_head(22_050_664, features=384, stem=VIT_PATCHES),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_the_published_size(name):
    assert count(meta(name)) == PUBLISHED[name]


def test_wide_resnet_has_the_published_size():
    # Zagoruyko and Komodakis, BMVC 2016, Table 4: WRN-28-10, 36.5 M; the WRN-26-10 of Mukhoti et al. has the same
    assert round(count(meta("wide-resnet26-10")) / 1e6, 1) == 36.5


@pytest.mark.parametrize(("name", "width"), [("resnet18", 64), ("resnet18-wide2", 128)])
def test_resnet18_has_the_size_of_its_width(name, width):
    stem = 9 * 3 * width + 2 * width
    stages = 4 * (9 * width**2 + 2 * width)
    for wide in (2 * width, 4 * width, 8 * width):
        shortcut = wide // 2 * wide + 2 * wide
        stages += 9 * wide // 2 * wide + 3 * 9 * wide**2 + 4 * 2 * wide + shortcut
    assert count(meta(name)) == stem + stages + 10 * (8 * width + 1)


@pytest.mark.parametrize("name", IMAGES)
@pytest.mark.parametrize(("shape", "classes"), [((3, 32, 32), 10), ((1, 32, 32), 7), ((3, 64, 64), 200)])
def test_logits_have_one_column_a_class(name, shape, classes):
    network = meta(name, classes=classes, shape=shape)
    assert network(torch.empty(2, *shape, device="meta")).shape == (2, classes)


@pytest.mark.parametrize("name", [name for name in IMAGES if name != "vgg19"])
def test_fashion_mnist_fits(name):
    assert meta(name, shape=(1, 28, 28))(torch.empty(2, 1, 28, 28, device="meta")).shape == (2, 10)


@pytest.mark.parametrize("name", LIGHT)
def test_every_parameter_gets_a_gradient(name):
    torch.manual_seed(0)
    network = models.build(name).to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)
    F.cross_entropy(network(images), torch.arange(2)).backward()
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        # a bias before batch norm or of attention's keys has no effect; its gradient is rounding noise
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "mobilenet-v2"])
def test_features_stay_channels_last_in_autocast(name):
    network = models.build(name).to(memory_format=torch.channels_last)
    layouts = []
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.register_forward_hook(
                lambda _layer, _inputs, output: layouts.append(output.is_contiguous(memory_format=torch.channels_last))
            )
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last))
    assert logits.dtype == torch.bfloat16
    assert layouts and all(layouts)


SLOW_TO_TRACE = ["resnet20", "resnet18", "densenet121", "mobilenet-v2", "vgg19", "vit-small"]


@pytest.mark.parametrize(
    "name", ["resnet8", "mlp", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_TO_TRACE)]
)
def test_compiles_as_one_graph(name):
    compiled = torch.compile(meta(name), backend="eager", fullgraph=True)
    assert compiled(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 10)


def plain_resnet20(network, images):
    """He's network as in the paper, written with functions; weights are taken in their order."""
    weights = iter(network.state_dict().values())

    def conv_norm(inputs, stride):
        kernel, scale, shift, mean, variance, _ = (next(weights) for _ in range(6))
        columns = F.unfold(inputs, 3, padding=1, stride=stride)
        height = -(-inputs.shape[2] // stride)
        features = (kernel.flatten(1) @ columns).reshape(len(inputs), len(kernel), height, -1)
        place = (None, slice(None), None, None)
        return (features - mean[place]) / torch.sqrt(variance[place] + 1e-5) * scale[place] + shift[place]

    features = conv_norm(images, 1).clamp(min=0)
    for stage in range(3):
        for block in range(3):
            halve = stage > 0 and block == 0
            residual = conv_norm(conv_norm(features, 2 if halve else 1).clamp(min=0), 1)
            if halve:
                small = torch.zeros_like(residual)
                for channel in range(features.shape[1]):
                    small[:, channel] = features[:, channel, 0::2, 0::2]
                features = small
            features = (features + residual).clamp(min=0)
    matrix, bias = weights
    return torch.stack([matrix @ image.mean(dim=(1, 2)) + bias for image in features])


def test_resnet20_is_the_paper_s_network():
    torch.manual_seed(1)
    network = models.build("resnet20").double()
    network(torch.randn(16, 3, 32, 32).double())  # running statistics that are not 0 and 1
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
    network.eval()
    images = torch.randn(5, 3, 32, 32).double()
    with torch.no_grad():
        torch.testing.assert_close(network(images), plain_resnet20(network, images), rtol=1e-9, atol=1e-9)


def test_he_initialisation_has_its_variance():
    torch.manual_seed(0)
    for layer in models.build("resnet20").modules():
        if isinstance(layer, nn.Conv2d) and layer.out_channels == 64:
            assert layer.weight.var().item() == pytest.approx(2 / (9 * 64), rel=0.1)


def test_transformer_layers_start_apart():
    layers = models.build("vit-small").layers
    assert not torch.equal(layers[0].linear1.weight, layers[1].linear1.weight)


def test_seed_fixes_the_weights():
    torch.manual_seed(3)
    first = models.build("resnet8").state_dict()
    torch.manual_seed(3)
    second = models.build("resnet8").state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_mlp_takes_vectors_and_images():
    assert models.build("mlp", shape=(64,))(torch.randn(3, 64)).shape == (3, 10)
    assert count(models.build("mlp", shape=(64,))) == 65 * 100 + 101 * 100 + 101 * 10
    assert models.build("mlp", classes=4, shape=(1, 28, 28))(torch.randn(3, 1, 28, 28)).shape == (3, 4)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("resnet1", {}, "name must be one of 'resnet8'.*got 'resnet1'"),
        ("resnet20", {"shape": (64,)}, r"shape must be \(channels, height, width\) for resnet20, got \(64,\); mlp"),
        ("resnet20", {"classes": 1}, "classes must be at least 2, got 1"),
        ("resnet20", {"shape": (0, 32, 32)}, "shape must be at least 1, got 0"),
        ("vgg19", {"shape": (1, 28, 28)}, "at least 32 pixels high and wide for vgg19"),
        ("densenet121", {"shape": (1, 4, 9)}, "at least 8 pixels high and wide for densenet121"),
        ("vit-small", {"shape": (3, 30, 32)}, "multiple of 4 pixels"),
    ],
)
def test_errors(name, options, message):
    with pytest.raises(ValueError, match=message):
        models.build(name, **options)


def test_encoder_layers_are_those_of_pytorch():
    torch.manual_seed(0)
    layer = EncoderLayer(24, 3).double()
    words = torch.randn(2, 5, 24, dtype=torch.float64, requires_grad=True)
    trained = [words, *layer.parameters()]
    ours, theirs = layer(words), nn.TransformerEncoderLayer.forward(layer, words)
    torch.testing.assert_close(ours, theirs)
    incoming = torch.randn_like(ours)
    for value, reference in zip(
        torch.autograd.grad(ours, trained, incoming), torch.autograd.grad(theirs, trained, incoming), strict=True
    ):
        torch.testing.assert_close(value, reference)
