"""Write a file, or a folder of files, whole or not at all."""

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
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from refocal._documents import check_regular

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_OURS = f".refocal-{zlib.crc32(platform.node().encode()):08x}-"  # prefix of temporary files of this machine
_DAY = 24 * 60 * 60
_SAFE_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # do not follow links or wait for a FIFO


@contextmanager
def replacing(
    path: str | os.PathLike[str], *, overwrite: bool, complete: Callable[[Path], None] = lambda _: None
) -> Iterator[BinaryIO]:
    """Open a new file with a temporary name in the same folder; rename it to `path` at the end.

    On any exception the temporary file is removed. `complete` is called with the path of the complete file just before
    it is renamed.
    """
    target = Path(path)
    if not target.parent.is_dir():
        msg = f"path must be in an existing folder, got {str(target)!r}"
        raise FileNotFoundError(msg)
    _check_free(target, overwrite=overwrite)
    _remove_abandoned_once(target.parent.absolute())
    temporary = target.with_name(f"{_OURS}{secrets.token_hex(8)}.tmp")
    try:
        with _name_errors(target):
            file = _create(temporary)
        with file:
            yield file
            with _name_errors(target):
                file.flush()
                os.fsync(file.fileno())  # otherwise a crash of the machine could keep the new name but lose the content
            _check_free(target, overwrite=overwrite)
            complete(temporary)
            if os.name == "nt":  # open files cannot be renamed, and files are not locked
                file.close()
            with _name_errors(target):
                os.replace(temporary, target)  # still locked, so that nobody considers it abandoned
    except OSError as error:
        name_if_full(error, target)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _create(path: Path) -> BinaryIO:
    """Create a new file, locked as long as it is open."""
    while True:
        with ExitStack() as stack:
            file = stack.enter_context(open(path, "xb"))
            if not lock(file.fileno(), wait=True) or _is_at(file.fileno(), path):
                stack.pop_all()  # the caller closes it
                return file
        # another process removed it as abandoned before it was locked


@contextmanager
def _name_errors(target: Path) -> Iterator[None]:
    """Let system errors name the target instead of the temporary file, which means nothing to the user."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error


@contextmanager
def locked(path: Path, busy: str) -> Iterator[bool]:
    """Hold a lock file until the `with` block or the process ends; raise RuntimeError(busy) if it is taken.

    Yields False if the operating system or the file system has no locks: then nobody is kept out.
    """
    try:
        import fcntl
    except ImportError:
        yield False
        return
    if path.exists():
        check_regular(path)
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
    """Lock an open file or folder for this process; return False if it is taken or there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, OSError):
        return False
    return True


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files that killed commands left in a folder: a running command holds a lock on its file.

    The machines of a cluster may not see each other's locks, so files of other machines are removed after a day.
    """
    for path in folder.glob(".refocal-*.tmp"):
        try:
            is_old = path.lstat().st_mtime < time.time() - _DAY
            if not (is_old or path.name.startswith(_OURS)):
                continue
            descriptor = os.open(path, os.O_RDONLY | _SAFE_FLAGS)
        except OSError:  # it is gone, or belongs to somebody else
            continue
        try:
            if lock(descriptor, wait=False):
                _remove(path)
        finally:
            os.close(descriptor)


# a folder with many outputs is searched once, not before each output
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
    """Remove unfinished files of a killed command, in a folder that nobody else writes to."""
    for path in folder.glob(".refocal-*.tmp"):
        _remove(path)


def name_if_full(error: OSError, path: Path) -> None:
    """Add the path to the error of a full disk; the system names a file only when it is opened."""
    if error.errno in _FULL and error.filename is None:
        error.filename = str(path)


def is_disk_error(error: Exception) -> bool:
    """Return whether the disk failed: such an OSError has an errno.

    On damaged files, parsers raise a dozen kinds of exceptions. The only errno among them is EINVAL, for seeking before
    the start of the file because of a wrong offset.
    """
    return isinstance(error, OSError) and error.errno not in (None, errno.EINVAL)


def write_text(path: str | os.PathLike[str], text: str, *, overwrite: bool) -> None:
    """Write UTF-8 text."""
    with replacing(path, overwrite=overwrite) as file:
        file.write(text.encode())


def _check_free(path: Path, *, overwrite: bool) -> None:
    if not overwrite and os.path.lexists(path):
        msg = f"{path} exists; pass overwrite=True to replace it"
        raise FileExistsError(msg)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Make a new folder next to `path` and rename it at the end; remove it on any exception. Parents are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(target.parent)
    token = secrets.token_hex(8)
    new, old = target.with_name(f"{_OURS}{token}.tmp"), target.with_name(f"{_OURS}{token}-{target.name}.old")
    try:
        with _name_errors(target):
            new.mkdir()
        with _lock_folder(new):
            yield new
            with _name_errors(target):
                if target.exists():
                    target.rename(old)
                new.rename(target)
    finally:
        if old.exists() and not target.exists():  # interrupted between the two renames
            old.rename(target)
        shutil.rmtree(new, ignore_errors=True)
        if target.exists():  # otherwise an old copy, left by a kill between the two renames, is the only one
            for left in target.parent.glob(f".refocal-*-{glob.escape(target.name)}.old"):
                shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _lock_folder(path: Path) -> Iterator[None]:
    """Hold the lock of a folder if the system can lock folders."""
    if os.name == "nt":
        yield
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)
