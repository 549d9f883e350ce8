"""The outputs of `apply` in a folder, each with a note of how it was made.

Notes are in the hidden folder `.refocal-apply`. A note is written just before its output gets its final name, and it
holds the size and time of that output. So a note never describes another file, even if a process is killed between
these two steps or the file is replaced by other means.
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
_ADVICE = "choose another folder, or replace the outputs with overwrite=True (--force)"


class Origin(NamedTuple):
    """How an output was made: the digest of the calibrator and the stamp of the input."""

    calibrator: str
    input: Stamp


@dataclass(frozen=True)
class Outputs:
    """The outputs in a folder."""

    folder: Path

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commands from writing to the folder, which is created if it does not exist."""
        notes = self.folder / _NOTES
        notes.mkdir(parents=True, exist_ok=True)
        busy = f"another command is writing to {self.folder}: wait until it ends, or choose another folder"
        with locked(notes / "lock", busy):
            yield

    def check(self, inputs: Sequence[Path], *, calibrator: str) -> None:
        """Reject a folder with outputs of another calibrator, or with other files under the names of outputs."""
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
                msg = f"{output} exists, but this calibrator did not write it: {_ADVICE}"
                raise FileExistsError(msg)
            if made.input != Stamp.of(path):
                msg = f"{output} was made from another file than {path}, or before it changed: {_ADVICE}"
                raise ValueError(msg)

    def write_note(self, complete: Path, *, name: str, origin: Origin) -> None:
        """Note how an output was made; `complete` is the output just before it gets its final name."""
        content = {"name": name, "calibrator": origin.calibrator, "input": origin.input, "output": Stamp.of(complete)}
        write_text(self._note(name), json.dumps(content), overwrite=True)

    def remove(self, name: str) -> None:
        """Remove an output and its note, if they exist."""
        (self.folder / name).unlink(missing_ok=True)
        self._note(name).unlink(missing_ok=True)

    def _note(self, name: str) -> Path:
        # a digest, because a suffix would make the longest allowed file names too long
        return self.folder / _NOTES / f"{hashlib.sha256(os.fsencode(name)).hexdigest()}.json"

    def _read(self, note: Path) -> tuple[str, Origin | None]:
        """Read the name of an output and its origin. The origin is None if no valid note describes the file there."""
        try:
            content = parse_json(read_document(note), ValueError)
            name, output = str(content["name"]), Stamp(*content["output"])
            origin = Origin(str(content["calibrator"]), Stamp(*content["input"]))
            return name, origin if output == Stamp.of(self.folder / name) else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):  # no note or no output, or a damaged note
            return "", None
