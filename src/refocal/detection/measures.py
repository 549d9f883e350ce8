"""Calibration errors of detections: D-ECE and LaECE."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from refocal import _check
from refocal.detection.matching import Matches
from refocal.metrics.defaults import BINS
from refocal.stats.binning import width_index

LOCALIZATION_BINS = 25  # as in Oksuz et al. (2023)


class BinnedDetections(NamedTuple):
    """Counted detections in bins of score, of all categories together or of each one: the columns.

    Attributes:
        image: The number of each detection's image, (n,), from 0 without gaps.
        column: The column of each detection, (n,).
        score: What a detection claims, (n,).
        target: What came true, (n,).
        group: The group of each column, (M,): 0, or the number of its category, from 0 without gaps.
    """

    image: np.ndarray
    column: np.ndarray
    score: np.ndarray
    target: np.ndarray
    group: np.ndarray

    def sum_columns(self, values: np.ndarray) -> np.ndarray:
        """Sum one value per detection over each column, (M,)."""
        return np.bincount(self.column, weights=values, minlength=len(self.group))

    def error(self, gaps: np.ndarray, mass: np.ndarray) -> np.ndarray:
        """The mean over groups of sum_b |gaps_b| / sum_b mass_b, from sums over columns (..., M)."""
        ends = np.searchsorted(self.group, np.arange(self.group[-1] + 1))
        total = np.add.reduceat(mass, ends, axis=-1)
        errors = np.add.reduceat(np.abs(gaps), ends, axis=-1)
        return np.divide(errors, total, out=np.zeros_like(errors), where=total > 0).mean(axis=-1)

    def value(self) -> float:
        """The calibration error itself."""
        return float(self.error(self.sum_columns(self.score - self.target), self.sum_columns(np.ones(len(self.score)))))


def d_ece(matches: Matches, *, scores: np.ndarray | None = None, bins: int = BINS) -> float:
    """Detection ECE: whether boxes with score s are right with frequency s.

    With n_b of n detections in bin b of the score, mean score s_b, and precision p_b, the share of matched ones,

        D-ECE = sum_b (n_b / n) |s_b - p_b|.

    This is the version whose bins are those of the score alone, and it is the `ece` of the binary task "this box is
    right". Detections that are matched to a crowd or to an ignored object do not count.

    Args:
        matches: The result of `match`.
        scores: Other scores of all its detections (N,), such as calibrated ones; None for their own.
        bins: Number of bins.

    Example:
        >>> from refocal.detection import match
        >>> truth = {"images": [{"id": 1}], "categories": [{"id": 1}], "annotations": []}
        >>> d_ece(match([{"image_id": 1, "category_id": 1, "bbox": [0, 0, 9, 9], "score": 0.25}], truth))
        0.25

    Reference: Küppers et al. (2020), "Multivariate confidence calibration for object detection", Eq. 5.
    """
    return bin_detections(matches, scores=scores, bins=bins).value()


def la_ece(matches: Matches, *, scores: np.ndarray | None = None, bins: int = LOCALIZATION_BINS) -> float:
    """Localization-aware ECE: whether the score of a box is its precision times its mean IoU.

    For category c with n_c detections, n_cb of them in bin b of the score, mean score s_cb, precision p_cb, and mean
    IoU u_cb of the matched ones,

        LaECE_c = sum_b (n_cb / n_c) |s_cb - p_cb u_cb|,

    and LaECE is the mean over the categories that have detections. As p_cb u_cb is the mean of IoU over all detections
    of the bin, with 0 for wrong ones, LaECE is an ECE whose target is the IoU. LaECE_0 is the LaECE of matches with
    `iou=0`: every box that overlaps its object is right, and the score has to be its IoU.

    Args:
        matches: The result of `match`; `match(..., iou=0)` for LaECE_0.
        scores: Other scores of all its detections (N,), such as calibrated ones; None for their own.
        bins: Number of bins.

    Example:
        >>> from refocal.detection import match
        >>> box = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}
        >>> truth = {"images": [{"id": 1}], "categories": [{"id": 1}], "annotations": [box]}
        >>> round(la_ece(match([box | {"bbox": [0, 0, 10, 8], "score": 0.75}], truth)), 6)
        0.05

    Reference: Oksuz et al. (2023), "Towards building self-aware object detectors via reliable uncertainty
        quantification and calibration", Eq. 3; LaECE_0: Kuzucu et al. (2024), "On calibration of object detectors".
    """
    return bin_by_category(matches, scores=scores, bins=bins).value()


def bin_detections(matches: Matches, *, scores: np.ndarray | None = None, bins: int) -> BinnedDetections:
    """Put counted detections into bins of the score. The target is whether a detection is right."""
    claim = _read_claims(matches, scores)
    right = matches.matched[matches.counted].astype(np.float64)
    return _bin(matches, claim, right, np.zeros(len(claim), dtype=np.intp), bins)


def bin_by_category(matches: Matches, *, scores: np.ndarray | None = None, bins: int) -> BinnedDetections:
    """Put counted detections of each category into bins of the score. The target is IoU, 0 for a wrong detection."""
    claim, rows = _read_claims(matches, scores), matches.counted
    return _bin(matches, claim, matches.iou[rows], matches.number_categories()[rows], bins)


def _read_claims(matches: Matches, scores: np.ndarray | None) -> np.ndarray:
    claims = matches.detections.scores if scores is None else np.asarray(scores, dtype=np.float64)
    if claims.shape != matches.matched.shape:
        msg = f"scores must have one value for each of {len(matches.matched):,} detections, got shape {claims.shape}"
        raise ValueError(msg)
    _check.reject_rows(~((claims >= 0) & (claims <= 1)), claims, "scores must be from 0 to 1")
    if len(matches.matched) == 0:
        msg = "there are no detections"
        raise ValueError(msg)
    if len(matches.counted) == 0:
        msg = f"no detections count: there are {len(matches.matched):,}, and all of them are ignored"
        raise ValueError(msg)
    return claims[matches.counted]


def _bin(matches: Matches, claim: np.ndarray, target: np.ndarray, category: np.ndarray, bins: int) -> BinnedDetections:
    _check.count(bins, "bins")
    used, column = np.unique(category * bins + width_index(claim, bins=bins), return_inverse=True)
    _, group = np.unique(used // bins, return_inverse=True)
    _, image = np.unique(matches.number_images()[matches.counted], return_inverse=True)
    return BinnedDetections(image, column, claim, target, group)
