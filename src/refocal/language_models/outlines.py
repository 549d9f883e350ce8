"""Outlines of rows of logits: everything about a row that the pairs (gamma, T) of a lattice need.

An outline has a few hundred numbers.

The model is Psi^gamma(softmax(beta logits)), beta = 1 / T. Its normalizer is the sum of h(p) over all classes. The most
probable classes are kept one by one. For a small probability, h(p) is a power series in p with coefficients that are
polynomials in log p. So two sums over the many improbable classes, with x the distance of a logit from the runner-up,

    A_0(beta) = sum e^(beta x)    and    A_1(beta) = sum x e^(beta x),

are all that matters: at beta the first term of the series, at 2 beta the second, and at 3 beta the third. The inverse
temperatures are powers of 2^(1/6). So 2 beta is one of them, and the masses e^(beta x) of one beta are the squares of
those of beta / 2: few exponentials are computed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

OCTAVE = 6  # inverse temperatures between beta and 2 beta
BETAS = tuple(2.0 ** (step / OCTAVE) for step in range(-2 * OCTAVE, 2 * OCTAVE + 1))  # from 1/4 to 4
TAIL_BETAS = (*BETAS, *(2.0 ** (2 + step / OCTAVE) for step in range(1, 11)))  # up to 3 times the largest

LEADERS = 96  # classes of a row that are kept one by one
_FARTHEST = 160.0  # logits below the runner-up count as this far: at T = 4, e^-40
_FAINT = 1e-18  # masses below this count as 0; their squares would be subnormal numbers, which are slow
_MASKED = 1e4  # logits below the largest; farther ones, such as -inf, count as this far


class RowOutlines(NamedTuple):
    """Rows of logits, relative to the second largest of each row, the runner-up.

    Attributes:
        gap: (n, 1) the largest logit.
        leaders: (n, m) the next m largest logits, from 0 downward.
        label: (n, 1) the logit of the label.
        is_top: (n, 1) whether the label is the class of the largest logit; the first one in a tie.
        masses: (tail betas, n, 1) A_0 of all other classes.
        moments: (tail betas, n, 1) their A_1.
    """

    gap: Tensor
    leaders: Tensor
    label: Tensor
    is_top: Tensor
    masses: Tensor
    moments: Tensor

    @classmethod
    def join(cls, parts: list[RowOutlines]) -> RowOutlines:
        """Put the rows of several outlines together."""
        rows = [0, 0, 0, 0, 1, 1]  # the axis of the rows
        return cls(*(torch.cat(each, dim=axis) for each, axis in zip(zip(*parts, strict=True), rows, strict=True)))

    def take(self, rows: slice) -> RowOutlines:
        """Some of the rows."""
        return RowOutlines(*(part[rows] for part in self[:4]), *(part[:, rows] for part in self[4:]))


def outline_rows(logits: Tensor, target: Tensor) -> RowOutlines:
    """Outline rows of logits (n, V) with labels (n,), in the dtype of the logits.

    Args:
        logits: Finite, or -inf for masked classes; in float32 or float64.
        target: Class indices, of classes that are not masked.
    """
    index = target[:, None]
    is_top = logits.argmax(dim=1, keepdim=True) == index
    logits = torch.maximum(logits, logits.amax(dim=1, keepdim=True) - _MASKED)
    values, classes = torch.topk(logits, min(LEADERS + 1, logits.shape[1]), dim=1)
    runner_up = values[:, 1:2]
    label = logits.gather(1, index) - runner_up
    masses = logits.new_zeros(len(TAIL_BETAS), len(logits), 1)
    moments = torch.zeros_like(masses)
    if logits.shape[1] > classes.shape[1]:
        distance = logits.sub_(runner_up).scatter_(1, classes, -_FARTHEST).clamp_(min=-_FARTHEST)
        _sum_tail(distance, masses, moments)
    return RowOutlines(values[:, :1] - runner_up, values[:, 1:] - runner_up, label, is_top, masses, moments)


def _sum_tail(distance: Tensor, masses: Tensor, moments: Tensor) -> None:
    """Fill in A_0 and A_1 of distances (n, V) <= 0; A_1 is needed, and filled in, only for 2 beta."""
    room = torch.empty_like(distance)
    for first in range(OCTAVE):
        torch.mul(distance, TAIL_BETAS[first], out=room).exp_()
        for place in range(first, len(TAIL_BETAS), OCTAVE):
            if place != first:
                torch.threshold_(room, _FAINT, 0.0)
                room.mul_(room)
                moments[place] = torch.linalg.vecdot(room, distance)[:, None]
            masses[place] = room.sum(dim=1, keepdim=True)
