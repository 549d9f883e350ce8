"""Docstrings as the site shows them: formulas in indented lines, Markdown tables, and fields of named tuples.

Docstrings are read in a terminal more often than on the site, so they use as little markup as possible. This extension
adds the markup that reStructuredText needs.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from sphinx.application import Sphinx

_SECTION = re.compile(r"(Args|Attributes|Example|Examples|Raises|Returns|Yields|Note|Reference|Warns):\s*$")


def mark_up(lines: list[str]) -> list[str]:
    """Make indented lines literal blocks and Markdown tables list tables; sections and doctests stay.

    Elsewhere, bars are absolute values or conditions, and names may end in an underscore.

    Example:
        >>> mark_up(["The map is", "", "    p = q.", "", "Args:", "    p: A number."])
        ['The map is', '', '::', '', '    p = q.', '', 'Args:', '    p: A number.']
    """
    marked: list[str] = []
    blank, in_block, in_section, in_doctest = True, False, False, False
    for number, line in enumerate(lines):
        text = line.strip()
        in_doctest = text.startswith(">>>") or (in_doctest and bool(text))
        if _SECTION.match(line):
            in_section = True
        elif text and not line.startswith(" "):
            in_section = in_block = False
        starts = text and blank and line.startswith("    ") and not in_section and not in_block
        if starts and not in_doctest and not text.startswith(("- ", "* ")):
            marked += ["::", ""]
            in_block = True
        if in_block or in_doctest:
            marked.append(line)
        elif text.startswith("|") and text.endswith("|"):
            marked += _table_row(lines, number)
        else:
            marked.append(_escape(line))
        blank = not text
    return marked


def _escape(line: str) -> str:
    """Escape what is markup in reStructuredText but not in docstrings, outside of code."""
    parts = line.split("`")
    parts[::2] = [re.sub(r"(\||(?<=\w)_(?![\w:]))", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _table_row(lines: list[str], number: int) -> list[str]:
    """Turn one line of a Markdown table into lines of a list table."""
    line = lines[number]
    indent = line[: len(line) - len(line.lstrip())]
    cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
    if all(re.fullmatch(r":?-+:?", cell) for cell in cells):
        return []
    first = number == 0 or not lines[number - 1].strip().startswith("|")
    head = [f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""] if first else []
    return head + [f"{indent}   {'* -' if place == 0 else '  -'} {cell}" for place, cell in enumerate(cells)]


def _process(app: Sphinx, what: str, name: str, obj: Any, options: object, lines: list[str]) -> None:
    if what != "data":
        lines[:] = mark_up(lines)
    elif isinstance(obj, Collection):  # of names
        lines[:] = [", ".join(f"`{member}`" for member in obj)]
    else:
        lines[:] = [f"`{obj!r}`"]


def _join_type(app: Sphinx, what: str, name: str, obj: Any, options: object, lines: list[str]) -> None:
    """Repair properties whose first line reads "What it is: more": napoleon takes "What it is" for a type."""
    found = [number for number, line in enumerate(lines) if line.startswith(":type: ")]
    if what == "property" and found:
        lines[0] = f"{lines.pop(found[0]).removeprefix(':type: ')}: {lines[0]}"


def _skip(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """Leave out fields of named tuples, which their class describes, and scikit-learn's requests of metadata."""
    text = getattr(obj, "__doc__", None) or ""
    generated = text.startswith("Alias for field number") or re.search(r"set_\w+_request$", name)
    return True if generated else None


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the markup before napoleon reads the sections, and the repair after it."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-docstring", _join_type, priority=600)
    app.connect("autodoc-skip-member", _skip)
    return {"parallel_read_safe": True}
