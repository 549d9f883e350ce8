"""The training part on the device, and the batches of an epoch: order and augmentation are drawn at its start.

Everything random about an epoch follows from the seed and the number of the epoch, so that a run that was stopped goes
on as if it had not been. The tensors keep their places in memory: a captured step reads them anew at each replay.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PADDING = 4


class Batches:
    """Batches of a part of a data set.

    Args:
        inputs: Images (N, H, W, C) of bytes, or vectors (N, F).
        labels: Class indices (N,).
        mean: Of each channel or feature, subtracted from the inputs.
        std: Of each channel or feature; they are divided by it.
        augmentation: "crop-flip", "crop" or "none".
        batch_size: Samples a step, over all processes.
        seed: Fixes order and augmentation.
        device: Where the data live.
        dtype: Of the inputs that the network is given.
        process: Which of the processes this is, and how many there are: each takes its share of every batch.
    """

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
        process: tuple[int, int] = (0, 1),
    ) -> None:
        if augmentation != "none" and inputs.ndim != 4:
            msg = f"augmentation {augmentation!r} is for images, got inputs of shape {inputs.shape}: use 'none'"
            raise ValueError(msg)
        self._seed, self._flips = seed, augmentation == "crop-flip"
        self._process = process
        self._count, self._size = len(inputs), min(batch_size, len(inputs))
        if self._size % process[1]:
            msg = f"batch_size must be a multiple of the number of processes {process[1]}, got {self._size}"
            raise ValueError(msg)
        self.steps = self._count // self._size
        self._extent = inputs.shape[1:3] if augmentation != "none" else None
        if self._extent:
            border = (PADDING, PADDING)
            inputs = np.pad(inputs, ((0, 0), border, border, (0, 0)))
        self._inputs = torch.from_numpy(np.ascontiguousarray(inputs)).to(device)
        self._labels = torch.from_numpy(labels).to(device)
        self._mean = torch.from_numpy(np.asarray(mean, np.float32)).to(device)
        self._scale = torch.from_numpy(1 / np.asarray(std, np.float32)).to(device)
        self._dtype = dtype
        self._choices = torch.zeros((self.steps, self._size // process[1], 4), dtype=torch.int64, device=device)
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

    @property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """What inputs are shifted and multiplied by: mean, and one over the standard deviation."""
        return self._mean, self._scale

    def draw(self, epoch: int) -> None:
        """Choose order, windows and reflections of an epoch and go to its beginning."""
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(self._count)[: self.steps * self._size]
        choices = np.zeros((len(order), 4), np.int64)
        choices[:, 0] = order
        if self._extent:
            choices[:, 1:3] = rng.integers(0, 2 * PADDING + 1, (len(order), 2))
        if self._flips:
            choices[:, 3] = rng.integers(0, 2, len(order))
        rank, processes = self._process
        mine = choices.reshape(self.steps, self._size, 4)[:, rank::processes]
        self._choices.copy_(torch.from_numpy(np.ascontiguousarray(mine)))
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
        return normalised(inputs, self._mean, self._scale, self._dtype), self._labels[index]

    def go_on(self) -> None:
        """Move to the next step."""
        self._position.add_(1)


def normalised(inputs: Tensor, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Inputs as a network takes them: (inputs - mean) scale, images as (B, C, H, W) with channels last in memory."""
    values = ((inputs.float() - mean) * scale).to(dtype)
    return values.permute(0, 3, 1, 2) if values.ndim == 4 else values
