"""Batch norm with residual and activation against float64, on a GPU or in Triton's interpreter."""

import numpy as np
import pytest
import torch
from torch import nn

from refocal.losses import FocalLoss
from refocal_lab.train import models
from refocal_lab.train.batches import ArrayBatches
from refocal_lab.train.normalization import BatchNorm, measure, normalize
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.step import Step

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPES = [torch.bfloat16, torch.float32] if ON_GPU else [torch.float32]
RELATIVE = {torch.bfloat16: 4e-3, torch.float32: 2e-6}  # one rounding of each value; float32 sums
ACTIVATIONS = {"none": nn.Identity(), "relu": nn.ReLU(), "relu6": nn.ReLU6()}

# rows and channels that fill no block; one block; a share of several blocks with a last one that is not full
SHAPES = [(3, 24, 5, 7), (1, 3, 1, 2), (2, 64, 4, 8), (5, 37, 29, 31), (1, 16, 1, 400)]


def last(tensor):
    return tensor.to(DEVICE).contiguous(memory_format=torch.channels_last)


def make(shape, dtype, *, mean=0.3, deviation=2.0):
    torch.manual_seed(0)
    inputs, residual, incoming = (last((torch.randn(shape) * deviation + mean).to(dtype)) for _ in range(3))
    weight, bias = (torch.rand(shape[1]) + 0.5).to(DEVICE), torch.randn(shape[1]).to(DEVICE)
    return inputs, residual, incoming, weight, bias


def run(inputs, residual, weight, bias, activation):
    """The outputs, and the running statistics after it."""
    running = torch.zeros_like(weight), torch.ones_like(weight)
    moments = measure(inputs.detach(), *running, 0.1, 1e-5)
    return normalize(inputs, moments, weight, bias, residual, activation), running


def run_exactly(inputs, residual, weight, bias, activation):
    """The same by PyTorch in float64; the values before the activation, and the gradients' graph, are kept."""
    layer = nn.BatchNorm2d(inputs.shape[1], device=inputs.device, dtype=torch.float64)
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    values = layer(inputs)
    if residual is not None:
        values = values + residual
    return ACTIVATIONS[activation](values), values, layer


def distance(value, reference):
    return torch.linalg.vector_norm(value.double() - reference) / torch.linalg.vector_norm(reference)


@pytest.mark.kernels
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_residual", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_gradients_and_running_statistics_are_those_in_float64(shape, activation, with_residual, dtype):
    inputs, residual, incoming, weight, bias = make(shape, dtype)
    residual = residual if with_residual else None
    exact, values, layer = run_exactly(
        *(None if each is None else each.double().requires_grad_() for each in (inputs, residual)),
        *(weight.double(), bias.double(), activation),
    )
    # where rounding decides about the activation, no gradient comes in
    slack = 1e-5 if dtype == torch.float32 else 0.05
    incoming[((values.abs() < slack) | ((values - 6).abs() < slack))] = 0.0
    trained = [each.requires_grad_() for each in (inputs, weight, bias, *([residual] if with_residual else []))]
    outputs, running = run(inputs, residual, weight, bias, activation)
    got = torch.autograd.grad(outputs, trained, incoming)
    assert outputs.dtype == dtype
    assert outputs.is_contiguous(memory_format=torch.channels_last)
    assert distance(outputs, exact) < RELATIVE[dtype]
    leaves = [values.grad_fn, layer.weight, layer.bias]
    del leaves
    exact_inputs = find_leaves(values)
    wanted = torch.autograd.grad(exact, [exact_inputs[0], layer.weight, layer.bias, *exact_inputs[1:]], incoming.double())
    for value, reference in zip(got, wanted, strict=True):
        assert value.shape == reference.shape
        assert distance(value, reference) < 2 * RELATIVE[dtype]
    assert [gradient.dtype for gradient in got[1:3]] == [torch.float32] * 2
    torch.testing.assert_close(running[0].double(), layer.running_mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(running[1].double(), layer.running_var, rtol=1e-5, atol=1e-6)
