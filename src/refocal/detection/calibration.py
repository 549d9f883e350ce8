"""Calibrating the scores of detections: a calibrator of the binary task "this box is right"."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from refocal import _check
from refocal.calibrators import Calibrator
from refocal.detection.coco import Annotations, Detections, Results, Truth
from refocal.detection.evaluation import complete, list_slices, select_and_match
from refocal.detection.matching import Matches
from refocal.detection.record import CLASS_NAMES, DetectionReport
from refocal.report import Candidate, Selection
from refocal.report import calibrate as calibrate_events
from refocal.report.cross_fitting import cross_fit, divide_rows
from refocal.report.evaluation import Step
from refocal.report.measure import TestData

_FOLDS = 5


@dataclass(frozen=True)
class DetectionCalibration:
    """Calibrators of the scores of a detector, and the one chosen among them.

    Attributes:
        selection: The calibrators; each maps a score to the probability that its box is right.
        iou: The least IoU of a right box.
        min_score: Detections with a lower score were left out.
    """

    selection: Selection
    iou: float
    min_score: float

    def predict(self, scores: np.ndarray) -> np.ndarray:
        """Return calibrated scores (N,)."""
        return apply(self.selection.chosen.calibrator, scores)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the chosen calibrator as JSON; `refocal.calibrators.load` reads it.

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        self.selection.save(Path(path), overwrite=overwrite)

    def report(
        self,
        results: Results,
        annotations: Truth,
        *,
        source: str | None = None,
        progress: Step = lambda _: None,
    ) -> DetectionReport:
        """Measure every calibrator on the detections of other images; arguments as for `refocal.detection.evaluate`."""
        matches = select_and_match(results, annotations, iou=self.iou, min_score=self.min_score)
        return self.measure(matches, source=source, progress=progress)

    def measure(
        self, matches: Matches, *, source: str | None = None, protocol: str = "", progress: Step = lambda _: None
    ) -> DetectionReport:
        """Measure every calibrator on matched detections, as `report` does."""
        rows, scores = matches.counted, matches.detections.scores
        report = self.selection.report(
            scores[rows],
            matches.matched[rows].astype(np.intp),
            slices=list_slices(matches),
            source=source or matches.detections.name,
            progress=progress,
        )
        by_name = {each.name: _predict(each, scores, rows) for each in self.selection.candidates}
        return complete(replace(report, protocol=protocol), matches, by_name, min_score=self.min_score)


class CrossCalibratedDetections(NamedTuple):
    """The result of `cross_calibrate` and `hold_out`.

    Attributes:
        calibration: The calibrators, and the chosen one.
        report: Every calibrator, measured on images that it was not fitted to.
        detections: The detections that were measured.
        scores: Their calibrated scores, (N,), each by a calibrator that was not fitted to its image. Ignored
            detections are calibrated by the final calibrator.
    """

    calibration: DetectionCalibration
    report: DetectionReport
    detections: Detections
    scores: np.ndarray


def calibrate(
    results: Results,
    annotations: Truth,
    *,
    iou: float = 0.5,
    min_score: float = 0.0,
    gamma: float | None = None,
    alpha: float = 0.5,
    method: str = "auto",
    progress: Step = lambda _: None,
) -> DetectionCalibration:
    """Fit calibrators to the detections of held-out images and choose one.

    Args:
        results: A COCO results file, the list that it holds, or `Detections`.
        annotations: A COCO annotation file, the object that it holds, or `Annotations`.
        iou: The least IoU of a right box, as for `match`.
        min_score: Leave out detections with a lower score, as for `evaluate`.
        gamma: Focusing parameter of the sigmoid focal loss that the detector was trained with. If given, the
            closed-form posterior is one of the candidates.
        alpha: Weight of the positives in that loss, between 0 and 1; 0.5 if it has none.
        method: One of `refocal.report.METHODS`, as for `refocal.calibrate`.
        progress: Called with a description of each step.

    Returns:
        The fitted calibrators. Its `report` measures all of them on the detections of other images.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> box = {"category_id": 1, "bbox": [0, 0, 10, 10]}
        >>> truth = {"images": [{"id": i} for i in range(2000)], "categories": [{"id": 1, "name": "cat"}]}
        >>> posterior = rng.random(2000)
        >>> right = np.flatnonzero(rng.random(2000) < posterior).tolist()
        >>> truth["annotations"] = [box | {"image_id": i} for i in right]
        >>> found = [box | {"image_id": i, "score": posterior[i] ** 2} for i in range(2000)]  # too low
        >>> calibration = calibrate(found, truth)
        >>> bool(abs(calibration.predict(np.array([0.25]))[0] - 0.5) < 0.05)
        True

    Reference: Küppers et al. (2020), Sec. 3.
    """
    matches = select_and_match(results, annotations, iou=iou, min_score=min_score)
    return _fit(matches, min_score=min_score, gamma=gamma, alpha=alpha, method=method, progress=progress)


def cross_calibrate(
    results: Results,
    annotations: Truth,
    *,
    iou: float = 0.5,
    min_score: float = 0.0,
    seed: int = 0,
    source: str | None = None,
    gamma: float | None = None,
    alpha: float = 0.5,
    method: str = "auto",
    progress: Step = lambda _: None,
) -> CrossCalibratedDetections:
    """Fit calibrators to all detections, and measure those of each image by calibrators fitted to other images.

    Choose it if there is one set of held-out images. They are divided into 5 folds at random.

    Args:
        results: As for `calibrate`.
        annotations: As for `calibrate`.
        iou: The least IoU of a right box, as for `match`.
        min_score: Leave out detections with a lower score, as for `evaluate`.
        seed: Seed that divides the images.
        source: Name of the data in the report; None for the name of the file.
        gamma: Focusing parameter of the training loss, as for `calibrate`.
        alpha: Weight of the positives in that loss, as for `calibrate`.
        method: One of `refocal.report.METHODS`, as for `refocal.calibrate`.
        progress: Called with a description of each step.
    """
    matches = select_and_match(results, annotations, iou=iou, min_score=min_score)
    rows, images = matches.counted, matches.number_images()
    there = np.unique(images[rows])
    if len(there) < _FOLDS:
        msg = f"cross-fitting needs boxes that count in {_FOLDS} images or more, got {len(there)}: give --test"
        raise ValueError(msg)
    fold_of = np.full(len(matches.annotations.image_ids), -1, dtype=np.intp)
    for number, part in enumerate(divide_rows(len(there), _FOLDS, seed=seed)):
        fold_of[there[part]] = number
    calibration = _fit(matches, min_score=min_score, gamma=gamma, alpha=alpha, method=method, progress=progress)
    folds = [np.flatnonzero(fold_of[images[rows]] == number) for number in range(_FOLDS)]
    scores = matches.detections.scores
    data = TestData(scores[rows], matches.matched[rows].astype(np.intp), None, CLASS_NAMES)
    crossed = cross_fit(calibration.selection, data, folds, progress=progress)
    protocol = (
        f"Cross-fitting in {_FOLDS} folds of images: each box is measured by calibrators that were fitted to the other "
        f"folds. The calibrator itself is fitted to all {len(rows):,} boxes."
    )
    report = replace(calibration, selection=crossed).measure(
        matches, source=source, protocol=protocol, progress=progress
    )
    calibrated = _predict(crossed.chosen, scores, rows)
    return CrossCalibratedDetections(calibration, report, matches.detections, calibrated)


def hold_out(
    results: Results,
    annotations: Truth,
    *,
    share: float,
    iou: float = 0.5,
    min_score: float = 0.0,
    seed: int = 0,
    source: str | None = None,
    gamma: float | None = None,
    alpha: float = 0.5,
    method: str = "auto",
    progress: Step = lambda _: None,
) -> CrossCalibratedDetections:
    """Fit calibrators to the detections of some images, chosen at random, and measure those of the others.

    Args:
        results: As for `calibrate`.
        annotations: As for `calibrate`.
        share: The part of the images to measure on, between 0 and 1.
        iou: The least IoU of a right box, as for `match`.
        min_score: Leave out detections with a lower score, as for `evaluate`.
        seed: Seed that chooses the images.
        source: Name of the data in the report; None for the name of the file.
        gamma: Focusing parameter of the training loss, as for `calibrate`.
        alpha: Weight of the positives in that loss, as for `calibrate`.
        method: One of `refocal.report.METHODS`, as for `refocal.calibrate`.
        progress: Called with a description of each step.
    """
    _check.share(share, "share")
    found = Detections.read(results)
    truth = Annotations.read(annotations)
    order = np.random.default_rng(_check.seed(seed, "seed")).permutation(len(truth.image_ids)).tolist()
    measured = {truth.image_ids[index] for index in order[: round(share * len(order))]}
    is_measured = np.array([image in measured for image in found.image_ids], dtype=bool)
    fitted, held_out = (
        select_and_match(found.select(np.flatnonzero(rows)), truth.select(images), iou=iou, min_score=min_score)
        for rows, images in ((~is_measured, set(truth.image_ids) - measured), (is_measured, measured))
    )
    calibration = _fit(fitted, min_score=min_score, gamma=gamma, alpha=alpha, method=method, progress=progress)
    protocol = (
        f"Measured on the boxes of {len(measured):,} images held out at random, {100 * share:.3g}% of all (seed "
        f"{seed}). The calibrator is fitted to the boxes of the other {len(order) - len(measured):,} images."
    )
    report = calibration.measure(held_out, source=source, protocol=protocol, progress=progress)
    scores = calibration.predict(held_out.detections.scores)
    return CrossCalibratedDetections(calibration, report, held_out.detections, scores)


def apply(calibrator: Calibrator, scores: np.ndarray) -> np.ndarray:
    """Calibrate the scores of detections, (N,), by a calibrator of one column of probabilities.

    Example:
        >>> import numpy as np
        >>> from refocal.calibrators import FocalPosterior
        >>> retina = FocalPosterior(gamma=2.0, weight=[0.75, 0.25], input="probs")  # alpha = 0.25
        >>> apply(retina, np.array([0.2, 0.4, 0.6])).round(2).tolist()
        [0.07, 0.5, 0.9]
    """
    columns = getattr(calibrator, "n_features_in_", 1)
    if not hasattr(calibrator, "predict_proba") or columns > 1 or getattr(calibrator, "input_", None) != "probs":
        msg = (
            "the calibrator must map one column of probabilities, the scores of boxes, to probabilities, as "
            f"refocal.detection.calibrate fits it; got {type(calibrator).__name__} of {columns} columns"
        )
        raise ValueError(msg)
    array = np.asarray(scores, dtype=np.float64)
    if array.ndim != 1:
        msg = f"scores must have shape (N,), one per detection, got {array.shape}"
        raise ValueError(msg)
    if len(array) == 0:
        return np.zeros(0)
    probs: np.ndarray = calibrator.predict_proba(array[:, None])
    return probs[:, 1]


def _fit(
    matches: Matches,
    *,
    min_score: float,
    gamma: float | None = None,
    alpha: float = 0.5,
    method: str = "auto",
    progress: Step = lambda _: None,
) -> DetectionCalibration:
    alpha = _check.share(alpha, "alpha")
    rows = matches.counted
    selection = calibrate_events(
        matches.detections.scores[rows],
        matches.matched[rows].astype(np.intp),
        gamma=gamma,
        # Two classes with these weights have the same map: the weights divide the odds by alpha / (1 - alpha).
        weight=None if gamma is None or alpha == 0.5 else [1 - alpha, alpha],
        method=method,
        input="probs",
        class_names=CLASS_NAMES,
        progress=progress,
    )
    return DetectionCalibration(selection, matches.threshold, min_score)


def _predict(candidate: Candidate, scores: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """The scores of all detections by a candidate; counted ones by fits to other images, if there are any."""
    found = apply(candidate.calibrator, scores)
    if candidate.held_out is not None:
        found = found.copy()
        found[counted] = candidate.held_out[:, 1]
    return found
