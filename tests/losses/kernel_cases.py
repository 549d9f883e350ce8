"""Batches for the tests of the kernels, and the comparison with the plain formula."""

from __future__ import annotations

import math
import os
from unittest import mock

import pytest
import torch

from refocal.losses.focal import reduced_focal_loss
from refocal.losses.formulas import focal_rows
from refocal.losses.gpu import dispatch, execute
from refocal.losses.rows import parse_rows, reduce
from refocal.losses.spec import LossSpec

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
MARKS = [
    pytest.mark.kernels,
    # The interpreter evaluates both branches of a `where` with NumPy, which warns about the branch not taken.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]
DEVICE = "cpu" if INTERPRETED else "cuda"
SHAPES = [(1, 2), (5, 3), (7, 10), (33, 100), (4, 1000), (3, 1025), (2, 5000)]
PLAIN = LossSpec(2.0, -100)
TOLERANCE = {torch.float32: (2e-5, 1e-7), torch.bfloat16: (2e-2, 1e-6), torch.float16: (4e-3, 1e-6)}


def batch(rows, classes, *, dtype=torch.float32, seed=0, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(rows, classes, generator=generator)
    target = torch.randint(classes, (rows,), generator=generator)
    soft = torch.softmax(torch.randn(rows, classes, generator=generator), dim=1)
    return logits.to(DEVICE, dtype), target.to(DEVICE), soft.to(DEVICE)


def is_supported(logits, target, spec, weight=None):
    return dispatch.focal_loss(logits, target, weight, spec._replace(reduction="mean")) is not None


def compare(logits, target, spec, reduction, *, weight=None, incoming=1.0, copied=False):
    """Loss and gradient of the kernel against the plain formula in float64 on the same logits."""
    spec = spec._replace(reduction=reduction)
    exact = logits.double().requires_grad_()
    exact_weight = None if weight is None else weight.double()
    rows = parse_rows(exact, target, weight=exact_weight)
    plain = focal_rows(rows, exact_weight, spec).reshape(rows.shape)
    expected = reduce(plain, rows, reduction, weight=exact_weight, ignore_index=spec.ignore_index)
    (incoming * expected.sum()).backward()
    rtol, atol = TOLERANCE[logits.dtype]
    for captured in (False, True):
        leaf = logits.detach().requires_grad_()
        with mock.patch.object(execute, "is_capturing", return_value=captured):
            value = dispatch.focal_loss(leaf, target, weight, spec)
            if (value is None) != copied:
                pytest.fail(f"a kernel {'does not support' if value is None else 'supports'} the layout of the logits")
            if copied:
                value = reduced_focal_loss(leaf, target, weight, spec)
        if value.dtype != torch.result_type(logits, target):
            pytest.fail(f"the loss must be of type {torch.result_type(logits, target)}, got {value.dtype}")
        (incoming * value.sum()).backward()
        torch.testing.assert_close(value.double(), expected, rtol=rtol, atol=atol)
        torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=rtol, atol=atol * max(1.0, abs(incoming)))


def images(shape, classes, *, dtype=torch.float32):
    """Logits (N, K, ...), class indices (N, ...) and class probabilities (N, K, ...), classes not side by side."""
    rows = math.prod(shape)
    logits, target, soft = batch(rows, classes, dtype=dtype)
    return (
        logits.reshape(*shape, classes).movedim(-1, 1).contiguous(),
        target.reshape(shape),
        soft.reshape(*shape, classes).movedim(-1, 1).contiguous(),
    )
