"""The network and the loss of a finished run, loaded again from its folder."""

from __future__ import annotations

import os
from dataclasses import replace

from torch import nn

from refocal.losses import Scheduled, find_policy
from refocal_lab.train import checkpoint
from refocal_lab.train.models import build
from refocal_lab.train.objective import SCHEDULED, build_loss, gamma_at_epoch
from refocal_lab.train.own_parts import is_own
from refocal_lab.train.recipe import TrainingRecipe, parse_recipe
from refocal_lab.train.run_folder import RunFolder


def read_trained_recipe(path: str | os.PathLike[str]) -> TrainingRecipe:
    """The recipe of a finished run."""
    return parse_recipe(RunFolder(path).read_card()["recipe"], where=f"the card of {path}")


def load_network(path: str | os.PathLike[str], *, classes: int, shape: tuple[int, ...]) -> nn.Module:
    """The trained network of a finished run, in evaluation mode on the CPU.

    Args:
        path: Folder of the run.
        classes: Number of classes.
        shape: Of one sample; `DataSet.shape`.

    Raises:
        FileNotFoundError: The run is not finished.
        ValueError: The weights are damaged, or are those of another network.
    """
    folder = RunFolder(path)
    network = build(read_trained_recipe(path).model, classes=classes, shape=shape)
    weights = folder.read_weights()
    try:
        found = network.load_state_dict(weights, strict=False)
    except RuntimeError as error:
        msg = f"{folder.weights} cannot be read: {error}"
        raise ValueError(msg) from error
    # a tensor that layers share has several names, of which the file has the first
    names = {name for name, _ in (*network.named_parameters(), *network.named_buffers())}
    if misfits := names.intersection(found.missing_keys).union(found.unexpected_keys):
        msg = f"{folder.weights} cannot be read: it is of another network, {min(misfits)} does not fit"
        raise ValueError(msg)
    return network.eval()


def load_loss(path: str | os.PathLike[str]) -> nn.Module:
    """The loss that a finished run was trained with; if it changes by epoch, that of the epoch whose network is kept.

    Raises:
        FileNotFoundError: The run is not finished, or the checkpoint with the learned gammas is missing.
        CheckpointError: The checkpoint does not hold the learned gammas.
    """
    folder = RunFolder(path)
    recipe = read_trained_recipe(path)
    if recipe.loss in SCHEDULED:
        kept = folder.read_card().get("kept_epoch", recipe.epochs)
        recipe = replace(recipe, loss="focal", gamma=gamma_at_epoch(recipe.loss, epochs=recipe.epochs, epoch=kept))
    loss = build_loss(recipe)
    policy = find_policy(loss)
    if policy is not None and is_own(recipe.loss):
        policy.resume(folder.read_card().get("kept_epoch", recipe.epochs) - 1)
    learned = {} if policy is None else policy.learned
    if learned:
        file = folder.best if recipe.keep != "last" else folder.checkpoint
        if not file.exists():
            msg = f"{path} has no {file.name}, which holds the learned gammas: use cross-entropy instead"
            raise FileNotFoundError(msg)
        tensors, _, _ = checkpoint.load(file)
        for name, tensor in learned.items():
            found = tensors.get(f"loss.gamma.{name}")
            if found is None or found.shape != tensor.shape:
                msg = f"the checkpoint {file} does not hold the learned gammas: loss.gamma.{name} does not fit"
                raise checkpoint.CheckpointError(msg)
            tensor.copy_(found)
    if policy is not None and policy.current_gamma is not None and policy.closed_form_gamma is not None:
        # A schedule's posterior is that of the epochs it has completed; here the kept epoch counts for both.
        loss.gamma = Scheduled((), (policy.current_gamma,))
    return loss
