"""Packages that only some parts of refocal need, each brought by an extra."""

from __future__ import annotations

import importlib
from types import ModuleType


def how_to_install(extra: str) -> str:
    """The commands that install an extra, for messages: of a release, and in a clone of the repository.

    Example:
        >>> print(how_to_install("arrow"))
        pip install 'refocal[arrow]', or in a clone pip install -e '.[arrow]'
    """
    return f"pip install 'refocal[{extra}]', or in a clone pip install -e '.[{extra}]'"


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
        msg = f"{user} needs {package}: {how_to_install(extra)}"
        raise ModuleNotFoundError(msg, name=package) from error
