"""Standard output in encodings that lack some characters."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

_SPELLINGS = {
    **{"±": "+-", "−": "-", "–": "-", "×": "x", "…": "...", "←": "<-", "≤": "<=", "≥": ">=", "\xa0": " "},
    **{"●": "o", "·": ".", "│": "|", "─": "-", "└": "+"},
}


def accept_any_encoding() -> None:
    """Make standard output spell characters that its encoding lacks in ASCII, instead of raising an error."""
    codecs.register_error("refocal", _replace)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="refocal")


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_spell, error.object[error.start : error.end])), error.end


def _spell(character: str) -> str:
    name = unicodedata.name(character, "")
    letter = name.rsplit(" ", 1)[-1].lower() if name.startswith("GREEK") else "?"
    return _SPELLINGS.get(character, letter)
