"""Whether the network, the loss and the augmentation of a recipe suit the data, found out before training starts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from refocal_lab.train.batches import normalize
from refocal_lab.train.data import DataSet
from refocal_lab.train.models import build, input_kind
from refocal_lab.train.objective import build_loss
from refocal_lab.train.own_parts import OwnPartError, describe, is_own
from refocal_lab.train.recipe import TrainingRecipe

_TRIED = 2  # samples


def check_suitable(recipe: TrainingRecipe, data: DataSet) -> None:
    """Reject a network, loss or augmentation that does not suit the data.

    The lab's own networks are built without memory for their weights. A network and a loss of your own are tried on
    two samples, because nothing is known about them.
    """
    if recipe.augmentation != "none" and len(data.shape) != 3:
        msg = f"augmentation {recipe.augmentation!r} is for images, got inputs of shape {data.shape}: use 'none'"
        raise ValueError(msg)
    if is_own(recipe.model):
        _try_network(recipe, data)
    else:
        takes = input_kind(recipe.model)
        if takes != data.kind:
            msg = f"model {recipe.model!r} takes {takes}, {data.name!r} has {data.kind}"
            raise ValueError(msg)
        with torch.device("meta"):
            build(recipe.model, classes=len(data.classes), shape=data.shape)
    if is_own(recipe.loss):
        _try_loss(recipe, classes=len(data.classes))


def _try_network(recipe: TrainingRecipe, data: DataSet) -> None:
    with torch.random.fork_rng(devices=[]):
        network = build(recipe.model, classes=len(data.classes), shape=data.shape).eval()
        if not any(weight.requires_grad for weight in network.parameters()):
            msg = f"model {recipe.model!r} has no parameters to train"
            raise OwnPartError(msg)
        if not isinstance(data.train.inputs, np.ndarray):
            return  # texts come in layouts of their own
        mean, std = (torch.from_numpy(np.asarray(each, np.float32)) for each in (data.mean, data.std))
        inputs = normalize(torch.from_numpy(data.train.inputs[:_TRIED]), mean, 1 / std, torch.float32)
        try:
            with torch.no_grad():
                logits = network(inputs)
        except Exception as error:
            msg = f"model {recipe.model!r} failed on inputs of shape {tuple(inputs.shape)}: {describe(error)}"
            raise OwnPartError(msg) from error
    wanted = (len(inputs), len(data.classes))
    if not isinstance(logits, Tensor) or logits.shape != wanted:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        msg = f"model {recipe.model!r} must return logits of shape {wanted}, got {found}"
        raise OwnPartError(msg)


def _try_loss(recipe: TrainingRecipe, *, classes: int) -> None:
    criterion = build_loss(recipe)
    if any(parameter.requires_grad for parameter in criterion.parameters()):
        msg = f"loss {recipe.loss!r} has parameters to train: only those of the network are trained, move them there"
        raise OwnPartError(msg)
    logits, labels = torch.zeros((_TRIED, classes), requires_grad=True), torch.arange(_TRIED) % classes
    try:
        value = criterion(logits, labels)
    except Exception as error:
        msg = f"loss {recipe.loss!r} failed on logits of shape {tuple(logits.shape)}: {describe(error)}"
        raise OwnPartError(msg) from error
    if not isinstance(value, Tensor) or value.ndim or not value.requires_grad:
        found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        if isinstance(value, Tensor) and not value.requires_grad:
            found += " without a gradient"
        msg = f"loss {recipe.loss!r} must return one number with a gradient, the mean over the batch, got {found}"
        raise OwnPartError(msg)
