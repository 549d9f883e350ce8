"""Which module of the lab may import which; the library never imports the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

import refocal
import refocal_lab
from harness.imports import check_imports, find_imports

LIBRARY = Path(refocal.__file__).parent
LAB = Path(refocal_lab.__file__).parent
BASE = {"refocal._check", "refocal._documents", "refocal._files"}
ROOMS = {
    "train": {"numpy", "scipy", "torch", "safetensors", "refocal.metrics", "refocal.losses", "refocal.curvature"}
    | {"refocal.calibrators", "refocal_lab.train"}
    | BASE,
    "train/data": {"numpy", "scipy", "sklearn", "PIL", "rich", "refocal_lab.train.data", "refocal_lab.train.own_parts"}
    | BASE,
    "train/kernels": {"triton"},
    "train/models": {"torch", "refocal._check", "refocal_lab.train.models", "refocal_lab.train.convolution"}
    | {"refocal_lab.train.normalization", "refocal_lab.train.own_parts"},
    "train/on_ray": {"ray", "torch", "refocal.scale", "refocal_lab.train"} | BASE,
    "train/results": {"numpy", "torch", "safetensors", "refocal", "refocal_lab.train"},
    "zoo": {"numpy", "rich", "refocal.posterior_from_logits", "refocal.metrics", "refocal.calibrators"}
    | {"refocal.predictions", "refocal.report.words", "refocal_lab.train.recipe", "refocal_lab.train.objective"}
    | {"refocal_lab.train.run_folder", "refocal_lab.papers", "refocal_lab.zoo", "refocal._lazy"}
    | BASE,
    "claims": {"flint", "mpmath", "numpy", "scipy", "sklearn", "rich", "matplotlib", "refocal.maps"}
    | {"refocal_lab.claims", "refocal_lab.papers", "refocal_lab.zoo.published"}
    | BASE,
    "claims/networks": {"numpy", "sklearn", "refocal.maps", "refocal.metrics", "refocal.calibrators"}
    | {"refocal_lab.claims", "refocal_lab.clone", "refocal_lab.zoo"},
    "reproduce": {"numpy", "scipy", "torch", "matplotlib", "PIL", "refocal"}
    | {"refocal_lab.papers", "refocal_lab.train", "refocal_lab.zoo", "refocal_lab.reproduce"},
    "cli": {"numpy", "rich", "refocal", "refocal_lab"},
    "cli/train": {"torch", "rich", "refocal", "refocal_lab"},
    "cli/curvature": {"torch", "rich", "refocal", "refocal_lab"},
    "clone": {"refocal_lab"},
    "papers": set(),
    "__main__": {"refocal._program"},
    "__init__": set(),
}


@pytest.mark.parametrize("path", sorted(LAB.rglob("*.py")), ids=lambda path: str(path.relative_to(LAB)))
def test_a_file_imports_only_what_its_room_may(path):
    check_imports(path, LAB, ROOMS)


def test_the_library_never_imports_the_lab():
    importing = [
        (str(path.relative_to(LIBRARY)), name)
        for path in sorted(LIBRARY.rglob("*.py"))
        for name in find_imports(path)
        if name.split(".")[0] == "refocal_lab"
    ]
    assert importing == []
