"""Reports: fit, compare, and say what was found, as records, a table, figures and a page."""

from typing import TYPE_CHECKING

from refocal.report.evaluation import evaluate
from refocal.report.page import render, save_page
from refocal.report.record import Change, Diagram, Measured, Method, Report, Slider, Verdict
from refocal.report.table import table

if TYPE_CHECKING:
    from refocal.report.selection import METHODS, Calibration, Fitted, calibrate

__all__ = [
    "METHODS",
    "Calibration",
    "Change",
    "Diagram",
    "Fitted",
    "Measured",
    "Method",
    "Report",
    "Slider",
    "Verdict",
    "calibrate",
    "evaluate",
    "render",
    "save_page",
    "table",
]


def __getattr__(name: str) -> object:
    """What fits brings in scikit-learn: only when it is asked for."""
    if name in {"METHODS", "Calibration", "Fitted", "calibrate"}:
        from refocal.report import selection as calibration

        return getattr(calibration, name)
    msg = f"module 'refocal.report' has no attribute {name!r}"
    raise AttributeError(msg)
