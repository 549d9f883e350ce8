"""Short names of files, for reports and notes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def name_files(files: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Name files by the shortest ends of their paths that tell them apart.

    Example:
        >>> name_files(["runs/a/test.npz", "runs/b/test.npz", "runs/b/val.npz"])
        ['a/test.npz', 'b/test.npz', 'val.npz']
    """
    return [name_file(file, files) for file in files]


def name_file(file: str | os.PathLike[str], files: Sequence[str | os.PathLike[str]]) -> str:
    """Name a file by the shortest end of its path that none of the other files has."""
    path = _split(file)
    others = {other for other in map(_split, files) if other != path}
    for length in range(1, len(path)):
        if all(other[-length:] != path[-length:] for other in others):
            return "/".join(path[-length:])
    return str(Path(*path))


def _split(file: str | os.PathLike[str]) -> tuple[str, ...]:
    return Path(os.path.abspath(file)).parts
