"""Networks, losses and data sets of your own: functions that a recipe names as `package.module:function`.

A module is looked for in the current folder and among the installed packages. It is imported, and so its code runs,
when a training starts or a trained network is loaded again. Reading a recipe or a card imports nothing.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from refocal import _check

T = TypeVar("T")
_NOT_YOURS = (Path(__file__).parents[1], *(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")))


class OwnPartError(ValueError):
    """A function of your own that cannot be imported, fails, or returns something else than it should."""


def is_own(name: str) -> bool:
    """Whether a name stands for a function of your own.

    Example:
        >>> is_own("networks:small"), is_own("resnet20")
        (True, False)
    """
    return ":" in name


def check_name(name: str, argument: str, known: tuple[str, ...]) -> None:
    """Accept a known name or `package.module:function`, without importing it.

    Args:
        name: The name to check.
        argument: What the name is given as, for messages: "model", "loss" or "data".
        known: The names that the lab knows.
    """
    if not is_own(name):
        _check.one_of(name, argument, known)
        return
    module, _, function = name.partition(":")
    if not (function.isidentifier() and all(word.isidentifier() for word in module.split("."))):
        msg = f"{argument} must be a name or package.module:function, got {name!r}"
        raise ValueError(msg)


def call_own(name: str, argument: str, kind: type[T], **settings: Any) -> T:
    """Import a function of your own, call it, and check the type of its result.

    Args:
        name: `package.module:function`.
        argument: What the name is given as, for messages.
        kind: What the function must return.
        settings: Keyword arguments of the function.

    Raises:
        OwnPartError: The function is not there, fails, or returns something else.
    """
    check_name(name, argument, ())
    function = _import_function(name, argument)
    try:
        result = function(**settings)
    except Exception as error:
        msg = f"{argument} {name!r} failed: {describe(error)}"
        raise OwnPartError(msg) from error
    if not isinstance(result, kind):
        wanted = f"{kind.__module__.partition('.')[0]}'s {kind.__name__}"
        msg = f"{argument} {name!r} must return an instance of {wanted}, got {type(result).__name__}"
        raise OwnPartError(msg)
    return result


def describe(error: Exception) -> str:
    """What an exception says, with the last line of your code on the way to it.

    If no such line is known, it is the last line outside of this file, such as one of PyTorch.
    """
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    yours = [frame for frame in frames if not any(map(Path(frame.filename).is_relative_to, _NOT_YOURS))]
    last = (yours or frames)[-1:]
    place = "".join(f" ({frame.filename}, line {frame.lineno})" for frame in last)
    return f"{type(error).__name__}: {error}{place}"


def add_to_path(folder: str | os.PathLike[str]) -> None:
    """Let modules in a folder be imported. It comes last, so that a file there never hides an installed package."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _import_function(name: str, argument: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    add_to_path(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            hint = "; leave out .py" if module_name.endswith(".py") else ""
            msg = f"{argument} {name!r}: no module {missing!r} in the current folder or among the packages{hint}"
        else:
            msg = f"{argument} {name!r}: the module cannot be imported: {describe(error)}"
        raise OwnPartError(msg) from error
    function: Any = getattr(module, function_name, None)
    if not callable(function):
        place = getattr(module, "__file__", None) or "a built-in module"
        msg = f"{argument} {name!r}: {module_name} ({place}) has no function {function_name!r}"
        raise OwnPartError(msg)
    return function
