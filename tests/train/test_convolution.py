"""The fast 3x3 convolution against PyTorch's, on a GPU or in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

from refocal.losses.compiled import INTERPRETED
from refocal.train.convolution import Convolution, convolve

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32  # the interpreter has no bfloat16 products
RELATIVE = 4e-3 if ON_GPU else 1e-6  # one rounding of each value
runs_kernels = pytest.mark.skipif(not (INTERPRETED or ON_GPU), reason="needs a GPU, or TRITON_INTERPRET=1")


def weight_and_inputs(shape):
    torch.manual_seed(0)
    weight = torch.randn(shape[1], shape[1], 3, 3, device=DEVICE).to(DTYPE)
    inputs = torch.randn(shape, device=DEVICE).to(DTYPE)
    return [tensor.contiguous(memory_format=torch.channels_last).requires_grad_() for tensor in (weight, inputs)]


def distance(value, reference):
    return torch.linalg.vector_norm(value.double() - reference) / torch.linalg.vector_norm(reference)


@runs_kernels
@pytest.mark.parametrize("shape", [(2, 16, 32, 32), (3, 16, 7, 5), (5, 32, 16, 16), (3, 64, 8, 8), (1, 64, 1, 3)])
def test_convolution_and_gradients_are_those_of_pytorch(shape):
    weight, inputs = weight_and_inputs(shape)
    outputs = convolve(inputs, weight, False)
    incoming = torch.randn(shape, device=DEVICE).to(DTYPE)
    got = torch.autograd.grad(outputs, (inputs, weight), incoming)
    exact_inputs, exact_weight = (tensor.detach().double().requires_grad_() for tensor in (inputs, weight))
    exact = F.conv2d(exact_inputs, exact_weight, padding=1)
    wanted = torch.autograd.grad(exact, (exact_inputs, exact_weight), incoming.double())
    for value, reference in ((outputs, exact), *zip(got, wanted, strict=True)):
        assert value.shape == reference.shape
        assert value.dtype == DTYPE
        assert distance(value, reference) < RELATIVE


@runs_kernels
def test_gradients_of_the_gradient_in_the_inputs_are_those_of_pytorch():
    weight, inputs = weight_and_inputs((2, 16, 7, 5))
    incoming, outer = torch.randn(2, 2, 16, 7, 5, device=DEVICE).to(DTYPE)
    got = torch.autograd.grad(convolve(inputs, weight, True), (inputs, weight), incoming)
    exact_inputs, exact_weight = (tensor.detach().double().requires_grad_() for tensor in (inputs, weight))
    exact = F.conv_transpose2d(exact_inputs, exact_weight, padding=1)
    wanted = torch.autograd.grad(exact, (exact_inputs, exact_weight), incoming.double())
    for value, reference in zip(got, wanted, strict=True):
        assert distance(value, reference) < RELATIVE
    (slope,) = torch.autograd.grad(convolve(inputs, weight, False), inputs, incoming, create_graph=True)
    (twice,) = torch.autograd.grad(slope, weight, outer)
    (exact_slope,) = torch.autograd.grad(
        F.conv2d(exact_inputs, exact_weight, padding=1), exact_inputs, incoming.double(), create_graph=True
    )
    (exact_twice,) = torch.autograd.grad(exact_slope, exact_weight, outer.double())
    assert distance(twice, exact_twice) < RELATIVE


@runs_kernels
def test_any_memory_layout_gives_the_same():
    weight, inputs = weight_and_inputs((2, 16, 8, 8))
    incoming = torch.randn(2, 16, 8, 8, device=DEVICE).to(DTYPE)
    expected = torch.autograd.grad(convolve(inputs, weight, False), (inputs, weight), incoming)
    planes = inputs.detach().contiguous().requires_grad_()
    got = torch.autograd.grad(convolve(planes, weight, False), (planes, weight), incoming.contiguous())
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)


@runs_kernels
def test_compiled_it_gives_the_same():
    weight, inputs = weight_and_inputs((2, 16, 8, 8))
    compiled = torch.compile(lambda images: torch.relu(convolve(images, weight, False)), backend="aot_eager")
    assert torch.equal(compiled(inputs), torch.relu(convolve(inputs, weight, False)))


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_the_layer_takes_the_kernels():
    weight, inputs = weight_and_inputs((2, 16, 8, 8))
    layer = Convolution(16, 16, 3, padding=1, bias=False).to(DEVICE, DTYPE)
    layer.weight = torch.nn.Parameter(weight.detach())
    assert torch.equal(layer(inputs), convolve(inputs, weight, False))


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({"stride": 2, "padding": 1}, torch.bfloat16),
        ({"padding": 0}, torch.bfloat16),
        ({"padding": 1, "groups": 16}, torch.bfloat16),
        ({"padding": 1, "bias": True}, torch.bfloat16),
        ({"padding": 1}, torch.float32),
    ],
)
def test_other_convolutions_are_pytorchs(settings, dtype):
    layer = Convolution(16, 16, 3, **({"bias": False} | settings)).to(DEVICE, dtype)
    inputs = torch.randn(2, 16, 8, 8, device=DEVICE, dtype=dtype)
    assert torch.equal(layer(inputs), torch.nn.Conv2d.forward(layer, inputs))
