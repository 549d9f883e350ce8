"""The training part on the device, and the batches of an epoch, whose order and augmentation are drawn at its start.

Everything random about an epoch follows from the seed and the number of the epoch, so a stopped run continues as if it
had never stopped. The tensors keep their places in memory, because a captured step reads them again at each replay.
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
    """A part of a data set on the device, to be evaluated again and again."""

    def logits(self, network: torch.nn.Module) -> Iterator[Tensor]:
        """The logits of the samples in their order, piece by piece."""


class BatchSource(Protocol):
    """The batches of a training part, for `Step`.

    Attributes:
        steps: Number of steps per epoch.
        fixed_shapes: Whether all batches have tensors of one shape, so that a step can be captured.
    """

    steps: int
    fixed_shapes: bool

    @property
    def size(self) -> int:
        """Samples per step in this process."""

    @property
    def position(self) -> Tensor:
        """The next step of the epoch (1,)."""

    @property
    def epoch_labels(self) -> Tensor:
        """Labels (steps, size) of the samples of the epoch."""

    def draw(self, epoch: int) -> None:
        """Draw everything random about an epoch and go to its first step."""

    def next(self) -> tuple[Any, Tensor]:
        """The inputs of the present step, and the labels (B,) of its logits; those of the samples come first."""

    def advance(self) -> None:
        """Go to the next step."""

    def select_samples(self, logits: Tensor) -> Tensor:
        """The logits (size, K) of a step that belong to `epoch_labels`."""

    def evaluation(self, part: Part) -> Evaluation:
        """Prepare a part for evaluation."""


class Order:
    """The order of the samples in an epoch.

    Args:
        count: Number of samples.
        batch_size: Samples per step, over all processes.
        seed: Fixes the order.
        process: This process; each one takes its share of every batch.
    """

    def __init__(self, count: int, *, batch_size: int, seed: int, process: Process = ALONE) -> None:
        self._count, self._seed, self._process = count, seed, process
        self._whole = min(batch_size, count)
        if self._whole % process.count:
            msg = f"batch_size must be a multiple of the number of processes {process.count}, got {self._whole}"
            raise ValueError(msg)
        self.steps, self.size = count // self._whole, self._whole // process.count

    def generator(self, epoch: int) -> np.random.Generator:
        """The source of everything random about an epoch; the order is drawn first."""
        return np.random.default_rng([self._seed, epoch])

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draw the samples (steps x batch_size,) of an epoch, over all processes."""
        return rng.permutation(self._count)[: self.steps * self._whole]

    def share(self, drawn: np.ndarray) -> np.ndarray:
        """This process's share (steps, size, ...) of values for all drawn samples."""
        return drawn.reshape(self.steps, self._whole, *drawn.shape[1:])[:, self._process.rank :: self._process.count]

    def rows(self, epoch: int) -> np.ndarray:
        """The samples (steps, size) of an epoch in this process."""
        return np.ascontiguousarray(self.share(self.draw(self.generator(epoch))))


class ArrayBatches(BatchSource):
    """Batches of images or vectors.

    Args:
        inputs: Images (N, H, W, C) of bytes, or vectors (N, F).
        labels: Class indices (N,).
        mean: One value per channel, or one for vectors; subtracted from the inputs.
        std: The same; the inputs are divided by it.
        augmentation: "crop-flip" or "crop" for images, or "none".
        batch_size: Samples per step, over all processes.
        seed: Fixes order and augmentation.
        device: Where the data are.
        dtype: Type of the network's inputs.
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
        """Samples per step in this process."""
        return self._choices.shape[1]

    @property
    def position(self) -> Tensor:
        """The next step of the epoch (1,)."""
        return self._position

    @property
    def epoch_labels(self) -> Tensor:
        """Labels (steps, size) of the samples of the epoch."""
        return self._labels[self._choices[:, :, 0]]

    def draw(self, epoch: int) -> None:
        """Draw the order, crops and reflections of an epoch and go to its first step."""
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
        """Inputs (B, C, H, W) with channels last in memory, or (B, F), and labels (B,) of the present step."""
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

    def advance(self) -> None:
        """Go to the next step."""
        self._position.add_(1)

    def select_samples(self, logits: Tensor) -> Tensor:
        """All of them: each sample has one row."""
        return logits

    def evaluation(self, part: Part) -> Evaluation:
        """Prepare a part for evaluation, without augmentation."""
        assert isinstance(part.inputs, np.ndarray)
        inputs = torch.from_numpy(part.inputs).to(self._labels.device)
        return ArrayEvaluation(inputs, mean=self._mean, scale=self._scale, dtype=self._dtype)


class ArrayEvaluation(Evaluation):
    """Images or vectors of a part on the device, normalized when they are used."""

    def __init__(self, inputs: Tensor, *, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        self._inputs, self._mean, self._scale, self._dtype = inputs, mean, scale, dtype

    def logits(self, network: torch.nn.Module) -> Iterator[Tensor]:
        """The logits of all samples, piece by piece."""
        for first in range(0, len(self._inputs), _EVALUATION_BATCH):
            inputs = self._inputs[first : first + _EVALUATION_BATCH]
            yield network(normalize(inputs, self._mean, self._scale, self._dtype))


def normalize(inputs: Tensor, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn inputs into those of a network, (inputs - mean) scale; images as (B, C, H, W), channels last in memory."""
    values = ((inputs.float() - mean) * scale).to(dtype)
    return values.permute(0, 3, 1, 2) if values.ndim == 4 else values
