"""The files that a command is given: which of them are one data set, and what they are called."""

from __future__ import annotations

import glob
import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Source(NamedTuple):
    """Files that are one data set, and the name that a report gives it."""

    name: str
    files: list[str]


def is_data_set(options: Namespace, files: Sequence[str]) -> bool:
    """Whether the files are parts of one data set: an engine is given, or one of them is a pattern."""
    return options.engine is not None or any(map(_is_pattern, files))


def find_source(names: Sequence[str]) -> Source:
    """Find the files of one data set. It has the name of its file if it has one file, else the given names."""
    from refocal.scale.parts import find_files

    if not any(map(_is_pattern, names)) and len(names) == 1:
        return Source(Path(names[0]).name, list(names))
    files = [os.path.relpath(file) for file in find_files(names)]
    return Source(Path(files[0]).name if len(files) == 1 else " ".join(names), files)


def find_sources(options: Namespace, files: Sequence[str]) -> list[Source]:
    """Find the data sets of a command: one of all files, or one per file."""
    from refocal.scale.file_names import name_files

    if is_data_set(options, files) or len(files) == 1:
        return [find_source(files)]
    return [Source(name, [file]) for name, file in zip(name_files(files), files, strict=True)]


def engine_settings(options: Namespace) -> dict[str, Any]:
    """The engine and its address, if the user gave them."""
    return given(options, "engine", "address")


def given(options: Namespace, *names: str) -> dict[str, Any]:
    """The options that the user gave."""
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _is_pattern(file: str) -> bool:
    return glob.has_magic(file) and not os.path.lexists(file)
