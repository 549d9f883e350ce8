"""Reports: fit, compare, and say what was found, as records, a table, figures and a page."""

from typing import TYPE_CHECKING

from refocal.report.evaluation import evaluate
from refocal.report.page import render_page, save_page
from refocal.report.record import Change, Diagram, Estimate, Method, Report, Slider, Verdict
from refocal.report.table import build_table

if TYPE_CHECKING:
    from refocal.report.selection import METHODS, Candidate, Selection, calibrate

__all__ = [
    "METHODS",
    "Candidate",
    "Change",
    "Diagram",
    "Estimate",
    "Method",
    "Report",
    "Selection",
    "Slider",
    "Verdict",
    "build_table",
    "calibrate",
    "evaluate",
    "render_page",
    "save_page",
]


def __getattr__(name: str) -> object:
    """What fits brings in scikit-learn: only when it is asked for."""
    if name in {"METHODS", "Selection", "Candidate", "calibrate"}:
        from refocal.report import selection as calibration

        return getattr(calibration, name)
    msg = f"module 'refocal.report' has no attribute {name!r}"
    raise AttributeError(msg)
