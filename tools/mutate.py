"""How many small faults in the formulas the tests notice: mutation testing of the rooms with mathematics.

    python tools/mutate.py survey                       # which test runs which line; again when lines move
    python tools/mutate.py run --sample 1200 --seed 0   # plant faults, and run the tests of their lines
    python tools/mutate.py run --survivors              # again, those that survived
    python tools/mutate.py report --out benchmarks/results/mutation.md

The tests are collected once. Each mutant is a fork that puts its fault into the imported module and runs the tests that
reach the changed lines, quickest first, until one fails or `--budget` seconds are used up. A mutant that takes far more
processor time than its tests took without the fault hangs, and counts as killed. Hypothesis draws the same examples
each time. It needs `coverage`, and a system that forks.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import os
import random
import resource
import signal
import sys
import textwrap
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from mutants import PACKAGE, ROOT, Mutant, mutants_of
from scipy import stats
from transplant import plant

# the rooms' modules without mathematics: what reads, checks, registers, stores and exports; what launches kernels is in
# losses/gpu
PLUMBING = {
    "maps": (),
    "stats": (),
    "calibrators/fit": (),
    "metrics": ("inputs", "torchmetrics"),
    "calibrators": ("attributes", "base", "files", "onnx_export", "torch_export", "wrap"),
    "losses": (),
    "losses/cpu": (),
    "losses/linear": ("operator",),
}
TESTS = tuple(f"{root}/{room}" for root in ("tests", "src/refocal") for room in PLUMBING if "/" not in room)
KEPT = ROOT / "build" / "mutants"  # the survey, and what became of each mutant
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.toml"
STEERING = "Steers a search: another guess, step or number of steps leads to the same optimum, as exactly."
MEMORY = 16 << 30


def formulas() -> list[str]:
    """The modules that get mutants, as paths below the package."""
    return [
        f"{room}/{path.name}"
        for room, plumbing in PLUMBING.items()
        for path in sorted((PACKAGE / room).glob("*.py"))
        if path.stem not in (*plumbing, "__init__")
    ]


def imported_name(module: str) -> str:
    """The name by which a module is imported."""
    return "refocal." + module.removesuffix(".py").replace("/", ".")


class Survey:
    """A pytest plugin that notes which test runs which line of the formulas, and how long it takes."""

    def __init__(self) -> None:
        import coverage

        files = [str(PACKAGE / module) for module in formulas()]
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=files)
        self.seconds: dict[str, float] = {}

    def pytest_configure(self) -> None:
        """Start."""
        derandomize()
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Tell coverage whose lines these are."""
        self.coverage.switch_context(item.nodeid)
        result = yield
        self.coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of a test's setup, call or teardown."""
        spent = self.seconds.get(report.nodeid, 0.0) + report.duration
        self.seconds[report.nodeid] = spent if report.passed and spent >= 0 else -1e9  # below 0: not for us

    def result(self) -> dict[str, Any]:
        """Seconds of each test that passed; for each module, the tests of each line."""
        self.coverage.stop()
        data = self.coverage.get_data()
        lines = {}
        for module in formulas():
            contexts = data.contexts_by_lineno(str(PACKAGE / module))
            lines[module] = {str(line): sorted(set(tests) - {""}) for line, tests in contexts.items()}
        return {"seconds": {test: spent for test, spent in self.seconds.items() if spent >= 0}, "lines": lines}


class Trial:
    """A pytest plugin that collects the tests once, and then forks for each mutant to run the tests of its lines."""

    def __init__(self, mutants: Sequence[Mutant], known: dict[str, Any], fates: dict[str, str], path: Path) -> None:
        self.mutants, self.known, self.fates, self.path = mutants, known, fates, path
        self.budget = 0.0
        self.in_child = False

    def pytest_configure(self) -> None:
        """Start."""
        derandomize()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """End a mutant's trial with the first test that fails."""
        if self.in_child and report.failed:
            os._exit(1)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try every mutant, after its module without a fault."""
        items = {item.nodeid: item for item in session.items}
        for module in dict.fromkeys(mutant.module for mutant in self.mutants):
            importlib.import_module(imported_name(module))
        for mutant in {mutant.module: mutant for mutant in self.mutants}.values():
            control = dataclasses.replace(mutant, lines=None, plant=lambda: None)
            if (outcome := self.fate(control, items, budget=min(1.0, self.budget))) not in ("survived", "no test"):
                sys.exit(f"{control.module} is {outcome} without a fault: run the survey again")
        for place, mutant in enumerate(self.mutants):
            start = time.monotonic()
            outcome = self.fates[mutant.name] = self.fate(mutant, items, budget=self.budget)
            if outcome != "killed":
                spent = time.monotonic() - start
                print(f"[{place + 1}/{len(self.mutants)}] {outcome} in {spent:.1f} s: {mutant.name}", flush=True)
            if outcome != "killed" or place % 20 == 0 or place + 1 == len(self.mutants):
                self.path.write_text(json.dumps(self.fates, indent=0, ensure_ascii=False), encoding="utf-8")
        print(Counter(self.fates[mutant.name] for mutant in self.mutants))
        return True

    def fate(self, mutant: Mutant, items: dict[str, pytest.Item], *, budget: float) -> str:
        """What becomes of a mutant: "killed", "hung", "survived", or "no test"."""
        seconds = self.known["seconds"]
        tests = [test for test in tests_of(mutant, self.known) if test in items]
        tests = within(tests, seconds, budget)
        if not tests:
            return "no test"
        limit = int(10 + 3 * sum(seconds[test] for test in tests))
        child = os.fork()
        if child == 0:
            self.in_child = True
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
                plant(mutant.code(), sys.modules[imported_name(mutant.module)])
                chosen = [items[test] for test in tests]
                for item, following in itertools.zip_longest(chosen, chosen[1:]):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                os._exit(0)
            finally:
                os._exit(2)
        deadline = time.monotonic() + 10 * limit
        while not (done := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.005)
        if os.WIFSIGNALED(done[1]):
            return "hung"
        return "killed" if os.WEXITSTATUS(done[1]) else "survived"


def derandomize() -> None:
    """Hypothesis with the same examples for each mutant, and no time spent on a smaller one."""
    from hypothesis import Phase, settings

    phases = (Phase.explicit, Phase.generate)
    settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
    settings.load_profile("mutants")


def run_pytest(files: Iterable[str], plugin: Any, *options: str) -> None:
    """Run pytest in this process."""
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, *files], plugins=[plugin])


def survey(files: Sequence[str]) -> None:
    """Note the tests of each line; of some test files alone, beside what is known of the others."""
    plugin = Survey()
    run_pytest(files or TESTS, plugin)
    found = plugin.result()
    path = KEPT / "survey.json"
    if files and path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        found["seconds"] = known["seconds"] | found["seconds"]
        for module, lines in found["lines"].items():
            for line, tests in known["lines"].get(module, {}).items():
                lines[line] = sorted({*tests, *lines.get(line, ())} & set(found["seconds"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), encoding="utf-8")


def tests_of(mutant: Mutant, known: dict[str, Any]) -> list[str]:
    """The tests that run the mutant's lines: first those that are quick, and that run few other lines."""
    lines = known["lines"].get(mutant.module, {})
    first, last = mutant.lines or (0, sys.maxsize)
    found = {test for line, tests in lines.items() if first <= int(line) <= last for test in tests}
    seconds, breadth = known["seconds"], known["breadth"]
    return sorted((test for test in found if test in seconds), key=lambda test: (seconds[test] * breadth[test], test))


def within(tests: Sequence[str], seconds: dict[str, float], budget: float) -> list[str]:
    """As many of the tests as the budget of seconds holds."""
    chosen = []
    for test in tests:
        budget -= seconds[test] + 0.002  # what pytest itself takes for a test
        if budget < 0 and chosen:
            break
        chosen.append(test)
    return chosen


def draw(size: int, *, seed: int) -> list[Mutant]:
    """A random sample of the mutants, of each module in proportion to its number."""
    pools = {module: mutants_of(module) for module in formulas()}
    total = sum(map(len, pools.values()))
    drawn = []
    for module, pool in pools.items():
        rng = random.Random(f"{seed} {module}")
        share = len(pool) if not size else min(len(pool), round(size * len(pool) / total))
        places = set(rng.sample(range(len(pool)), share))
        drawn += [mutant for place, mutant in enumerate(pool) if place in places]
    return drawn


def run(args: argparse.Namespace) -> None:
    """Plant each mutant, and note what became of it."""
    path = KEPT / f"seed{args.seed}.json"
    fates: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = json.loads((KEPT / "survey.json").read_text(encoding="utf-8"))
    known["breadth"] = Counter(test for lines in known["lines"].values() for tests in lines.values() for test in tests)
    modules = [module for module in formulas() if not args.modules or module.startswith(tuple(args.modules))]
    if args.survivors:
        everyone = [mutant for module in modules for mutant in mutants_of(module)]
        equivalent = {name for names in equivalents().values() for name in names}
        chosen = [mutant for mutant in everyone if fates.get(mutant.name) in ("survived", "no test")]
        chosen = [mutant for mutant in chosen if mutant.name not in equivalent]
    else:
        drawn = draw(args.sample, seed=args.seed)
        chosen = [mutant for mutant in drawn if mutant.module in modules and mutant.name not in fates]
        random.Random(args.seed).shuffle(chosen)  # so that a run that is cut short has tried a sample, too
    trial = Trial(chosen, known, fates, path)
    trial.budget = args.budget
    files = {test.split("::")[0] for mutant in chosen for test in tests_of(mutant, known)}
    run_pytest(sorted(files), trial, "--capture=no", f"--basetemp={KEPT / 'tmp'}")


def equivalents() -> dict[str, list[str]]:
    """The mutants that no test can kill, by the reason why."""
    groups = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["group"]
    return {group["reason"]: group["mutants"] for group in groups}


def report(args: argparse.Namespace) -> None:
    """Write the score of each module, and every survivor, of all mutants tried whose formulas are still there."""
    fates = json.loads((KEPT / f"seed{args.seed}.json").read_text(encoding="utf-8"))
    reasons = {name: reason for reason, names in equivalents().items() for name in names}
    everyone = {module: [mutant.name for mutant in mutants_of(module)] for module in formulas()}
    if gone := set(reasons) - {name for names in everyone.values() for name in names}:
        print(f"{EQUIVALENT.name} has {len(gone)} mutants of formulas that have changed, such as {min(gone)}")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    survivors, equivalent = [], defaultdict(list)
    for module, names in everyone.items():
        for name in names:
            kind = _kind(fates.get(name), name in reasons)
            for row in ("**all**", f"**{module.split('/')[0]}**", f"`{module}`"):
                counts[row].update(("mutants", kind))
            if kind == "survived":
                survivors.append(name)
            elif kind == "equivalent":
                equivalent[reasons[name]].append(name)
    total = counts["**all**"]
    able, tried = total["killed"] + total["survived"], total["killed"] + total["survived"] + total["equivalent"]
    low, high = stats.binomtest(total["killed"], able).proportion_ci(method="wilson")
    steering = len(equivalent[STEERING])
    summary = (
        f"{tried:,} of {total['mutants']:,} mutants were tried, drawn at random with seed {args.seed}. Of those that "
        f"are not equivalent to the original, {total['killed'] / able:.1%} were killed (95% interval {low:.1%} to "
        f"{high:.1%}); {total['killed'] / (able + steering):.1%} if the {steering} that only steer a search counted as "
        f"survivors; {total['killed'] / tried:.1%} of all. A mutant that hangs counts as killed, one that no test "
        "reaches as a survivor. A result is kept until the formula changes: some are older than the newest tests. "
        "Tests were written against survivors of seed 0: another seed shows what they do to mutants that nobody "
        "looked at."
    )
    text = f"""# Faults in the formulas that the tests notice

{textwrap.fill(summary, 120)}

| module | mutants | tried | killed | equivalent | survived | score |
|---|---:|---:|---:|---:|---:|---:|
{chr(10).join(_row(name, of_row) for name, of_row in counts.items())}

## Survivors that are not equivalent

{chr(10).join(f"- `{name}`" for name in survivors) or "None."}

## Survivors that are equivalent

{chr(10).join(_group(reason, names) for reason, names in equivalent.items())}
`make mutants`
"""
    args.out.write_text(text, encoding="utf-8")


def _kind(fate: str | None, is_equivalent: bool) -> str:
    if fate is None:
        return "untried"
    if fate in ("killed", "hung"):
        return "killed"
    return "equivalent" if is_equivalent else "survived"


def _row(name: str, counts: Counter[str]) -> str:
    tried = counts["killed"] + counts["equivalent"] + counts["survived"]
    able = tried - counts["equivalent"]
    score = f"{counts['killed'] / able:.0%}" if able else "–"
    cells = (name, counts["mutants"], tried, counts["killed"], counts["equivalent"], counts["survived"], score)
    return "| " + " | ".join(map(str, cells)) + " |"


def _group(reason: str, names: Sequence[str]) -> str:
    return f"{reason}\n\n" + "\n".join(f"- `{name}`" for name in names) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("survey", help="find the tests of each line")
    command.add_argument("files", nargs="*", help="test files that changed; default all")
    command.set_defaults(call=lambda args: survey(args.files))
    command = commands.add_parser("run", help="plant mutants")
    command.add_argument("modules", nargs="*", help="such as maps or maps/focal.py; default all")
    command.add_argument(
        "--sample", type=int, default=0, help="this many mutants, of all modules together; default all"
    )
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--survivors", action="store_true", help="those alone that survived before")
    command.add_argument("--budget", type=float, default=20.0, help="seconds of tests for each mutant")
    command.set_defaults(call=run)
    command = commands.add_parser("report", help="write the score and the survivors")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--out", type=Path, required=True)
    command.set_defaults(call=report)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    arguments.call(arguments)
