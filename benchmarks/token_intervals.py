"""Coverage of the intervals of `TokenCalibration`: with documents as samples, and as if tokens were independent.

Documents of random length differ in difficulty: each has its own noise between the model's logits and the true ones.
The true mean NLL per token comes from 30,000 further documents.

python benchmarks/token_intervals.py --out benchmarks/results/token_intervals.md
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from refocal.calibrators import TemperatureScaling
from refocal.calibrators.fit.maximum_likelihood import Temperature
from refocal.language_models import TokenCalibration, TokenReport

CLASSES = 8
TRUTH_BATCHES, TRUTH_BATCH = 30, 1_000


class Situation(NamedTuple):
    """How texts are made."""

    name: str
    documents: int
    difference: float  # between documents: the spread of their noise, and of their topic
    long_is_easy: bool = False


SITUATIONS = [
    Situation("independent tokens", 30, 0.0),
    *(Situation("documents differ a little", count, 0.3) for count in (10, 30, 100)),
    *(Situation("documents differ much", count, 1.0) for count in (10, 30, 100)),
    *(Situation("the same, long ones are easier", count, 1.0, long_is_easy=True) for count in (10, 30, 100)),
]


def make_text(situation: Situation, documents: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Model logits (documents, S, classes), and tokens (documents, S) with -100 behind the end of a document."""
    lengths = (20 + 60 * torch.empty(documents).exponential_(generator=generator)).long().clamp(max=300)
    shape = (documents, int(lengths.max()), CLASSES)
    truth = 2 * torch.randn(shape, generator=generator)
    truth += situation.difference * torch.randn(documents, 1, CLASSES, generator=generator)
    spread = torch.exp(situation.difference * torch.randn(documents, generator=generator))
    if situation.long_is_easy:
        spread = spread * 60 / lengths
    noise = torch.randn(shape, generator=generator) * spread[:, None, None]
    tokens = torch.multinomial(torch.softmax(truth, dim=2).reshape(-1, CLASSES), 1, generator=generator)
    ends = torch.arange(shape[1]) >= lengths[:, None]
    return truth + noise, tokens.reshape(shape[:2]).masked_fill(ends, -100)


def measure(texts: list[tuple[Tensor, Tensor]], *, independent: bool = False) -> TokenReport:
    """A report with two readouts; `independent` makes each token a document."""
    calibrator = TemperatureScaling(input="logits")
    calibrator.store(Temperature(1 / 1.5, 0.0, 0.0, False, 1))
    calibrator.n_features_in_, calibrator.classes_ = CLASSES, np.arange(CLASSES)
    calibration = TokenCalibration(calibrators={"T = 1.5": calibrator}, fit=False)
    for logits, tokens in texts:
        shape = (-1, 1) if independent else tokens.shape
        calibration.update(logits.reshape(*shape, CLASSES), torch.eye(CLASSES), tokens.reshape(shape))
    return calibration.compute()


@functools.cache
def find_truth(situation: Situation) -> tuple[float, float]:
    """The NLL of the softmax, and how much smaller that of temperature scaling is."""
    generator = torch.Generator().manual_seed(1)
    truth = measure([make_text(situation, TRUTH_BATCH, generator) for _ in range(TRUTH_BATCHES)])
    return truth.readouts["softmax"].nll.value, truth.compare("softmax", "T = 1.5").value


def cover(situation: Situation, repeats: int) -> str:
    """A row of the table: the share of intervals that contain the true value."""
    generator = torch.Generator().manual_seed(situation.documents)
    values = find_truth(situation._replace(documents=0))
    hits = np.zeros(4)
    for _ in range(repeats):
        text = [make_text(situation, situation.documents, generator)]
        for place, independent in enumerate((False, True)):
            found = measure(text, independent=independent)
            intervals = found.readouts["softmax"].nll, found.compare("softmax", "T = 1.5")
            inside = [one.low <= value <= one.high for one, value in zip(intervals, values, strict=True)]
            hits[[place, place + 2]] += inside
    shares = " | ".join(f"{share:.1%}" for share in hits / repeats)
    return f"| {situation.name} | {situation.documents} | {values[0]:.3f} | {shares} |"


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    parser.add_argument("--repeats", type=int, default=500, help="texts of each situation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    error = (0.05 * 0.95 / options.repeats) ** 0.5
    lines = [
        "# Coverage of 95% intervals of token measures",
        "",
        f"`python benchmarks/token_intervals.py`, {options.repeats:,} texts of each situation, about 80 tokens per",
        f"document; the standard error of a coverage near 95% is {error:.1%}.",
        "`by document`: the intervals of `TokenCalibration`. `by token`: the same with each token as a document of its",
        "own. `gain`: the NLL of the softmax minus that of temperature scaling with T = 1.5.",
        "",
        "| situation | documents | true NLL | NLL by document | NLL by token | gain by document | gain by token |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for situation in SITUATIONS:
        lines.append(cover(situation, options.repeats))
        print(lines[-1], flush=True)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
