"""How often the p-value of a simpler calibrator is small although it is the true one.

    python benchmarks/choice_p_values.py --out benchmarks/results/choice_p_values.md

`AutoCalibrator(combine="select")` compares each candidate with the one of the lowest cross-validated NLL, and gives a
one-sided p-value of the difference. Labels are drawn from temperature scaling of the logits, so temperature scaling is
the simplest true map. The script counts how often its p-value is at most a level, and how often the
one-standard-error rule takes it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import numpy as np

from refocal.calibrators import AutoCalibrator

SETS = 300
TEMPERATURE = 2.0
CASES = ((2, 500), (2, 2000), (4, 500), (4, 2000))  # classes and samples
LEVELS = (0.01, 0.05, 0.10, 0.16)


def simulate(classes: int, samples: int, seed: int) -> tuple[float, str]:
    """The p-value of temperature scaling on one data set of which it is the truth, and the map that is chosen."""
    rng = np.random.default_rng([seed, classes, samples])
    logits = 2 * rng.standard_normal((samples, classes))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    auto = AutoCalibrator(combine="select").fit(TEMPERATURE * logits, labels)
    results = {result["name"]: result for result in auto.results_}
    return results["TemperatureScaling"]["p_value"], type(auto.members_[0]).__name__


def main() -> None:
    """Simulate, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    options = parser.parse_args()
    lines = [
        "# The p-value of a simpler calibrator that is the true one",
        "",
        f"The share of {SETS} simulated data sets where the p-value of temperature scaling is at most a level. Labels "
        f"come from temperature scaling (T = {TEMPERATURE:g}), so every other candidate is wrong or has needless "
        'parameters. `AutoCalibrator(combine="select")`, five folds. The test is conservative if the share is below '
        "the level. It is not for few samples of two classes: the candidate with the lowest NLL is the best of "
        "several, which makes p too small. Needless parameters cost NLL, which makes p too large, and more so for more "
        "classes. The last two columns count what the one-standard-error rule takes.",
        "",
        f"| classes | samples | {' | '.join(f'p ≤ {level:.2f}' for level in LEVELS)} | temperature | another |",
        f"|---:|---:|{'---:|' * (len(LEVELS) + 2)}",
    ]
    for classes, samples in CASES:
        found = [simulate(classes, samples, seed) for seed in range(SETS)]
        p_values = np.array([p_value for p_value, _ in found])
        taken = Counter(name for _, name in found)
        shares = " | ".join(f"{np.mean(p_values <= level):.3f}" for level in LEVELS)
        others = ", ".join(f"{name} {count}" for name, count in taken.most_common() if name != "TemperatureScaling")
        lines.append(f"| {classes} | {samples:,} | {shares} | {taken['TemperatureScaling']} | {others or 'none'} |")
    lines += ["", "`python benchmarks/choice_p_values.py`"]
    table = "\n".join(lines) + "\n"
    print(table)
    if options.out is not None:
        options.out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
