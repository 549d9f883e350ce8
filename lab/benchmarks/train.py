"""Seconds per epoch of 50,000 images of 32 x 32 pixels at batch 128, against a plain PyTorch loop in the same run.

The images are random bytes, because speed does not depend on their content. Needs a CUDA device. The ways with
"-pytorch" use none of our own kernels; `--profile` adds the time of each kind of kernel.

    python benchmarks/train.py --out benchmarks/results/train.md
"""

from __future__ import annotations

import argparse
import platform
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from kernel_times import measure_kernels, render_kernels

from refocal.losses import FocalLoss
from refocal_lab.train.batches import ArrayBatches
from refocal_lab.train.convolution import Convolution
from refocal_lab.train.models import build
from refocal_lab.train.normalization import BatchNorm
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.step import Step

IMAGES, BATCH, CLASSES = 50_000, 128, 10
DEVICE = torch.device("cuda")
WAYS = ("plain", "whole", "compiled", "whole-pytorch", "compiled-pytorch")


@dataclass(frozen=True)
class Row:
    """The measured time of one way to train."""

    model: str
    way: str
    trials: int
    prepared: float
    seconds: float  # per epoch and network


def use_own_kernels(own: bool) -> None:
    """Use our own kernels, or only those of PyTorch."""
    BatchNorm.own = Convolution.own = own
    torch.compiler.reset()


def make_images() -> tuple[np.ndarray, np.ndarray]:
    """Random bytes and labels."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8), rng.integers(0, CLASSES, IMAGES)


def measure_plain(model: str, inputs: np.ndarray, labels: np.ndarray, *, steps: int) -> Row:
    """Time the loop of tutorials, with the data on the GPU, autocast and channels last."""
    network = build(model).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    criterion = FocalLoss(gamma=2.0)
    data = torch.from_numpy(inputs).to(DEVICE)
    target = torch.from_numpy(labels).to(DEVICE)

    def step() -> None:
        index = torch.randint(0, IMAGES, (BATCH,), device=DEVICE)
        batch = F.pad(data[index].permute(0, 3, 1, 2).float() / 255, (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        batch = batch[:, :, top : top + 32, left : left + 32].contiguous(memory_format=torch.channels_last)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = criterion(network(batch), target[index])
        loss.backward()
        optimizer.step()

    for _ in range(20):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    return Row(model, "plain PyTorch", 1, 0.0, (time.perf_counter() - start) * IMAGES / BATCH / steps)


def make_step(model: str, inputs: np.ndarray, labels: np.ndarray, *, seed: int, compiled: bool) -> Step:
    """A captured step."""
    recipe = TrainingRecipe(data="cifar10", model=model, loss="focal", gamma=2.0)
    network = build(model).to(DEVICE, memory_format=torch.channels_last)
    batches = ArrayBatches(
        inputs,
        labels,
        mean=np.full(3, 125.0),
        std=np.full(3, 60.0),
        augmentation="crop-flip",
        batch_size=BATCH,
        seed=seed,
        device=DEVICE,
        dtype=torch.bfloat16,
    )
    loss = FocalLoss(gamma=2.0).to(DEVICE)
    step = Step(network, loss, batches, recipe, classes=CLASSES, half=True, compiled=compiled)
    step.capture()
    return step


def measure_steps(
    model: str, inputs: np.ndarray, labels: np.ndarray, *, trials: int, compiled: bool, epochs: int, profiled: bool
) -> Row:
    """Time whole steps as CUDA graphs, each network with its own stream and thread."""
    start = time.perf_counter()
    steps = [make_step(model, inputs, labels, seed=seed, compiled=compiled) for seed in range(trials)]
    torch.cuda.synchronize()
    prepared = time.perf_counter() - start

    def run(step: Step, count: int) -> None:
        with torch.cuda.stream(step.stream):
            for epoch in range(count):
                step.run_epoch(epoch, rate=0.01)
            torch.cuda.current_stream().synchronize()

    def run_together(count: int) -> float:
        start = time.perf_counter()
        threads = [threading.Thread(target=run, args=(step, count)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - start

    run_together(1)
    share = IMAGES / (IMAGES // BATCH * BATCH)
    seconds = run_together(epochs) / epochs / trials * share
    for step in steps:
        assert bool(torch.isfinite(step.losses).all()), "the loss is not finite"
    if profiled:
        steps[0]._batches.draw(0)
        (graph,) = steps[0]._graphs.values()
        print(render_kernels(model, *measure_kernels(graph.replay, steps=10), longest=25))
    way = "whole step" + (", compiled" if compiled else "") + ("" if BatchNorm.own else ", PyTorch's kernels")
    return Row(model, way, trials, prepared, seconds)


def render_table(rows: list[Row]) -> str:
    """All rows, with their speed relative to the plain loop of the same network."""
    eager = {row.model: row.seconds for row in rows if row.trials == 1 and row.way == "plain PyTorch"}
    lines = [
        "| network | way | networks at once | preparation, s | s per epoch and network | images per second | x plain |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        ratio = f"{eager[row.model] / row.seconds:.1f}" if row.model in eager else "-"
        lines.append(
            f"| {row.model} | {row.way} | {row.trials} | {row.prepared:.0f} | {row.seconds:.3f} "
            f"| {IMAGES / row.seconds:,.0f} | {ratio} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", nargs="+", default=["resnet20", "resnet110", "resnet50"])
    parser.add_argument("--trials", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["plain", "whole", "compiled"])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device")
    inputs, labels = make_images()
    rows: list[Row] = []
    for model in options.models:
        if "plain" in options.ways:
            use_own_kernels(False)
            rows.append(measure_plain(model, inputs, labels, steps=150))
            print(rows[-1], flush=True)
        for way in [way for way in WAYS[1:] if way in options.ways]:
            use_own_kernels(not way.endswith("-pytorch"))
            for trials in options.trials:
                rows.append(
                    measure_steps(
                        *(model, inputs, labels),
                        trials=trials,
                        compiled=way.startswith("compiled"),
                        epochs=3,
                        profiled=options.profile and trials == 1,
                    )
                )
                print(rows[-1], flush=True)
    text = (
        f"# Training: seconds per epoch of {IMAGES:,} images, batch {BATCH}\n\n"
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, Python {platform.python_version()}; focal loss, "
        "random crop and flip. Measured by `python benchmarks/train.py --out benchmarks/results/train.md`.\n\n"
        f"{render_table(rows)}\n"
    )
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
