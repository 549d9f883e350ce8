"""A Ray cluster on this machine, for tests that need one."""

from __future__ import annotations

import secrets

import pytest

# Ray would keep one in HOME, which may not be writable; a process reads it once
TOKEN = secrets.token_hex(32)


@pytest.fixture(scope="module")
def cluster(request):
    """The functions under test find their process connected to it; a module may say what it has, in CLUSTER."""
    ray = pytest.importorskip("ray")
    settings = {"include_dashboard": False, "object_store_memory": 100 << 20, "log_to_driver": False}
    settings["_system_config"] = {"prestart_worker_first_driver": False}  # a worker starts when a task needs it
    has = getattr(request.module, "CLUSTER", {"num_cpus": 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        ray.init(address="local", logging_level="error", **has, **settings)
        yield
        ray.shutdown()
