"""The fast 3x3 convolution against PyTorch's, on a GPU or in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from refocal_lab.train import convolution
from refocal_lab.train.convolution import Convolution, convolve

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32  # the interpreter has no bfloat16 products
RELATIVE = 4e-3 if ON_GPU else 1e-6  # one rounding of each value


def weight_and_inputs(shape, *, outputs=None):
    torch.manual_seed(0)
    weight = torch.randn(outputs or shape[1], shape[1], 3, 3, device=DEVICE).to(DTYPE)
    inputs = torch.randn(shape, device=DEVICE).to(DTYPE)
    return [tensor.contiguous(memory_format=torch.channels_last).requires_grad_() for tensor in (weight, inputs)]


def distance(value, reference):
    return torch.linalg.vector_norm(value.double() - reference) / torch.linalg.vector_norm(reference)


KINDS = [
    ((2, 16, 16, 18), 16, 1),
    ((3, 16, 7, 5), 16, 1),
    ((5, 32, 16, 16), 32, 1),
    ((2, 32, 5, 3), 32, 1),
    ((3, 64, 8, 8), 64, 1),
    ((1, 64, 1, 3), 64, 1),
    ((2, 3, 16, 18), 16, 1),
    ((3, 3, 5, 7), 16, 1),
    ((2, 16, 24, 32), 32, 2),
    ((3, 16, 6, 10), 32, 2),
    ((5, 32, 16, 16), 64, 2),
    ((1, 32, 2, 6), 64, 2),
]


@pytest.mark.kernels
@pytest.mark.parametrize(("shape", "channels", "stride"), KINDS)
def test_convolution_and_gradients_are_those_of_pytorch(shape, channels, stride):
    weight, inputs = weight_and_inputs(shape, outputs=channels)
    outputs = convolve(inputs, weight, stride, False)
    incoming = torch.randn(outputs.shape, device=DEVICE).to(DTYPE)
    got = torch.autograd.grad(outputs, (inputs, weight), incoming)
    exact_inputs, exact_weight = (tensor.detach().double().requires_grad_() for tensor in (inputs, weight))
    exact = F.conv2d(exact_inputs, exact_weight, stride=stride, padding=1)
    wanted = torch.autograd.grad(exact, (exact_inputs, exact_weight), incoming.double())
    for value, reference in ((outputs, exact), *zip(got, wanted, strict=True)):
        assert value.shape == reference.shape
        assert value.dtype == DTYPE
        assert distance(value, reference) < RELATIVE


@pytest.mark.kernels
@pytest.mark.parametrize(("shape", "channels", "stride"), [((2, 16, 7, 5), 16, 1), ((2, 16, 6, 4), 32, 2)])
def test_gradients_of_the_gradient_in_the_inputs_are_those_of_pytorch(shape, channels, stride):
    weight, images = weight_and_inputs(shape, outputs=channels)
    outer = torch.randn(shape, device=DEVICE).to(DTYPE)
    inputs = torch.randn_like(convolve(images, weight, stride, False)).requires_grad_()
    exact_images, exact_inputs, exact_weight = (
        tensor.detach().double().requires_grad_() for tensor in (images, inputs, weight)
    )
    got = torch.autograd.grad(convolve(inputs, weight, stride, True), (inputs, weight), outer)
    exact = F.conv_transpose2d(exact_inputs, exact_weight, stride=stride, padding=1, output_padding=stride - 1)
    wanted = torch.autograd.grad(exact, (exact_inputs, exact_weight), outer.double())
    for value, reference in zip(got, wanted, strict=True):
        assert distance(value, reference) < RELATIVE
    (slope,) = torch.autograd.grad(convolve(images, weight, stride, False), images, inputs.detach(), create_graph=True)
    (twice,) = torch.autograd.grad(slope, weight, outer)
    (exact_slope,) = torch.autograd.grad(
        F.conv2d(exact_images, exact_weight, stride=stride, padding=1),
        exact_images,
        exact_inputs.detach(),
        create_graph=True,
    )
    (exact_twice,) = torch.autograd.grad(exact_slope, exact_weight, outer.double())
    assert distance(twice, exact_twice) < RELATIVE


@pytest.mark.kernels
def test_second_derivatives_in_the_weight_are_rejected():
    weight, inputs = weight_and_inputs((1, 16, 2, 2))
    outputs = convolve(inputs, weight, 1, False)
    (slope,) = torch.autograd.grad(outputs.square().sum(), weight, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives; in float32, PyTorch's operations compute"):
        slope.sum().backward()


@pytest.mark.kernels
def test_any_memory_layout_gives_the_same():
    weight, inputs = weight_and_inputs((2, 16, 8, 8))
    incoming = torch.randn(2, 16, 8, 8, device=DEVICE).to(DTYPE)
    expected = torch.autograd.grad(convolve(inputs, weight, 1, False), (inputs, weight), incoming)
    planes = inputs.detach().contiguous().requires_grad_()
    got = torch.autograd.grad(convolve(planes, weight, 1, False), (planes, weight), incoming.contiguous())
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.kernels
def test_compiled_it_gives_the_same():
    weight, inputs = weight_and_inputs((2, 16, 8, 8), outputs=32)
    compiled = torch.compile(lambda images: torch.relu(convolve(images, weight, 2, False)), backend="aot_eager")
    assert torch.equal(compiled(inputs), torch.relu(convolve(inputs, weight, 2, False)))


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "channels", "stride"), KINDS)
def test_the_layer_takes_the_kernels(shape, channels, stride):
    weight, inputs = weight_and_inputs(shape, outputs=channels)
    layer = Convolution(shape[1], channels, 3, stride=stride, padding=1, bias=False).to(DEVICE, DTYPE)
    layer.weight = torch.nn.Parameter(weight.detach())
    assert torch.equal(layer(inputs), convolve(inputs, weight, stride, False))


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({"stride": 2, "padding": 1}, torch.bfloat16),
        ({"padding": 0}, torch.bfloat16),
        ({"padding": 1, "groups": 4}, torch.bfloat16),
        ({"padding": 1, "padding_mode": "circular"}, torch.bfloat16),
        ({"padding": 1, "bias": True}, torch.bfloat16),
        ({"padding": 1}, torch.float32),
    ],
)
def test_other_convolutions_are_pytorchs(settings, dtype):
    layer = Convolution(16, 16, 3, **({"bias": False} | settings)).to(DEVICE, dtype)
    inputs = torch.randn(2, 16, 8, 8, device=DEVICE, dtype=dtype)
    assert torch.equal(layer(inputs), torch.nn.Conv2d.forward(layer, inputs))


@pytest.mark.parametrize(("channels", "groups"), [((16, 16), 1), ((24, 24), 24), ((3, 16), 1)])
def test_images_with_other_channels_are_left_to_pytorch_which_rejects_them(channels, groups, monkeypatch):
    monkeypatch.setattr(convolution, "_HAS_TRITON", True)
    layer = Convolution(*channels, 3, padding=1, groups=groups, bias=False).to(DEVICE, torch.bfloat16)
    with FakeTensorMode():  # no values, so that no GPU is needed
        right, wrong = (torch.empty(2, count, 8, 8, device="cuda", dtype=torch.bfloat16) for count in (channels[0], 1))
    assert layer._is_supported(right)
    assert not layer._is_supported(wrong)
    with pytest.raises(RuntimeError, match=f"to have {channels[0]} channels, but got 1 channels"):
        layer(torch.randn(2, 1, 8, 8, device=DEVICE, dtype=torch.bfloat16))
