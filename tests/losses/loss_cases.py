"""Batches for the tests of the losses."""

from __future__ import annotations

import math

import torch


def batch(*shape, classes=5, seed=0, dtype=torch.double):
    """Logits (N, K, ...), class indices (N, ...) and class probabilities."""
    generator = torch.Generator().manual_seed(seed)
    full = (shape[0], classes, *shape[1:])
    logits = 3 * torch.randn(full, generator=generator, dtype=torch.double)
    target = torch.randint(classes, shape, generator=generator)
    soft = torch.softmax(torch.randn(full, generator=generator, dtype=torch.double), dim=1)
    return logits.to(dtype), target, soft.to(dtype)


def probabilities(row):
    scores = [math.exp(float(z) - float(max(row))) for z in row]
    return [score / sum(scores) for score in scores]


WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0], dtype=torch.double)
