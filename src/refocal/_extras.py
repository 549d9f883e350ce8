"""Packages that only some parts of refocal need, each brought by an extra."""

from __future__ import annotations

import importlib
from types import ModuleType


def require(package: str, *, extra: str, user: str) -> ModuleType:
    """Import a package that `user`, a part of refocal, needs, or raise an error that names the extra.

    Example:
        >>> require("numpy", extra="arrays", user="refocal.maps").__name__
        'numpy'
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # the package is there, but something that it needs is not
            raise
        msg = f"{user} needs {package}: pip install 'refocal[{extra}]'"
        raise ModuleNotFoundError(msg, name=package) from error
