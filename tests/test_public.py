"""The public names of refocal, their documentation, and which module may import which."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import refocal
from harness.imports import check_imports
from refocal import calibrators

PACKAGE = Path(refocal.__file__).parent
EXTRAS = {
    "torch",
    "torchmetrics",
    "triton",
    "matplotlib",
    "plotly",
    "ray",
    "lightgbm",
    "xgboost",
    "catboost",
    "lightning",
    "transformers",
    "pandas",
    "jax",
    "onnx",
    "onnxruntime",
    "pyarrow",
    "curvlinops",
    "PIL",
    "flint",
    "mpmath",
}
# papers are cited by author and year, such as "Reference: Charoenphakdee et al. (2021), Eq. 10."
REFERENCE = re.compile(r"Reference: [^\n]*[A-Z][a-z]+[^\n]* \(\d{4}\)")
BASE = {
    "refocal._arrays",
    "refocal._check",
    "refocal._containers",
    "refocal._documents",
    "refocal._extras",
    "refocal._files",
    "refocal._image_checks",
    "refocal._lazy",
    "refocal._probability_look",
    "refocal._rounding",
}
# what each room may import
ROOMS = {
    "_arrays": {"array_api_compat", "numpy"},
    "_check": {"numpy", "refocal._arrays"},
    "_image_checks": {"refocal._arrays", "refocal._check"},
    "_containers": {"array_api_compat", "numpy", "refocal._arrays", "refocal._check"},
    "_documents": set(),
    "_extras": set(),
    "_files": {"refocal._documents"},
    "_lazy": set(),
    "_probability_look": {"numpy", "refocal._check", "refocal._rounding"},
    "_program": set(),
    "_rounding": {"numpy", "refocal._check"},
    "maps": {"numpy", "scipy", "refocal._arrays", "refocal._check", "refocal.maps"},
    "stats": {"numpy", "scipy", "refocal.stats"},
    "metrics": {"numpy", "scipy", "refocal.maps", "refocal.stats", "refocal.metrics"} | BASE,
    "metrics/torchmetrics": {"torch", "torchmetrics", "refocal._check", "refocal.metrics"},
    "losses": {"numpy", "torch", "triton", "array_api_compat.torch", "refocal._arrays", "refocal._check"}
    | {"refocal._extras"}
    | {"refocal.maps", "refocal.losses"},
    "boosting": {"numpy", "refocal._check", "refocal._containers", "refocal._extras", "refocal._lazy", "refocal.maps"}
    | {"refocal.boosting"},
    "calibrators": {"numpy", "scipy", "sklearn", "threadpoolctl", "torch", "onnx", "array_api_compat.torch"}
    | {"refocal.maps", "refocal.stats", "refocal.calibrators"}
    | BASE,
    "calibrators/fit": {"numpy", "scipy", "threadpoolctl"}
    | {"refocal._arrays", "refocal._check", "refocal.maps", "refocal.calibrators.fit"},
    "conformal": {"numpy", "sklearn", "torch", "refocal._arrays", "refocal._check", "refocal._lazy"}
    | {"refocal.maps", "refocal.stats", "refocal.calibrators", "refocal.conformal"},
    "jax": {"jax", "numpy", "refocal._arrays", "refocal._check", "refocal._extras", "refocal.maps", "refocal.jax"},
    "integrations": set(),
    "integrations/lightning": {"numpy", "torch", "torchmetrics", "typing_extensions", "lightning.pytorch", "sklearn"}
    | {"refocal._check", "refocal._extras", "refocal.calibrators", "refocal.losses", "refocal.metrics"}
    | {"refocal.integrations.lightning"},
    "integrations/transformers": {"numpy", "torch", "transformers", "refocal._extras", "refocal.losses"}
    | {"refocal.metrics", "refocal.stats", "refocal.integrations.transformers"},
    "language_models": {"array_api_compat.torch", "numpy", "scipy", "sklearn", "torch", "refocal._check"}
    | {"refocal._extras", "refocal.maps", "refocal.stats", "refocal.losses", "refocal.metrics"}
    | {"refocal.calibrators", "refocal.language_models"},
    "curvature": {"numpy", "torch", "rich", "curvlinops", "refocal._check", "refocal._extras"}
    | {"refocal.losses", "refocal.curvature"},
    "predictions": {
        "numpy",
        "pyarrow",
        "refocal._check",
        "refocal._image_checks",
        "refocal._files",
        "refocal._documents",
    }
    | {"refocal._extras", "refocal._probability_look", "refocal._rounding", "refocal.predictions"},
    "report": {"numpy", "rich", "matplotlib", "refocal.maps", "refocal.stats", "refocal.metrics"}
    | {"refocal.calibrators", "refocal.conformal", "refocal.report", "refocal"}
    | BASE,
    "scale": {"numpy", "ray", "sklearn", "refocal.stats", "refocal.metrics", "refocal.calibrators"}
    | {"refocal._program", "refocal.predictions", "refocal.report", "refocal.scale"}
    | BASE,
    "segmentation": {"numpy", "scipy", "sklearn", "rich", "refocal.stats", "refocal.metrics", "refocal.calibrators"}
    | {"refocal.report", "refocal.scale", "refocal.segmentation"}
    | BASE,
    "detection": {"numpy", "rich", "scipy", "refocal.stats", "refocal.metrics", "refocal.calibrators", "refocal.report"}
    | {"refocal.detection"}
    | BASE,
    "demo": {"refocal.predictions"},
    "cli": {"numpy", "rich", "refocal"},
    "__main__": {"refocal._program"},
    "__init__": {"refocal._lazy", "refocal.maps", "refocal.report"},
}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_room_may(path):
    check_imports(path, PACKAGE, ROOMS)


def test_import_brings_in_no_extra():
    slow = {"sklearn", "refocal.calibrators"}
    code = f"import sys, refocal, refocal.metrics; print(sorted({EXTRAS | slow!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.strip() == "[]"


def test_public_calibrators_are_documented():
    for name in calibrators.__all__:
        assert len(getattr(calibrators, name).__doc__) > 200, name
    for cls in (*calibrators.BY_NAME.values(), calibrators.FocalPosterior, calibrators.AutoCalibrator):
        for part in ("Args:", "Attributes:", "Reference: "):
            assert part in cls.__doc__, cls.__name__


def test_public_names_exist_and_are_documented():
    for name in refocal.__all__:
        value = getattr(refocal, name)
        assert value.__doc__, name
        if not isinstance(value, type):
            assert "Example:" in value.__doc__, name
            assert REFERENCE.search(value.__doc__), name


def test_papers_are_cited_by_author_and_year():
    """Only the lab uses numbers of papers, such as 001, as ids."""
    number = re.compile(r"(?<![\w.])00[1-4]\b")
    paths = [path for path in PACKAGE.rglob("*.py") if number.search(path.read_text(encoding="utf-8"))]
    assert paths == []


def test_the_rooms_are_attributes_of_the_package():
    code = "import refocal; print(refocal.losses.FocalLoss.__name__, refocal.calibrators.TemperatureScaling.__name__)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, encoding="utf-8")
    assert done.stdout.split() == ["FocalLoss", "TemperatureScaling"]
    with pytest.raises(AttributeError, match="module 'refocal' has no attribute 'loses'"):
        _ = refocal.loses
