"""Continuing a run that was stopped: how far it is, and whether it was started with the same settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refocal_lab.train import checkpoint
from refocal_lab.train.recipe import TrainingRecipe, parse_recipe
from refocal_lab.train.run_folder import RunFolder


def count_epochs_done(folder: RunFolder, recipe: TrainingRecipe, *, processes: int) -> int:
    """The number of epochs that the run in a folder has behind it.

    Raises:
        ValueError: The run was started with other settings, or with another number of processes.
    """
    if folder.is_finished:
        epochs, settings = recipe.epochs, folder.read_card()["recipe"]
    elif folder.checkpoint.exists():
        info = checkpoint.read_info(folder.checkpoint)
        epochs, settings = info.epochs, info.recipe(folder.checkpoint)
        if info.processes != processes:
            msg = (
                f"{folder} holds a run of {info.processes} processes, this is one of {processes}: batch norm and some "
                "losses see a process's share of the batch; start as many, or choose another folder"
            )
            raise ValueError(msg)
    else:
        return 0
    check_same_settings(settings, recipe, folder)
    return epochs


def check_same_settings(settings: Mapping[str, Any], recipe: TrainingRecipe, folder: RunFolder) -> None:
    """Reject a recipe whose settings differ from those that a run was started with.

    Args:
        settings: Of the run; those that it does not name had their defaults.
        recipe: The recipe to continue with.
        folder: Of the run.
    """
    started = parse_recipe(settings, where=f"the run in {folder}").settings()
    for name, value in recipe.settings().items():
        if started[name] != value:
            msg = (
                f"{folder} holds a run with {name} = {started[name]!r}, got {value!r}: "
                "choose another folder, or remove this one"
            )
            raise ValueError(msg)
