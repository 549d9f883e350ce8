"""The processes of a distributed training: which one this is, its device, and the tensors that they exchange."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Process:
    """One of the processes that share the batches of a training.

    Attributes:
        rank: Its number, counted from 0.
        count: Number of processes.

    Example:
        >>> Process().leads, Process(rank=1, count=2).leads
        (True, False)
    """

    rank: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.count:
            msg = f"rank must be 0 to {self.count - 1} for {self.count} processes, got {self.rank}"
            raise ValueError(msg)

    @property
    def leads(self) -> bool:
        """Whether this process writes the files and prints."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there are no other processes."""
        return self.count == 1


ALONE = Process()


def join_processes(device: str | None) -> Process:
    """Join the other processes, if torchrun started several.

    Args:
        device: Where to train; None for a GPU if there is one.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return ALONE
    on_gpu = torch.cuda.is_available() if device is None else _parse_device(device).type == "cuda"
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    return Process(torch.distributed.get_rank(), count)


def choose_device(asked: str | None, process: Process = ALONE) -> torch.device:
    """The device to compute on: by default a GPU if there is one, and for each of several processes its own."""
    name = asked or ("cuda" if torch.cuda.is_available() else "cpu")
    device = _parse_device(name)
    if device.type == "cuda":
        if not torch.cuda.is_available():
            msg = f"device {name!r} needs a GPU that PyTorch can use; there is none"
            raise ValueError(msg)
        index = device.index or 0 if process.is_alone else int(os.environ["LOCAL_RANK"])
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    return device


def _parse_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        msg = f"device must be 'cpu', 'cuda' or 'cuda:N', got {name!r}"
        raise ValueError(msg)
    return device


def combine(tensors: list[Any], *, summed: bool) -> None:
    """Turn gradients or losses of this process's share of a batch into those of the whole batch, in place.

    Args:
        tensors: Of the same shapes in all processes.
        summed: Whether the loss is a sum over the batch, not a mean.
    """
    if not _is_distributed():
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    torch.distributed.all_reduce(flat)
    if not summed:
        flat /= torch.distributed.get_world_size()
    for tensor, part in zip(tensors, torch.split(flat, [each.numel() for each in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


def gather(tensor: Tensor) -> Tensor:
    """The tensors of all processes, which have one shape, joined along the first dimension."""
    if not _is_distributed():
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, tensor)
    return torch.cat(parts)


def share_buffers(network: nn.Module) -> None:
    """Continue in all processes with the running statistics of the first one; each gathers its own."""
    if _is_distributed():
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, src=0)


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
