"""Batch norm with residual and activation against float64, on a GPU or in Triton's interpreter."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from refocal_lab.train import blocks, models, normalization
from refocal_lab.train.convolution import Convolution
from refocal_lab.train.models.layers import AveragePool, ConvNorm, Head, Layers
from refocal_lab.train.models.mobilenet import InvertedResidual
from refocal_lab.train.models.resnet import BasicBlock
from refocal_lab.train.normalization import BatchNorm, measure, normalize

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPES = [torch.bfloat16, torch.float32] if ON_GPU else [torch.float32]
RELATIVE = {torch.bfloat16: 4e-3, torch.float32: 2e-6}  # one rounding of each value; sums in float32
ACTIVATIONS = {"none": nn.Identity(), "relu": nn.ReLU(), "relu6": nn.ReLU6()}

# several blocks in both directions, and the last are not full; the interpreter takes milliseconds per block
MANY = (5, 37, 29, 31) if ON_GPU else (2, 37, 13, 11)
# rows and channels that do not fill a block; two rows; one channel; a full block
SHAPES = [(3, 24, 5, 7), (1, 3, 1, 2), (2, 1, 3, 3), (2, 64, 4, 8), MANY]
CASES = [(SHAPES[0], activation, with_residual) for activation in ACTIVATIONS for with_residual in (False, True)]
CASES += [(shape, *after) for shape in SHAPES[1:] for after in (("relu", True), ("relu6", False))]


def make(shape, dtype=DTYPES[0], *, mean=0.3, deviation=2.0):
    """Inputs, residual and incoming gradient, with channels last; weight and bias."""
    torch.manual_seed(0)
    images = [
        (torch.randn(shape, device=DEVICE) * deviation + mean).to(dtype).contiguous(memory_format=torch.channels_last)
        for _ in range(3)
    ]
    return *images, torch.rand(shape[1], device=DEVICE) + 0.5, torch.randn(shape[1], device=DEVICE)


def run(inputs, weight, bias, residual, activation):
    """The outputs by the kernels, and the running statistics after one step."""
    running = torch.zeros_like(weight), torch.ones_like(weight)
    moments = measure(inputs.detach(), *running, 0.1, 1e-5)
    return normalize(inputs, moments, weight, bias, residual, activation), running


def run_exactly(inputs, weight, bias, residual, activation):
    """The same by PyTorch's operations, and the values before the activation."""
    running = torch.zeros_like(weight), torch.ones_like(weight)
    values = F.batch_norm(inputs, *running, weight, bias, training=True)
    values = values if residual is None else values + residual
    return ACTIVATIONS[activation](values), running, values


def distance(value, reference):
    return torch.linalg.vector_norm(value.double() - reference) / torch.linalg.vector_norm(reference)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "activation", "with_residual"), CASES)
def test_outputs_gradients_and_running_statistics_are_those_of_float64(shape, activation, with_residual, dtype):
    inputs, residual, incoming, weight, bias = make(shape, dtype)
    given = [each.requires_grad_() for each in (inputs, weight, bias, *([residual] if with_residual else []))]
    twins = [each.detach().double().requires_grad_() for each in given]
    exact, exact_running, values = run_exactly(*twins, *[None] * (4 - len(twins)), activation)
    # no gradient comes in where rounding decides whether the activation passes it on
    slack = {torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    incoming[(values.abs() < slack) | ((values - 6).abs() < slack)] = 0.0
    outputs, running = run(*given, *[None] * (4 - len(given)), activation)
    assert outputs.dtype == dtype
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    assert distance(outputs, exact) < RELATIVE[dtype]
    for value, reference in zip(running, exact_running, strict=True):
        torch.testing.assert_close(value.double(), reference, rtol=1e-5, atol=1e-6)
    got = torch.autograd.grad(outputs, given, incoming)
    wanted = torch.autograd.grad(exact, twins, incoming.double())
    for value, tensor, reference in zip(got, given, wanted, strict=True):
        assert value.dtype == tensor.dtype
        assert value.shape == tensor.shape
        scale = torch.linalg.vector_norm(incoming.double()) * 1e-6  # with two rows, the gradient itself is nearly zero
        assert torch.linalg.vector_norm(value.double() - reference) < scale + 2 * RELATIVE[dtype] * (
            torch.linalg.vector_norm(reference)
        )


@pytest.mark.kernels
def test_a_large_mean_costs_no_digits():
    inputs, _, incoming, weight, bias = make((4, 16, 15, 15), torch.float32, mean=1000.0, deviation=0.5)
    given = [each.requires_grad_() for each in (inputs, weight, bias)]
    twins = [each.detach().double().requires_grad_() for each in given]
    outputs, _ = run(*given, None, "relu")
    exact, _, values = run_exactly(*twins, None, "relu")
    assert distance(outputs, exact) < 1e-4  # a unit in the last place of the mean is 1e-4 deviations
    incoming = torch.where(values.abs() < 1e-2, 0.0, incoming - 1000.0)
    got = torch.autograd.grad(outputs, given, incoming.float())
    for value, reference in zip(got, torch.autograd.grad(exact, twins, incoming.float().double()), strict=True):
        assert distance(value, reference) < 1e-3


@pytest.mark.kernels
@pytest.mark.parametrize("rows", [1024, 1031, 1279])
def test_shares_of_several_blocks_are_merged(rows, monkeypatch):
    monkeypatch.setattr(blocks, "SHARES", 4)  # five blocks: one share has two
    inputs, _, incoming, weight, bias = make((1, 16, 1, rows), torch.float32)
    given = [each.requires_grad_() for each in (inputs, weight, bias)]
    twins = [each.detach().double().requires_grad_() for each in given]
    outputs, running = run(*given, None, "none")
    exact, exact_running, _ = run_exactly(*twins, None, "none")
    got = (outputs, *running, *torch.autograd.grad(outputs, given, incoming))
    wanted = (exact, *exact_running, *torch.autograd.grad(exact, twins, incoming.double()))
    for value, reference in zip(got, wanted, strict=True):
        assert distance(value, reference) < 1e-5


@pytest.mark.kernels
def test_one_far_value_costs_no_digits():
    inputs = torch.zeros(2, 16, 40, 40, device=DEVICE)
    inputs[0, :, 0, 0] = 1000.0  # the first row, which others are measured from
    inputs = inputs.contiguous(memory_format=torch.channels_last)
    one, zero = torch.ones(16, device=DEVICE), torch.zeros(16, device=DEVICE)
    outputs, running = run(inputs, one, zero, None, "none")
    exact, exact_running, _ = run_exactly(inputs.double(), one.double(), zero.double(), None, "none")
    assert distance(outputs, exact) < 1e-4
    torch.testing.assert_close(running[1].double(), exact_running[1], rtol=1e-4, atol=0.0)


@pytest.mark.kernels
@pytest.mark.parametrize("with_residual", [False, True])
def test_repeated_it_gives_the_same_bits_in_any_memory_layout(with_residual):
    inputs, residual, incoming, weight, bias = make(MANY if ON_GPU else SHAPES[0])

    def results(change):
        given = [change(inputs), weight, bias, change(residual)]
        given = [each.detach().clone(memory_format=torch.preserve_format).requires_grad_() for each in given]
        given = given if with_residual else given[:3]
        outputs, running = run(*given, *[None] * (4 - len(given)), "relu")
        return outputs, *running, *torch.autograd.grad(outputs, given, change(incoming))

    first = results(lambda tensor: tensor)
    for again in (results(lambda tensor: tensor), results(lambda tensor: tensor.contiguous())):
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.kernels
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays_visible(activation):
    inputs, _, incoming, weight, bias = make((2, 16, 3, 3))
    inputs[0, 3, 0, 0] = float("nan")
    inputs.requires_grad_()
    outputs, running = run(inputs, weight, bias, None, activation)
    (gradient,) = torch.autograd.grad(outputs, inputs, incoming)
    for tensor in (outputs, gradient):
        assert tensor.isnan().all(dim=(0, 2, 3)).tolist() == [channel == 3 for channel in range(16)]
    assert all(tensor.isnan().nonzero().tolist() == [[3]] for tensor in running)


@pytest.mark.kernels
@pytest.mark.parametrize("with_residual", [False, True])
def test_second_derivatives_are_rejected(with_residual):
    inputs, residual, incoming, weight, bias = make((2, 16, 3, 3))
    inputs.requires_grad_()
    outputs, _ = run(inputs, weight, bias, residual if with_residual else None, "relu")
    (slope,) = torch.autograd.grad(outputs, inputs, incoming.requires_grad_(), create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivatives; in float32, PyTorch's operations compute"):
        slope.sum().backward()


def test_layers_are_those_of_a_sequential_network():
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 4, 3), BatchNorm(4), nn.ReLU6(inplace=True), nn.ReLU(), nn.Conv2d(4, 5, 1), BatchNorm(5)]
    layers, plain = Layers(*parts), nn.Sequential(*copy.deepcopy(parts))
    images, residual = torch.randn(2, 3, 6, 6), torch.randn(2, 5, 4, 4)
    assert torch.equal(layers(images, residual, "relu"), torch.relu(plain(images) + residual))
    assert torch.equal(layers(images), plain(images))
    assert [*layers.state_dict()] == [*plain.state_dict()]
    for name, buffer in layers.named_buffers():
        assert torch.equal(buffer, plain.get_buffer(name))


@pytest.mark.parametrize("given", [{"residual": torch.ones(2, 4, 6, 6)}, {"activation": "relu"}])
def test_only_batch_norm_takes_a_residual_or_an_activation(given):
    layers = Layers(BatchNorm(3), nn.Conv2d(3, 4, 1))
    with pytest.raises(TypeError, match="must be a batch norm to take a residual or an activation, got Conv2d"):
        layers(torch.randn(2, 3, 6, 6), **given)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_without_a_gpu_and_in_evaluation_it_is_pytorchs(activation):
    torch.manual_seed(0)
    layer, plain = BatchNorm(7), nn.BatchNorm2d(7)
    images, residual = torch.randn(2, 3, 7, 4, 4).unbind(0)
    for training in (True, False):
        layer.train(training)
        plain.train(training)
        expected = ACTIVATIONS[activation](plain(images) + residual)
        assert torch.equal(layer(images, residual, activation), expected)


def describe(shape, dtype=torch.bfloat16):
    """A tensor on a GPU, without values, so that no GPU is needed."""
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.fixture
def triton(monkeypatch):
    """Triton counts as installed."""
    monkeypatch.setattr(normalization, "_HAS_TRITON", True)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("shape", [(2, 16, 3, 3), (1, 16, 1, 2)])
def test_kernels_are_used_in_training_in_bfloat16_on_a_gpu(shape):
    layer, features = BatchNorm(16), describe(shape)
    assert layer._is_supported(features, None)
    assert layer._is_supported(features, describe(shape))
    assert not layer._is_supported(features, describe((1, 16, 1, 1)))
    assert not layer._is_supported(features, describe(shape, torch.float32))
    assert not layer._is_supported(describe(shape, torch.float32), None)
    assert not layer._is_supported(torch.empty(shape, dtype=torch.bfloat16), None)
    assert not layer.eval()._is_supported(features, None)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (1, 16, 1, 1)),  # no variance
        ({}, (0, 16, 3, 3)),
        ({}, (2, 8, 3, 3)),
        ({}, (2, 16, 9)),
        ({}, (2**12, 16, 2**7, 2**8)),  # addresses have 32 bits
        ({"dtype": torch.bfloat16}, (2, 16, 3, 3)),
        ({"affine": False}, (2, 16, 3, 3)),
        ({"momentum": None}, (2, 16, 3, 3)),
        ({"track_running_stats": False}, (2, 16, 3, 3)),
    ],
)
def test_other_layers_and_batches_are_left_to_pytorch(settings, shape):
    assert not BatchNorm(16, **settings)._is_supported(describe(shape), None)


@pytest.mark.kernels
def test_the_layer_takes_the_kernels(monkeypatch):
    if not ON_GPU:
        monkeypatch.setattr(BatchNorm, "_is_supported", lambda *_: True)
    inputs, residual, _, weight, bias = make((2, 16, 3, 3))
    layer = BatchNorm(16).to(DEVICE)
    layer.load_state_dict(layer.state_dict() | {"weight": weight, "bias": bias})
    outputs = layer(inputs, residual, "relu")
    assert "refocal_normalize" in outputs.grad_fn.name()
    expected, running = run(inputs, weight, bias, residual, "relu")
    assert torch.equal(outputs, expected)
    assert torch.equal(layer.running_mean, running[0])
    assert torch.equal(layer.running_var, running[1])
    assert layer.num_batches_tracked == 1


@pytest.mark.parametrize(
    ("shape", "message"),
    [((1, 16, 1, 1), "more than 1 value per channel"), ((2, 8, 3, 3), "should contain 8 elements")],
)
def test_batches_that_pytorch_rejects_are_rejected(shape, message):
    images = torch.randn(shape, device=DEVICE, dtype=torch.bfloat16)
    with pytest.raises((ValueError, RuntimeError), match=message):
        BatchNorm(16).to(DEVICE)(images)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50", "mobilenet-v2", "vgg19", "densenet121"])
def test_networks_compute_what_pytorchs_operations_do(name, monkeypatch):
    """In bfloat16, both are as far from float32 as its rounding makes them."""
    torch.manual_seed(0)
    network = models.build(name).to("cuda", memory_format=torch.channels_last)
    images = torch.randn(32, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    labels = torch.arange(32, device="cuda") % 10

    def differentiate(network, images):
        logits = network(images)
        gradients = torch.autograd.grad(F.cross_entropy(logits.float(), labels), [*network.parameters()])
        return logits.detach(), torch.cat([gradient.double().flatten() for gradient in gradients])

    half = copy.deepcopy(network).bfloat16()
    for layer in half.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.float()
    plain = copy.deepcopy(half)
    exact = differentiate(network, images)
    ours = differentiate(half, images.bfloat16())
    monkeypatch.setattr(BatchNorm, "own", False)
    monkeypatch.setattr(Convolution, "own", False)
    theirs = differentiate(plain, images.bfloat16())
    for value, other, reference in zip(ours, theirs, exact, strict=True):
        assert distance(value, reference.double()) < 0.02 + 1.5 * distance(other, reference.double())
    assert [*half.state_dict()] == [*plain.state_dict()]
    for (key, value), other in zip(half.named_buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(value, other, rtol=0.1, atol=0.02, msg=key)


@pytest.mark.kernels
@pytest.mark.parametrize("compiled", [False, True])
def test_a_network_in_float32_learns_the_same_with_the_kernels(compiled, monkeypatch):
    torch.manual_seed(0)
    plain = Layers(
        *(
            ConvNorm(3, 8),
            nn.ReLU(inplace=True),
            BasicBlock(8, 8, stride=1),
            InvertedResidual(8, 8, expansion=2, stride=1),
        ),
        *(AveragePool(), Head(8, 3)),
    ).to(DEVICE, memory_format=torch.channels_last)
    ours = copy.deepcopy(plain)
    images = torch.randn(4, 3, 6, 6, device=DEVICE).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(4, device=DEVICE) % 3
    forward = torch.compile(ours, backend="aot_eager") if compiled else ours

    def learn(network, forward):
        loss = F.cross_entropy(forward(images), labels)
        return loss.detach(), *torch.autograd.grad(loss, [*network.parameters()]), *network.buffers()

    expected = learn(plain, plain)
    for kind in (BatchNorm, Convolution):  # the inverted residual has a convolution channel by channel
        monkeypatch.setattr(kind, "_is_supported", lambda *_: True)
    for value, reference in zip(learn(ours, forward), expected, strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-3, atol=1e-5)
