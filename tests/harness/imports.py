"""The rule of which module may import which, checked in the source files of a package."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

Rooms = Mapping[str, set[str]]


def find_imports(path: Path) -> Iterator[str]:
    """Absolute names of the modules that a file imports, without those of the standard library."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] not in sys.stdlib_module_names)


def check_imports(path: Path, package: Path, rooms: Rooms) -> None:
    """Fail if a file imports anything that its room may not.

    `rooms` maps a room to the names that it may import. The room of a file is its path inside the package, or the
    nearest folder above it that is a room.
    """
    place = path.relative_to(package).with_suffix("")
    room = next(str(room) for room in [place, *place.parents] if str(room) in rooms)
    for name in find_imports(path):
        assert any(f"{name}.".startswith(f"{allowed}.") for allowed in rooms[room]), f"{path.name} imports {name}"
