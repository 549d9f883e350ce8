"""The files that people and services look for in a repository: they parse, agree, and name what exists."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

import refocal

yaml = pytest.importorskip("yaml", reason="PyYAML, which reads the workflows, is not installed")

REPOSITORY = Path(__file__).parents[1]
TOOL = importlib.util.spec_from_file_location("release_gaps", REPOSITORY / "tools/release_gaps.py")
release_gaps = importlib.util.module_from_spec(TOOL)
TOOL.loader.exec_module(release_gaps)
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


@pytest.fixture
def copy(tmp_path):
    """The files of a repository that a release depends on, with everything filled in."""
    for name in ("pyproject.toml", "lab/pyproject.toml", "src/refocal/__init__.py", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (REPOSITORY / name).read_text(encoding="utf-8")
        if name.endswith("pyproject.toml"):
            urls = "".join(f'{url} = "https://example.org"\n' for url in release_gaps.URLS)
            text = re.sub(r"\[project\.urls\]\n[^[]*", "", text).replace(
                "[project.scripts]", f"[project.urls]\n{urls}\n[project.scripts]"
            )
        if name == "CITATION.cff" and "repository-code" not in text:
            text += "repository-code: https://example.org\n"
        (tmp_path / name).write_text(text, encoding="utf-8")
    for folder in (".", "lab"):
        (tmp_path / folder / "README.md").write_text("[page](https://example.org)", encoding="utf-8")
    return tmp_path


def test_a_release_with_everything_has_no_gaps(copy):
    assert release_gaps.list_gaps(copy, f"v{refocal.__version__}") == []


@pytest.mark.parametrize(
    ("name", "old", "new", "gap"),
    [
        ("pyproject.toml", "Issues = ", "Other = ", "pyproject.toml: [project.urls] needs Issues"),
        ("lab/pyproject.toml", "[project.urls]", "[tool.urls]", "lab/pyproject.toml: [project.urls] needs Homepage, "),
        ("README.md", "(https://example.org)", "(docs/a.md)", "pyproject.toml: links of README.md are relative"),
        ("CITATION.cff", "repository-code", "repository", "CITATION.cff: repository-code needs the address"),
        ("CITATION.cff", "date-released: 2", "date-released: 3", "the same day"),
        ("src/refocal/__init__.py", f'"{refocal.__version__}"', '"9.9.9"', "but the version is 9.9.9"),
    ],
)
def test_gaps_of_a_release_are_listed(copy, name, old, new, gap):
    text = (copy / name).read_text(encoding="utf-8")
    assert old in text
    (copy / name).write_text(text.replace(old, new), encoding="utf-8")
    assert gap in "\n".join(release_gaps.list_gaps(copy, f"v{refocal.__version__}"))


def test_gaps_stop_a_release_only(capsys, monkeypatch):
    monkeypatch.setattr(release_gaps, "list_gaps", lambda *_: ["something is missing"])
    assert release_gaps.main([]) == 0
    assert release_gaps.main(["v0.1.0"]) == 1
    assert "something is missing" in capsys.readouterr().err


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
