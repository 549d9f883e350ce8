"""How a command is added to a program, and the options that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from refocal.cli import memory
from refocal.cli.defaults import read_default

_ENGINE = (
    "treat all files as one data set: local reads them block by block in this process, ray on a Ray cluster; a quoted "
    "pattern means {default}"
)
MEASURING_ENGINE = (
    "treat all files as one data set, as a quoted pattern does, and read them block by block: local in this process, "
    "ray on a Ray cluster; a data set larger than --memory means {default}"
)
_MEMORY = (
    "read files block by block, and take verdict and intervals from a random sample of rows, if all rows need more "
    "memory than this"
)
APPLYING_MEMORY = (
    "reject boxes, or single images, that need more memory than this; rows are read block by block in any case"
)
_EXIT_STATUS = "exit status: 0 success, 1 invalid input (the message says why), 2 wrong usage, 130 interrupted"

Commands = Any  # argparse has no public name for what add_subparsers returns


def make_program(name: str, description: str, version: str) -> tuple[argparse.ArgumentParser, Commands]:
    """Make the parser of a program, and the place where its commands are added."""
    program = _Parser(prog=name, description=description, epilog=_EXIT_STATUS, formatter_class=_HelpFormatter)
    program.add_argument("--version", action="version", version=f"{name} {version}")
    return program, program.add_subparsers(dest="command", required=True, metavar="COMMAND")


def add_command(
    commands: Commands, name: str, summary: str, examples: str, run: Callable[[argparse.Namespace], None]
) -> argparse.ArgumentParser:
    """Add a command.

    Args:
        commands: Where to add it, from `make_program` or `add_group`.
        name: The word that calls it.
        summary: What it does, in lower case and without a period.
        examples: One command per line.
        run: Called with the parsed options.
    """
    command = _add_parser(commands, name, summary, examples)
    command.add_argument("--json", action="store_true", help="print JSON instead of text")
    command.set_defaults(run=run)
    return command


def add_group(commands: Commands, name: str, summary: str, examples: str) -> Commands:
    """Add a command that has commands of its own; returns the place where they are added."""
    group = _add_parser(commands, name, summary, examples)
    return group.add_subparsers(dest="action", required=True, metavar="ACTION")


def add_option(command: Any, *names: str, owner: str, parameter: str | None = None, **settings: Any) -> None:
    """Add an option that is passed on only if the user gives it.

    Args:
        command: A parser, or a group of its options.
        *names: The option, such as "--seed".
        owner: What it is passed on to, see `read_default`. The default found there takes the place of "{default}" in
            the help, or ends it.
        parameter: What the owner calls it, if not as the option does.
        **settings: As for `add_argument`.
    """
    option = command.add_argument(*names, **settings)
    option.default_from = (owner, parameter or option.dest)


def add_engine(command: Any, *, owner: str | None = None, meaning: str = _ENGINE) -> None:
    """Add --engine and --address; for the owner see `add_option`."""
    option = command.add_argument("--engine", choices=("local", "ray"), help=meaning)
    if owner is not None:
        option.default_from = (owner, "engine")
    command.add_argument(
        "--address",
        action=_Address,
        help="address of the Ray cluster, auto or host:port; implies --engine ray (default: a cluster on this machine)",
    )


def add_memory(command: Any, *, meaning: str = _MEMORY) -> None:
    """Add --memory."""
    command.add_argument(
        "--memory",
        type=memory.parse_size,
        default=memory.DEFAULT,
        metavar="SIZE",
        help=f"{meaning}; bytes, or a size such as 500M or 16G (default: %(default)s)",
    )


def add_columns(command: Any) -> None:
    """Add the options that name columns of files."""
    group = command.add_argument_group(
        "columns",
        "which columns of a file to use (npz: arrays); what is not given is guessed from their names, and printed",
    )
    group.add_argument(
        "--label",
        action="append",
        metavar="COLUMN",
        help="column of the labels; a quoted pattern such as 'label_*', or the option several times, for multi-label "
        "columns of 0 and 1, one per class",
    )
    scores = group.add_mutually_exclusive_group()
    scores.add_argument(
        "--prob",
        action="append",
        metavar="COLUMN",
        help="column of probabilities: one for the probability of the second class of two; a quoted pattern such as "
        "'p_*', or the option several times, for one column per class",
    )
    scores.add_argument(
        "--logit", action="append", metavar="COLUMN", help="like --prob, for logits (one column: log-odds)"
    )
    group.add_argument(
        "--ignore",
        action="append",
        metavar="COLUMN",
        help="neither use nor write this column; may be a quoted pattern, and given several times",
    )
    group.add_argument(
        "--classes",
        metavar="NAMES",
        help="the label of each class as the file has it, in the order of the classes and separated by commas, such as "
        "no,yes or -1,1",
    )
    group.add_argument(
        "--task",
        choices=("multiclass", "multilabel"),
        help="multilabel: each class is a yes-or-no question, and probabilities need not sum to 1 (the default if "
        "labels have a value for each class); multiclass: each row has one class",
    )


def list_named_columns(options: argparse.Namespace) -> list[str]:
    """List the options that name columns, with their values, as words of a command."""
    named = []
    for name in ("label", "prob", "logit", "ignore", "classes"):
        value = getattr(options, name, None)
        values = [value] if isinstance(value, str) else value or []
        named += [word for each in values for word in (f"--{name}", each)]
    return named


def check_numbers(options: argparse.Namespace) -> None:
    """Reject an invalid --holdout, --sets or --seed before any work."""
    from refocal import _check

    for name in ("holdout", "sets"):
        if getattr(options, name, None) is not None:
            _check.share(getattr(options, name), f"--{name}")
    if options.seed is not None:
        _check.seed(options.seed, "--seed")


def add_force(command: Any) -> None:
    """Add --force."""
    command.add_argument("--force", action="store_true", help="overwrite existing files")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors do not command the terminal; its commands get parsers of the same class."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and end the process with status 2."""
        from refocal.report.words import printable

        super().error(printable(message))


class _Address(argparse.Action):
    """Choose Ray when the address of a cluster is given and no engine is."""

    def __call__(self, _parser: object, options: argparse.Namespace, value: Any, _flag: str | None = None) -> None:
        options.address, options.engine = value, options.engine or "ray"


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with the defaults of the functions that options are passed on to."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        owner = getattr(action, "default_from", None)
        if owner is None or action.help is None:
            return action.help
        text = action.help if "{default}" in action.help else f"{action.help} (default: {{default}})"
        return text.replace("{default}", str(read_default(*owner)))


def _add_parser(commands: Commands, name: str, summary: str, examples: str) -> argparse.ArgumentParser:
    indented = examples.replace("\n", "\n  ")
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n  {indented}\n\n{_EXIT_STATUS}",
        formatter_class=_HelpFormatter,
    )
    return parser
