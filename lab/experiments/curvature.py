"""Figures 2 and 3 of Kimura and Naganuma (2024) at small scale: does focal loss flatten, and does that calibrate?

Two kinds of networks are trained on 10,000 images of Fashion-MNIST with eight values of gamma and three seeds. The
paper does not say which Hessian it uses, so both that of the training loss and that of cross-entropy are measured, over
2,000 validation images. Figure 4 is `refocal-lab reproduce 004-fig-4`.

    python experiments/curvature.py --data FASHION_MNIST --out experiments/results

FASHION_MNIST is a folder with the four files of the data set (Debian package dataset-fashion-mnist).
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import curvature_figures as figures
import numpy as np
import torch
from torch import Tensor, nn

from refocal import _files, metrics
from refocal.curvature import hessian_top_eigenvalues, hessian_trace
from refocal.losses import FocalLoss
from refocal_lab.reproduce.curvature_runs import fit_cubics, summarize_by_gamma
from refocal_lab.train.data import load

GAMMAS = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 10.0)
SEEDS = (0, 1, 2)
TRAINED, HELD_OUT = 10_000, 2_000
EPOCHS, BATCH = 30, 100
PROBES = {"MLP": 100, "CNN": 20}  # per group of 128 images


def mlp() -> nn.Module:
    """Build a network of two layers with 100 hidden units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def cnn() -> nn.Module:
    """Build a network of two convolutions and two linear layers with 7,551 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 15),
        nn.ReLU(),
        nn.Linear(15, 10),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"MLP": mlp, "CNN": cnn}


def fashion_mnist(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Load standardized images (N, 1, 28, 28) with labels; training and validation images come first."""
    published = load("fashion-mnist", folder=folder)
    order = np.argsort(np.concatenate([published.train.indices, published.val.indices]))[: TRAINED + HELD_OUT]
    pixels, labels = (
        np.concatenate([getattr(published.train, name), getattr(published.val, name)])[order]
        for name in ("inputs", "labels")
    )
    parts = {
        "train": (pixels[:TRAINED], labels[:TRAINED]),
        "val": (pixels[TRAINED:], labels[TRAINED:]),
        "test": (published.test.inputs, published.test.labels),
    }
    mean, spread = parts["train"][0].mean() / 255, parts["train"][0].std() / 255
    return {
        name: ((torch.tensor(images).permute(0, 3, 1, 2) / 255 - mean) / spread, torch.tensor(target))
        for name, (images, target) in parts.items()
    }


def train(
    network: nn.Module, criterion: nn.Module, data: tuple[Tensor, Tensor], optimizer: torch.optim.Optimizer, seed: int
) -> None:
    """Train for a number of epochs over shuffled batches."""
    order = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(data[1]), generator=order).split(BATCH):
            optimizer.zero_grad()
            criterion(network(data[0][batch]), data[1][batch]).backward()
            optimizer.step()


def measure(
    network: nn.Module, data: dict[str, tuple[Tensor, Tensor]], losses: dict[str, nn.Module], *, probes: int
) -> dict[str, Any]:
    """Measure calibration on the test images, and curvature of each loss on the validation images."""
    with torch.no_grad():
        probs = torch.softmax(network(data["test"][0]).double(), dim=1).numpy()
    labels = data["test"][1].numpy()
    row: dict[str, Any] = {
        "ece": metrics.ece(probs, labels),
        "nll": metrics.nll(probs, labels),
        "error": float((probs.argmax(axis=1) != labels).mean()),
        "confidence_less_accuracy": float(probs.max(axis=1).mean() - (probs.argmax(axis=1) == labels).mean()),
    }
    for name, loss in losses.items():
        top = hessian_top_eigenvalues(network, loss, [data["val"]])
        trace = hessian_trace(network, loss, [data["val"]], probes=probes)
        row[f"lambda_max_{name}"] = float(top.algebraic[0])
        row[f"lambda_modulus_{name}"] = float(top.modulus[0])
        row[f"trace_{name}"] = trace.value
        row[f"trace_error_{name}"] = trace.standard_error
    return row


def gamma_runs(data: dict[str, tuple[Tensor, Tensor]]) -> list[dict[str, Any]]:
    """Train one network per architecture, gamma and seed, by Adam with learning rate 1e-3."""
    runs = []
    for architecture, build in NETWORKS.items():
        for seed in SEEDS:
            for gamma in GAMMAS:
                torch.manual_seed(seed)
                network, loss = build(), FocalLoss(gamma)
                train(network, loss, data["train"], torch.optim.Adam(network.parameters(), lr=1e-3), seed)
                losses = {"trained": loss, "cross_entropy": nn.CrossEntropyLoss()}
                row = measure(network, data, losses, probes=PROBES[architecture])
                runs.append({"network": architecture, "gamma": gamma, "seed": seed, **row})
                print(json.dumps(runs[-1]), flush=True)
    return runs


def write(folder: Path, runs: list[dict[str, Any]], found: dict[str, Any]) -> None:
    """Write the numbers of one figure."""
    folder.mkdir(parents=True, exist_ok=True)
    setting = {
        "data": f"Fashion-MNIST: {TRAINED} training, {HELD_OUT} validation, 10000 test images",
        "epochs": EPOCHS,
        "batch": BATCH,
        "probes": PROBES,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    content = json.dumps({"setting": setting, "found": found, "runs": runs}, indent=1)
    _files.write_text(folder / "numbers.json", content + "\n", overwrite=True)


def main() -> None:
    """Train, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of Fashion-MNIST")
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--redraw", action="store_true", help="redraw the figures from stored runs")
    options = parser.parse_args()
    first, second = (options.out / name / "small" for name in ("004-fig-2", "004-fig-3"))
    if options.redraw:
        runs, fits = (
            json.loads((folder / "numbers.json").read_text(encoding="utf-8"))[key]
            for folder, key in ((first, "runs"), (second, "found"))
        )
    else:
        runs = gamma_runs(fashion_mnist(options.data))
        fits = fit_cubics(runs)
        write(first, runs, summarize_by_gamma(runs))
        write(second, runs, fits)
    figures.save(figures.draw_against_gamma, runs, first)
    figures.save(partial(figures.draw_against_trace, fits=fits), runs, second)


if __name__ == "__main__":
    main()
