"""An output that cannot show every sign."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

_SPELLED = {
    **{"±": "+-", "−": "-", "–": "-", "×": "x", "…": "...", "←": "<-", "≤": "<=", "≥": ">=", "\xa0": " "},
    **{"●": "o", "·": ".", "│": "|", "─": "-", "└": "+"},
}


def accept_any_encoding() -> None:
    """Let the standard output spell in ASCII what its encoding lacks, in place of an error."""
    codecs.register_error("refocal", _in_ascii)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="refocal")


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_spelled, error.object[error.start : error.end])), error.end


def _spelled(sign: str) -> str:
    name = unicodedata.name(sign, "")
    letter = name.rsplit(" ", 1)[-1].lower() if name.startswith("GREEK") else "?"
    return _SPELLED.get(sign, letter)
