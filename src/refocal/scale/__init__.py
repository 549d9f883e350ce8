"""Data sets of many files: measure, fit and calibrate them in one process or on a Ray cluster."""

from typing import TYPE_CHECKING

from refocal._lazy import lazy_names

if TYPE_CHECKING:
    from refocal.scale.application import ApplySummary, apply
    from refocal.scale.engines import ENGINES, ProgressUpdate
    from refocal.scale.fitting import calibrate
    from refocal.scale.measuring import evaluate

# fitting and calibrating need scikit-learn, which takes a second to import
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "application": ("ApplySummary", "apply"),
        "engines": ("ENGINES", "ProgressUpdate"),
        "fitting": ("calibrate",),
        "measuring": ("evaluate",),
    },
)

__all__ = ["ENGINES", "ApplySummary", "ProgressUpdate", "apply", "calibrate", "evaluate"]
