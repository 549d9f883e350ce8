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


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / f"tools/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release_gaps, release_tree = load_tool("release_gaps"), load_tool("release_tree")
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


ADDRESS, SITE = "https://example.org/refocal", "https://refocal.example.org/"


@pytest.fixture
def copy(tmp_path):
    """The files of which a release is made."""
    release_tree.copy_tree(REPOSITORY, tmp_path)
    return tmp_path


def test_a_release_with_everything_has_no_gaps(copy):
    assert release_gaps.list_gaps(copy, f"v{refocal.__version__}", ADDRESS) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "gap"),
    [
        ("CITATION.cff", "date-released: 2", "date-released: 3", "the same day"),
        ("CHANGELOG.md", f"## {refocal.__version__} - ", f"## {refocal.__version__}, ", "the same day"),
        ("src/refocal/__init__.py", f'"{refocal.__version__}"', '"9.9.9"', "but the version is 9.9.9"),
    ],
)
def test_gaps_of_a_release_are_listed(copy, name, old, new, gap):
    text = (copy / name).read_text(encoding="utf-8")
    assert old in text
    (copy / name).write_text(text.replace(old, new), encoding="utf-8")
    assert gap in "\n".join(release_gaps.list_gaps(copy, f"v{refocal.__version__}", ADDRESS))


def test_a_release_needs_an_address(copy):
    (gap,) = release_gaps.list_gaps(copy, f"v{refocal.__version__}")
    assert "ADDRESS=" in gap


def test_gaps_stop_a_release_only(capsys, monkeypatch):
    monkeypatch.setattr(release_gaps, "list_gaps", lambda *_: ["something is missing"])
    assert release_gaps.main(["", ""]) == 0
    assert release_gaps.main(["v0.1.0", ADDRESS]) == 1
    assert "something is missing" in capsys.readouterr().err


def test_a_release_says_where_it_is_published(copy):
    release_tree.write_address(copy, f"{ADDRESS}/", SITE, "v0.1.0")
    for part in (".", "lab"):
        project = tomllib.loads((copy / part / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert list(project["urls"]) == ["Homepage", "Documentation", "Source", "Issues", "Changelog"]
        assert project["urls"]["Changelog"] == f"{ADDRESS}/blob/v0.1.0/CHANGELOG.md"
        readme = (copy / part / "README.md").read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)]+)\)", readme)
        assert [target for target in targets if not target.startswith(("https://", "#"))] == []
        there = [target.split("/v0.1.0/")[1].partition("#")[0] for target in targets if "/v0.1.0/" in target]
        assert len(there) > 5
        assert [path for path in there if not (REPOSITORY / path).exists()] == []
    citation = yaml.safe_load((copy / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["repository-code"], citation["url"]) == (ADDRESS, SITE)


def test_the_badges_of_a_release_are_those_of_workflows(copy):
    release_tree.write_address(copy, ADDRESS, SITE, "main")
    readme = (copy / "README.md").read_text(encoding="utf-8")
    badges = re.findall(rf"\[!\[(\w+)\]\({ADDRESS}/actions/workflows/(\w+\.yml)/badge\.svg\)\]", readme)
    assert [f"{name}.yml" for name, _ in badges] == [file for _, file in badges] == ["tests.yml", "docs.yml"]
    assert {file for _, file in badges} <= {path.name for path in WORKFLOWS}


def test_a_release_is_installed_by_its_name(copy):
    def find_commands():
        return re.findall(r"`(pip install [^`]+)`", (copy / "README.md").read_text(encoding="utf-8"))

    assert find_commands() == ["pip install .", "pip install '.[torch]'", "pip install '.[arrow]'"]
    release_tree.write_address(copy, ADDRESS, SITE, "main")
    assert find_commands() == ["pip install refocal", "pip install 'refocal[torch]'", "pip install 'refocal[arrow]'"]
    assert "`pip install refocal` (Python 3.11 or later)" in (copy / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("link", "absolute"),
    [
        ("[a](docs/a.md#b)", f"[a]({ADDRESS}/blob/main/lab/docs/a.md#b)"),
        ("![a](../docs/a.svg)", f"![a]({ADDRESS}/raw/main/docs/a.svg)"),
        ("[a](#b) [c](https://c.org) [d](mailto:d)", "[a](#b) [c](https://c.org) [d](mailto:d)"),
    ],
)
def test_links_of_a_description_are_absolute(link, absolute):
    assert release_tree.make_links_absolute(link, "lab", ADDRESS, "main") == absolute


@pytest.mark.parametrize("address", ["http://example.org", "example.org/refocal", "https://", "v0.1.0"])
def test_addresses_that_are_none_are_rejected(copy, address):
    with pytest.raises(ValueError, match="must begin with https://"):
        release_tree.write_address(copy, address, SITE, "main")


def test_files_without_a_place_for_the_address_are_rejected(copy):
    (copy / "CITATION.cff").write_text("title: refocal\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"CITATION\.cff has 0 matches"):
        release_tree.write_address(copy, ADDRESS, SITE, "main")


def test_an_address_alone_is_not_enough(tmp_path, capsys):
    assert release_tree.main([str(tmp_path / "new"), ADDRESS, "main"]) == 2
    assert "SITE=" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_no_folder_is_overwritten(tmp_path, capsys):
    (tmp_path / "kept.txt").touch()
    assert release_tree.main([str(tmp_path)]) == 2
    assert "must be new or empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kept.txt"]


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
