"""Cases for curvature: a small network in float64, data with ignored samples, every loss, and exact matrices."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call, hessian, jacrev

from refocal.curvature.matrix_vector import matrix_vector_product
from refocal.curvature.moving_weights import find_layer_weights
from refocal.curvature.problem import prepare
from refocal.curvature.quadratic_forms import quadratic_forms
from refocal.losses import (
    FLSD53,
    AdaFocal,
    BrierLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    MMCELoss,
    ProperFocalLoss,
    SigmoidFocalLoss,
)

DEFAULTS = {"parameters": None, "group": None, "dtype": None, "batch_statistics": False}
WEIGHT = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
SAMPLES = 17


def _adapted():
    policy = AdaFocal(bins=3)
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(60, 3, generator=generator)
    policy.step_epoch(torch.softmax(scores, dim=1), torch.randint(3, (60,), generator=generator))
    return policy


# Each is a sum over samples, except MMCE.
LOSSES = {
    "cross-entropy": nn.CrossEntropyLoss,
    "cross-entropy, weights, smoothing": lambda **more: nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1, **more),
    "focal": lambda **more: FocalLoss(2.0, **more),
    "focal, gamma 0.5": lambda **more: FocalLoss(0.5, **more),
    "focal, one gamma per class": lambda **more: FocalLoss([0.0, 1.0, 3.0], **more),
    "focal, sample-wise gamma": lambda **more: FocalLoss(FLSD53, **more),
    "focal, AdaFocal": lambda **more: FocalLoss(_adapted(), **more),
    "focal, weights": lambda **more: FocalLoss(3.0, weight=WEIGHT, **more),
    "focal, weights, smoothing": lambda **more: FocalLoss(2.0, weight=WEIGHT, label_smoothing=0.1, **more),
    "dual focal": lambda **more: DualFocalLoss(3.0, **more),
    "Brier": BrierLoss,
    "proper focal": lambda **more: ProperFocalLoss(2.0, weight=WEIGHT, **more),
    "inverse focal": lambda **more: InverseFocalLoss(1.0, **more),
    "sigmoid focal": SigmoidFocalLoss,
    "MMCE": lambda **more: MMCELoss(2.0, **more),
    "MMCE, weighted": lambda **more: MMCELoss(2.0, weighted=True, **more),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def samples(name):
    """Inputs and targets; some targets are ignored."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
    if name.startswith("sigmoid"):
        target = torch.rand(SAMPLES, 3, generator=generator, dtype=torch.float64).round()
        target[3, 1] = -100
        return inputs, target
    target = torch.randint(3, (SAMPLES,), generator=generator)
    target[[1, 9, 10]] = -100
    return inputs, target


def batches(name):
    """Uneven batches; a single batch for MMCE, which is a property of a batch."""
    inputs, target = samples(name)
    if name.startswith("MMCE"):
        return [(inputs, target)]
    return [
        (inputs[:7], target[:7]),
        (inputs[7:9], target[7:9]),
        (inputs[9:11], target[9:11]),
        (inputs[11:], target[11:]),
    ]


def exact_hessian(model, loss, inputs, target, names=None):
    """The exact Hessian of the loss over all samples at once, by `torch.func`."""
    parameters = _parameters(model, names)
    whole = hessian(lambda values: loss(functional_call(model, values, (inputs,)), target))(parameters)
    return _joined(whole, parameters)


def exact_ggn(model, loss, inputs, target):
    """The exact Gauss-Newton matrix J'(d2 loss / d scores2)J, from its factors."""
    parameters = _parameters(model, None)
    jacobian = jacrev(lambda values: functional_call(model, values, (inputs,)).flatten())(parameters)
    rows = torch.cat([jacobian[name].flatten(1) for name in parameters], dim=1)
    scores = functional_call(model, parameters, (inputs,))
    inner = hessian(lambda flat: loss(flat.reshape(scores.shape), target))(scores.flatten())
    return rows.T @ inner @ rows


def every_product(model, loss, data, *, matrix="hessian", memory=2**27, **settings):
    """The matrix from the products that eigenvalues are found with. Without memory, each product rebuilds its graph."""
    problem = prepare(model, loss, data, **{**DEFAULTS, **settings})
    multiply = matrix_vector_product(problem, matrix=matrix, memory=memory)
    return torch.stack([multiply(unit) for unit in torch.eye(problem.size, dtype=problem.dtype, device=problem.device)])


def forms(rows, model, loss, data, *, matrix="hessian", **settings):
    """v'Av of each row v, from the quadratic forms that the trace is estimated with."""
    problem = prepare(model, loss, data, **{**DEFAULTS, **settings})
    parts = torch.split(rows.to(problem.device), [values.numel() for values in problem.parameters.values()], dim=1)
    vectors = {
        name: part.reshape(len(rows), *values.shape).to(values.dtype)
        for (name, values), part in zip(problem.parameters.items(), parts, strict=True)
    }
    moving = find_layer_weights(problem)
    return sum(quadratic_forms(problem, batch, matrix=matrix, moving=moving)(vectors) for batch in problem.batches)


def diagonal(model, loss, data, *, matrix="hessian", **settings):
    """e_i'Ae_i of each unit vector."""
    size = prepare(model, loss, data, **{**DEFAULTS, **settings}).size
    return forms(torch.eye(size, dtype=torch.float64), model, loss, data, matrix=matrix, **settings)


def _parameters(model, names):
    return {name: values.detach() for name, values in model.named_parameters() if names is None or name in names}


def _joined(whole, parameters):
    sizes = {name: values.numel() for name, values in parameters.items()}
    return torch.cat(
        [
            torch.cat([whole[one][two].reshape(sizes[one], sizes[two]) for two in parameters], dim=1)
            for one in parameters
        ]
    )
