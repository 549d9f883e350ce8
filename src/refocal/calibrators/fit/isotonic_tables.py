"""Isotonic regression of labels on several scores at once."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np


class RankedScores(NamedTuple):
    """Samples of several binary problems, each from the smallest score to the largest.

    Attributes:
        scores: (C, N), non-decreasing along rows.
        samples: The number of the sample, (C, N).
        positive: Whether its label is positive, (C, N).
    """

    scores: np.ndarray
    samples: np.ndarray
    positive: np.ndarray

    @classmethod
    def rank(cls, scores: np.ndarray, positive: np.ndarray) -> Self:
        """Sort scores (C, N). Of equal scores, positive ones come first.

        Different scores must differ by more than rounding errors.
        """
        keys = scores.copy()
        keys[positive] = np.nextafter(keys[positive], -np.inf)
        order = np.argsort(keys, axis=1)
        return cls(np.take_along_axis(scores, order, axis=1), order, np.take_along_axis(positive, order, axis=1))

    def take(self, rows: np.ndarray) -> Self:
        """Some of the samples; each keeps its number."""
        if len(rows) == self.samples.shape[1]:
            return self
        kept = np.zeros(self.samples.shape[1], bool)
        kept[rows] = True
        chosen = np.flatnonzero(kept[self.samples])
        return type(self)(*(each.ravel()[chosen].reshape(len(each), -1) for each in self))

    def fit_isotonic(self, counts: np.ndarray, *, floor: float) -> list[tuple[np.ndarray, np.ndarray]]:
        """Fit a non-decreasing function to each problem by least squares.

        Args:
            counts: Weight of each sample by its number, positive.
            floor: Values keep this distance from 0 and 1.

        Returns:
            For each problem, the scores between which the function is linear, and its values there.
        """
        from scipy.optimize import isotonic_regression

        problems, size = self.scores.shape
        mass = counts[self.samples]
        # A block of the regression begins where a positive sample follows a negative one. This leaves fewer values to
        # regress. It also keeps equal scores together.
        rises = np.ones((problems, size), bool)
        np.greater(self.positive[:, 1:], self.positive[:, :-1], out=rises[:, 1:])
        runs = np.flatnonzero(rises)
        hits = np.add.reduceat(np.where(self.positive, mass, 0.0).ravel(), runs)
        mass, problem = np.add.reduceat(mass.ravel(), runs), runs // size
        # One regression for all problems: each is lifted above the one before, so that no block spans two of them.
        blocks = isotonic_regression(hits / mass + 2.0 * problem, weights=mass).blocks[:-1]
        values = np.clip(np.add.reduceat(hits, blocks) / np.add.reduceat(mass, blocks), floor, 1 - floor)
        problem = problem[blocks]
        new = np.ones(len(blocks), bool)
        new[1:] = (values[1:] > values[:-1]) | (problem[1:] > problem[:-1])
        blocks, values, problem = blocks[new], values[new], problem[new]
        # A piece is constant from its first score to its last; between pieces, the function is linear.
        scores, begins = self.scores.ravel(), runs[blocks]
        first, last = scores[begins], scores[np.append(begins[1:], len(scores)) - 1]
        kept = np.stack([np.ones(len(first), bool), last > first], axis=1)
        cuts = np.cumsum(np.bincount(problem, weights=kept.sum(axis=1), minlength=problems).astype(int))[:-1]
        knots, levels = np.stack([first, last], axis=1)[kept], np.stack([values, values], axis=1)[kept]
        return list(zip(np.split(knots, cuts), np.split(levels, cuts), strict=True))
