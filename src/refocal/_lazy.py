"""Package names that are imported when they are first used, so that importing a package costs little."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], *, packages: Sequence[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package (PEP 562).

    No name may be that of a submodule: Python binds a submodule to its package when it is imported.

    Args:
        package: The package, its `__name__`.
        homes: The names that each module of the package provides, by module.
        packages: Subpackages that are imported when they are first used. `dir` does not list them, because some need
            an extra that may be missing.
    """
    home_of = {name: f"{package}.{home}" for home, names in homes.items() for name in names}

    def get(name: str) -> object:
        """Import a public name from its module, or a subpackage."""
        if name in packages:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            msg = f"module {package!r} has no attribute {name!r}"
            raise AttributeError(msg)
        found = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names
