"""A Ray of two workers on this machine."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="module")
def cluster():
    """The functions under test find their process connected to it."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    settings = {"include_dashboard": False, "object_store_memory": 100 << 20, "log_to_driver": False}
    ray.init(address="local", num_cpus=2, logging_level="error", **settings)
    yield
    ray.shutdown()
