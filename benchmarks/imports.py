"""How long each package of the library takes to import, in a process that has imported NumPy and SciPy.

python benchmarks/imports.py --out benchmarks/results/imports.md
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import scipy
import sklearn

RUNS = 11
GOAL = 0.15
PACKAGES = ["", ".maps", ".stats", ".metrics", ".calibrators", ".predictions", ".report", ".scale", ".cli"]
IMPORTS = {f"import refocal{package}": f"import refocal{package}" for package in PACKAGES}
# what a first use loads, to compare with
IMPORTS |= {
    "first use of `refocal.posterior`": "from refocal import posterior",
    "first use of `refocal.evaluate`": "from refocal import evaluate",
    "first use of a calibrator": "from refocal.calibrators import TemperatureScaling",
    "import sklearn": "import sklearn",
    "import scipy.optimize": "import scipy.optimize",
}
CODE = """
import time
start = time.process_time()
import numpy, scipy
middle = time.process_time()
{statement}
print(middle - start, time.process_time() - middle)
"""


def measure(statement: str) -> tuple[float, float]:
    """Processor time of `import numpy, scipy` and of a statement after it, in a process of their own."""
    command = [sys.executable, "-c", CODE.format(statement=statement)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8")
    base, added = map(float, done.stdout.split())
    return base, added


def main() -> None:
    """Measure all imports in turn, several times, and write a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    options = parser.parse_args()
    for statement in IMPORTS.values():
        measure(statement)  # compiles, and fills the cache of the disk
    found: dict[str, list[float]] = {name: [] for name in IMPORTS}
    bases = []
    for _ in range(RUNS):
        for name, statement in IMPORTS.items():
            base, added = measure(statement)
            bases.append(base)
            found[name].append(added)
    base = statistics.median(bases)
    medians = {name: statistics.median(times) for name, times in found.items()}
    labels = {name: f"`{name}`" if name.startswith("import") else name for name in IMPORTS}
    rows = [f"| {labels[name]} | {seconds:.3f} | {seconds / base:.2f} |" for name, seconds in medians.items()]
    versions = ", ".join(f"{package.__name__} {package.__version__}" for package in (np, scipy, sklearn))
    text = f"""# Imports

Seconds of processor time that an import adds to `import numpy, scipy`, and the ratio to their own ({base:.3f} s):
medians of {RUNS} processes.
The goal for every package of the library is {GOAL} s. Parts of SciPy, scikit-learn and the other libraries load when
they are first used. Every calibrator is a scikit-learn estimator, so the first one loads scikit-learn.

| import | s | ratio |
|---|---|---|
{chr(10).join(rows)}

Python {platform.python_version()}, {versions},
{platform.machine()}, {os.cpu_count()} cores; `python benchmarks/imports.py`.
"""
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
