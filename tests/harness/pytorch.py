"""Where PyTorch depends on how Python was started, and the devices that tests run on."""

from __future__ import annotations

import importlib
import locale
import sys

import pytest


def pytest_collection_modifyitems(items):
    """Under `python -O` PyTorch leaves out derivatives in forward mode, by which curvature is computed."""
    if not __debug__:
        for item in items:
            named = "curvature" in item.nodeid or "second_derivatives" in item.nodeid
            if named or item.get_closest_marker("forward_mode"):
                item.add_marker(pytest.mark.skip(reason="PyTorch has no forward mode under `python -O`"))


def pytest_collection_finish():
    """Let PyTorch's compiler read its templates, which are UTF-8, while the default encoding is that."""
    if "torch" not in sys.modules or locale.getencoding().lower() == "utf-8":
        return
    before = locale.setlocale(locale.LC_CTYPE)
    try:
        locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    except locale.Error:  # a system without this locale: tests that compile will say so
        return
    try:
        importlib.import_module("torch._inductor.lowering")
    finally:
        locale.setlocale(locale.LC_CTYPE, before)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish():
    """End the processes in which PyTorch's compiler compiles kernels; it would end them only after the run."""
    if async_compile := sys.modules.get("torch._inductor.async_compile"):
        async_compile.shutdown_compile_workers()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def each_device(request):
    """Make all tensors of a test on one device: main memory, then a GPU."""
    with importlib.import_module("torch").device(request.param):
        yield
