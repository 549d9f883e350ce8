"""The folders of a clone of the repository that commands read."""

from __future__ import annotations

from pathlib import Path

import refocal_lab

_LAB = Path(refocal_lab.__file__).parents[2]  # the folder lab of a clone, if the package is installed editable


def find_folder(name: str, given: str | None) -> Path | None:
    """Find a folder of the lab.

    Args:
        name: "experiments" or "zoo".
        given: The folder that the user named, which comes first.

    Returns:
        That of the current folder, which may be the clone or its folder lab, else that of the clone in which the
        package is installed; None if there is none.
    """
    if given is not None:
        return Path(given)
    places = [Path(name), Path("lab", name)]
    places += [_LAB / name] if (_LAB / "pyproject.toml").is_file() else []
    return next((place for place in places if place.is_dir()), None)


def require_folder(name: str, given: str | None, *, command: str) -> Path:
    """Find a folder of the lab, or say what a command needs."""
    found = find_folder(name, given)
    if found is None:
        msg = (
            f"refocal-lab {command} reads {name}/ from a clone of the refocal repository: "
            f"run it there, or name the folder with --{name}"
        )
        raise FileNotFoundError(msg)
    return found
