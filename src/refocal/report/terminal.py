"""Text of reports in the terminal."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from refocal.report import words

_HELD = "\ue000"  # a private character, as wide as a space


@dataclass(frozen=True)
class Sentence:
    """A sentence, wrapped so that "p < 0.001" and "γ = 3" stay on one line.

    Rich breaks lines at every kind of space, also at those that do not break. So these spaces are other characters
    while the lines are found.
    """

    value: str
    style: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        held = words.keep_together(words.printable(self.value)).replace("\u00a0", _HELD)
        for line in Text(held).wrap(console, options.max_width):
            yield Text(line.plain.rstrip().replace(_HELD, " "), style=self.style)


def write_text(first: str, small: str = "") -> Text:
    """Text as it is, never markup, with small print on the next line."""
    text = Text(words.printable(first))
    return text.append("\n" + words.printable(small), style="not bold dim") if small else text
