"""Softmax losses on a CPU against cross-entropy: forward and backward, and the memory that is kept in between.

Each loss and `F.cross_entropy` take turns, so that whatever else the machine does hits both; the table holds the median
of the ratios. Times are those of one thread on the processor, without waiting. Two versions of refocal are compared by
two runs:

    PYTHONPATH=other/src python benchmarks/losses_cpu.py --save before.json
    python benchmarks/losses_cpu.py --before before.json --out benchmarks/results/losses_cpu.md
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from refocal import losses as L

SHAPES = [(4_096, 1_000), (128, 10)]
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "focal, gamma = 2": L.FocalLoss(2.0),
    "focal, gamma = 1.5": L.FocalLoss(1.5),
    "FLSD-53": L.FocalLoss(L.FLSD53),
    "focal, label smoothing 0.1": L.FocalLoss(2.0, label_smoothing=0.1),
    "cross-entropy, label smoothing 0.1": torch.nn.CrossEntropyLoss(label_smoothing=0.1),
    "inverse focal": L.InverseFocalLoss(1.0),
    "dual focal": L.DualFocalLoss(2.0),
    "proper focal": L.ProperFocalLoss(2.0),
    "MMCE": L.MMCELoss(2.0),
}
GOALS = {
    "focal, gamma = 2": (1.6, 4.0),
    "focal, label smoothing 0.1": (4.0, 5.0),
    "dual focal": (3.0, 5.0),
    "proper focal": (60.0, 60.0),
}


def batch(rows: int, classes: int, *, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    """Logits and labels; with a spread, the labels' logits are raised as those of a trained network are."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, classes, generator=generator)
    target = torch.randint(classes, (rows,), generator=generator)
    if spread > 1:
        raised = spread * torch.rand(rows, generator=generator)
        logits[torch.arange(rows), target] += raised
    return logits.requires_grad_(), target


def seconds(criterion: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor, calls: int) -> float:
    """Processor time of a forward and backward pass."""
    start = time.thread_time()
    for _ in range(calls):
        torch.autograd.grad(criterion(logits, target), logits)
    return (time.thread_time() - start) / calls


def ratio(criterion: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor, rounds: int) -> float:
    """How many times as long as cross-entropy a loss takes, the median of rounds in which they take turns."""
    calls = max(1, 200_000 // logits.numel())
    for each in (criterion, F.cross_entropy):
        seconds(each, logits, target, min(calls, 3))
    ratios = []
    for _ in range(rounds):
        ours = seconds(criterion, logits, target, calls)
        ratios.append(ours / seconds(F.cross_entropy, logits, target, calls))
    return statistics.median(ratios)


def saved(criterion: Callable[[Tensor, Tensor], Tensor], logits: Tensor, target: Tensor) -> float:
    """Memory kept for the backward pass beyond logits and labels, in units of the logits' size."""
    sizes: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = criterion(logits, target)
    for given in (logits, target):
        sizes.pop(given.untyped_storage().data_ptr(), None)
    del loss
    return sum(sizes.values()) / logits.nbytes


def measure(rounds: int) -> dict[str, list[float]]:
    """For each loss: the ratio at each shape, that of confident rows of the first shape, and the memory saved."""
    results = {}
    for name, criterion in LOSSES.items():
        found = []
        for rows, classes in SHAPES:
            found.append(ratio(criterion, *batch(rows, classes), rounds))
        found.append(ratio(criterion, *batch(*SHAPES[0], spread=20.0), rounds))
        found.append(saved(criterion, *batch(*SHAPES[0])))
        results[name] = found
        print(name, *(f"{value:.2f}" for value in found), flush=True)
        gc.collect()
    return results


def table(before: dict[str, list[float]], after: dict[str, list[float]]) -> str:
    """The Markdown page."""
    shapes = [f"{rows:,} x {classes:,}" for rows, classes in SHAPES]
    lines = [
        "# Softmax losses on a CPU",
        "",
        "Forward and backward pass, in times of `F.cross_entropy` on the same logits (float32, one thread, mean "
        "reduction): medians of rounds in which the two take turns. Confident: the label's logit is raised by 0 to 20, "
        "as in a trained network. Memory: what is kept for the backward pass beyond logits and labels, in arrays of "
        "the logits' size. Each cell: before -> after, where there is a before, with the goal in parentheses.",
        "",
        f"| loss | {shapes[0]} | {shapes[1]} | {shapes[0]}, confident | memory |",
        "|---|---|---|---|---|",
    ]
    for name, new in after.items():
        old, goals = before.get(name), GOALS.get(name, ())
        cells = [f"**{value:.3g}**" for value in new]
        if old is not None:
            cells = [f"{value:.3g} -> {cell}" for value, cell in zip(old, cells, strict=True)]
        cells[: len(goals)] = [f"{cell} ({goal:g})" for cell, goal in zip(cells, goals, strict=False)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"PyTorch {torch.__version__}; `python benchmarks/losses_cpu.py`.", ""])


def main() -> None:
    """Measure, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="rounds of each measurement (default 9)")
    parser.add_argument("--save", type=Path, help="write the numbers to this JSON file")
    parser.add_argument("--before", type=Path, help="numbers of another version, saved by --save")
    parser.add_argument("--out", type=Path, help="write the table to this Markdown file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(options.rounds)
    if options.save is not None:
        options.save.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if options.out is not None:
        before = {} if options.before is None else json.loads(options.before.read_text(encoding="utf-8"))
        options.out.write_text(table(before, results), encoding="utf-8")


if __name__ == "__main__":
    main()
