"""Checkpoints: all tensors of a training and where it stands, in one safetensors file, replaced whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from refocal._files import replacing


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, or is of another training."""


def save(path: Path, tensors: dict[str, Tensor], *, epochs: int, settings: str) -> None:
    """Write a checkpoint; a full disk leaves the one before."""
    import safetensors.torch

    content = safetensors.torch.save(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        metadata={"epochs": str(epochs), "settings": settings},
    )
    try:
        with replacing(path, overwrite=True) as file:
            file.write(content)
    except OSError as error:
        kept = "; the one before it is kept" if path.exists() else ""
        msg = f"the checkpoint {path} could not be written ({error.strerror}){kept}"
        raise OSError(error.errno, msg) from None


def load(path: Path) -> tuple[dict[str, Tensor], int, str]:
    """Tensors, the number of epochs done, and the settings that were trained with."""
    with _opened(path) as (file, epochs, settings):
        return {name: file.get_tensor(name) for name in file.keys()}, epochs, settings  # noqa: SIM118  (no mapping)


def read_about(path: Path) -> tuple[int, str]:
    """The number of epochs done, and the settings that were trained with, alone."""
    with _opened(path) as (_, epochs, settings):
        return epochs, settings


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, int, str]]:
    import safetensors

    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            yield file, int(about["epochs"]), about["settings"]
    except (safetensors.SafetensorError, OSError, KeyError, ValueError) as error:
        msg = f"the checkpoint {path} cannot be read ({error}); the run is left as it is, remove it to begin again"
        raise CheckpointError(msg) from None
