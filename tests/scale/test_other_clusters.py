"""Commands on a cluster that another process started and that requires a token."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from data_sets import predictions

from refocal import scale
from refocal.cli import main

pytest.importorskip("ray")
TOKEN = "5f" * 32


def surroundings(**settings):
    """The environment of this process with other settings for Ray's authentication."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
    return {**env, "RAY_USAGE_STATS_ENABLED": "0", **settings}


@pytest.fixture(scope="module")
def address():
    """The address of a head that `ray start` started. Its own folder hides it from other tests."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        words = ["--head", "--block", f"--port={address.rpartition(':')[2]}", "--num-cpus=1", f"--temp-dir={folder}"]
        words += ["--object-store-memory=100000000", "--include-dashboard=false"]
        log = Path(folder, "start.txt")
        with log.open("w", encoding="utf-8") as output:
            head = subprocess.Popen(
                [sys.executable, "-m", "ray.scripts.scripts", "start", *words],
                env=surroundings(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN),
                stdout=output,
                stderr=output,
            )
        try:
            deadline = time.monotonic() + 120
            while "Ray runtime started" not in log.read_text(encoding="utf-8"):
                assert head.poll() is None, log.read_text(encoding="utf-8")
                assert time.monotonic() < deadline
                time.sleep(0.1)
            yield address
        finally:
            head.terminate()
            head.wait(timeout=60)


@pytest.fixture
def evaluate(address, launch):
    """Runs commands, all at the same time, and returns their exit status, output and errors."""

    def run(path, *several):
        command = [sys.executable, "-m", "refocal", "evaluate", str(path), "--json", "--address", address]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        processes = [launch(command, env=surroundings(**settings), **pipes) for settings in several]
        outputs = [process.communicate(timeout=240) for process in processes]
        return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]

    return run


def test_a_cluster_that_does_not_start_is_an_error_in_one_line(tmp_path, monkeypatch, capsys):
    """Ray gives a node 30 seconds, which a loaded machine may miss."""

    def init(*, address, **_):
        if address == "auto":
            raise ConnectionError
        message = "The current node timed out during startup."
        raise Exception(message)

    monkeypatch.setattr("ray.init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_task_oom_retries", "RAY_IGNORE_UNHANDLED_ERRORS"):
        monkeypatch.setenv(name, "")  # `connect` sets them, for the whole process
    predictions(5, 0).write(tmp_path / "a.npz")
    assert main(["evaluate", str(tmp_path / "a.npz"), "--engine", "ray"]) == 1
    wanted = "refocal: no Ray cluster could be started on this machine: The current node timed out during startup.\n"
    assert capsys.readouterr() == ("", wanted)


@pytest.mark.thorough
def test_a_token_gives_access(tmp_path, evaluate):
    predictions(50, 0).write(tmp_path / "a.npz")
    (tmp_path / "token").write_text(TOKEN, encoding="utf-8")
    wanted = json.loads(scale.evaluate(tmp_path / "a.npz", sample=50, by_class=False, source="a.npz").to_json())
    tokens = ({"RAY_AUTH_TOKEN": TOKEN}, {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")})
    for status, output, trouble in evaluate(tmp_path / "a.npz", *({"RAY_AUTH_MODE": "token", **one} for one in tokens)):
        assert status == 0, trouble
        assert json.loads(output) == wanted


@pytest.mark.parametrize(
    "settings", [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a0" * 32}]
)
@pytest.mark.thorough
def test_without_the_token_the_error_says_how_to_set_it(tmp_path, address, evaluate, settings):
    predictions(5, 0).write(tmp_path / "a.npz")
    attempts = {"RAY_gcs_server_port_wait_time_s": "1"}  # Ray's own number of attempts takes 20 seconds
    ((status, output, trouble),) = evaluate(tmp_path / "a.npz", {**settings, **attempts})
    assert (status, output) == (1, "")
    last = trouble.splitlines()[-1]
    assert last.startswith(f"refocal: the Ray cluster at {address} cannot be reached: ")
    assert "set RAY_AUTH_MODE=token here, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" in last
