"""Running a page of the documentation as a reader would: block after block, in one folder."""

from __future__ import annotations

import math
import re
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", flags=re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])-?[\d,]*\.?\d+")
# Networks that are trained on other processors, or by other versions of PyTorch, differ by this much.
_RELATIVE, _ABSOLUTE = 0.05, 0.03


def run_page(page: Path, capsys: pytest.CaptureFixture[str], *, tutorial: bool = False) -> None:
    """Run the Python code of a page, and compare what it prints with the comments behind `print(...)`.

    In a tutorial, shell commands are run as well. What code or commands print may stand in a block of text right after
    them, where one line `...` may stand for any lines. Words must be the same there, and numbers about the same.

    Args:
        page: A Markdown file.
        capsys: The fixture that captures what is printed.
        tutorial: Whether the page is a tutorial.
    """
    names: dict[str, Any] = {}
    for kind, block, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "sh" and not tutorial:
            continue
        if kind == "sh":
            _run_commands(block)
        else:
            exec(compile(block, page.name, "exec"), names)
        printed = capsys.readouterr().out.splitlines()
        comments = [line.split("  # ", 1)[-1] for line in block.splitlines() if line.lstrip().startswith("print(")]
        if not tutorial:
            assert printed == comments
        elif text or kind == "python":
            said = text.splitlines() or comments
            assert _agree(printed, said), "\n".join(["the page says", *said, "", "and this was printed", *printed])


def _run_commands(block: str) -> None:
    from refocal import cli

    for command in block.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(command, comments=True)
        assert program == "refocal", f"only refocal's commands can be run, got {command}"
        assert cli.main(arguments) == 0, command


def _agree(printed: list[str], said: list[str]) -> bool:
    """Whether lines have the same words, and numbers that are about the same."""
    if "..." in said:
        first = said.index("...")
        rest = said[first + 1 :]
        if len(printed) < first + len(rest):  # a line would be compared twice
            return False
        return _agree(printed[:first], said[:first]) and (not rest or _agree(printed[-len(rest) :], rest))
    ours, theirs = " ".join(printed).split(), " ".join(said).split()
    pairs = zip(_NUMBER.findall(" ".join(ours)), _NUMBER.findall(" ".join(theirs)), strict=False)
    same_words = [_NUMBER.sub("0", word) for word in ours] == [_NUMBER.sub("0", word) for word in theirs]
    return same_words and all(_are_close(*pair) for pair in pairs)


def _are_close(first: str, second: str) -> bool:
    values = (float(number.replace(",", "")) for number in (first, second))
    return math.isclose(*values, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
