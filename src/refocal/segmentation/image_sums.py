"""Sums over the pixels of one image: all that measures and their intervals need of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refocal.metrics.accumulator import probs_and_scores
from refocal.metrics.inputs import Block
from refocal.stats.binning import bin_sums, class_sums, width_index
from refocal.stats.top_label import top_label

REGIONS = 2  # 0: the interior, or the whole image if no band is measured; 1: the band around boundaries


class PixelTotals(NamedTuple):
    """Sums over pixels, each an array or a number."""

    pixels: np.ndarray
    nll: np.ndarray
    brier: np.ndarray
    correct: np.ndarray
    confidence: np.ndarray


class ImageSums:
    """Sums over the pixels of an image, by region, and by bin of confidence or of each class's probability.

    Attributes:
        totals: (len(PixelTotals), REGIONS).
        bins: (3, REGIONS, bins): pixels, confidence and correct decisions.
        classes: (3, K, bins): pixels, probabilities and hits of each class; None if classes are not measured.
    """

    def __init__(self, *, bins: int, classes: int | None) -> None:
        self.totals = np.zeros((len(PixelTotals._fields), REGIONS))
        self.bins = np.zeros((3, REGIONS, bins))
        self.classes = None if classes is None else np.zeros((3, classes, bins))

    def add(self, block: Block, near: np.ndarray, *, is_logits: bool) -> None:
        """Add pixels; `near` says which are near a boundary."""
        if block.scores.ndim == 1:
            block = block._replace(scores=_two_columns(block.scores, is_logits=is_logits))
        probs, log_p, squares = probs_and_scores(block, is_logits=is_logits)
        confidence, correct = top_label(probs, block.labels)
        region = near.astype(np.intp)
        values = (None, -log_p, squares, correct, confidence)
        self.totals += [np.bincount(region, weights=value, minlength=REGIONS) for value in values]
        size = self.bins.shape[2]
        index = width_index(confidence, bins=size) + size * region
        self.bins += np.reshape(bin_sums(index, confidence, correct, size=REGIONS * size), self.bins.shape)
        if self.classes is not None:
            self.classes += class_sums(probs, block.labels, None, bins=size)


def _two_columns(scores: np.ndarray, *, is_logits: bool) -> np.ndarray:
    """The scores of both classes from those of class 1."""
    wide = scores.astype(np.float64)
    return np.stack([np.zeros_like(wide) if is_logits else 1 - wide, wide], axis=1)
