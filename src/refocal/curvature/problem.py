"""A problem: a copy of the network, its loss and the data, with the loss over all batches written as one sum."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, replace_all_batch_norm_modules_

from refocal.curvature.modes import StoppedGradients
from refocal.losses import SigmoidFocalLoss
from refocal.losses.base import AbstractSoftmaxLoss

Loss = Callable[[Tensor, Tensor], Tensor]
Data = Iterable[tuple[Tensor, Tensor]]
NOT_FINITE = "derivatives of the loss are not finite: look at its value and gradient on these data"
_ADD_OVER_SAMPLES = (AbstractSoftmaxLoss, SigmoidFocalLoss, nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)


class Batch(NamedTuple):
    """Inputs and targets of a batch."""

    inputs: Tensor
    target: Tensor


class Problem(NamedTuple):
    """The loss of a network as a function of its parameters: sum_b share_b loss(model(inputs_b), target_b).

    Attributes:
        model: The network.
        loss: The loss of a batch.
        parameters: Values of the parameters to differentiate in.
        batches: The data.
        total: The divisor of the loss over all data.
    """

    model: nn.Module
    loss: Any
    parameters: dict[str, Tensor]
    batches: list[Batch]
    total: float

    @property
    def size(self) -> int:
        """The number of parameters."""
        return sum(values.numel() for values in self.parameters.values())

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(iter(self.parameters.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The type in which products are computed: the widest type of the parameters."""
        return functools.reduce(torch.promote_types, (values.dtype for values in self.parameters.values()))

    def scores(self, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
        """The network's output with these parameters."""
        with torch.enable_grad(), StoppedGradients():
            return functional_call(self.model, parameters, (batch.inputs,))

    def share(self, target: Tensor) -> float:
        """The factor with which the loss of a batch enters the loss over all data."""
        return _divisor(self.loss, target) / self.total

    def loss_of_scores(self, scores: Tensor, batch: Batch) -> Tensor:
        """The part of the batch in the loss over all data, from its scores."""
        return self.share(batch.target) * self.loss(scores, batch.target)

    def value(self, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
        """The part of the batch in the loss over all data, from the parameters."""
        return self.loss_of_scores(self.scores(parameters, batch), batch)


def prepare(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    parameters: Sequence[str] | None,
    group: int | None,
    dtype: torch.dtype | None,
    batch_statistics: bool,
) -> Problem:
    """Copy the network in evaluation mode, choose its parameters, and give every batch its share.

    The copy leaves the mode, gradients and buffers of the user's network alone. Batches are stored, so that a loader
    that shuffles or augments is read only once.
    """
    _check_types(model, dtype)
    network = copy.deepcopy(model).eval()
    network = network if dtype is None else network.to(dtype)
    for module in network.modules():
        if isinstance(module, nn.RNNBase):
            # It would rearrange the weights for cuDNN. `PlainLayers` does not use cuDNN, and the weights that
            # functional_call puts in place have no memory of their own.
            module.flatten_parameters = _nothing  # type: ignore[method-assign]
    if batch_statistics:
        # Running statistics would be updated in place, which vmap cannot do.
        replace_all_batch_norm_modules_(network)
        for module in network.modules():
            module.training = isinstance(module, nn.modules.batchnorm._BatchNorm)
    chosen = _choose_parameters(network, parameters)
    network.requires_grad_(False)  # no graph for the others: it would be kept with every sum over batches
    first = next(iter(chosen.values()))
    for values in chosen.values():
        if values.dtype not in (torch.float32, torch.float64):
            advice = ": give dtype=torch.float32" if values.is_floating_point() else ""
            msg = f"model must compute in float32 or float64, got {values.dtype}{advice}"
            raise ValueError(msg)
    criterion = copy.deepcopy(loss).to(first.device, dtype) if isinstance(loss, nn.Module) else loss
    splits = group is not None and _adds_over_samples(loss) and not _mixes_samples(network)
    batches = []
    for inputs, target in _check_pairs(data):
        batch = Batch(_move(inputs, first.device, dtype), _move(target, first.device, dtype))
        size = group if splits and group is not None else len(target)
        parts = zip(torch.split(batch.inputs, size), torch.split(batch.target, size), strict=True)
        batches += [Batch(*part) for part in parts]
    counts = [_divisor(criterion, batch.target) for batch in batches]
    if not sum(counts) > 0:
        msg = "data must have a sample that counts: there is none, or every target is ignored or has weight 0"
        raise ValueError(msg)
    # The mean over a batch in which nothing counts would be 0 / 0.
    batches = [batch for batch, count in zip(batches, counts, strict=True) if count > 0]
    total = 1.0 if getattr(criterion, "reduction", "mean") == "sum" else sum(counts)
    return Problem(network, criterion, chosen, batches, total)


def _check_types(model: object, dtype: object) -> None:
    if not isinstance(model, nn.Module):
        msg = f"model must be a torch.nn.Module, got {type(model).__name__}"
        raise TypeError(msg)
    if dtype is not None and not isinstance(dtype, torch.dtype):
        msg = f"dtype must be a torch.dtype, such as torch.float64, got {dtype!r}"
        raise TypeError(msg)


def _nothing() -> None:
    pass


def layers(model: nn.Module) -> list[str]:
    """Names of the modules that own trainable parameters, to be given as `parameters=`.

    Args:
        model: A network.

    Returns:
        The names, in the network's order.

    Example:
        >>> layers(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        ['0', '2']
    """
    return [
        name
        for name, module in model.named_modules()
        if name and any(values.requires_grad for values in module.parameters(recurse=False))
    ]


def find_leaves(output: Tensor) -> list[Tensor]:
    """The tensors that require a gradient and that `output` was computed from: the leaves of its graph."""
    found: dict[int, Tensor] = {}
    seen: set[Any] = set()
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            found[id(leaf)] = leaf
        waiting.extend(previous for previous, _ in node.next_functions)
    return list(found.values())


def _choose_parameters(model: nn.Module, names: Sequence[str] | None) -> dict[str, Tensor]:
    trainable = {name: values for name, values in model.named_parameters() if values.requires_grad}
    if isinstance(names, str):
        names = [names]
    for name in names or ():
        if not any(_belongs(each, name) for each in trainable):
            msg = f"parameters must name trainable parameters or layers ({', '.join(trainable)}), got {name!r}"
            raise ValueError(msg)
    chosen = {
        each: values.detach()
        for each, values in trainable.items()
        if names is None or any(_belongs(each, name) for name in names)
    }
    if not chosen:
        msg = "model must have a parameter that requires a gradient, got none"
        raise ValueError(msg)
    return chosen


def _adds_over_samples(loss: Loss) -> bool:
    """Whether the loss of a batch is a sum over its samples, whatever their places are."""
    weighs_places = isinstance(loss, nn.BCEWithLogitsLoss) and loss.weight is not None  # maybe one weight per sample
    return isinstance(loss, _ADD_OVER_SAMPLES) and not weighs_places


def _mixes_samples(model: nn.Module) -> bool:
    """Whether a BatchNorm uses batch statistics. One without running statistics does so even in evaluation mode."""
    norms = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
    return any(norm.training or norm.running_mean is None for norm in norms)


def _belongs(parameter: str, name: str) -> bool:
    return parameter == name or parameter.startswith(f"{name}.")


def _check_pairs(data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    for pair in data:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(each, Tensor) for each in pair)):
            got = [type(each).__name__ for each in pair] if isinstance(pair, (tuple, list)) else [type(pair).__name__]
            msg = f"data must yield pairs of tensors (inputs, target), got {', '.join(got)}"
            raise TypeError(msg)
        if pair[1].ndim == 0 or len(pair[0]) != len(pair[1]):
            shapes = f"{tuple(pair[0].shape)} and {tuple(pair[1].shape)}"
            msg = f"data must yield as many inputs as targets, got shapes {shapes}"
            raise ValueError(msg)
        yield pair[0], pair[1]


def _move(values: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    return values.detach().to(device, dtype if values.is_floating_point() else None)


def _divisor(loss: Any, target: Tensor) -> float:
    """The divisor of a mean over this batch; 1 for a sum.

    If targets are not class indices (class probabilities, or one number per score), every number counts: a factor that
    is the same in all batches cancels in their shares.
    """
    reduction = getattr(loss, "reduction", None)
    if reduction not in (None, "mean", "sum"):
        msg = f"loss must reduce to one number, by 'mean' or 'sum', got reduction={reduction!r}"
        raise ValueError(msg)
    if reduction == "sum":
        return 1.0
    if reduction is None:
        return float(len(target))
    if isinstance(loss, SigmoidFocalLoss):
        return float(target.ne(loss.ignore_index).sum())
    if target.is_floating_point():
        return float(target.numel())
    ignored, weight = getattr(loss, "ignore_index", None), getattr(loss, "weight", None)
    target = target.long()  # uint8 would be taken as a mask
    kept = target.flatten() if ignored is None else target[target != ignored]
    return float(len(kept) if weight is None else weight.flatten()[kept].sum())
