"""Running a page of the documentation as a reader would: block after block, in one folder."""

from __future__ import annotations

import math
import re
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", flags=re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])-?[\d,]*\.?\d+%?")
# Networks that are trained on other processors, or by other versions of PyTorch, differ by this much.
_RELATIVE, _ABSOLUTE = 0.05, 0.03


def run_page(page: Path, capsys: pytest.CaptureFixture[str], *, tutorial: bool = False) -> None:
    """Run the Python code of a page, and compare what it prints with the comments behind `print(...)`.

    In a tutorial, shell commands are run as well. What code or commands print may stand in a block of text right after
    them, where one line `...` may stand for any lines. Words must be the same, and numbers equal up to their last
    digit; in a tutorial, where networks are trained, they must be about the same.

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
        if text or kind == "python":
            said = text.splitlines() or comments
            check_agreement(printed, said, close=_are_about_equal if tutorial else are_equal_to_the_last_digit)


def _run_commands(block: str) -> None:
    from refocal import cli

    for command in block.replace("\\\n", " ").splitlines():
        program, *arguments = shlex.split(command, comments=True)
        assert program == "refocal", f"only refocal's commands can be run, got {command}"
        assert cli.main(arguments) == 0, command


def are_equal_to_the_last_digit(first: str, second: str) -> bool:
    """Whether numbers differ by at most one unit of their last digit, as on another processor. Whole ones are equal."""
    digits = max(len(number.rstrip("%").partition(".")[2]) for number in (first, second))
    unit = 10.0**-digits if digits else 0.0
    return abs(parse(first) - parse(second)) <= 1.001 * unit


def check_agreement(
    printed: list[str], said: list[str], *, close: Callable[[str, str], bool] = are_equal_to_the_last_digit
) -> None:
    """Fail unless lines have the same words, and numbers that are close."""
    assert _agree(printed, said, close), "\n".join(["the page says", *said, "", "and this was printed", *printed])


def _agree(printed: list[str], said: list[str], close: Callable[[str, str], bool]) -> bool:
    if "..." in said:
        first = said.index("...")
        rest = said[first + 1 :]
        if len(printed) < first + len(rest):  # a line would be compared twice
            return False
        return _agree(printed[:first], said[:first], close) and (not rest or _agree(printed[-len(rest) :], rest, close))
    ours, theirs = " ".join(printed).split(), " ".join(said).split()
    pairs = zip(_NUMBER.findall(" ".join(ours)), _NUMBER.findall(" ".join(theirs)), strict=False)
    same_words = [_NUMBER.sub("0", word) for word in ours] == [_NUMBER.sub("0", word) for word in theirs]
    return same_words and all(close(*pair) for pair in pairs)


def _are_about_equal(first: str, second: str) -> bool:
    return math.isclose(parse(first), parse(second), rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)


def parse(number: str) -> float:
    """The value of a number as it is printed, with or without a percent sign."""
    return float(number.replace(",", "").rstrip("%"))
