"""Losses and confidences on the lattice of (gamma, T), against the posterior map of whole rows in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from refocal import posterior_from_logits
from refocal.language_models.lattices import GAMMAS, evaluate_lattice
from refocal.language_models.outlines import BETAS, LEADERS, RowOutlines, outline_rows

PLACES = [(0, 0), (0, 12), (5, 6), (5, 12), (9, 10), (10, 12), (12, 20), (14, 9), (16, 12), (16, 24)]


def evaluate(logits: Tensor, target: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Losses and confidences (gammas, betas, n)."""
    halves = [outline_rows(part, labels) for part, labels in zip(logits.chunk(2), target.chunk(2), strict=True)]
    parts = list(evaluate_lattice(RowOutlines.join(halves)))
    return tuple(torch.cat(each, dim=2).double().numpy() for each in zip(*parts, strict=True))


def assert_exact(logits: Tensor, target: Tensor, *, atol: float) -> None:
    losses, confidences = evaluate(logits, target)
    assert losses.shape == confidences.shape == (len(GAMMAS), len(BETAS), len(target))
    for i, j in PLACES:
        exact = posterior_from_logits(logits.double().numpy(), gamma=GAMMAS[i], temperature=1 / BETAS[j], log=True)
        expected = -exact[np.arange(len(target)), target]
        np.testing.assert_allclose(losses[i, j], expected, rtol=2e-6, atol=atol, err_msg=f"{GAMMAS[i]}, {BETAS[j]}")
        np.testing.assert_allclose(confidences[i, j], np.exp(exact.max(axis=1)), rtol=10 * atol)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 5e-6)], ids=str)
@pytest.mark.parametrize("classes", [2, 3, LEADERS, LEADERS + 1])
def test_few_classes_are_exact(classes, dtype, atol):
    generator = torch.Generator().manual_seed(classes)
    logits = 4 * torch.randn(20, classes, generator=generator, dtype=dtype)
    assert_exact(logits, torch.arange(20) % classes, atol=atol)


@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 3.0])
def test_a_long_tail_is_summed_to_third_order(spread):
    """The error is largest for flat rows and large gamma, where the tail has most of the mass."""
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(20, 3000, generator=generator, dtype=torch.float64)
    assert_exact(logits, torch.arange(20), atol=1e-4)
    losses, _ = evaluate(logits, torch.arange(20))
    exact = posterior_from_logits(logits.numpy(), gamma=GAMMAS[10], log=True)  # gamma = 1.7
    np.testing.assert_allclose(losses[10, 12], -exact[np.arange(20), np.arange(20)], rtol=2e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_ties_and_logits_far_apart(dtype):
    logits = torch.zeros(6, 200, dtype=dtype)
    logits[1, :2] = 5.0  # a tie at the top
    logits[2, 3] = 60.0
    logits[3, 3] = 2000.0
    logits[4] = torch.linspace(0, -900, 200)
    logits[5, 7:] = -torch.inf
    for target in (torch.zeros(6, dtype=torch.long), torch.tensor([0, 1, 3, 3, 0, 6])):
        assert_exact(logits, target, atol=1e-4)
