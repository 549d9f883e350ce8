"""The two distributions, and the library as users install it: in an environment with the base dependencies only."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.version import Version

import refocal

pytestmark = pytest.mark.timeout(900)  # a hundred megabytes are downloaded and unpacked
REPOSITORY = Path(__file__).parents[1]
SCRIPT = REPOSITORY / "tests" / "typed" / "user_script.py"
# without the variables that would let an installed program find the repository
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


class Wheels(NamedTuple):
    library: Path
    lab: Path


@pytest.fixture(scope="module")
def pip_settings(tmp_path_factory):
    """The environment variables for pip; skips the tests if no package index can be reached."""
    # the versions of constraints.txt, or those that `make test-oldest` and the like ask for
    settings = {"PIP_CONSTRAINT": str(REPOSITORY / "constraints.txt"), **os.environ}
    # an index that has the build backend has all other packages
    folder = tmp_path_factory.mktemp("probe")
    probe = [sys.executable, "-m", "pip", "download", "--no-deps", "--retries", "1", "--dest", folder, "hatchling"]
    found = subprocess.run(probe, capture_output=True, text=True, encoding="utf-8", check=False)
    if found.returncode != 0:
        reasons = [line for line in found.stderr.splitlines() if line.startswith("ERROR:")]
        pytest.skip(f"pip finds no package index: {reasons[0] if reasons else found.stderr}")
    return settings


@pytest.fixture(scope="module")
def wheels(pip_settings, tmp_path_factory):
    folder, tree = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("release")
    # as `make dist` does for a release
    address = ["https://example.org/refocal", "https://refocal.example.org/", "main"]
    subprocess.run([sys.executable, REPOSITORY / "tools" / "release_tree.py", tree, *address], check=True)
    for source in (tree, tree / "lab"):
        build = [sys.executable, "-m", "build", "--outdir", folder, source]
        subprocess.run(build, check=True, capture_output=True, env=pip_settings)
    (library,), (lab,) = folder.glob("refocal-*.whl"), folder.glob("refocal_lab-*.whl")
    return Wheels(library, lab)


@pytest.fixture(scope="module")
def bin_folder(wheels, pip_settings, tmp_path_factory):
    """The programs of an environment that has the library's wheel, its dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("install") / "env"
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    install(programs / "python", pip_settings, wheels.library)
    return programs


def install(python, settings, *arguments):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet"]
    # most modules of the dependencies are never imported here; those that are get compiled then
    subprocess.run([*pip, "--no-compile", *arguments], check=True, capture_output=True, env=settings)


def run(folder, *command):
    """Run a program away from the repository, so that only installed packages can be imported."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding="utf-8", env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def content(wheel):
    """The names of the files in a wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as packed:
        return {name for name in packed.namelist() if ".dist-info/" not in name}


def sources(package):
    """The names of the files of a package in the repository."""
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(package.parent)) for path in files}


@pytest.mark.thorough
def test_the_library_wheel_holds_the_library_only(wheels):
    found = content(wheels.library)
    assert found == sources(REPOSITORY / "src" / "refocal")
    assert {"refocal/py.typed", "refocal/data/digits.npz", "refocal/report/assets/page.html"} <= found
    assert {name.split("/")[0] for name in found} == {"refocal"}
    assert not [name for name in found if Path(name).name.startswith(("test_", "conftest"))]


def test_the_lab_wheel_holds_the_lab_only(wheels):
    found = content(wheels.lab)
    assert found == sources(REPOSITORY / "lab" / "src" / "refocal_lab")
    assert {"refocal_lab/py.typed", "refocal_lab/zoo/published.json"} <= found
    assert {name.split("/")[0] for name in found} == {"refocal_lab"}


def test_both_wheels_hold_the_license(wheels):
    license_text = (REPOSITORY / "LICENSE").read_bytes()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
            assert packed.read(name) == license_text


def test_the_distributions_are_complete_and_can_be_uploaded(wheels):
    """Each wheel was built from its sdist, and an index shows the metadata and the README."""
    pytest.importorskip("twine", reason="twine, which checks distributions, is not installed")
    files = sorted(wheels.library.parent.iterdir())
    names = [f"{name}-{refocal.__version__}" for name in ("refocal", "refocal_lab")]
    assert [file.name for file in files] == [name + end for name in names for end in ("-py3-none-any.whl", ".tar.gz")]
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == len(files)


def test_both_wheels_say_where_they_are_published(wheels):
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as packed:
            (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
            found = packed.read(name).decode()
        urls = re.findall(r"^Project-URL: (\w+), https://", found, flags=re.MULTILINE)
        assert urls == ["Homepage", "Documentation", "Source", "Issues", "Changelog"]
        assert "](https://example.org/refocal/blob/main/" in found


needs_typed_arrays = pytest.mark.skipif(
    Version(metadata.version("numpy")) < Version("2.3"), reason="np.ndarray has no type of its own before NumPy 2.3"
)


@needs_typed_arrays
@pytest.mark.thorough
def test_a_script_of_a_user_passes_mypy(bin_folder, tmp_path):
    pytest.importorskip("mypy", reason="mypy, which checks types, is not installed")
    checker = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", bin_folder / "python"]
    done = check_types(tmp_path, *checker, "--cache-dir", tmp_path / "cache", SCRIPT)
    assert done.returncode == 0, done.stdout
    wrong = tmp_path / "wrong.py"
    wrong.write_text("from refocal.metrics import ece\n\nerror: str = ece([[0.9, 0.1]], [0])\n", encoding="utf-8")
    done = check_types(tmp_path, *checker, "--cache-dir", tmp_path / "cache", wrong)
    assert 'expression has type "float"' in done.stdout


@needs_typed_arrays
def test_a_script_of_a_user_passes_pyright(bin_folder, tmp_path):
    pytest.importorskip("basedpyright", reason="basedpyright, which checks types, is not installed")
    settings = {"include": [str(SCRIPT)], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    checker = [sys.executable, "-m", "basedpyright", "--pythonpath", bin_folder / "python", "--project", tmp_path]
    done = check_types(tmp_path, *checker)
    assert done.returncode == 0, done.stdout
    assert "0 errors, 0 warnings, 0 notes" in done.stdout


@pytest.mark.thorough
def test_the_script_of_a_user_runs(bin_folder, tmp_path):
    printed = run(tmp_path, bin_folder / "python", "-W", "error", SCRIPT).splitlines()
    assert printed[1].startswith("True True These scores are underconfident")


def check_types(folder, *command):
    """Run a type checker away from the repository, so that types come from the installed wheel."""
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, encoding="utf-8", env=ENVIRONMENT, check=False
    )


def test_every_module_of_the_base_works_without_extras(bin_folder, tmp_path):
    code = """
import importlib.resources, pkgutil, sys
import numpy as np
import refocal
assert "site-packages" in refocal.__file__, refocal.__file__
for extra in ("torch", "jax", "matplotlib", "ray", "onnx", "pandas", "pyarrow", "PIL"):
    assert importlib.util.find_spec(extra) is None, f"{extra} is installed: this is not the base alone"
for module in pkgutil.walk_packages(refocal.__path__, "refocal.", onerror=lambda name: None):
    needs_extra = module.name.startswith(("refocal.losses", "refocal.curvature", "refocal.jax"))
    needs_extra |= module.name.startswith("refocal.language_models")
    needs_extra |= module.name.endswith(("torchmetrics", "torch_export"))
    needs_extra |= module.name.startswith("refocal.integrations.")
    if not needs_extra and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assets = importlib.resources.files("refocal.report").joinpath("assets")
names = ["chart.css", "live.html", "notebook.css", "page.css", "page.html", "page.js", "psi.js"]
assert sorted(file.name for file in assets.iterdir()) == names
assert importlib.util.find_spec("refocal_lab") is None
eta = np.array([[0.55, 0.30, 0.10, 0.05]])
scores = refocal.minimizer(eta, gamma=3)
assert np.allclose(refocal.posterior(scores, gamma=3), eta, atol=1e-13)
assert np.allclose(refocal.posterior_from_logits(np.log(scores), gamma=3), eta, atol=1e-13)
assert np.isclose(refocal.sigmoid_minimizer(np.array(0.8), gamma=2), 0.6266, atol=5e-5)
print(refocal.thresholds(3), refocal.closest_temperature(1, classes=2, logit_range=5))
"""
    assert "tau_oc" in run(tmp_path, bin_folder / "python", "-W", "error", "-c", code)


def test_readme_example_runs_from_the_wheel_as_printed(bin_folder, tmp_path):
    code, printed = readme_example()
    assert run(tmp_path, bin_folder / "python", "-W", "error", "-c", code).splitlines() == printed


@pytest.mark.thorough
def test_main_commands_run_from_the_wheel(bin_folder, tmp_path):
    code = "from refocal import demo; [demo.load().select(name).write(name + '.npz') for name in ('val', 'test')]"
    run(tmp_path, bin_folder / "python", "-W", "error", "-c", code)
    refocal = bin_folder / "refocal"
    assert "underconfident" in run(tmp_path, refocal, "evaluate", "test.npz")
    written = ["--save", "cal.json", "--out", "probs.npz", "--report", "report.html"]
    calibrated = run(tmp_path, refocal, "calibrate", "val.npz", "--test", "test.npz", "--gamma", "3", *written)
    assert "calibrator: cal.json" in calibrated
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")
    applied = run(tmp_path, refocal, "apply", "cal.json", "test.npz", "--out", "again.npz", "--json")
    assert json.loads(applied)["rows"] > 0
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "probs.npz").read_bytes()
    assert "underconfident if its top score" in run(tmp_path, refocal, "explain", "--gamma", "3")
    assert "underconfident" in run(tmp_path, refocal, "demo")


@pytest.mark.parametrize("command", ["", "evaluate", "calibrate", "apply", "export", "explain", "demo"])
def test_help_is_shown_from_the_wheel(bin_folder, tmp_path, command):
    assert f"usage: refocal {command}" in run(tmp_path, bin_folder / "refocal", *command.split(), "--help")


def test_the_lab_wheel_brings_its_program(bin_folder, wheels, pip_settings, tmp_path):
    """Without PyTorch it shows its help, and outside a clone it says what it needs."""
    install(bin_folder / "python", pip_settings, "--no-deps", "--target", tmp_path / "lab", wheels.lab)
    program = [bin_folder / "python", "-m", "refocal_lab"]
    environment = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path / "lab")}
    if os.name != "nt":  # there, it is a binary
        script = (tmp_path / "lab" / "bin" / "refocal-lab").read_text(encoding="utf-8")
        assert "from refocal_lab.__main__ import main" in script
    for arguments, status, message in (
        (["--version"], 0, "refocal-lab "),
        (["train", "--help"], 0, "usage: refocal-lab train"),
        (["reproduce", "--list"], 1, "reads experiments/ from a clone of the refocal repository"),
        (["zoo", "list"], 1, "reads zoo/ from a clone of the refocal repository"),
    ):
        done = subprocess.run(
            [*program, *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
            check=False,
        )
        assert done.returncode == status, done.stderr
        assert message in (done.stderr if status else done.stdout)
        assert done.stderr.count("\n") == status


def readme_example():
    """The first Python block of the README, and the lines that it says are printed."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    block = readme.split("```python\n", 1)[1].split("```", 1)[0]
    printed = [line.split("  # ", 1)[1] for line in block.splitlines() if line.startswith("print(")]
    return block, printed
