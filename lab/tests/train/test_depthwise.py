"""The convolution channel by channel against PyTorch's, on a GPU or in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

from refocal_lab.train import blocks, depthwise
from refocal_lab.train.convolution import Convolution
from refocal_lab.train.depthwise import convolve_depthwise

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
RELATIVE = 4e-3 if ON_GPU else 1e-6  # one rounding of each value

# with the stride; several blocks of channels and one that is not full; one pixel, one channel
SHAPES = [((2, 24, 6, 4), 1), ((3, 37, 5, 7), 1), ((1, 16, 1, 1), 1), ((2, 40, 4, 6), 2), ((1, 1, 2, 2), 2)]


def weight_and_inputs(shape):
    torch.manual_seed(0)
    weight = torch.randn(shape[1], 1, 3, 3, device=DEVICE).to(DTYPE).requires_grad_()
    inputs = torch.randn(shape, device=DEVICE).to(DTYPE).contiguous(memory_format=torch.channels_last)
    return weight, inputs.requires_grad_()


def distance(value, reference):
    return torch.linalg.vector_norm(value.double() - reference) / torch.linalg.vector_norm(reference)


def check(shape, stride):
    weight, inputs = weight_and_inputs(shape)
    outputs = convolve_depthwise(inputs, weight, stride)
    incoming = torch.randn(outputs.shape, device=DEVICE).to(DTYPE)
    got = torch.autograd.grad(outputs, (inputs, weight), incoming)
    twins = [tensor.detach().double().requires_grad_() for tensor in (inputs, weight)]
    exact = F.conv2d(*twins, stride=stride, padding=1, groups=shape[1])
    wanted = torch.autograd.grad(exact, twins, incoming.double())
    for value, reference in zip((outputs, *got), (exact, *wanted), strict=True):
        assert value.shape == reference.shape
        assert value.dtype == DTYPE
        assert distance(value, reference) < RELATIVE


@pytest.mark.kernels
@pytest.mark.parametrize(("shape", "stride"), SHAPES)
def test_convolution_and_gradients_are_those_of_pytorch(shape, stride):
    check(shape, stride)


@pytest.mark.kernels
@pytest.mark.parametrize(("shape", "stride"), [((2, 16, 5, 4), 1), ((2, 16, 10, 8), 2)])
def test_shares_of_several_blocks_are_merged(shape, stride, monkeypatch):
    monkeypatch.setattr(blocks, "SHARES", 2)
    monkeypatch.setattr(depthwise, "_BLOCK", 256)  # 16 pixels, so 40 results are three blocks: one share has two
    check(shape, stride)


@pytest.mark.kernels
@pytest.mark.parametrize("first", [0, 1])
def test_second_derivatives_are_rejected(first):
    given = weight_and_inputs((1, 16, 2, 2))
    outputs = convolve_depthwise(given[1], given[0], 1)
    (slope,) = torch.autograd.grad(outputs.square().sum(), given[first], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives; in float32, PyTorch's operations compute"):
        slope.sum().backward()


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "stride"), SHAPES)
def test_the_layer_takes_the_kernels(shape, stride):
    weight, inputs = weight_and_inputs(shape)
    layer = Convolution(shape[1], shape[1], 3, stride, padding=1, groups=shape[1], bias=False).to(DEVICE, DTYPE)
    layer.weight = torch.nn.Parameter(weight.detach())
    outputs = layer(inputs)
    assert "refocal_depthwise3x3" in outputs.grad_fn.name()
    assert torch.equal(outputs, convolve_depthwise(inputs, weight, stride))
