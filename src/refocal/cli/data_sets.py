"""Many files that are one data set: when they are, and what they cannot have."""

from __future__ import annotations

import glob
import os
from argparse import Namespace
from collections.abc import Sequence
from typing import Any


def is_data_set(options: Namespace, files: Sequence[str]) -> bool:
    """Whether the files are parts of one data set: an engine is given, or one of them is a pattern."""
    patterns = any(glob.has_magic(file) and not os.path.lexists(file) for file in files)
    return options.engine is not None or patterns


def engine_settings(options: Namespace) -> dict[str, Any]:
    """The engine and its address, if the user gave them."""
    given = {"engine": options.engine, "address": options.address}
    return {name: value for name, value in given.items() if value is not None}


def reject_options(options: Namespace, *names: str) -> None:
    """Reject options that need all rows in memory."""
    for name in names:
        if getattr(options, name) is not None:
            instead = "use apply to write calibrated files" if name == "out" else "it needs all rows in memory"
            msg = f"--{name} does not work with many files: {instead}"
            raise ValueError(msg)
