"""Reproduce the papers' figures and tables: a spec names the computation, its scales, and the published numbers."""

from refocal_lab.reproduce.computation import Context, Kind, Numbers
from refocal_lab.reproduce.gallery import read_results, relative_link, render_gallery
from refocal_lab.reproduce.kinds import KINDS
from refocal_lab.reproduce.result_files import Comparison, StoredResult
from refocal_lab.reproduce.runner import Reproduction, explain_outdated, redraw, reproduce
from refocal_lab.reproduce.spec import SCALES, PublishedNumber, Scale, Spec, read_spec, read_specs

__all__ = [
    "KINDS",
    "SCALES",
    "Comparison",
    "Context",
    "Kind",
    "Numbers",
    "PublishedNumber",
    "Reproduction",
    "Scale",
    "Spec",
    "StoredResult",
    "explain_outdated",
    "read_results",
    "read_spec",
    "read_specs",
    "redraw",
    "relative_link",
    "render_gallery",
    "reproduce",
]
