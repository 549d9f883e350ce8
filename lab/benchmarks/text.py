"""Trees and messages per second, forward and backward on the CPU, compared with plain PyTorch in the same run.

Trees: the Tree-LSTM level by level against the same network node by node. Messages: the global pooling CNN on documents
joined end to end against a loop with a `DataLoader` over documents padded to 1,000 words. The plain versions have the
same weights, and their loss is compared before anything is timed. The texts are in $REFOCAL_DATA or --data.

    python benchmarks/text.py --data FOLDER --out benchmarks/results/text.md
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from refocal.losses import FocalLoss
from refocal_lab.train import data as data_sets
from refocal_lab.train.batches import Order
from refocal_lab.train.models import build
from refocal_lab.train.models.gp_cnn import GlobalPoolingCNN
from refocal_lab.train.models.tree_lstm import TreeLSTM
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.step import Step
from refocal_lab.train.text_batches import LONGEST, TextBatches

CPU = torch.device("cpu")
LOSS = FocalLoss(gamma=3.0)


@dataclass(frozen=True)
class Row:
    """One comparison: samples per second of both versions, round by round."""

    what: str
    batch: int
    plain: list[float]
    ours: list[float]


class Recursive:
    """The Tree-LSTM node by node, the straightforward way; only the words of a batch are looked up together."""

    def __init__(self, network: TreeLSTM) -> None:
        self._network = network

    def logits(self, vectors: Tensor, left: list[int], right: list[int]) -> list[Tensor]:
        """The logits of all nodes of a tree, each (1, classes)."""
        outputs: list[Tensor] = []
        self._climb(len(left) - 1, vectors, (left, right), outputs)
        return outputs

    def _climb(
        self, node: int, vectors: Tensor, children: tuple[list[int], list[int]], outputs: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        left, right = children
        network = self._network
        if left[node] < 0:
            c, gate = network.leaf(vectors[node : node + 1]).chunk(2, dim=1)
            h = torch.sigmoid(gate) * torch.tanh(c)
        else:
            c_left, h_left = self._climb(left[node], vectors, children, outputs)
            c_right, h_right = self._climb(right[node], vectors, children, outputs)
            gates = network.node(torch.cat([h_left, h_right], dim=1))
            i, f_left, f_right, o = torch.sigmoid(gates[:, : 4 * c_left.shape[1]]).chunk(4, dim=1)
            c = i * torch.tanh(gates[:, 4 * c_left.shape[1] :]) + f_left * c_left + f_right * c_right
            h = o * torch.tanh(c)
        outputs.append(network.head(h))
        return c, h


class PaddedCNN(nn.Module):
    """The global pooling CNN on documents padded to one length, with PyTorch's layers."""

    def __init__(self, network: GlobalPoolingCNN) -> None:
        super().__init__()
        self.network = network

    def forward(self, words: Tensor) -> Tensor:
        """Logits from words (N, LONGEST), with -1 for padding."""
        present = (words >= 0)[:, None].float()
        features = self.network.words(words.clamp(min=0)).mT * present
        for number, convolution in enumerate(self.network.convolutions):
            if number:
                features, present = F.max_pool1d(features, 5), F.max_pool1d(present, 5)
            features = torch.relu(convolution(features)) * present
        features = F.max_pool1d(features, features.shape[2])[:, :, 0]
        return self.network.head(torch.relu(self.network.dense(features)))


def run_rounds(
    plain: Callable[[int], int], ours: Callable[[int], int], repeats: int
) -> tuple[list[float], list[float]]:
    """Time both versions in turn, in samples per second. Each gets the number of the round and returns its samples."""
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(-1, repeats):  # the first round only warms up
        for rate, work in zip(rates, (plain, ours), strict=True):
            start = time.perf_counter()
            samples = work(number + 1)
            if number >= 0:
                rate.append(samples / (time.perf_counter() - start))
    return rates


def find_trained(network: nn.Module) -> list[Tensor]:
    """The parameters that have gradients."""
    return [weight for weight in network.parameters() if weight.requires_grad]


def measure_trees(data: data_sets.DataSet, batch: int, repeats: int) -> Row:
    """Forward and backward over batches of trees, both versions with the same weights."""
    torch.manual_seed(0)
    network = build("tree-lstm", classes=3, shape=data.shape).eval()  # without dropout, so that both are equal
    assert isinstance(network, TreeLSTM)
    forest, recursive = data.train.inputs, Recursive(network)
    order = Order(len(data.train), batch_size=batch, seed=0)
    batches = TextBatches(data.train, scored=data.scored, order=order, device=CPU)
    rows = order.rows(0)
    batches.draw(0)

    def loss_node_by_node(step: int) -> Tensor:
        chosen = forest[rows[step]]
        vectors = network.words(torch.from_numpy(chosen.words).clamp(min=0))
        logits = []
        for first, last in itertools.pairwise(chosen.starts):
            left, right = chosen.left[first:last].tolist(), chosen.right[first:last].tolist()
            logits += recursive.logits(vectors[first:last], left, right)
        return LOSS(torch.cat(logits), torch.from_numpy(chosen.labels))

    def loss_by_levels() -> Tensor:
        levels, labels = batches.next()
        batches.advance()
        return LOSS(network(levels), labels)

    torch.testing.assert_close(loss_node_by_node(0), loss_by_levels(), rtol=1e-4, atol=1e-6)
    batches.draw(0)

    def plain(step: int) -> int:
        torch.autograd.grad(loss_node_by_node(step), find_trained(network))
        return batch

    steps = max(1, 500 // batch)

    def ours(_step: int) -> int:
        batches.draw(0)
        for _ in range(steps):
            torch.autograd.grad(loss_by_levels(), find_trained(network))
        return steps * batch

    return Row("trees, forward and backward", batch, *run_rounds(plain, ours, repeats))


def measure_messages(data: data_sets.DataSet, batch: int, repeats: int, steps: int) -> Row:
    """Forward and backward over batches of messages, both versions with the same weights."""
    torch.manual_seed(0)
    network = build("gp-cnn", classes=20, shape=data.shape)
    assert isinstance(network, GlobalPoolingCNN)
    network.words.start_from(torch.from_numpy(data.vectors))
    padded_network = PaddedCNN(network)
    texts = data.train.inputs
    padded = np.full((len(texts), LONGEST), -1, np.int32)
    for row in range(len(texts)):
        words = texts.words[texts.starts[row] : texts.starts[row + 1]][-LONGEST:]
        padded[row, : len(words)] = words
    pairs = TensorDataset(torch.from_numpy(padded), torch.from_numpy(data.train.labels))
    loader = DataLoader(pairs, batch_size=batch, shuffle=True, generator=torch.Generator().manual_seed(0))
    order = Order(len(data.train), batch_size=batch, seed=0)
    batches = TextBatches(data.train, scored=None, order=order, device=CPU)
    batches.draw(0)
    documents, labels = batches.next()
    torch.testing.assert_close(
        LOSS(padded_network(torch.from_numpy(padded[order.rows(0)[0]])), labels),
        LOSS(network(documents), labels),
        rtol=1e-4,
        atol=1e-5,
    )

    def plain(_step: int) -> int:
        for number, (words, target) in enumerate(loader, start=1):
            torch.autograd.grad(LOSS(padded_network(words), target), find_trained(network))
            if number == steps:
                break
        return steps * batch

    def ours(step: int) -> int:
        batches.draw(step)
        for _ in range(steps):
            documents, labels = batches.next()
            torch.autograd.grad(LOSS(network(documents), labels), find_trained(network))
            batches.advance()
        return steps * batch

    return Row("messages, forward and backward", batch, *run_rounds(plain, ours, repeats))


def time_epoch(data: data_sets.DataSet) -> tuple[float, float]:
    """Seconds and processor seconds of a whole epoch of the recipe, optimizer included."""
    recipe = TrainingRecipe(data="sst", model="tree-lstm", loss="focal", gamma=3.0)
    torch.manual_seed(0)
    network = build("tree-lstm", classes=3, shape=data.shape)
    order = Order(len(data.train), batch_size=recipe.batch_size, seed=0)
    batches = TextBatches(data.train, scored=data.scored, order=order, device=CPU)
    step = Step(network, LOSS, batches, recipe, classes=3, half=False, compiled=False)
    start, busy = time.perf_counter(), time.process_time()
    step.run_epoch(0, rate=recipe.learning_rate)
    assert bool(torch.isfinite(step.losses).all()), "the loss is not finite"
    return time.perf_counter() - start, time.process_time() - busy


def render_table(rows: list[Row]) -> str:
    """The medians of the rounds, and the range of the ratio."""
    lines = ["| what | batch | plain, per second | ours, per second | ratio | smallest and largest ratio |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        ratios = sorted(ours / plain for plain, ours in zip(row.plain, row.ours, strict=True))
        lines.append(
            f"| {row.what} | {row.batch} | {statistics.median(row.plain):,.1f} | {statistics.median(row.ours):,.0f} "
            f"| {statistics.median(ratios):.1f} | {ratios[0]:.1f} - {ratios[-1]:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("REFOCAL_DATA"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="batches of messages per round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    sst = data_sets.load("sst", folder=options.data)
    rows = [measure_trees(sst, batch, options.repeats) for batch in (25, 256)]
    print(render_table(rows), flush=True)
    seconds, busy = time_epoch(sst)
    groups = data_sets.load("newsgroups20", folder=options.data)
    rows.append(measure_messages(groups, 128, options.repeats, options.steps))
    lengths = np.minimum(np.diff(groups.train.inputs.starts), LONGEST)
    text = (
        "# Texts: trees and messages per second\n\n"
        f"{platform.processor() or platform.machine()}, {options.threads} thread(s) beside other work, PyTorch "
        f"{torch.__version__}, Python {platform.python_version()}; focal loss, medians of {options.repeats} "
        "alternating rounds. Measured by `python benchmarks/text.py --out benchmarks/results/text.md`.\n\n"
        f"{render_table(rows)}\n\n"
        "Plain means the same network node by node, or a loop with a `DataLoader` over messages padded to "
        f"{LONGEST:,} words. On average, {lengths.mean():.0f} words of a message are read, at most {LONGEST:,}.\n\n"
        f"An epoch of the {len(sst.train):,} training trees of SST at batch 25, AdaGrad included, took {seconds:.1f} s "
        f"({busy:.1f} s of processor time).\n"
    )
    print(text)
    if options.out:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
