"""Running a page of the documentation as a reader would: block after block, in one folder."""

from __future__ import annotations

import glob
import math
import re
import shlex
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

# A block, what precedes it if that is a paragraph beginning with code, and the block of text right after it.
_BLOCK = re.compile(
    r"(?:^`([^`\n]+)`[^\n]*(?:\n[^\n]+)*\n\n)?^```(python|sh|text)\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?",
    flags=re.DOTALL | re.MULTILINE,
)
_NUMBER = re.compile(r"(?<![\w.])-?[\d,]*\.?\d+%?")
# Networks and trees that are trained on other processors, or by other versions of a package, differ by this much.
_RELATIVE, _ABSOLUTE = 0.05, 0.03


def run_page(
    page: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    trained: bool = False,
    not_run: Collection[str] = (),
    compared_elsewhere: bool = False,
) -> None:
    """Run the code and the commands of a page, and compare what they print with what the page says.

    The comments behind `print(...)` say what code prints. Or a block of text right after the code or the commands does,
    where one line `...` may stand for any lines. A block of text elsewhere shows what the code prints that begins the
    paragraph before it. Words must be the same, and numbers equal up to their last digit. They need only be about the
    same where `trained` says so, and in blocks of text elsewhere.

    Args:
        page: A Markdown file.
        capsys: The fixture that captures what is printed.
        trained: Whether the page trains networks or trees and prints numbers of theirs.
        not_run: Commands that are left out. All of them must be on the page.
        compared_elsewhere: Whether another test compares blocks of text that nothing on the page prints.
    """
    names: dict[str, Any] = {}
    left_out = []
    for before, kind, block, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        close = _are_about_equal if trained or kind == "text" else are_equal_to_the_last_digit
        if kind == "sh":
            commands = split_commands(block)
            left_out += [command for command in commands if command in not_run]
            for command in commands:
                if command not in not_run:
                    run_command(command)
        elif kind == "python":
            exec(compile(block, page.name, "exec"), names)
        elif before.startswith("print("):
            exec(before, names)
        elif compared_elsewhere:
            continue
        else:
            pytest.fail(f"nothing on the page prints this text:\n{block}")
        printed = capsys.readouterr().out.splitlines()
        if kind == "text":
            check_agreement(printed, block.splitlines(), close=close)
            continue
        comments = [line.split("  # ", 1)[-1] for line in block.splitlines() if line.lstrip().startswith("print(")]
        if text or kind == "python":
            check_agreement(printed, text.splitlines() or comments, close=close)
    if missing := set(not_run) - set(left_out):
        pytest.fail(f"not on the page: {missing}")


def split_commands(block: str) -> list[str]:
    """The commands of a block, without comments and spaces around them."""
    lines = block.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+#\s.*", "", line).strip() for line in lines]


def run_command(command: str) -> None:
    """Run one of our programs as a shell would, in this process; fail unless it succeeds."""
    import refocal.cli
    import refocal_lab.cli

    programs = {"refocal": refocal.cli.main, "refocal-lab": refocal_lab.cli.main}
    program, *words = shlex.split(command)
    if program not in programs:
        pytest.fail(f"only commands of refocal and refocal-lab can be run, got {command}")
    arguments = [name for word in words for name in (sorted(glob.glob(word)) if word.endswith("/*") else [word])]
    if programs[program](arguments) != 0:
        pytest.fail(f"this command failed: {command}")


def are_equal_to_the_last_digit(first: str, second: str) -> bool:
    """Whether numbers differ by at most one unit of their last digit, as on another processor. Whole ones are equal."""
    digits = max(len(number.rstrip("%").partition(".")[2]) for number in (first, second))
    unit = 10.0**-digits if digits else 0.0
    return abs(parse(first) - parse(second)) <= 1.001 * unit


def check_agreement(
    printed: list[str], said: list[str], *, close: Callable[[str, str], bool] = are_equal_to_the_last_digit
) -> None:
    """Fail unless lines have the same words, and numbers that are close."""
    if not _agree(printed, said, close):
        pytest.fail("\n".join(["the page says", *said, "", "and this was printed", *printed]))


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
