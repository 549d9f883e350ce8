"""The faults that `make mutants` plants: each is one change, has a name of its own, and compiles."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parent.parent / "tools"


@pytest.fixture(scope="module")
def mutants():
    spec = importlib.util.spec_from_file_location("mutants", TOOLS / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # where a dataclass looks for its annotations
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


def test_every_mutant_is_another_module_that_compiles(mutants):
    names, count = set(), len(mutants.mutants_of("core/top.py"))
    assert count > 20
    for place in range(count):
        mutant = mutants.mutants_of("core/top.py")[place]  # a fault stays in its tree
        before = ast.dump(mutant.tree)
        mutant.code()
        assert ast.dump(mutant.tree) != before
        names.add(mutant.name)
    assert len(names) == count


@pytest.mark.parametrize(
    "name",
    [
        "phi: 1 - wide -> 1 + wide",
        "phi: wide > 0 -> wide >= 0",
        "phi: wide > 0 -> wide <= 0",
        "phi: -wide -> wide",
        "phi: xp.exp(gamma * log_q) -> gamma * log_q",
        "module: 0.125 -> 0.25",
        "near_one_deficit: 0.0 -> 1.0",
    ],
)
def test_operators_signs_constants_and_functions_change(mutants, name):
    assert f"core/focal.py {name}" in {mutant.name for mutant in mutants.mutants_of("core/focal.py")}


def test_keywords_are_left_out_where_that_is_no_error(mutants):
    before, after = "np.bincount(index, weights=confidence, minlength=size)", "np.bincount(index, minlength=size)"
    assert (before, after) in {(mutant.before, mutant.after) for mutant in mutants.mutants_of("core/binning.py")}
    required = [mutant.after for mutant in mutants.mutants_of("core/inverse.py") if mutant.before.startswith("solve(")]
    assert required
    assert all("xp=xp" in after for after in required)
