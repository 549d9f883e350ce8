"""What a release still needs that only its publisher knows: `python tools/release_gaps.py [TAG]`.

Without a tag, it lists what is missing and succeeds. With a tag, anything that is missing is an error. `make dist` runs
it, and so does the release workflow.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# links that readers of a package index look for, under the names that it knows
URLS = ("Homepage", "Documentation", "Source", "Issues", "Changelog")


def list_gaps(repository: Path, tag: str | None = None) -> list[str]:
    """List what is missing.

    Args:
        repository: The folder of the repository.
        tag: The tag of the release, such as v0.1.0, or None.

    Returns:
        One line for each gap.
    """
    gaps = []
    version = _find(repository / "src/refocal/__init__.py", r'^__version__ = "(.+)"$')
    if tag is not None and tag != f"v{version}":
        gaps.append(f"the tag is {tag}, but the version is {version}")
    for folder in (".", "lab"):
        name = f"{folder}/pyproject.toml".removeprefix("./")
        project = tomllib.loads((repository / name).read_text(encoding="utf-8"))["project"]
        if missing := [url for url in URLS if url not in project.get("urls", {})]:
            gaps.append(f"{name}: [project.urls] needs {', '.join(missing)}")
        readme = (repository / folder / "README.md").read_text(encoding="utf-8")
        if "readme" not in project.get("dynamic", []) and re.search(r"\]\((?!https://|#)", readme):
            gaps.append(f"{name}: links of README.md are relative, which a package index cannot follow")
    if _find(repository / "CITATION.cff", r"^repository-code: (.+)$") is None:
        gaps.append("CITATION.cff: repository-code needs the address of the repository")
    released = _find(repository / "CHANGELOG.md", rf"^## {re.escape(str(version))} - (\S+)$")
    if released is None or released != _find(repository / "CITATION.cff", r"^date-released: (.+)$"):
        gaps.append(f"CHANGELOG.md and CITATION.cff must give version {version} the same day")
    return gaps


def _find(path: Path, pattern: str) -> str | None:
    found = re.search(pattern, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return None if found is None else found[1]


def main(arguments: list[str]) -> int:
    """Print the gaps; return 1 if there are any and a tag was given."""
    tag = arguments[0] if arguments else None
    gaps = list_gaps(REPOSITORY, tag)
    if gaps:
        print("before a release (CONTRIBUTING.md, Releases and deprecations):", *gaps, sep="\n  ", file=sys.stderr)
    return 1 if gaps and tag is not None else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
