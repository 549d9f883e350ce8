"""Reports: fit and compare calibrators, and show the result as a record, a table, figures and a page."""

from typing import TYPE_CHECKING

from refocal._lazy import lazy_names

if TYPE_CHECKING:
    from refocal.report.cross_fitting import CrossCalibration, HeldOutRows, cross_calibrate, hold_out
    from refocal.report.evaluation import evaluate
    from refocal.report.multilabel_cross_fitting import MultilabelCrossCalibration, cross_calibrate_multilabel
    from refocal.report.multilabel_evaluation import evaluate_multilabel
    from refocal.report.multilabel_record import MultilabelReport
    from refocal.report.multilabel_selection import MultilabelSelection, calibrate_multilabel
    from refocal.report.page import render_page, save_page
    from refocal.report.record import Change, Diagram, Estimate, Method, Report, Slider, Verdict
    from refocal.report.selection import METHODS, Candidate, Selection, calibrate
    from refocal.report.table import build_table

# fitting needs scikit-learn, which takes a second to import
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cross_fitting": ("CrossCalibration", "HeldOutRows", "cross_calibrate", "hold_out"),
        "evaluation": ("evaluate",),
        "multilabel_cross_fitting": ("MultilabelCrossCalibration", "cross_calibrate_multilabel"),
        "multilabel_evaluation": ("evaluate_multilabel",),
        "multilabel_record": ("MultilabelReport",),
        "multilabel_selection": ("MultilabelSelection", "calibrate_multilabel"),
        "page": ("render_page", "save_page"),
        "record": ("Change", "Diagram", "Estimate", "Method", "Report", "Slider", "Verdict"),
        "selection": ("METHODS", "Candidate", "Selection", "calibrate"),
        "table": ("build_table",),
    },
)

__all__ = [
    "METHODS",
    "Candidate",
    "Change",
    "CrossCalibration",
    "Diagram",
    "Estimate",
    "HeldOutRows",
    "Method",
    "MultilabelCrossCalibration",
    "MultilabelReport",
    "MultilabelSelection",
    "Report",
    "Selection",
    "Slider",
    "Verdict",
    "build_table",
    "calibrate",
    "calibrate_multilabel",
    "cross_calibrate",
    "cross_calibrate_multilabel",
    "evaluate",
    "evaluate_multilabel",
    "hold_out",
    "render_page",
    "save_page",
]
