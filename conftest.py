"""Where tests run: their surroundings and deadlines, and what is checked and said at the end of a run.

Every test that asks for `xp` runs on each array library; `--backend jax` adds JAX.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess

import pytest

from harness import leftovers, surroundings

FOLDER = surroundings.settle()  # before anything is imported that looks at them

pytest_plugins = ["harness.browser", "harness.clusters", "harness.deadlines", "harness.not_run", "harness.pytorch"]

# these modules, or their examples, need packages that `make test-integrations` installs
NEEDS = {
    "src/refocal/boosting/catboost.py": "catboost",
    "src/refocal/boosting/lightgbm.py": "lightgbm",
    "src/refocal/boosting/xgboost.py": "xgboost",
    "src/refocal/integrations/lightning": "lightning",
    "src/refocal/integrations/transformers": "transformers",
    "src/refocal/jax": "jax",
    "tests/integrations/lightning_modules.py": "lightning",
}
collect_ignore = [path for path, package in NEEDS.items() if importlib.util.find_spec(package) is None]

BACKENDS = {"numpy": "numpy", "torch": "torch", "strict": "array_api_strict", "jax": "jax.numpy"}


def pytest_addoption(parser):
    parser.addini("leftover_seconds", "how long the processes of a run may take to end after it", default="30")
    parser.addoption("--backend", action="append", choices=sorted(BACKENDS), help="run on these array libraries only")


def pytest_configure(config):
    if FOLDER is not None:
        config.pluginmanager.register(leftovers.Leftovers(FOLDER))
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import HealthCheck, settings

        # a loaded machine takes longer over an example than Hypothesis allows; tests have deadlines of their own
        settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("patient")


def pytest_generate_tests(metafunc):
    if "xp" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--backend") or ["numpy", "torch", "strict"]
        metafunc.parametrize("xp", chosen, indirect=True)


def pytest_collection_modifyitems(items):
    """Skip what needs a GPU where there is none; Triton's interpreter runs the tests of kernels without one."""
    needed = {mark: [item for item in items if item.get_closest_marker(mark)] for mark in ("gpu", "kernels")}
    if not any(needed.values()) or importlib.import_module("torch").cuda.is_available():
        return
    for item in needed["gpu"]:
        item.add_marker(pytest.mark.skip(reason="needs a GPU (`make test-gpu`)"))
    if os.environ.get("TRITON_INTERPRET") != "1":
        for item in needed["kernels"]:
            item.add_marker(pytest.mark.skip(reason="needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1)"))


@pytest.fixture
def launch():
    """Starts processes; those that a failed test leaves running are killed."""
    started = []

    def start(command, **options):
        started.append(subprocess.Popen(command, **options))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.fixture
def xp(request):
    """An array namespace: `xp.asarray(...)` makes the arrays of a test."""
    if request.param == "jax":
        importlib.import_module("jax").config.update("jax_enable_x64", True)
    return importlib.import_module(BACKENDS[request.param])
