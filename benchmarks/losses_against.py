"""Losses on a GPU, of this version and of another: forward and backward, in two processes that take turns.

The other version is the folder `src` of another checkout. Replay is the shortest of three medians of CUDA-graph
replays, which leave out the host; wall is the shortest of many rounds of eager calls, because what else the host does
only adds to it.

    git worktree add ../before fc6782d7
    python benchmarks/losses_against.py ../before/src --out against.md
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TURNS, LONG_TURNS = 60, 12  # of each version and case; the second if a call takes long
LONG = 0.2  # milliseconds
CALLS = 40  # eager calls in a turn


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    """The rows of losses.md and small batches: a name, and a forward and backward pass (of a map: forward)."""
    import torch
    from gpu_timing import GAMMA, IMAGES, ROWS, step

    from refocal.losses import FocalLoss, SigmoidFocalLoss

    def logits_of(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        torch.manual_seed(0)
        return torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)

    small = [(128, 10, torch.float32), (256, 1_000, torch.float32), (4_096, 1_000, torch.bfloat16)]
    for rows, classes, dtype in [*ROWS, *small]:
        target = torch.randint(classes, (rows,), device="cuda")
        name = f"{rows:,} x {classes:,} {str(dtype).removeprefix('torch.')}"
        yield name, step(FocalLoss(GAMMA), logits_of(rows, classes, dtype=dtype), target)
    for shape in IMAGES:
        name = " x ".join(map(str, shape))
        target = torch.randint(shape[1], (shape[0], *shape[2:]), device="cuda")
        for dtype in (torch.float32, torch.bfloat16):
            label = f"{name} {str(dtype).removeprefix('torch.')}"
            yield label, step(FocalLoss(GAMMA), logits_of(*shape, dtype=dtype), target)
        logits = logits_of(*shape)
        last = logits.detach().to(memory_format=torch.channels_last).requires_grad_()
        yield f"{name} float32, channels last", step(FocalLoss(GAMMA), last, target)
        yield f"{name} float32, soft targets", step(FocalLoss(GAMMA), logits, torch.softmax(logits.detach(), dim=1))
        images = logits.detach()
        yield f"{name} float32, posterior map", lambda images=images: FocalLoss(GAMMA).posterior(images)
    for rows, dtype in ((65_536, torch.bfloat16), (256, torch.float32)):
        logits, target = logits_of(rows, 1_000, dtype=dtype), torch.randint(1_000, (rows,), device="cuda")
        name = f"{rows:,} x 1,000 {str(dtype).removeprefix('torch.')}"
        weight = torch.linspace(0.5, 1.5, 1_000, device="cuda", dtype=dtype)
        yield f"{name}, class weights", step(FocalLoss(GAMMA, weight=weight).cuda(), logits, target)
        yield f"{name}, one gamma per class", step(FocalLoss(torch.linspace(0, 5, 1_000).tolist()), logits, target)
        yield f"{name}, label smoothing", step(FocalLoss(GAMMA, label_smoothing=0.1), logits, target)
        yield f"{name}, soft targets", step(FocalLoss(GAMMA), logits, torch.softmax(logits.detach(), dim=1))
        flat = logits.detach()
        yield f"{name}, posterior map", lambda flat=flat: FocalLoss(GAMMA).posterior(flat)
    for elements in (51_200_000, 1_000):
        labels = (torch.rand(elements, device="cuda") < 0.05).float()
        yield f"sigmoid, {elements:,} float32", step(SigmoidFocalLoss(GAMMA), logits_of(elements), labels)


def work() -> None:
    """One version: for each case, its replay time at first, and then a wall time whenever a line asks for one."""
    import torch
    from gpu_timing import replay_ms

    sys.stdin.readline()
    for name, run in cases():
        print(json.dumps([name, min(replay_ms(run, repeats=40) for _ in range(3))]), flush=True)
        while sys.stdin.readline() == "again\n":
            for _ in range(5):
                run()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                run()
            torch.cuda.synchronize()
            print((time.perf_counter() - start) / CALLS * 1e3, flush=True)
        torch.cuda.empty_cache()
    print("null", flush=True)


def compare(source: Path) -> list[str]:
    """The table's rows."""
    command = [sys.executable, __file__, "--work"]
    workers = []
    for folder in (source.resolve(), ROOT / "src"):
        environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
        workers.append(
            subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        )

    def ask(worker: subprocess.Popen[str], line: str) -> object:
        worker.stdin.write(line)
        worker.stdin.flush()
        return json.loads(worker.stdout.readline() or "null")

    lines = []
    while True:
        (first, second) = [ask(worker, "next\n") for worker in workers]
        if first is None or second is None:
            break
        walls: list[list[float]] = [[], []]
        for _ in range(TURNS if max(first[1], second[1]) < LONG else LONG_TURNS):
            for worker, times in zip(workers, walls, strict=True):
                times.append(ask(worker, "again\n"))
        before, after = min(walls[0]), min(walls[1])
        lines.append(
            f"| {first[0]} | {first[1]:.4f} | {second[1]:.4f} | {second[1] / first[1]:.3f} "
            f"| {before:.4f} | {after:.4f} | {after / before:.3f} |"
        )
        print(lines[-1], flush=True)
    for worker in workers:
        worker.communicate()
    return lines


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, nargs="?", help="folder src of the other version")
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work()
    if options.source is None:
        parser.error("name the folder src of the other version")
    header = [
        "| case | replay, before | after | ratio | wall, before | after | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    table = "\n".join([*header, *compare(options.source), ""])
    if options.out is not None:
        options.out.write_text(table, encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
