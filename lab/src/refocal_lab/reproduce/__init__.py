"""The papers' figures and tables as commands: a spec says what to compute, at which scale, and what was published."""

from refocal_lab.reproduce.base import Context, Kind, Numbers
from refocal_lab.reproduce.kinds import KINDS
from refocal_lab.reproduce.page import gallery, link, read_results
from refocal_lab.reproduce.run import Outcome, outdated, reproduce
from refocal_lab.reproduce.spec import SCALES, Published, Spec, read_spec, read_specs
from refocal_lab.reproduce.store import Comparison, Result

__all__ = [
    "KINDS",
    "SCALES",
    "Comparison",
    "Context",
    "Kind",
    "Numbers",
    "Outcome",
    "Published",
    "Result",
    "Spec",
    "gallery",
    "link",
    "outdated",
    "read_results",
    "read_spec",
    "read_specs",
    "reproduce",
]
