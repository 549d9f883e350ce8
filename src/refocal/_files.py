"""Writing a file, or a folder of files, whole or not at all."""

from __future__ import annotations

import errno
import functools
import glob
import os
import platform
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_OURS = f".refocal-{zlib.crc32(platform.node().encode()):08x}-"  # how names of temporary files of this machine begin
_DAY = 24 * 60 * 60
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # nobody else's file, and no wait for a FIFO


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
    _remove_abandoned_once(target.parent.absolute())
    with _naming(target):
        file, temporary = _created(target)
    try:
        with file:
            yield file
            with _naming(target):
                file.flush()
                os.fsync(file.fileno())  # else a crash of the machine could keep the new name and lose the content
            _check_free(target, overwrite=overwrite)
            complete(temporary)
            if os.name == "nt":  # where no open file is renamed, and none is locked
                file.close()
            with _naming(target):
                os.replace(temporary, target)  # still locked, or it could be taken for abandoned
    except OSError as error:
        name_if_full(error, target)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _created(target: Path) -> tuple[BinaryIO, Path]:
    """A new file in the folder of the target, locked as long as it is open."""
    while True:
        temporary = target.with_name(f"{_OURS}{secrets.token_hex(8)}.tmp")
        file = open(temporary, "xb")  # noqa: SIM115  (the caller closes it)
        if not lock(file.fileno(), wait=True) or _is_at(file.fileno(), temporary):
            return file, temporary
        file.close()  # taken for abandoned, and removed, before it was locked


@contextmanager
def _naming(target: Path) -> Iterator[None]:
    """Let errors of the system name what was to be written: the temporary name tells nobody anything."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


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


def lock(descriptor: int, *, wait: bool) -> bool:
    """Lock an open file or folder for this process; False where another has it, or where there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, OSError):
        return False
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove what killed commands were writing in a folder: nobody holds the lock that a live one has on it.

    Locks may be unknown to the other machines of a cluster. What these were writing is removed a day later.
    """
    for path in folder.glob(".refocal-*.tmp"):
        try:
            is_old = path.lstat().st_mtime < time.time() - _DAY
            if not (is_old or path.name.startswith(_OURS)):
                continue
            descriptor = os.open(path, os.O_RDONLY | _CAREFUL)
        except OSError:  # it is gone, or is somebody else's
            continue
        try:
            if lock(descriptor, wait=False):
                _remove(path)
        finally:
            os.close(descriptor)


# a folder of many outputs is looked through once, not before each of them
_remove_abandoned_once = functools.lru_cache(maxsize=1024)(remove_abandoned)


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def remove_unfinished(folder: Path) -> None:
    """Remove what a kill left of files that were being written; for a folder that nobody else is writing to."""
    for path in folder.glob(".refocal-*.tmp"):
        _remove(path)


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
    remove_abandoned(target.parent)
    token = secrets.token_hex(8)
    new, old = target.with_name(f"{_OURS}{token}.tmp"), target.with_name(f"{_OURS}{token}-{target.name}.old")
    with _naming(target):
        new.mkdir()
    try:
        with _locked_folder(new):
            yield new
            with _naming(target):
                if target.exists():
                    target.rename(old)
                new.rename(target)
    finally:
        if old.exists() and not target.exists():  # interrupted between the two renames
            old.rename(target)
        shutil.rmtree(new, ignore_errors=True)
        if target.exists():  # so that what a kill between the two renames left is not the only one
            for left in target.parent.glob(f".refocal-*-{glob.escape(target.name)}.old"):
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked_folder(path: Path) -> Iterator[None]:
    """Hold the lock of a folder, where folders have one."""
    if os.name == "nt":
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)
