"""The faults that `make mutants` plants: each is one change, has a name of its own, and compiles."""

from __future__ import annotations

import ast
import importlib.util
import sys
import types
from pathlib import Path

import pytest

from refocal_lab.zoo import cards

TOOLS = Path(__file__).parent.parent / "tools"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where a dataclass looks for its annotations
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def mutants():
    yield loaded("mutants")
    del sys.modules["mutants"]


def test_every_mutant_is_another_module_that_compiles(mutants):
    names, count = set(), len(mutants.mutants_of("stats/top_label.py"))
    assert count > 20
    for place in range(count):
        mutant = mutants.mutants_of("stats/top_label.py")[place]  # a fault stays in its tree
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
        "phi: xp.exp(exponent * log_q) -> exponent * log_q",
        "module: 0.125 -> 0.25",
        "near_one_deficit: 0.0 -> 1.0",
    ],
)
def test_operators_signs_constants_and_functions_change(mutants, name):
    assert f"maps/focal.py {name}" in {mutant.name for mutant in mutants.mutants_of("maps/focal.py")}


def test_every_folder_of_losses_but_the_kernels_is_mutated(mutants, monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    rooms = {module.rpartition("/")[0] for module in loaded("mutate").formulas()}
    folders = {path.parent.relative_to(mutants.PACKAGE).as_posix() for path in mutants.PACKAGE.glob("losses/**/*.py")}
    assert {folder for folder in folders if "gpu" not in folder} <= rooms
    del sys.modules["mutate"], sys.modules["transplant"]


def test_keywords_are_left_out_where_that_is_no_error(mutants):
    before, after = "np.bincount(index, weights=confidence, minlength=size)", "np.bincount(index, minlength=size)"
    assert (before, after) in {(mutant.before, mutant.after) for mutant in mutants.mutants_of("stats/binning.py")}
    required = [
        mutant.after for mutant in mutants.mutants_of("maps/minimizer.py") if mutant.before.startswith("solve(")
    ]
    assert required
    assert all("xp=xp" in after for after in required)


def test_code_is_put_into_what_others_hold(monkeypatch):
    """Functions, decorated ones, methods, defaults, constants, and instances made of them."""
    transplant = loaded("transplant")
    text = """
import functools
LIMIT = 1
def plain(x, *, y=1): return x + y + LIMIT
@functools.cache
def kept(x): return x + 1
class Thing:
    size = 1
    def __init__(self): self.value = 1
    @property
    def double(self): return self.value + 1
    @classmethod
    def made(cls): return 1
THING = Thing()
"""
    module = types.ModuleType("refocal.made_up")
    monkeypatch.setitem(sys.modules, "refocal.made_up", module)
    exec(text, vars(module))
    held = (module.plain, module.kept, module.Thing, module.THING)
    transplant.plant(compile(text.replace("1", "2"), "made_up", "exec"), module)
    plain, kept, thing_class, thing = held
    assert module.LIMIT == 2
    assert cards.SCHEMA == 1  # an equal number of another module
    assert (plain(0), kept(0), thing_class.size, thing_class.made()) == (4, 2, 2, 2)
    assert (thing.value, thing.double) == (2, 4)
    del sys.modules["transplant"]
