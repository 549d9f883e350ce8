"""Checkpoints: all tensors of a training and where it stands, in one safetensors file, replaced whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from refocal._documents import check_regular, parse_json
from refocal._files import replacing


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or is of another training."""


class CheckpointInfo(NamedTuple):
    """Where a training stands.

    Attributes:
        epochs: How many are done.
        settings: What it was begun with, as JSON.
        processes: How many share its batches.
    """

    epochs: int
    settings: str
    processes: int

    def recipe(self, path: Path) -> dict[str, Any]:
        """The settings as a mapping."""

        def refuse(reason: str) -> CheckpointError:
            return CheckpointError(f"the checkpoint {path} cannot be read: its settings are no recipe ({reason})")

        settings = parse_json(self.settings, refuse)
        if not isinstance(settings, dict):
            reason = f"got {settings!r:.100}"
            raise refuse(reason)
        return settings


def save(path: Path, tensors: dict[str, Tensor], *, epochs: int, settings: str, processes: int = 1) -> None:
    """Write a checkpoint; a full disk leaves the one before."""
    import safetensors.torch

    content = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={"epochs": str(epochs), "settings": settings, "processes": str(processes)},
    )
    try:
        with replacing(path, overwrite=True) as file:
            file.write(content)
    except OSError as error:
        kept = "; the one before it is kept" if path.exists() else ""
        msg = f"the checkpoint {path} could not be written ({error.strerror}){kept}"
        raise OSError(error.errno, msg) from None


def load(path: Path) -> tuple[dict[str, Tensor], int, dict[str, Any]]:
    """Tensors, the number of epochs done, and the settings that were trained with."""
    with _open(path) as (file, about):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
        return tensors, about.epochs, about.recipe(path)


def read_info(path: Path) -> CheckpointInfo:
    """Where a training stands, without its tensors."""
    with _open(path) as (_, about):
        return about


@contextmanager
def _open(path: Path) -> Iterator[tuple[Any, CheckpointInfo]]:
    import safetensors

    try:
        check_regular(path)
        with safetensors.safe_open(path, framework="pt") as file:
            noted = file.metadata() or {}
            processes = int(noted.get("processes", 1))  # older checkpoints do not note them
            yield file, CheckpointInfo(int(noted["epochs"]), noted["settings"], processes)
    except CheckpointError:
        raise
    except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
        msg = f"the checkpoint {path} cannot be read ({error}); the run is left as it is, remove it to begin again"
        raise CheckpointError(msg) from None
