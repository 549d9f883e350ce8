"""Reports: fit, compare, and say what was found, as records, a table, figures and a page."""

from refocal.report.calibration import METHODS, Calibration, Fitted, calibrate, evaluate
from refocal.report.page import render, save_page
from refocal.report.record import Change, Diagram, Measured, Method, Report, Slider, Verdict
from refocal.report.table import table

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
