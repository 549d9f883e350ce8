"""Copy what a release is built from, with the public address: `python tools/release_tree.py FOLDER [ADDRESS SITE REF]`.

No file of the repository says where it lives, so that a fork or a mirror says nothing wrong. A release does: the copy
has `[project.urls]`, `repository-code`, badges of the workflows, and descriptions for readers of a package index: their
links work there, and `pip install refocal` takes the place of installing a clone.

ADDRESS is that of the repository, such as https://host/owner/refocal, SITE that of its documentation, and REF the tag
or branch that links lead to. Without them, the files are copied as they are. `make dist` runs it.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from posixpath import normpath
from urllib.parse import urlsplit

REPOSITORY = Path(__file__).parents[1]
SHARED = ("pyproject.toml", "README.md", "LICENSE", "src")
COPIED = (*SHARED, "CHANGELOG.md", "CITATION.cff", *(f"lab/{name}" for name in SHARED))
PICTURES = (".svg", ".png")


def copy_tree(repository: Path, folder: Path) -> None:
    """Copy the files of both distributions into an empty folder."""
    for name in COPIED:
        source, target = repository / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def write_address(folder: Path, address: str, site: str, ref: str) -> None:
    """Write the address into the files of a copy.

    Args:
        folder: The copy.
        address: The address of the repository.
        site: The address of the documentation.
        ref: The tag or branch that links lead to.
    """
    for url in (address, site):
        if urlsplit(url).scheme != "https" or not urlsplit(url).netloc:
            msg = f"an address must begin with https://, got {url!r}"
            raise ValueError(msg)
    address = address.rstrip("/")
    urls = {
        "Homepage": site,
        "Documentation": site,
        "Source": address,
        "Issues": f"{address}/issues",
        "Changelog": f"{address}/blob/{ref}/CHANGELOG.md",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    for part in (".", "lab"):
        _replace(folder / part / "pyproject.toml", r"^(?=\[project\.scripts\]$)", f"[project.urls]\n{table}\n")
        readme = folder / part / "README.md"
        text = make_links_absolute(readme.read_text(encoding="utf-8"), part, address, ref)
        readme.write_text(text, encoding="utf-8")
    _replace(folder / "CITATION.cff", r"^(?=license: )", f"repository-code: {address}\nurl: {site}\n")
    badges = [
        f"[![{name}]({address}/actions/workflows/{name}.yml/badge.svg)]({link})"
        for name, link in (("tests", f"{address}/actions/workflows/tests.yml"), ("docs", site))
    ]
    _replace(folder / "README.md", r"\A(# .+\n\n)", rf"\1{' '.join(badges)}\n")
    _replace(folder / "README.md", r"`pip install \.` in a clone of this repository", "`pip install refocal`")
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8").replace("pip install '.[", "pip install 'refocal[")
    readme.write_text(text, encoding="utf-8")


def make_links_absolute(text: str, part: str, address: str, ref: str) -> str:
    """Put the address before each relative link of a Markdown page in the folder `part` of the repository."""

    def lead(link: re.Match[str]) -> str:
        path, mark, place = link[1].partition("#")
        kind = "raw" if path.endswith(PICTURES) else "blob"
        return f"]({address}/{kind}/{ref}/{normpath(f'{part}/{path}')}{mark}{place})"

    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", lead, text)


def _replace(path: Path, pattern: str, replacement: str) -> None:
    """Replace the one match of a pattern in a file."""
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if count != 1:
        msg = f"{path.name} has {count} matches of {pattern!r}, and needs one"
        raise ValueError(msg)
    path.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Make the copy."""
    if len(arguments) not in (1, 4):
        print("needs FOLDER, or FOLDER ADDRESS SITE REF: with an address, also SITE=", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    if folder.exists() and any(folder.iterdir()):
        print(f"{folder} must be new or empty", file=sys.stderr)
        return 2
    copy_tree(REPOSITORY, folder)
    if arguments[1:]:
        write_address(folder, *arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
