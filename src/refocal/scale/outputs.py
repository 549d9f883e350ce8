"""The outputs of `apply` in a folder, each with a note of what made it.

A note lies in the hidden folder `.refocal-apply`. It is written just before its output takes its name, and it says the
size and time of that output. So a note never speaks of another file: a process may be killed between the two, and a
file may be replaced by other means.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from refocal._documents import parse_json, read_document
from refocal._files import locked, write_text
from refocal.scale.parts import Stamp

_NOTES = ".refocal-apply"
_ADVICE = "choose another folder, or replace what is there by overwrite=True (--force)"


class Origin(NamedTuple):
    """What an output was made by, the digest of a calibrator, and from, the stamp of an input."""

    calibrator: str
    input: Stamp


@dataclass(frozen=True)
class Outputs:
    """The outputs in a folder."""

    folder: Path

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commands from writing to the folder, which is made where it does not exist."""
        notes = self.folder / _NOTES
        notes.mkdir(parents=True, exist_ok=True)
        busy = f"another command is writing to {self.folder}: let it end, or choose another folder"
        with locked(notes / "lock", busy):
            yield

    def check(self, inputs: Sequence[Path], *, calibrator: str) -> None:
        """Refuse a folder that holds outputs of another calibrator, or something else in place of an input's output."""
        for note in sorted((self.folder / _NOTES).glob("*.json")):
            name, origin = self._read(note)
            if origin is not None and origin.calibrator != calibrator:
                msg = f"{self.folder} holds outputs of another calibrator, such as {name}: {_ADVICE}"
                raise ValueError(msg)
        for path in inputs:
            output = self.folder / path.name
            if not os.path.lexists(output):
                continue
            made = self._read(self._note(path.name))[1]
            if made is None:
                msg = f"{output} exists, and not by this calibrator: {_ADVICE}"
                raise FileExistsError(msg)
            if made.input != Stamp.of(path):
                msg = f"{output} was made from another file than {path}, or before that changed: {_ADVICE}"
                raise ValueError(msg)

    def write_note(self, complete: Path, *, name: str, origin: Origin) -> None:
        """Note what made an output; `complete` is the output, which takes its name next."""
        content = {"name": name, "calibrator": origin.calibrator, "input": origin.input, "output": Stamp.of(complete)}
        write_text(self._note(name), json.dumps(content), overwrite=True)

    def remove(self, name: str) -> None:
        """Remove an output, if there is one."""
        (self.folder / name).unlink(missing_ok=True)
        self._note(name).unlink(missing_ok=True)

    def _note(self, name: str) -> Path:
        # by a digest: with a suffix, the longest names that a folder takes would be too long
        return self.folder / _NOTES / f"{hashlib.sha256(os.fsencode(name)).hexdigest()}.json"

    def _read(self, note: Path) -> tuple[str, Origin | None]:
        """The name of an output and what made it; None where there is no note, or it is not about the file there."""
        try:
            content = parse_json(read_document(note), ValueError)
            name, output = str(content["name"]), Stamp(*content["output"])
            origin = Origin(str(content["calibrator"]), Stamp(*content["input"]))
            return name, origin if output == Stamp.of(self.folder / name) else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # no note or no output, or a damaged note
            return "", None
