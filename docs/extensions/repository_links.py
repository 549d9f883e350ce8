"""Links of pages to what is in the repository but not a page of the site."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

_LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)\)")


def _rewrite(app: Sphinx, page: str, source: list[str]) -> None:
    """The README leads to the home page, which has the same role; a folder is a name without a link."""
    folder = (Path(app.srcdir) / page).parent

    def replace(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target == Path(app.srcdir) / "README.md":
            home = os.path.relpath(Path(app.srcdir) / f"{app.config.root_doc}.md", folder)
            return f"[{link[1]}]({home})"
        return link[1] if target.is_dir() else link[0]

    source[0] = _LINK.sub(replace, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the rewriting of links to reading."""
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True}
