"""What a killed command was writing is removed by the next one; what a live one is writing stays."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from refocal import _files
from refocal._files import replacing, replacing_folder

pytest.importorskip("fcntl", reason="without locks nothing can be told to be abandoned")

# writes something, says so, and waits to be killed
WRITER = """
import sys, time
from refocal._files import {function} as function
with function(sys.argv[1], **{settings}) as new:
    new.write(b"half") if hasattr(new, "write") else (new / "half").write_text("half", encoding="utf-8")
    new.flush() if hasattr(new, "flush") else None
    print("writing", flush=True)
    time.sleep(120)
"""
NEXT = "import sys; from refocal._files import write_text; write_text(sys.argv[1], 'whole', overwrite=True)"
CASES = pytest.mark.parametrize(
    ("function", "settings"), [("replacing", {"overwrite": True}), ("replacing_folder", {})]
)


def writing(path, function, settings):
    """A process in the middle of writing."""
    code = WRITER.format(function=function, settings=settings)
    process = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert process.stdout.readline() == "writing\n"
    return process


def end(process):
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=240)
    process.stdout.close()


@CASES
def test_the_next_command_removes_what_a_kill_left(tmp_path, function, settings):
    process = writing(tmp_path / "target", function, settings)
    live = list(tmp_path.iterdir())
    subprocess.run([sys.executable, "-c", NEXT, tmp_path / "other.txt"], check=True, timeout=240)
    assert set(tmp_path.iterdir()) == {*live, tmp_path / "other.txt"}  # it is still being written
    end(process)
    assert list(tmp_path.glob(".refocal-*"))
    subprocess.run([sys.executable, "-c", NEXT, tmp_path / "other.txt"], check=True, timeout=240)
    assert [path.name for path in tmp_path.iterdir()] == ["other.txt"]


def test_what_other_machines_write_stays_for_a_day(tmp_path):
    """Their locks may not be seen here."""
    theirs, old, folder, foreign = (
        tmp_path / name
        for name in (".refocal-00000000-1.tmp", ".refocal-00000000-2.tmp", ".refocal-00000000-3.tmp", "refocal.tmp")
    )
    theirs.write_bytes(b"")
    foreign.write_bytes(b"")
    old.write_bytes(b"")
    folder.mkdir()
    before = time.time() - 2 * 24 * 60 * 60
    for path in (old, folder, foreign):
        os.utime(path, (before, before))
    _files.remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([theirs, foreign])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the operating system has no FIFOs")
def test_strange_things_of_that_name_do_no_harm(tmp_path):
    target = tmp_path / "precious"
    target.write_text("kept", encoding="utf-8")
    os.symlink(target, tmp_path / f"{_files._OURS}1.tmp")
    os.mkfifo(tmp_path / f"{_files._OURS}2.tmp")
    _files.remove_abandoned(tmp_path)
    _files.remove_abandoned(tmp_path / "no such folder")
    assert target.read_text(encoding="utf-8") == "kept"


def test_a_file_removed_before_it_was_locked_is_made_anew(tmp_path, monkeypatch):
    """A command that cleans up may come between the making and the lock."""
    locks, lock = [], _files.lock

    def late(descriptor, *, wait):
        if not locks:
            for path in tmp_path.glob(".refocal-*.tmp"):
                path.unlink()
        locks.append(descriptor)
        return lock(descriptor, wait=wait)

    monkeypatch.setattr(_files, "lock", late)
    with replacing(tmp_path / "a.txt", overwrite=False) as file:
        file.write(b"whole")
    assert len(locks) == 2
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.txt", b"whole")]


def test_what_a_kill_between_two_renames_left_is_removed_once_there_is_another(tmp_path):
    (tmp_path / ".refocal-00000000-1-result.old").mkdir()
    with pytest.raises(ZeroDivisionError), replacing_folder(tmp_path / "result"):
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == [".refocal-00000000-1-result.old"]  # the only one there is
    with replacing_folder(tmp_path / "result") as new:
        (new / "a").write_bytes(b"")
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    shutil.rmtree(tmp_path / "result")


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ENOSPC])
def test_errors_of_the_disk_name_what_was_to_be_written(tmp_path, monkeypatch, call, number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    if call == "open":
        monkeypatch.setattr("builtins.open", fail)
    else:
        monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match=r"report\.html") as caught, replacing(tmp_path / "report.html", overwrite=True):
        pass
    monkeypatch.undo()
    assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / "report.html"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("replace", [functools.partial(replacing, overwrite=False), replacing_folder])
def test_an_interrupt_right_after_the_creation_leaves_nothing(tmp_path, monkeypatch, replace):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(_files, "lock", interrupt)
    with pytest.raises(KeyboardInterrupt), replace(tmp_path / "out"):
        pass
    assert not list(tmp_path.iterdir())
