"""The promise of pyproject.toml: floors that can be pinned and tested, and a tested set that keeps them."""

from __future__ import annotations

import itertools
import runpy
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
OLDEST = REPOSITORY / "tools" / "oldest.py"
FILES = [REPOSITORY / "pyproject.toml", REPOSITORY / "lab" / "pyproject.toml"]
PROJECTS = [tomllib.loads(path.read_text(encoding="utf-8")) for path in FILES]
PROJECT = PROJECTS[0]
oldest = runpy.run_path(str(OLDEST))["oldest"]


def project(*dependencies, **extras):
    return {
        "build-system": {"requires": ["hatchling>=1.27"]},
        "project": {"dependencies": list(dependencies), "optional-dependencies": extras},
    }


def test_each_floor_is_pinned_once():
    given = project("numpy>=2.1", "rich>=13.7", torch=["torch>=2.6"], train=["torch>=2.6", "ray[data]>=2.60"])
    assert oldest(given) == ["hatchling==1.27", "numpy==2.1", "ray==2.60", "rich==13.7", "torch==2.6"]


def test_a_marker_is_kept():
    given = project(test=["triton>=3.2; platform_system == 'Linux'"])
    assert oldest(given)[1:] == ["triton==3.2; platform_system == 'Linux'"]


@pytest.mark.parametrize("requirement", ["numpy", "numpy==2.1", "numpy>=2.1,<3", "numpy>2.1", "numpy @ file:numpy.whl"])
def test_what_has_no_floor_is_refused(requirement):
    with pytest.raises(ValueError, match="must read name>=version"):
        oldest(project(requirement))


def test_two_floors_of_one_package_are_refused():
    with pytest.raises(ValueError, match=r"torch must have the same floor .* 'torch==2.6' and 'torch==2.7'"):
        oldest(project("torch>=2.6", train=["torch>=2.7"]))


def test_the_command_prints_a_constraints_file(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(OLDEST), *map(str, FILES)])
    runpy.run_path(str(OLDEST), run_name="__main__")
    printed = [Requirement(line) for line in capsys.readouterr().out.splitlines()]
    promised = []
    for each in PROJECTS:
        extras = each["project"]["optional-dependencies"].values()
        promised += [*each["build-system"]["requires"], *each["project"]["dependencies"], *itertools.chain(*extras)]
    assert {requirement.name for requirement in printed} == {Requirement(each).name for each in promised} - {"refocal"}
    assert all(str(requirement.specifier).startswith("==") for requirement in printed)


def test_the_tested_set_keeps_every_promise():
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if not line.startswith("#"))
    tested = {canonicalize_name(name): version for name, version in tested.items()}
    for pin in map(Requirement, oldest(*PROJECTS)):
        floor = str(pin.specifier).replace("==", ">=")
        assert Requirement(f"{pin.name}{floor}").specifier.contains(tested[canonicalize_name(pin.name)]), pin


def test_the_classifiers_name_every_python_from_the_oldest_on():
    prefix = "Programming Language :: Python :: 3."
    minors = [int(each.removeprefix(prefix)) for each in PROJECT["project"]["classifiers"] if each.startswith(prefix)]
    assert PROJECT["project"]["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))
