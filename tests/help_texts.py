"""What tests of both command lines ask of their help texts."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HEAVY = ["matplotlib", "numpy", "pyarrow", "ray", "rich", "scipy", "sklearn", "torch"]


def list_parsers(parser):
    """A parser and those of its commands, by the words that call them."""
    yield parser.prog, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from list_parsers(command)


def check_defaults(parser):
    """Compare each default in a help text with the signature or dataclass that owns it; returns how many there are."""
    compared = 0
    for words, command in list_parsers(parser):
        command._get_formatter = lambda command=command: command.formatter_class(prog=command.prog, width=10_000)
        lines = command.format_help().splitlines()
        for action in command._actions:
            if not hasattr(action, "default_from"):
                continue
            owner, name = action.default_from
            default = find_default(owner, name)
            (line,) = (line for line in lines if line.lstrip().startswith(action.option_strings[0]))
            following = lines[lines.index(line) + 1] if lines.index(line) + 1 < len(lines) else ""
            assert action.default is None, (words, action.dest)
            expected = (f"(default: {default})", f"means {default}")
            assert any(text in part for text in expected for part in (line, following)), (words, line, default)
            compared += 1
    return compared


def find_default(owner, name):
    """The default of a parameter or of a field, from the imported function or class."""
    module, _, member = owner.partition(":")
    found = getattr(importlib.import_module(module), member)
    if dataclasses.is_dataclass(found):
        return next(field.default for field in dataclasses.fields(found) if field.name == name)
    return inspect.signature(found).parameters[name].default


def heavy_modules(package):
    """Which heavy modules are loaded after all help texts of a program were written."""
    code = (
        f"import json, sys; from {package}.cli.parser import build_parser; from help_texts import list_parsers\n"
        f"texts = [parser.format_help() for _, parser in list_parsers(build_parser())]\n"
        f"print(json.dumps(sorted(set(sys.modules) & set({HEAVY}))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, encoding="utf-8", cwd=HERE
    )
    return json.loads(done.stdout)
