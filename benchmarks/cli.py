"""How long the commands take, start-up included: the best of five processes.

python benchmarks/cli.py --out benchmarks/results/cli.md
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import refocal
from refocal.predictions import Predictions


def seconds(arguments: list[str], folder: str) -> float:
    """The shortest of five runs."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "refocal", *arguments], cwd=folder, check=True, capture_output=True)
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    logits = (3 * rng.standard_normal((1_000_000, 10))).astype(np.float32)
    labels = np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)
    with tempfile.TemporaryDirectory() as folder:
        Predictions(logits, input="logits", labels=labels).write(Path(folder, "big.npz"))
        Predictions(logits[:5000], input="logits", labels=labels[:5000]).write(Path(folder, "val.npz"))
        Predictions(logits[5000:15_000], input="logits", labels=labels[5000:15_000]).write(Path(folder, "test.npz"))
        refocal.calibrate(logits[:5000], labels[:5000], method="temperature").save(Path(folder, "cal.json"))
        commands = {
            "--help": ["--help"],
            "evaluate, 1,000,000 x 10 npz": ["evaluate", "big.npz"],
            "calibrate, 5,000 x 10, test 10,000": ["calibrate", "val.npz", "--test", "test.npz"],
            "apply, 1,000,000 x 10 npz": ["apply", "cal.json", "big.npz", "--out", "out.npz", "--force"],
            "explain --gamma 3": ["explain", "--gamma", "3"],
            "demo": ["demo"],
        }
        lines = [f"| `refocal {name}` | {seconds(arguments, folder):.2f} |" for name, arguments in commands.items()]
    table = "\n".join(
        [
            "# The command line",
            "",
            "Seconds of a whole process, start-up included; the best of five.",
            "",
            "| command | s |",
            "|---|---|",
            *lines,
            "",
            f"Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}, "
            f"{os.cpu_count()} cores; `python benchmarks/cli.py`.",
            "",
        ]
    )
    print(table)
    if options.out is not None:
        options.out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
