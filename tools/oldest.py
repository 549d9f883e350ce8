"""Print the oldest versions that pyproject.toml files promise as a constraints file: `==` for each `>=`.

`make test-oldest` installs them: `python tools/oldest.py pyproject.toml lab/pyproject.toml > constraints.txt`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

_FLOOR = re.compile(r"(?P<name>[\w.-]+)(?:\[[\w,-]+\])?>=(?P<version>[\w.]+)(?:;\s*(?P<marker>.+))?")


def oldest(*projects: dict) -> list[str]:
    """Pin every requirement of the projects to its lower bound: those to build, to run, and of all extras.

    What one of the projects requires of another is left out: it comes from this repository.

    Raises:
        ValueError: if a requirement is anything but `name>=version`, or if two extras disagree about a floor.
    """
    ours = {project["project"].get("name") for project in projects}
    groups = []
    for project in projects:
        extras = project["project"].get("optional-dependencies", {}).values()
        groups += [project["build-system"]["requires"], project["project"]["dependencies"], *extras]
    pins: dict[str, str] = {}
    for requirement in (each for group in groups for each in group):
        floor = _FLOOR.fullmatch(requirement)
        if floor is None:
            msg = f"a requirement must read name>=version, so that its oldest version is known; got {requirement!r}"
            raise ValueError(msg)
        if floor["name"] in ours:
            continue
        pin = f"{floor['name']}=={floor['version']}" + (f"; {floor['marker']}" if floor["marker"] else "")
        if pins.setdefault(floor["name"], pin) != pin:
            msg = f"{floor['name']} must have the same floor everywhere; got {pins[floor['name']]!r} and {pin!r}"
            raise ValueError(msg)
    return sorted(pins.values())


if __name__ == "__main__":
    print("\n".join(oldest(*(tomllib.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]))))
