"""Importing a room is light: what takes long to import is loaded when it is first used."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import refocal
from refocal import boosting, calibrators, detection, report, scale, segmentation

ROOMS = ["", ".boosting", ".maps", ".stats", ".metrics", ".calibrators", ".predictions", ".report", ".scale", ".cli"]
ROOMS += [".demo", ".detection", ".segmentation"]
HEAVY = ["scipy.fft", "scipy.linalg", "scipy.optimize", "scipy.sparse", "scipy.special", "scipy.stats", "sklearn"]
HEAVY += ["joblib", "matplotlib", "lightgbm", "onnx", "pandas", "pyarrow", "ray", "torch"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_loads_nothing_heavy(room):
    code = (
        "import json, sys, numpy, scipy; before = set(sys.modules)\n"
        f"import refocal{room}; print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, encoding="utf-8")
    loaded = json.loads(done.stdout)
    assert f"refocal{room}" in loaded
    assert not set(loaded) & set(HEAVY)


@pytest.mark.parametrize(
    ("room", "extra"), [("jax", "jax"), *((room, "torch") for room in ("curvature", "language_models", "losses"))]
)
def test_without_its_package_a_room_names_the_extra(room, extra):
    code = f"import sys; sys.modules[{extra!r}] = None; import refocal.{room}"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 1
    commands = f"pip install 'refocal[{extra}]', or in a clone pip install -e '.[{extra}]'"
    assert f"ModuleNotFoundError: refocal.{room} needs {extra}: {commands}" in done.stderr


@pytest.mark.parametrize(
    "package", [refocal, boosting, calibrators, detection, report, scale, segmentation], ids=lambda each: each.__name__
)
def test_lazy_names_are_the_public_names(package):
    for name in package.__all__:
        assert getattr(package, name) is not None, name
        assert name in dir(package), name
    with pytest.raises(AttributeError, match=rf"module '{package.__name__}' has no attribute 'nothing'"):
        _ = package.nothing
