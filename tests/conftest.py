"""Every test that asks for `xp` runs on each array library; `--backend jax` adds JAX."""

from __future__ import annotations

import importlib

import pytest

BACKENDS = {"numpy": "numpy", "torch": "torch", "strict": "array_api_strict", "jax": "jax.numpy"}


def pytest_addoption(parser):
    parser.addoption("--backend", action="append", choices=sorted(BACKENDS), help="run on these array libraries only")


def pytest_generate_tests(metafunc):
    if "xp" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--backend") or ["numpy", "torch", "strict"]
        metafunc.parametrize("xp", chosen, indirect=True)


@pytest.fixture
def xp(request):
    """An array namespace: `xp.asarray(...)` makes the arrays of a test."""
    if request.param == "jax":
        importlib.import_module("jax").config.update("jax_enable_x64", True)
    return importlib.import_module(BACKENDS[request.param])
