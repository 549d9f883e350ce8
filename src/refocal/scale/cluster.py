"""Connecting to a Ray cluster, checking that it is alive, and disconnecting. None of these may hang."""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from typing import Any

from refocal._program import killed_by_interrupts

RETRIES = 3  # of a task whose worker dies
abandoned = False
_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_LEAVE = 20.0
_SECONDS_OF_SILENCE = 60.0  # a machine under load answers sooner
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # with no settings
_HTTP2_SETTINGS = 4  # the frame type with which every server answers (RFC 9113, section 3.4)
_TOKEN = (
    "if it asks for a token, set RAY_AUTH_MODE=token here, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH unless the token "
    "is in ~/.ray/auth_token"
)


def connect(address: str | None) -> None:
    """Connect this process to the cluster at an address, or to one on this machine, which is started if necessary."""
    import ray

    os.environ.setdefault("RAY_task_oom_retries", str(RETRIES))  # Ray has no limit for these
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # only the first failure is raised
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address not in (None, "auto", "local"):
        _knock(address)
    try:
        # Ray waits half a minute for a raylet that is stopped, and then ends the process.
        with killed_by_interrupts():
            ray.init(address=address or "auto", **quiet)
    except (ConnectionError, ray.exceptions.AuthenticationError) as error:
        if address is None and isinstance(error, ConnectionError):
            _start(quiet)
            return
        reason = f"{error}".partition(". ")[0]  # the rest are hints for those who started the cluster
        msg = f"the Ray cluster at {address or 'auto'} cannot be reached: {reason}; {_TOKEN}"
        raise ConnectionError(msg) from error


def _start(settings: dict[str, Any]) -> None:
    """Start a cluster on this machine."""
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address="local", include_dashboard=False, **settings)
    except Exception as error:
        if type(error) is not Exception:
            raise
        # Ray raises this if a node has not started after 30 seconds, which a loaded machine may miss.
        msg = f"no Ray cluster could be started on this machine: {error}"
        raise RuntimeError(msg) from error


def leave() -> None:
    """Disconnect this process. Ray ends its running tasks, and stops a cluster that was started for it.

    Ray waits for the cluster without a limit, even when the process exits. If the cluster does not answer, this
    function returns nevertheless and sets `abandoned`: Ray's threads are still waiting.
    """
    import ray

    global abandoned  # noqa: PLW0603 a state of the whole process
    farewell = threading.Thread(target=ray.shutdown, daemon=True)
    farewell.start()
    try:
        farewell.join(_SECONDS_TO_LEAVE)
    finally:
        if farewell.is_alive():
            atexit.unregister(ray.shutdown)
            abandoned = True


def uses_client() -> bool:
    """Whether this process talks to the cluster through Ray's client server (ray://) and is not part of it."""
    from ray.util.client import ray as client

    connected: bool = client.is_connected()  # type: ignore[no-untyped-call]
    return connected


class Watch:
    """Checks that the cluster that this process is connected to is alive.

    Ray notices a process that has died, but it waits forever for one that is stopped.
    """

    def __init__(self) -> None:
        import ray

        self._unanswered: dict[tuple[str, str], float | None] = {}  # since when it has not answered
        if not uses_client():  # a client may be unable to reach the processes of the cluster
            context = ray.get_runtime_context()
            self._unanswered["GCS", context.gcs_address] = None
            nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
            for node in nodes:
                if node["NodeID"] == context.get_node_id():
                    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
                    self._unanswered["raylet", address] = None
        self._next = time.monotonic()

    def check(self) -> None:
        """Raise if a process of the cluster has been silent for a minute. They are asked every few seconds."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _SECONDS_TO_ANSWER
        for (name, address), since in self._unanswered.items():
            asked = since or time.monotonic()
            try:
                _greet(address)
            except TimeoutError as error:
                self._unanswered[name, address] = asked
                silence = time.monotonic() - asked
                if silence > _SECONDS_OF_SILENCE:
                    msg = f"the Ray cluster has stopped: its {name} at {address} has not answered for {silence:.0f} s"
                    raise ConnectionError(msg) from error
                continue
            except OSError:  # counts as an answer: Ray itself notices that nothing listens
                pass
            self._unanswered[name, address] = None


def _knock(address: str) -> None:
    """Reject an address where nothing listens, or something other than Ray, which speaks HTTP/2.

    Ray itself would wait for minutes.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        msg = f"address must be 'auto', 'local', host:port or ray://host:port, got {address!r}"
        raise ValueError(msg)
    try:
        answer = _greet(f"{host}:{port}")
    except OSError as error:
        msg = f"the Ray cluster at {address} cannot be reached: {error}"
        raise ConnectionError(msg) from error
    encrypted = os.environ.get("RAY_USE_TLS") == "1"  # then Ray expects another greeting
    if not encrypted and (len(answer) < 9 or answer[3] != _HTTP2_SETTINGS):
        msg = f"the Ray cluster at {address} cannot be reached: something else listens there"
        raise ConnectionError(msg)


def _greet(address: str) -> bytes:
    """Greet an HTTP/2 server and return the first bytes of its answer."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_ANSWER) as line:
        line.sendall(_HTTP2_GREETING)
        return line.recv(9, socket.MSG_WAITALL)
