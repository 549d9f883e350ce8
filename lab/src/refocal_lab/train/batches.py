"""The training part on the device, and the batches of an epoch: order and augmentation are drawn at its start.

Everything random about an epoch follows from the seed and the number of the epoch, so that a run that was stopped goes
on as if it had not been. The tensors keep their places in memory: a captured step reads them anew at each replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from refocal_lab.train.data import Part
from refocal_lab.train.process import ALONE, Process

PADDING = 4
_EVALUATION_BATCH = 2_000


class Evaluation(Protocol):
    """A part of a data set on the device."""

    def logits(self, network: torch.nn.Module) -> Iterator[Tensor]:
        """Of its samples in their order, piece by piece."""


class BatchSource(Protocol):
    """What a step takes its batches from.

    Attributes:
        steps: How many there are in an epoch.
        fixed_shapes: Whether all batches have tensors of one shape, so that a step can be captured.
    """

    steps: int
    fixed_shapes: bool

    @property
    def size(self) -> int:
        """Samples a step in this process."""

    @property
    def position(self) -> Tensor:
        """The next step of the epoch (1,)."""

    @property
    def epoch_labels(self) -> Tensor:
        """The labels of the epoch's samples in the order of the steps (steps, size)."""

    def draw(self, epoch: int) -> None:
        """Choose what is random about an epoch and go to its beginning."""

    def next(self) -> tuple[Any, Tensor]:
        """What the network takes in the present step, and the labels (B,) of its logits, a sample's own first."""

    def go_on(self) -> None:
        """Move to the next step."""

    def select_samples(self, logits: Tensor) -> Tensor:
        """Of the logits of a step those that `epoch_labels` belong to (size, K)."""

    def evaluation(self, part: Part) -> Evaluation:
        """A part, to be evaluated again and again."""


class Order:
    """Which samples each step of an epoch has.

    Args:
        count: Number of samples.
        batch_size: Samples a step, over all processes.
        seed: Fixes the order.
        process: Which of the processes this is, and how many there are: each takes its share of every batch.
    """

    def __init__(self, count: int, *, batch_size: int, seed: int, process: Process = ALONE) -> None:
        self._count, self._seed, self._process = count, seed, process
        self._whole = min(batch_size, count)
        if self._whole % process.count:
            msg = f"batch_size must be a multiple of the number of processes {process.count}, got {self._whole}"
            raise ValueError(msg)
        self.steps, self.size = count // self._whole, self._whole // process.count

    def generator(self, epoch: int) -> np.random.Generator:
        """What all that is random about an epoch is drawn from, the order first."""
        return np.random.default_rng([self._seed, epoch])

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """The samples of an epoch (steps x batch_size,), over all processes."""
        return rng.permutation(self._count)[: self.steps * self._whole]

    def share(self, drawn: np.ndarray) -> np.ndarray:
        """What falls to this process (steps, size, ...) of values for all samples drawn."""
        return drawn.reshape(self.steps, self._whole, *drawn.shape[1:])[:, self._process.rank :: self._process.count]

    def rows(self, epoch: int) -> np.ndarray:
        """The samples of each step of an epoch (steps, size)."""
        return np.ascontiguousarray(self.share(self.draw(self.generator(epoch))))


class ArrayBatches(BatchSource):
    """Batches of a part of a data set.

    Args:
        inputs: Images (N, H, W, C) of bytes, or vectors (N, F).
        labels: Class indices (N,).
        mean: Of each channel or feature, subtracted from the inputs.
        std: Of each channel or feature; they are divided by it.
        augmentation: "crop-flip" or "crop" for images, or "none".
        batch_size: Samples a step, over all processes.
        seed: Fixes order and augmentation.
        device: Where the data live.
        dtype: Of the inputs that the network is given.
        process: As in `Order`.
    """

    fixed_shapes = True

    def __init__(
        self,
        inputs: np.ndarray,
        labels: np.ndarray,
        *,
        mean: np.ndarray,
        std: np.ndarray,
        augmentation: str,
        batch_size: int,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
        process: Process = ALONE,
    ) -> None:
        self._flips = augmentation == "crop-flip"
        self._order = Order(len(inputs), batch_size=batch_size, seed=seed, process=process)
        self.steps = self._order.steps
        self._extent = inputs.shape[1:3] if augmentation != "none" else None
        if self._extent:
            border = (PADDING, PADDING)
            inputs = np.pad(inputs, ((0, 0), border, border, (0, 0)))
        self._inputs = torch.from_numpy(np.ascontiguousarray(inputs)).to(device)
        self._labels = torch.from_numpy(labels).to(device)
        self._mean = torch.from_numpy(np.asarray(mean, np.float32)).to(device)
        self._scale = torch.from_numpy(1 / np.asarray(std, np.float32)).to(device)
        self._dtype = dtype
        self._choices = torch.zeros((self.steps, self._order.size, 4), dtype=torch.int64, device=device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def size(self) -> int:
        """Samples a step in this process."""
        return self._choices.shape[1]

    @property
    def position(self) -> Tensor:
        """The next step of the epoch (1,)."""
        return self._position

    @property
    def epoch_labels(self) -> Tensor:
        """The labels of the epoch's samples in the order of the steps (steps, size)."""
        return self._labels[self._choices[:, :, 0]]

    def draw(self, epoch: int) -> None:
        """Choose order, windows and reflections of an epoch and go to its beginning."""
        rng = self._order.generator(epoch)
        order = self._order.draw(rng)
        choices = np.zeros((len(order), 4), np.int64)
        choices[:, 0] = order
        if self._extent:
            choices[:, 1:3] = rng.integers(0, 2 * PADDING + 1, (len(order), 2))
        if self._flips:
            choices[:, 3] = rng.integers(0, 2, len(order))
        self._choices.copy_(torch.from_numpy(np.ascontiguousarray(self._order.share(choices))))
        self._position.zero_()

    def next(self) -> tuple[Tensor, Tensor]:
        """Inputs (B, C, H, W), channels last in memory, or (B, F), and labels (B,) of the present step."""
        index, top, left, mirrored = self._choices.index_select(0, self._position)[0].unbind(1)
        if self._extent is None:
            inputs = self._inputs[index]
        else:
            rows, columns = (torch.arange(length, device=index.device) for length in self._extent)
            columns = torch.where(mirrored[:, None] > 0, self._extent[1] - 1 - columns, columns)
            inputs = self._inputs[
                index[:, None, None], (top[:, None] + rows)[:, :, None], (left[:, None] + columns)[:, None, :]
            ]
        return normalize(inputs, self._mean, self._scale, self._dtype), self._labels[index]

    def go_on(self) -> None:
        """Move to the next step."""
        self._position.add_(1)

    def select_samples(self, logits: Tensor) -> Tensor:
        """All: each sample has one row."""
        return logits

    def evaluation(self, part: Part) -> Evaluation:
        """A part, to be evaluated again and again, without augmentation."""
        assert isinstance(part.inputs, np.ndarray)
        inputs = torch.from_numpy(part.inputs).to(self._labels.device)
        return ArrayEvaluation(inputs, mean=self._mean, scale=self._scale, dtype=self._dtype)


class ArrayEvaluation(Evaluation):
    """Inputs on the device, normalized where they are used."""

    def __init__(self, inputs: Tensor, *, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        self._inputs, self._mean, self._scale, self._dtype = inputs, mean, scale, dtype

    def logits(self, network: torch.nn.Module) -> Iterator[Tensor]:
        """Of all samples, piece by piece."""
        for first in range(0, len(self._inputs), _EVALUATION_BATCH):
            inputs = self._inputs[first : first + _EVALUATION_BATCH]
            yield network(normalize(inputs, self._mean, self._scale, self._dtype))


def normalize(inputs: Tensor, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs as a network takes them: (inputs - mean) scale, images as (B, C, H, W) with channels last in memory."""
    values = ((inputs.float() - mean) * scale).to(dtype)
    return values.permute(0, 3, 1, 2) if values.ndim == 4 else values
