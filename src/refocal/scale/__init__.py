"""Data sets of many files: the same measuring, fitting and calibrating in one process or on a Ray cluster."""

from refocal.scale.application import ApplySummary, apply
from refocal.scale.engines import ENGINES, ProgressUpdate
from refocal.scale.fitting import calibrate
from refocal.scale.measuring import evaluate

__all__ = ["ENGINES", "ApplySummary", "ProgressUpdate", "apply", "calibrate", "evaluate"]
