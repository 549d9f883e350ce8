"""Checkpoints: all tensors of a training and its progress, in one safetensors file, replaced whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from refocal._documents import check_regular, parse_json
from refocal._files import replacing


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or that belongs to another training."""


class CheckpointInfo(NamedTuple):
    """The progress of a training.

    Attributes:
        epochs: Number of epochs done.
        settings: Settings that it was started with, as JSON.
        processes: Number of processes that share its batches.
    """

    epochs: int
    settings: str
    processes: int

    def recipe(self, path: Path) -> dict[str, Any]:
        """The settings as a mapping."""

        def refuse(reason: str) -> CheckpointError:
            return CheckpointError(f"the checkpoint {path} cannot be read: its settings are not a recipe ({reason})")

        settings = parse_json(self.settings, refuse)
        if not isinstance(settings, dict):
            reason = f"got {settings!r:.100}"
            raise refuse(reason)
        return settings


def save(path: Path, tensors: dict[str, Tensor], *, epochs: int, settings: str, processes: int = 1) -> None:
    """Write a checkpoint. If the disk is full, the previous one stays."""
    import safetensors.torch

    content = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={"epochs": str(epochs), "settings": settings, "processes": str(processes)},
    )
    try:
        with replacing(path, overwrite=True) as file:
            file.write(content)
    except OSError as error:
        kept = "; the previous one is kept" if path.exists() else ""
        msg = f"the checkpoint {path} could not be written ({error.strerror}){kept}"
        raise OSError(error.errno, msg) from None


def load(path: Path) -> tuple[dict[str, Tensor], int, dict[str, Any]]:
    """Read the tensors, the number of epochs done, and the settings of the training."""
    with _open(path) as (file, info):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        return tensors, info.epochs, info.recipe(path)


def read_info(path: Path) -> CheckpointInfo:
    """Read the progress of a training, without its tensors."""
    with _open(path) as (_, info):
        return info


@contextmanager
def _open(path: Path) -> Iterator[tuple[Any, CheckpointInfo]]:
    import safetensors

    try:
        check_regular(path)
        with safetensors.safe_open(path, framework="pt") as file:
            noted = file.metadata() or {}
            processes = int(noted.get("processes", 1))  # older checkpoints have no such entry
            yield file, CheckpointInfo(int(noted["epochs"]), noted["settings"], processes)
    except CheckpointError:
        raise
    except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
        msg = f"the checkpoint {path} cannot be read ({error}); the run is unchanged; remove it to start again"
        raise CheckpointError(msg) from None
