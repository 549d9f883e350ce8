"""Detections: whether the score of a box is the probability that it is right, and how to make it so."""

from typing import TYPE_CHECKING

from refocal._lazy import lazy_names

if TYPE_CHECKING:
    from refocal.detection.calibration import DetectionCalibration, apply, calibrate, cross_calibrate, hold_out
    from refocal.detection.coco import Annotations, CocoError, Detections
    from refocal.detection.evaluation import evaluate
    from refocal.detection.matching import Matches, match, measure_overlaps
    from refocal.detection.measures import d_ece, la_ece
    from refocal.detection.record import DetectionReport

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "calibration": ("DetectionCalibration", "apply", "calibrate", "cross_calibrate", "hold_out"),
        "coco": ("Annotations", "CocoError", "Detections"),
        "evaluation": ("evaluate",),
        "matching": ("Matches", "match", "measure_overlaps"),
        "measures": ("d_ece", "la_ece"),
        "record": ("DetectionReport",),
    },
)

__all__ = [
    "Annotations",
    "CocoError",
    "DetectionCalibration",
    "DetectionReport",
    "Detections",
    "Matches",
    "apply",
    "calibrate",
    "cross_calibrate",
    "d_ece",
    "evaluate",
    "hold_out",
    "la_ece",
    "match",
    "measure_overlaps",
]
