"""Clusters that stop, and files that crash their workers: commands end, say why, and print only results."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from data_sets import predictions

from refocal.scale import ray_engine, tasks
from refocal.scale.parts import FileSource, RowReader, require_form
from refocal.scale.ray_engine import open_ray

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def files(tmp_path):
    paths = tuple(tmp_path / f"{name}.npz" for name in "abc")
    for seed, path in enumerate(paths):
        predictions(20, seed).write(path)
    return paths


def deadly(read, name, attempts):
    """Make a reader that crashes its worker at one of the files, and counts how often."""

    def read_or_die(path):
        if path.name == name:
            with open(attempts, "a", encoding="utf-8") as file:
                file.write(".")
            os._exit(1)
        yield from read(path)

    return read_or_die


def test_a_file_that_crashes_its_workers_is_named(tmp_path, files, monkeypatch):
    monkeypatch.setattr(ray_engine, "_TASKS", 1)  # all files in one task, which hides the one that crashes
    monkeypatch.setattr(tasks, "RETRIES", 1)
    attempts = tmp_path / "attempts"
    source = FileSource.of(files, deadly(RowReader(require_form(files)).read, "b.npz", attempts))
    with open_ray(None, lambda _: None) as engine, pytest.raises(tasks.WorkerDiedError) as caught:
        engine.fold(source, lambda block: len(block.labels), max, what="measuring")
    assert str(caught.value).startswith(f"a worker died 2 times while it worked on {files[1]}: ")
    assert attempts.stat().st_size == 2 + 2  # in the common task, and alone


def test_a_file_that_crashes_its_workers_is_named_by_a_fit(tmp_path, files, monkeypatch):
    monkeypatch.setattr(tasks, "RETRIES", 1)
    source = FileSource.of(files, deadly(RowReader(require_form(files)).read, "c.npz", tmp_path / "attempts"))
    named = r"died 2 times while it worked on .*c\.npz: "
    with open_ray(None, lambda _: None) as engine, pytest.raises(tasks.WorkerDiedError, match=named):
        engine.hold(source)


COMMAND = """
import os, pathlib, signal, sys, time
from refocal.scale import cluster, measuring, parts, tasks
from refocal.__main__ import main

folder, what = pathlib.Path(sys.argv.pop(1)), sys.argv.pop(1)

class RowReader(parts.RowReader):  # in __main__, so that it is sent to the workers
    def read(self, path):
        begun = folder / "begun"
        first = not begun.exists()
        begun.touch()
        if what == "dies" or (what == "dies once" and first):
            os._exit(1)
        while what == "goes on":
            time.sleep(0.1)
        return parts.RowReader.read(self, path)

measuring.RowReader = RowReader
tasks.RETRIES, tasks._SECONDS_TO_END = 1, 0.5
cluster._SECONDS_TO_ANSWER, cluster._SECONDS_TO_LEAVE = 0.5, 1.0
if what == "goes on":  # until the cluster stops; elsewhere a loaded machine may be silent for longer
    cluster._SECONDS_OF_SILENCE = 3.0
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.fixture
def begin(launch):
    """Starts a command in another process, on the cluster of the tests."""
    address = ray.get_runtime_context().gcs_address

    def start(folder, what, *words):
        command = [sys.executable, "-c", COMMAND, str(folder), what, "evaluate", *map(str, words), "--address", address]
        return launch(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")

    return start


def test_standard_output_is_kept_to_json(tmp_path, files, begin):
    process = begin(tmp_path, "dies once", files[0], "--json")
    output, trouble = process.communicate(timeout=240)
    assert process.returncode == 0, trouble
    assert json.loads(output)["samples"] == 20


@pytest.mark.thorough
def test_standard_output_is_empty_after_an_error(tmp_path, files, begin):
    process = begin(tmp_path, "dies", files[0], "--json")
    output, trouble = process.communicate(timeout=240)
    assert (process.returncode, output) == (1, "")
    last = trouble.splitlines()[-1]
    assert last.startswith(f"refocal: a worker died 2 times while it worked on {files[0]}: ")


@contextmanager
def stopped_raylet():
    """Stop the raylet of the cluster for some seconds. After a longer stop, Ray would declare it dead."""
    from ray._private import worker

    (raylet,) = worker._global_node.all_processes["raylet"]
    os.kill(raylet.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(raylet.process.pid, signal.SIGCONT)


CONNECTING = """
import pathlib, signal, sys
import ray
from refocal import _program

connecting, connect = pathlib.Path(sys.argv.pop(1)), ray.init

def init(**settings):
    connecting.touch()
    return connect(**settings)

ray.init = init
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(_program.start("refocal", "refocal.cli"))
"""


@pytest.mark.thorough
def test_an_interrupt_ends_a_command_that_waits_for_a_stopped_raylet(tmp_path, files, launch):
    connecting, address = tmp_path / "connecting", ray.get_runtime_context().gcs_address
    words = ["evaluate", files[0], "--address", address]
    with stopped_raylet():
        process = launch([sys.executable, "-c", CONNECTING, *map(str, (connecting, *words))], stderr=subprocess.DEVNULL)
        while not connecting.exists():
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(2)  # until Ray waits in C++
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=240) == -signal.SIGINT  # and not the status with which Ray ends it


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.thorough
def test_a_cluster_that_stops_does_not_hold_the_command(tmp_path, files, begin, interrupted):
    process = begin(tmp_path, "goes on", files[0])
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.05)
    with stopped_raylet():
        if interrupted:
            process.send_signal(signal.SIGINT)
        output, trouble = process.communicate(timeout=240)
    assert output == ""
    if interrupted:
        assert process.returncode == 130, trouble
        assert "refocal: interrupted\n" in trouble
    else:
        assert process.returncode == 1, trouble
        assert re.search(r"^refocal: the Ray cluster has stopped: its raylet at \S+ has not ans", trouble, re.MULTILINE)


@pytest.mark.slow
def test_files_too_large_for_memory_are_named(files, launch):
    settings = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}
    command = [sys.executable, "-m", "refocal", "evaluate", *map(str, files), "--engine", "ray", "--address", "local"]
    env = {**os.environ, **settings}
    process = launch(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8")
    output, trouble = process.communicate(timeout=600)
    assert (process.returncode, output) == (1, "")
    assert re.search(r"^refocal: a worker died 4 times while it worked on .*a\.npz: .*memory", trouble, re.MULTILINE)
