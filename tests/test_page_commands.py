"""Commands on the pages: all are valid. `tests/test_pages.py` runs those in blocks."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from refocal.cli.parser import build_parser
from refocal_lab.cli.parser import build_parser as build_lab_parser
from refocal_lab.cli.recipes import build_recipes

REPOSITORY = Path(__file__).parents[1]
FILES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    REPOSITORY / "lab/README.md",
    *sorted((REPOSITORY / "lab/docs").glob("*.md")),
    REPOSITORY / "lab/zoo/README.md",
]
PROGRAMS = {"refocal": build_parser, "refocal-lab": build_lab_parser}
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")


def list_commands():
    """Every line of the blocks of shell commands, and in the text every `make`, `pip install` and whole command."""
    for page in FILES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
        lines += re.findall(r"`((?:make|pip install) [^`\n]+)`", text)
        lines += re.findall(r"`(refocal(?:-lab)? [a-z]+ (?!-)[^`\n]+ [^`\n]+)`", text)
        lines += re.findall(r"^pip install [^`\n]+$", text, flags=re.MULTILINE)
        yield from dict.fromkeys((str(page.relative_to(REPOSITORY)), line.strip()) for line in lines)


COMMANDS = list(list_commands())


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=lambda value: value)
def test_a_command_is_valid(page, command, monkeypatch):
    program, *arguments = shlex.split(command, comments=True)
    if program == "torchrun":
        program, arguments = "refocal-lab", arguments[arguments.index("refocal_lab") + 1 :]
    if program in PROGRAMS:
        options = PROGRAMS[program]().parse_args(arguments)
        if arguments[0] == "train" and arguments[1] != "recipe.toml":  # the reader's own file
            monkeypatch.chdir(REPOSITORY / "lab" if page.startswith("lab/zoo") else REPOSITORY)
            assert build_recipes(options)  # names, settings and files are right
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
