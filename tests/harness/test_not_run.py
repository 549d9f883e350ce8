"""What did not run is named at the end, also by the workers of xdist and over the parts of a run."""

from __future__ import annotations

import pytest

from harness.nested import run_tests
from harness.not_run import summarize

TESTS = """
import os
import pytest

kernels = pytest.mark.skipif(not os.environ.get("KERNELS"), reason="needs kernels")

@pytest.mark.parametrize("number", range(3))
@kernels
def test_kernel(number):
    pass

@kernels
def test_other():
    pass

@pytest.mark.slow
def test_long():
    pass

@pytest.mark.xfail
def test_fails():
    assert False

def test_machine():
    pytest.skip("no such machine")
"""


def said(printed):
    """The last lines of a run."""
    return printed.split(" not run =")[1].splitlines()[1:]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_groups_by_reason(tmp_path, workers):
    (tmp_path / "test_absent.py").write_text("import pytest\npytest.importorskip('absent')", encoding="utf-8")
    status, printed = run_tests(tmp_path, TESTS, "-n", workers, str(tmp_path / "test_absent.py"))
    assert status == 0
    assert said(printed) == [
        "4 tests: needs kernels (test_made.py)",
        "1 module: could not import 'absent': No module named 'absent' (test_absent.py)",
        "1 test: no such machine (test_made.py)",
        "1 test: slow: `make test-slow` runs them (test_made.py)",
    ]


def test_what_another_part_ran_has_run(tmp_path):
    record = str(tmp_path / "parts" / "record.json")
    _, printed = run_tests(tmp_path, TESTS, "--parts", record)
    assert "4 tests: needs kernels (test_made.py)" in said(printed)
    _, printed = run_tests(tmp_path, TESTS, "--parts", record, "-k", "kernel", KERNELS="1")
    assert said(printed) == [
        "1 test: needs kernels (test_made.py)",
        "1 test: no such machine (test_made.py)",
        "1 test: slow: `make test-slow` runs them (test_made.py)",
    ]


def test_the_target_of_left_out_tests_is_named(tmp_path):
    tests = "import pytest\n@pytest.mark.thorough\ndef test_long(): pass\ndef test_short(): pass"
    _, printed = run_tests(tmp_path, tests, "-m", "not thorough")
    assert said(printed) == ["1 test: thorough: `make test-thorough` runs them (test_made.py)"]


@pytest.mark.parametrize(("files", "more"), [(4, "1 more file"), (5, "2 more files")])
def test_long_lists_are_cut(files, more):
    reasons = {f"tests/test_{number}.py::test": "needs a GPU" for number in range(files)}
    assert summarize(reasons) == [
        f"{files} tests: needs a GPU (tests/test_0.py, tests/test_1.py, tests/test_2.py and {more})"
    ]
