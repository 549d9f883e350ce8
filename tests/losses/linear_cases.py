"""Batches for the tests of linear focal loss, and the comparison with focal loss of the logits in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from refocal.losses import LinearFocalLoss

MARKS = [
    pytest.mark.usefixtures("each_device"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # from NumPy in Triton's interpreter
]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
FEW_BYTES = 4_000  # a few rows per chunk


def draw(
    rows: int, width: int, classes: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator("cpu").manual_seed(rows + classes)
    options = {"generator": generator, "device": "cpu"}
    inputs = [torch.randn(shape, **options).mul_(2) for shape in ((rows, width), (classes, width), (classes,))]
    target = torch.randint(classes, (rows,), **options).to(here())
    return *(each.to(here(), dtype).requires_grad_() for each in inputs), target  # type: ignore[return-value]


def here() -> torch.device:
    return torch.get_default_device()


def exact(criterion: LinearFocalLoss, inputs: tuple[Tensor, ...], target: Tensor, incoming: Tensor) -> list[Tensor]:
    """Loss and gradients of the logits' focal loss in float64."""
    hidden, head, *bias = (each.detach().double().requires_grad_() for each in inputs)
    logits = hidden @ head.t() + (bias[0] if bias else 0)
    softcap = criterion.layer_settings.softcap
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    loss = copy.deepcopy(criterion.focal).double()(logits, target)
    return [loss, *torch.autograd.grad(loss, [hidden, head, *bias], incoming.double())]


def assert_equals(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for value, right in zip(found, expected, strict=True):
        assert value.shape == right.shape
        assert torch.linalg.norm(value.double() - right) <= tolerance * torch.linalg.norm(right) + 1e-14


def assert_exact(criterion: LinearFocalLoss, inputs: tuple[Tensor, ...], target: Tensor, **tolerance: float) -> None:
    loss = criterion(*inputs[:2], target, *inputs[2:])
    incoming = torch.linspace(0.7, 1.5, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    found = [loss, *torch.autograd.grad(loss, inputs, incoming)]
    assert [each.dtype for each in found[1:]] == [each.dtype for each in inputs]
    expected = exact(criterion, inputs, target, incoming)
    assert_equals(found, expected, tolerance.get("tolerance", TOLERANCE[inputs[0].dtype]))
