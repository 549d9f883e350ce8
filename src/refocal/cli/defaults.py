"""Defaults for help texts, read from the source of the function or dataclass that owns them.

Importing the owner would give the same answer, but `--help` would then wait for scikit-learn or PyTorch.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_default(owner: str, name: str) -> Any:
    """Read the default of a parameter or of a field.

    Args:
        owner: A module and a function or class in it, such as "refocal.report.selection:calibrate".
        name: The parameter or field; its default must be a literal.

    Example:
        >>> read_default("refocal.report.selection:calibrate", "method")
        'auto'
    """
    module, _, member = owner.partition(":")
    package, *path = module.split(".")
    folder = importlib.import_module(package).__path__[0]
    source = Path(folder, *path).with_suffix(".py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == member:
            defaults = _parameters(node) if isinstance(node, ast.FunctionDef) else _fields(node)
            return ast.literal_eval(dict(defaults)[name])
    msg = f"{module} has no {member}"
    raise LookupError(msg)


def _parameters(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    pairs = [*zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True)]
    for parameter, default in [*pairs, *zip(given.kwonlyargs, given.kw_defaults, strict=True)]:
        if default is not None:
            yield parameter.arg, default


def _fields(record: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    for node in record.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
