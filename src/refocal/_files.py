"""Writing a file, or a folder of files, whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, overwrite: bool, complete: Callable[[Path], None] = lambda _: None
) -> Iterator[BinaryIO]:
    """A new file under another name in the same folder, renamed to `path` at the end, removed on any exception.

    `complete` is called with the complete file just before it is renamed.
    """
    target = Path(path)
    if not target.parent.is_dir():
        msg = f"path must be in a folder that exists, got {str(target)!r}"
        raise FileNotFoundError(msg)
    _check_free(target, overwrite=overwrite)
    temporary = target.with_name(f".refocal-{secrets.token_hex(8)}.tmp")
    try:
        with _opened(temporary, target) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a crash of the machine could keep the new name and lose the content
        _check_free(target, overwrite=overwrite)
        complete(temporary)
        os.replace(temporary, target)
    except OSError as error:
        name_if_full(error, target)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _opened(temporary: Path, target: Path) -> BinaryIO:
    """The new file; where the folder cannot be written to, the error names what was to be written."""
    try:
        return open(temporary, "xb")
    except OSError as error:
        error.filename = str(target)
        raise


@contextmanager
def locked(path: Path, busy: str) -> Iterator[bool]:
    """Hold a lock file until this is left or the process ends, in whatever way; raise `busy` if another one holds it.

    Gives False where the operating system or the file system has no locks: then nobody is kept out.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    alone = True
    with open(path, "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(busy) from None
        except OSError:
            alone = False
        yield alone


def remove_unfinished(folder: Path) -> None:
    """Remove what a kill left of files that were being written; for a folder that nobody else is writing to."""
    for path in folder.glob(".refocal-*.tmp"):
        path.unlink(missing_ok=True)


def name_if_full(error: OSError, path: Path) -> None:
    """Let the error of a full disk tell what was being written: the system names a file where it is opened only."""
    if error.errno in _FULL and error.filename is None:
        error.filename = str(path)


def is_of_disk(error: Exception) -> bool:
    """Whether a disk failed: such an OSError carries an errno.

    Over the content of damaged files, parsers raise a dozen kinds of exceptions. An errno of theirs is that of seeking
    before the start of a file, which is a wrong offset in it.
    """
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def write_text(path: str | os.PathLike[str], text: str, *, overwrite: bool) -> None:
    """Write UTF-8 text."""
    with replacing(path, overwrite=overwrite) as file:
        file.write(text.encode())


def _check_free(path: Path, *, overwrite: bool) -> None:
    if not overwrite and os.path.lexists(path):
        msg = f"{path} exists, overwrite=True replaces it"
        raise FileExistsError(msg)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder beside `path`, renamed to it at the end, removed on any exception; parents are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    new, old = (target.with_name(f".refocal-{secrets.token_hex(8)}.tmp") for _ in range(2))
    new.mkdir()
    try:
        yield new
        if target.exists():
            target.rename(old)
        new.rename(target)
    finally:
        if old.exists() and not target.exists():  # interrupted between the two renames
            old.rename(target)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
