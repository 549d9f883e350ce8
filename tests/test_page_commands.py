"""Commands on the pages: all are valid, and those that need no other files run."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from harness.pages import run_page
from refocal import cli, demo
from refocal.cli.parser import build_parser
from refocal_lab.cli.parser import build_parser as build_lab_parser

REPOSITORY = Path(__file__).parents[1]
FILES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    REPOSITORY / "lab/README.md",
    *sorted((REPOSITORY / "lab/docs").glob("*.md")),
]
PROGRAMS = {"refocal": build_parser, "refocal-lab": build_lab_parser}
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")


def list_commands():
    """Every line of the blocks of shell commands, and every `make ...` and `pip install ...` in the text."""
    for page in FILES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`((?:make|pip install) [^`\n]+)`", text)
        lines += re.findall(r"^pip install [^`\n]+$", text, flags=re.MULTILINE)
        yield from dict.fromkeys((str(page.relative_to(REPOSITORY)), line.strip()) for line in lines)


COMMANDS = list(list_commands())


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: value)
def test_a_command_is_valid(page, command):
    program, *arguments = shlex.split(command, comments=True)
    if program == "torchrun":
        program, arguments = "refocal-lab", arguments[arguments.index("refocal_lab") + 1 :]
    if program in PROGRAMS:
        PROGRAMS[program]().parse_args(arguments)
    elif program == "make":
        target = re.sub(r"3\.\d+$", "3.%", arguments[0])
        assert re.search(rf"^(?:[\w-]+ )*{re.escape(target)}(?: [\w -]+)?:(?!=)", MAKEFILE, flags=re.MULTILINE)
    elif program == "pip":
        for extras in re.findall(r"(refocal|\.|\./lab)\[([\w,]+)\]", command):
            folder = REPOSITORY / ("lab" if extras[0] == "./lab" else ".")
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    else:
        pytest.fail(f"nothing checks the command {program}")


def test_there_are_commands_of_every_kind():
    assert {command.split()[0] for _, command in COMMANDS} == {*PROGRAMS, "make", "pip", "torchrun"}


@pytest.mark.parametrize("page", ["docs/how-to/check-predictions.md"])
def test_the_commands_of_a_guide_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_page(REPOSITORY / page, capsys, tutorial=True)


def test_the_commands_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, split in (("val", "val"), ("test", "test"), ("new", "test")):
        demo.load().select(split).write(f"{name}.npz")
    commands = [command for page, command in COMMANDS if page == "README.md" and command.startswith("refocal ")]
    assert len(commands) > 1
    for command in commands:
        assert cli.main(shlex.split(command, comments=True)[1:]) == 0, command
