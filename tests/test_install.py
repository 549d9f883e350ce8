"""The package as users install it: the wheel, in an environment with the base dependencies only."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # a hundred megabytes are fetched and unpacked
REPOSITORY = Path(__file__).parents[1]
EXAMPLE = REPOSITORY / "README.md"


@pytest.fixture(scope="module")
def base_python(tmp_path_factory):
    """A Python that has the wheel of this package and what it depends on, nothing else."""
    folder = tmp_path_factory.mktemp("install")
    # the versions of constraints.txt, or those that `make test-oldest` and the like ask for
    environment = {"PIP_CONSTRAINT": str(REPOSITORY / "constraints.txt"), **os.environ}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # what builds the wheel is asked for first: where it comes from, all else does
    probe = [*pip, "download", "--no-deps", "--retries", "1", "--dest", str(folder / "probe"), "hatchling"]
    found = subprocess.run(probe, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        reasons = [line for line in found.stderr.splitlines() if line.startswith("ERROR:")]
        pytest.skip(f"pip finds no package index: {reasons[0] if reasons else found.stderr}")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder / "dist"), str(REPOSITORY)]
    subprocess.run(build, check=True, capture_output=True, env=environment)
    (wheel,) = (folder / "dist").glob("refocal-*.whl")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env" / "bin" / "python"
    install = [*pip, "--python", python, "install", "--quiet"]
    # most modules of the dependencies are never imported here: those that are get compiled then
    subprocess.run([*install, "--no-compile", wheel], check=True, capture_output=True, env=environment)
    return python


def run(python, code, folder):
    """Run code away from the repository, so that only the installed package can be imported."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [python, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=clean, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_of_the_base_works_without_extras(base_python, tmp_path):
    code = """
import importlib.resources, pkgutil, sys
import numpy as np
import refocal
assert "site-packages" in refocal.__file__, refocal.__file__
for extra in ("torch", "jax", "matplotlib", "ray", "onnx", "pandas", "pyarrow", "PIL"):
    assert importlib.util.find_spec(extra) is None, f"{extra} is installed: this is not the base alone"
for module in pkgutil.walk_packages(refocal.__path__, "refocal.", onerror=lambda name: None):
    needs_extra = module.name.startswith(("refocal.losses", "refocal.curvature"))
    needs_extra |= module.name.endswith(("torchmetrics", "torch_export"))
    if not needs_extra and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assets = importlib.resources.files("refocal.report").joinpath("assets")
assert sorted(file.name for file in assets.iterdir()) == ["page.css", "page.html", "page.js", "psi.js"]
assert importlib.util.find_spec("refocal_lab") is None
eta = np.array([[0.55, 0.30, 0.10, 0.05]])
scores = refocal.minimizer(eta, gamma=3)
assert np.allclose(refocal.posterior(scores, gamma=3), eta, atol=1e-13)
assert np.allclose(refocal.posterior_from_logits(np.log(scores), gamma=3), eta, atol=1e-13)
assert np.isclose(refocal.sigmoid_minimizer(np.array(0.8), gamma=2), 0.6266, atol=5e-5)
print(refocal.thresholds(3), refocal.closest_temperature(1, classes=2, logit_range=5))
"""
    assert "tau_oc" in run(base_python, code, tmp_path)


def test_readme_example_runs_from_the_wheel_as_printed(base_python, tmp_path):
    code, printed = readme_example()
    assert run(base_python, code, tmp_path).splitlines() == printed


def test_installed_command_shows_the_demo(base_python, tmp_path):
    command = base_python.parent / "refocal"
    done = subprocess.run([command, "demo"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "underconfident" in done.stdout


def readme_example():
    """The first Python block of the README, and the lines that it says are printed."""
    block = EXAMPLE.read_text(encoding="utf-8").split("```python\n", 1)[1].split("```", 1)[0]
    printed = [line.split("  # ", 1)[1] for line in block.splitlines() if line.startswith("print(")]
    return block, printed
