"""The files that people and services look for in a repository: they parse, agree, and name what exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import refocal

yaml = pytest.importorskip("yaml", reason="PyYAML, which reads the workflows, is not installed")

REPOSITORY = Path(__file__).parents[1]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][\w-]*)(?: [\w -]+)?:(?!=)", MAKEFILE, flags=re.MULTILINE))
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path):
    return yaml.safe_load((REPOSITORY / path).read_text(encoding="utf-8"))


def commands(workflow):
    """Every command of a workflow, with each value of its matrix in place of the variable."""
    for job in read(workflow)["jobs"].values():
        matrix = job.get("strategy", {}).get("matrix", {})
        for step in job["steps"]:
            command = step.get("run", "")
            variants = [entry["target"] for entry in matrix.get("include", []) if "target" in entry] or [""]
            yield from (command.replace("${{ matrix.target }}", variant) for variant in variants)


def test_the_workflows_are_there():
    assert [path.name for path in WORKFLOWS] == ["docs.yml", "release.yml", "tests.yml"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_of_the_makefile(workflow):
    called = {name for command in commands(workflow) for name in re.findall(r"\bmake ([\w-]+)", command)}
    assert called
    assert called - TARGETS == set()
    assert read(workflow)["permissions"] == {"contents": "read"}


def test_workflows_run_on_every_python_that_is_promised():
    matrix = read(".github/workflows/tests.yml")["jobs"]["suite"]["strategy"]["matrix"]
    promised = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert set(promised) <= set(matrix["python"])
    assert ">=" + matrix["python"][0] == PROJECT["requires-python"]


def test_phony_targets_exist():
    phony = re.search(r"\.PHONY: ((?:.*\\\n)*.*)", MAKEFILE)[1].replace("\\", " ").split()
    assert set(phony) - TARGETS == set()


def test_the_citation_names_the_version():
    citation = read("CITATION.cff")
    assert citation["version"] == refocal.__version__
    assert citation["license"] == PROJECT["license"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)


def test_the_changelog_has_a_place_for_this_version():
    headings = re.findall(r"^## (.+)$", (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert headings[0] == "Unreleased" or headings[0].startswith(refocal.__version__)
    assert all(re.fullmatch(r"\[?\d+\.\d+\.\d+\]? - \d{4}-\d{2}-\d{2}", heading) for heading in released)


def test_issue_forms_and_hooks_parse():
    for path in ("bug", "idea"):
        form = read(f".github/ISSUE_TEMPLATE/{path}.yml")
        assert {"name", "description", "body"} <= set(form)
    hooks = [hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)[1]
    for hook in hooks:
        assert " ".join(hook["entry"].removeprefix(".venv/bin/").split()[:2]) in lint


@pytest.mark.parametrize("name", ["CODE_OF_CONDUCT.md", "SECURITY.md", "LICENSE", ".github/pull_request_template.md"])
def test_what_people_look_for_is_there(name):
    assert (REPOSITORY / name).stat().st_size > 300
