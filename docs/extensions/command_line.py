"""Sphinx directive that writes the reference of a command line from its argparse parser.

`{command-line} refocal.cli.parser:build_parser` adds one section per command: what it does, its usage, its options by
group, and its examples. The texts are those of `--help`.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
_WIDTH = 80


class CommandLine(SphinxDirective):
    """The commands of the parser that a function returns, `package.module:function`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Build the sections."""
        module, _, function = self.arguments[0].partition(":")
        self.env.note_dependency(importlib.import_module(module).__file__)
        program = getattr(importlib.import_module(module), function)()
        return [self._describe(command) for command in list_commands(program)]

    def _describe(self, command: argparse.ArgumentParser) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(command.prog)], names=[nodes.fully_normalize_name(command.prog)])
        section += nodes.title("", "", nodes.literal("", command.prog))
        self.state.document.note_explicit_target(section)
        formatter = _formatter(command)
        if command.description:
            section += nodes.paragraph("", "", *_inline(command.description))
        formatter.add_usage(command.usage, command._actions, command._mutually_exclusive_groups, prefix="")
        section += _block(formatter.format_help().strip())
        for group in command._action_groups:
            if rows := [row for action in group._group_actions for row in _rows(command, action)]:
                section += nodes.rubric("", (group.title or "").capitalize())
                if group.description:
                    section += nodes.paragraph("", "", *_inline(f"{_sentence(group.description)}."))
                section += _definitions(rows)
        examples = (command.epilog or "").split("\n\n")[0]
        if examples.startswith("examples:\n"):
            section += nodes.rubric("", "Examples")
            section += _block(re.sub("^ {2}", "", examples.removeprefix("examples:\n"), flags=re.MULTILINE))
        return section


def list_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a program's parser, then those of its commands in their order."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from list_commands(command)


def _formatter(command: argparse.ArgumentParser) -> argparse.HelpFormatter:
    command.color = False  # Python 3.14 colors help texts
    formatter = command._get_formatter()
    formatter._width = _WIDTH
    return formatter


def _rows(command: argparse.ArgumentParser, action: argparse.Action) -> Iterator[tuple[str, str]]:
    """What to write for an action, and what that does; for commands, one pair each."""
    if isinstance(action, argparse._SubParsersAction):
        yield from ((choice.dest, choice.help) for choice in action._choices_actions)
    elif not isinstance(action, argparse._HelpAction) and action.help:
        formatter = _formatter(command)
        yield formatter._format_action_invocation(action), formatter._expand_help(action)


def _definitions(rows: list[tuple[str, str]]) -> nodes.definition_list:
    definitions = nodes.definition_list()
    for call, meaning in rows:
        definitions += nodes.definition_list_item(
            "",
            nodes.term("", "", nodes.literal("", call)),
            nodes.definition("", nodes.paragraph("", "", *_inline(f"{_sentence(meaning)}."))),
        )
    return definitions


def _sentence(text: str) -> str:
    """A text that begins with a capital letter and does not end in a period."""
    return text[:1].upper() + text[1:].removesuffix(".")


def _inline(text: str) -> Iterator[nodes.Node]:
    """Text in which options are code."""
    last = 0
    for option in _OPTION.finditer(text):
        yield nodes.Text(text[last : option.start()])
        yield nodes.literal("", option[0])
        last = option.end()
    yield nodes.Text(text[last:])


def _block(text: str) -> nodes.literal_block:
    return nodes.literal_block(text, text, language="text")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
