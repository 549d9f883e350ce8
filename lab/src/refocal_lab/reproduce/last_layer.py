"""Gradient norms of the last linear layer, as in Figure 4 (b-d) of Mukhoti et al. (2020)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

_BATCH = 500


def gradient_norms(network: nn.Module, loss: nn.Module, inputs: Tensor, labels: Tensor) -> np.ndarray:
    """Compute, for each sample, the norm of the gradient of its loss with respect to the last layer's weights.

    With features h and logits z = W h + b, the gradient is (dL/dz) h^T, so its norm is |dL/dz| |h|, and one pass
    through the network is enough.

    Args:
        network: A network in evaluation mode whose last step is a linear layer.
        loss: A loss of logits and labels that is a mean over samples.
        inputs: Inputs (N, ...).
        labels: Class indices (N,).

    Returns:
        Norms (N,) in float64.

    Raises:
        ValueError: If the network is in training mode, where samples of a batch depend on each other, or its output is
            not that of a linear layer.

    Example:
        >>> import torch
        >>> network = torch.nn.Sequential(torch.nn.Linear(3, 2)).eval()
        >>> gradient_norms(network, torch.nn.CrossEntropyLoss(), torch.zeros(4, 3), torch.tensor([0, 1, 1, 0]))
        array([0., 0., 0., 0.])

    Reference: Mukhoti et al. (2020), Figure 4 and Proposition 1.
    """
    import torch

    if network.training:
        msg = "network must be in evaluation mode, got one in training mode: call network.eval()"
        raise ValueError(msg)
    found = [np.zeros(0)]
    for samples, target in zip(torch.split(inputs, _BATCH), torch.split(labels, _BATCH), strict=True):
        features, logits = _split_last_layer(network, samples)
        logits.requires_grad_()
        with torch.enable_grad():
            # a mean over samples divides each gradient by their number
            total = loss(logits, target) * len(target)
        (slopes,) = torch.autograd.grad(total, logits)
        found.append((slopes.double().norm(dim=1) * features.double().norm(dim=1)).cpu().numpy())
    return np.concatenate(found)


def _split_last_layer(network: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the input and the output of the linear layer that makes the logits."""
    import torch
    from torch import nn

    passed: list[tuple[Tensor, Tensor]] = []

    def keep(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        passed.append((given[0], made))

    handles = [layer.register_forward_hook(keep) for layer in network.modules() if isinstance(layer, nn.Linear)]
    try:
        with torch.no_grad():
            output = network(inputs)
    finally:
        for handle in handles:
            handle.remove()
    last = next((each for each in reversed(passed) if each[1] is output), None)
    if last is None or last[0].ndim != 2:
        msg = f"network must end with a linear layer of vectors, got {type(network).__name__}"
        raise ValueError(msg)
    return last[0].detach(), last[1].detach().clone()


def measure_run(
    run: str | os.PathLike[str], *, folder: str | os.PathLike[str] | None = None, part: str = "train"
) -> np.ndarray:
    """Compute the norms for a finished run of `refocal-lab train` and its own loss, over a part of its data.

    The paper's histograms need the networks after epochs 10, 100 and 200: a run of 10 epochs with the milestones of the
    long run ends with the weights that the long run has then.

    Args:
        run: Folder of the run, with its weights.
        folder: Folder of data sets; None for the usual places.
        part: "train", "val" or "test".

    Returns:
        Norms (N,).
    """
    import torch

    from refocal_lab.train.batches import normalize
    from refocal_lab.train.data import load
    from refocal_lab.train.trained_network import load_loss, load_network, read_trained_recipe

    recipe = read_trained_recipe(run)
    data = load(recipe.data, folder=folder, split_seed=recipe.split_seed)
    network = load_network(run, classes=len(data.classes), shape=data.shape)
    loss, samples = load_loss(run), getattr(data, part)
    mean, std = (torch.from_numpy(each).float() for each in (data.mean, data.std))
    batches = (torch.split(torch.from_numpy(each), _BATCH) for each in (samples.inputs, samples.labels))
    return np.concatenate(
        [
            gradient_norms(network, loss, normalize(inputs, mean, 1 / std, torch.float32), labels)
            for inputs, labels in zip(*batches, strict=True)
        ]
    )
