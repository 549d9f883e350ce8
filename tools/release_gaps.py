"""What a release still needs that only its publisher knows: `python tools/release_gaps.py [TAG [ADDRESS]]`.

Without a tag, it lists what is missing and succeeds. With a tag, anything that is missing is an error. `make dist` runs
it, and so does the release workflow.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def list_gaps(repository: Path, tag: str = "", address: str = "") -> list[str]:
    """List what is missing.

    Args:
        repository: The folder of the repository.
        tag: The tag of the release, such as v0.1.0; empty if there is none.
        address: The public address of the repository; empty if there is none.

    Returns:
        One line for each gap.
    """
    gaps = []
    version = _find(repository / "src/refocal/__init__.py", r'^__version__ = "(.+)"$')
    if tag and tag != f"v{version}":
        gaps.append(f"the tag is {tag}, but the version is {version}")
    if not address:
        gaps.append(
            "ADDRESS=https://... and SITE=https://..., where the repository and its documentation are published"
        )
    released = _find(repository / "CHANGELOG.md", rf"^## {re.escape(str(version))} - (\S+)$")
    if released is None or released != _find(repository / "CITATION.cff", r"^date-released: (.+)$"):
        gaps.append(f"CHANGELOG.md and CITATION.cff must give version {version} the same day")
    return gaps


def _find(path: Path, pattern: str) -> str | None:
    found = re.search(pattern, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return None if found is None else found[1]


def main(arguments: list[str]) -> int:
    """Print the gaps; return 1 if there are any and a tag was given."""
    tag, address, *_ = (*arguments, "", "")
    gaps = list_gaps(REPOSITORY, tag, address)
    if gaps:
        print("before a release (CONTRIBUTING.md, Releases and deprecations):", *gaps, sep="\n  ", file=sys.stderr)
    return 1 if gaps and tag else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
