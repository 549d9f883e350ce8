"""Forward and backward time of the losses on a GPU, beside PyTorch's own and the floor that memory bandwidth sets.

Times are medians of CUDA-graph replays with eight calls each, so that the host's launch cost stays out; eager wall time
stands beside them.
The floor reads each input once and writes each output once, at the bandwidth of an elementwise kernel in the same run.

    python benchmarks/losses.py --out benchmarks/results/losses.md
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # its worker processes would take time from the eager calls

import torch
import torch.nn.functional as F
import triton
from gpu_timing import GAMMA, IMAGES, ROWS, replay_ms, step
from torch import Tensor

from refocal.losses import FocalLoss, SigmoidFocalLoss
from refocal.losses.formulas import focal_rows, sigmoid_focal
from refocal.losses.posterior_maps import FocalMap
from refocal.losses.rows import parse_rows
from refocal.losses.spec import LossSpec
from refocal.maps.posterior import posterior_from_logits


def wall_ms(functions: Sequence[Callable[[], object]], rounds: int = 15, calls: int = 20) -> list[float]:
    """Times of eager calls when many follow each other: medians over rounds in which the functions take turns."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, measured in zip(functions, times, strict=True):
            for _ in range(5):
                function()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                function()
            torch.cuda.synchronize()
            measured.append((time.perf_counter() - start) / calls * 1e3)
    return [statistics.median(measured) for measured in times]


def extra_memory(function: Callable[[], object], unit: int) -> float:
    """Peak memory beyond what was there, in units of the logits' size."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    function()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / unit


def plain_focal(logits: Tensor, target: Tensor) -> Tensor:
    """Focal loss by tensor operations."""
    return focal_rows(parse_rows(logits, target, weight=None), None, LossSpec(GAMMA, -100)).mean()


def bandwidth() -> float:
    """Bytes a second of an elementwise kernel, read and written."""
    source = torch.randn(1 << 29, device="cuda")
    result = torch.empty_like(source)
    return 2 * source.nbytes / (replay_ms(lambda: torch.add(source, 1.0, out=result)) * 1e-3)


def measure(
    name: str,
    run: Callable[[], object],
    *,
    floor_bytes: float,
    rate: float,
    others: dict[str, Callable[[], object]],
    unit: int,
) -> str:
    """A row of the table."""
    floor = floor_bytes / rate * 1e3
    ours = replay_ms(run)
    wall, *others_wall = wall_ms([run, *([others["torch"]] if "torch" in others else [])])
    cells = [
        f"{floor:.3f}",
        f"{ours:.3f}",
        f"**{ours / floor:.2f}**",
        f"{wall:.3f}",
        f"{extra_memory(run, unit):.2f}",
    ]
    for key in ("plain", "compiled", "torch"):
        other = others.get(key)
        cells.append("" if other is None else f"{replay_ms(other):.3f}")
    cells += [f"{other:.3f}" for other in others_wall] or [""]
    line = f"| {name} | " + " | ".join(cells) + " |"
    print(line, flush=True)
    return line


def softmax_rows(rate: float, *, compiled: bool) -> list[str]:
    """The table's rows for softmax losses."""
    lines = []
    for rows, classes, dtype in ROWS:
        logits = torch.randn(rows, classes, device="cuda", dtype=dtype, requires_grad=True)
        target = torch.randint(classes, (rows,), device="cuda")
        others: dict[str, Any] = {
            "plain": step(plain_focal, logits, target),
            "torch": step(F.cross_entropy, logits, target),
        }
        if compiled:
            others["compiled"] = step(torch.compile(plain_focal), logits, target)
        name = f"{rows:,} x {classes:,} {str(dtype).removeprefix('torch.')}"
        unit = logits.nbytes
        lines.append(
            measure(
                name, step(FocalLoss(GAMMA), logits, target), floor_bytes=2 * unit, rate=rate, others=others, unit=unit
            )
        )
        del logits, target, others
        torch.cuda.empty_cache()
    return lines


def image_rows(rate: float) -> list[str]:
    """The table's rows for dense predictions, as a segmentation network gives them."""
    lines = []
    for shape in IMAGES:
        name = " x ".join(str(size) for size in shape)
        target = torch.randint(shape[1], (shape[0], *shape[2:]), device="cuda")
        for dtype, memory_format, label in (
            (torch.float32, torch.contiguous_format, ""),
            (torch.bfloat16, torch.contiguous_format, ""),
            (torch.float32, torch.channels_last, ", channels last"),
        ):
            logits = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=memory_format).requires_grad_()
            others = {
                "plain": step(plain_focal, logits, target),
                "torch": step(F.cross_entropy, logits, target),
            }
            unit = logits.nbytes
            run = step(FocalLoss(GAMMA), logits, target)
            line = f"{name} {str(dtype).removeprefix('torch.')}{label}"
            lines.append(measure(line, run, floor_bytes=2 * unit, rate=rate, others=others, unit=unit))
        logits = logits.detach().contiguous()
        lines.append(map_row(f"{name} float32, posterior map", logits, rate))
        soft = torch.softmax(logits, dim=1)
        run = step(FocalLoss(GAMMA), logits.requires_grad_(), soft)
        others = {"torch": step(F.cross_entropy, logits, soft)}
        unit = logits.nbytes
        line = f"{name} float32, soft targets"
        lines.append(measure(line, run, floor_bytes=3 * unit, rate=rate, others=others, unit=unit))
        del logits, target, soft, others, run
        torch.cuda.empty_cache()
    return lines


def variant_rows(rate: float) -> list[str]:
    """The table's rows for the other kernels."""
    lines = []
    logits = torch.randn(65_536, 1_000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(1_000, (65_536,), device="cuda")
    soft = torch.softmax(torch.randn(65_536, 1_000, device="cuda"), dim=1).to(torch.bfloat16)
    weight = (torch.rand(1_000, device="cuda") + 0.5).to(torch.bfloat16)
    gammas = torch.linspace(0, 5, 1_000).tolist()
    unit = logits.nbytes
    name = "65,536 x 1,000 bfloat16"
    cases = [
        ("class weights", FocalLoss(GAMMA, weight=weight).cuda(), target, 2),
        ("one gamma per class", FocalLoss(gammas), target, 2),
        ("label smoothing", FocalLoss(GAMMA, label_smoothing=0.1), target, 2),
        ("soft targets", FocalLoss(GAMMA), soft, 3),
    ]
    for label, criterion, goal, passes in cases:
        lines.append(
            measure(
                f"{name}, {label}",
                step(criterion, logits, goal),
                floor_bytes=passes * unit,
                rate=rate,
                others={},
                unit=unit,
            )
        )
    lines.append(map_row(f"{name}, posterior map", logits.detach(), rate))
    del logits, target, soft
    torch.cuda.empty_cache()
    elements = torch.randn(51_200_000, device="cuda", requires_grad=True)
    labels = (torch.rand(51_200_000, device="cuda") < 0.05).float()
    plain = step(lambda x, t: sigmoid_focal(x, t, LossSpec(GAMMA, -100, alpha=0.25)).mean(), elements, labels)
    others = {"plain": plain, "torch": step(F.binary_cross_entropy_with_logits, elements, labels)}
    run = step(SigmoidFocalLoss(GAMMA), elements, labels)
    unit = elements.nbytes
    lines.append(measure("sigmoid, 51,200,000 float32", run, floor_bytes=3 * unit, rate=rate, others=others, unit=unit))
    return lines


@torch.no_grad()
def map_row(name: str, logits: Tensor, rate: float) -> str:
    """The table's row for the posterior map."""
    others = {
        "plain": lambda: posterior_from_logits(logits.movedim(1, -1), gamma=GAMMA).movedim(-1, 1),
        "torch": lambda: torch.softmax(logits, dim=1),
    }
    unit = logits.nbytes
    return measure(name, lambda: FocalMap(GAMMA)(logits), floor_bytes=2 * unit, rate=rate, others=others, unit=unit)


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="also write the table to this Markdown file")
    parser.add_argument("--compiled", action="store_true", help="measure torch.compile too (minutes)")
    options = parser.parse_args()
    rate = bandwidth()
    print(f"{rate / 1e9:,.0f} GB/s", flush=True)
    lines = softmax_rows(rate, compiled=options.compiled) + image_rows(rate) + variant_rows(rate)
    table = "\n".join(
        [
            "# Losses on a GPU: forward and backward",
            "",
            "Milliseconds. Replay: median of CUDA-graph replays of eight calls; wall: eager calls, one after another, "
            "median of 15 rounds of 20 calls in which refocal and PyTorch take turns; "
            "memory: peak beyond the logits, in arrays of their size (the gradient is 1). Floor: every input read "
            f"once, every output written once, at {rate / 1e9:,.0f} GB/s, that of an elementwise kernel in the same "
            "run. Plain: the same loss by tensor operations; PyTorch: `F.cross_entropy`, "
            "`F.binary_cross_entropy_with_logits` or `softmax`. "
            f"gamma = {GAMMA:g}, mean reduction.",
            "",
            "| case | floor | refocal, replay | x floor | refocal, wall | memory | plain, replay "
            "| torch.compile, replay | PyTorch, replay | PyTorch, wall |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *lines,
            "",
            f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Triton {triton.__version__}; "
            f"`python benchmarks/losses.py{' --compiled' if options.compiled else ''}`.",
            "",
        ]
    )
    if options.out is not None:
        options.out.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
