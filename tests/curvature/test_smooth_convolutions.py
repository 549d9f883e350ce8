"""Derivatives of convolutions, of every order, against finite differences and PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from refocal.curvature import twice_differentiable
from refocal.curvature.convolution import SmoothConvolutions

SETTINGS = {
    "plain": (F.conv2d, (2, 2, 4, 3), (3, 2, 2, 2), {}),
    "strided": (F.conv2d, (2, 2, 5, 4), (2, 2, 3, 3), {"stride": 2, "padding": 1}),
    "uneven": (F.conv2d, (1, 1, 6, 5), (2, 1, 3, 2), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}),
    "grouped": (F.conv2d, (2, 4, 3, 3), (4, 2, 2, 2), {"groups": 2, "padding": [1]}),
    "one dimension": (F.conv1d, (2, 2, 6), (3, 2, 3), {"dilation": 2}),
    "three dimensions": (F.conv3d, (1, 1, 3, 3, 3), (2, 1, 2, 2, 2), {"padding": 1, "stride": 2}),
}


GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def operands(inputs, weight, *, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in (inputs, weight, weight[:1])]
    return [each.to(device).requires_grad_() for each in drawn]


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", SETTINGS)
def test_first_and_second_derivatives_are_those_of_finite_differences(name, device):
    function, *shapes, settings = SETTINGS[name]

    def smooth(inputs, weight, bias):
        with SmoothConvolutions():
            return function(inputs, weight, bias, **settings)

    inputs = operands(*shapes, device=device)
    torch.testing.assert_close(smooth(*inputs), function(*inputs, **settings))
    assert torch.autograd.gradcheck(smooth, inputs)
    assert torch.autograd.gradgradcheck(smooth, inputs)


def test_third_derivatives_are_those_of_pytorch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Conv2d(2, 3, 3, stride=2), nn.Flatten()).double()
    inputs, parameters = torch.randn(2, 1, 5, 5, dtype=torch.float64), list(model.parameters())

    def third(scores):
        found = torch.logsumexp(scores, dim=1).sum()
        for _ in range(3):
            slopes = torch.autograd.grad(found, parameters, create_graph=True, materialize_grads=True)
            found = sum(slope.square().sum() for slope in slopes)
        return found

    with twice_differentiable():
        scores = model(inputs)
    torch.testing.assert_close(third(scores), third(model(inputs)))


def test_frozen_weights_and_calls_of_other_forms_are_left_alone():
    inputs, weight, _ = operands((1, 2, 4, 4), (2, 2, 3, 3))
    with SmoothConvolutions():
        frozen = F.conv2d(inputs, weight.detach())
        named = F.conv2d(inputs, weight, padding="same")
        unbatched = F.conv2d(inputs[0], weight)
        by_keyword = F.conv2d(input=inputs, weight=weight)
    (slope,) = torch.autograd.grad(frozen.sum(), inputs, create_graph=True)
    torch.testing.assert_close(slope, torch.autograd.grad(F.conv2d(inputs, weight).sum(), inputs)[0])
    assert named.shape == inputs.shape
    torch.testing.assert_close(unbatched[None], frozen)
    torch.testing.assert_close(by_keyword, frozen)


def test_other_ways_to_differentiate_have_pytorchs_convolutions():
    inputs, weight, bias = (each.detach() for each in operands((1, 2, 4, 4), (2, 2, 3, 3)))

    def value(weight):
        return F.conv2d(inputs, weight).square().sum()

    with twice_differentiable():
        curved = torch.func.hessian(value)(weight)
        changed = torch.func.jvp(lambda each: F.conv2d(each, weight), (inputs,), (inputs,))[1]
        by_sample = torch.func.vmap(lambda each: F.conv2d(each[None], weight)[0])(inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            narrow = F.conv2d(inputs.float(), weight.float(), bias.float())
    torch.testing.assert_close(curved, torch.func.hessian(value)(weight))
    torch.testing.assert_close(changed, F.conv2d(inputs, weight))
    torch.testing.assert_close(by_sample, F.conv2d(inputs, weight))
    assert narrow.dtype == torch.bfloat16
