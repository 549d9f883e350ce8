"""What is measured: a copy of the network, its loss and the data, with the loss over all batches written as one sum."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, replace_all_batch_norm_modules_
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from refocal.curvature.convolution import SmoothConvolutions
from refocal.curvature.plain_layers import PlainLayers
from refocal.losses import SigmoidFocalLoss
from refocal.losses.base import AbstractSoftmaxLoss

Loss = Callable[[Tensor, Tensor], Tensor]
Data = Iterable[tuple[Tensor, Tensor]]
NOT_FINITE = "derivatives of the loss are not finite: look at its value and gradient on these data"
_DATA = Tensor.data.__get__  # type: ignore[attr-defined]
_ADD_OVER_SAMPLES = (AbstractSoftmaxLoss, SigmoidFocalLoss, nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)


class Batch(NamedTuple):
    """Inputs and targets."""

    inputs: Tensor
    target: Tensor


class Problem(NamedTuple):
    """The loss of a network as a function of its parameters: sum_b share_b loss(model(inputs_b), target_b).

    Attributes:
        model: The network.
        loss: The loss of a batch.
        parameters: Values of the parameters to differentiate in.
        batches: The data.
        total: What the loss over all data divides by.
    """

    model: nn.Module
    loss: Any
    parameters: dict[str, Tensor]
    batches: list[Batch]
    total: float

    @property
    def size(self) -> int:
        """How many numbers the parameters are."""
        return sum(values.numel() for values in self.parameters.values())

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self.parameters.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The type that products are computed in: the widest of the parameters'."""
        return functools.reduce(torch.promote_types, (values.dtype for values in self.parameters.values()))

    def scores(self, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
        """The network's output with these parameters."""
        with torch.enable_grad(), _NoGradForward():
            return functional_call(self.model, parameters, (batch.inputs,))

    def share(self, target: Tensor) -> float:
        """The factor with which the loss of a batch enters the loss over all data."""
        return _counted(self.loss, target) / self.total

    def loss_of_scores(self, scores: Tensor, batch: Batch) -> Tensor:
        """What the batch adds to the loss over all data."""
        return self.share(batch.target) * self.loss(scores, batch.target)

    def value(self, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
        """The same as a function of the parameters."""
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

    Working on a copy leaves mode, gradients and buffers of the user's network alone; keeping the batches makes a
    loader that shuffles or augments deterministic.
    """
    network = copy.deepcopy(model).eval()
    network = network if dtype is None else network.to(dtype)
    for module in network.modules():
        if isinstance(module, nn.RNNBase):
            # for cuDNN, which `PlainLayers` does without, it would lay out weights whose place in memory is not theirs
            module.flatten_parameters = _nothing  # type: ignore[method-assign]
    if batch_statistics:
        # they would be updated in place, which a product with many vectors at once cannot do
        replace_all_batch_norm_modules_(network)
        for module in network.modules():
            module.training = isinstance(module, nn.modules.batchnorm._BatchNorm)
    chosen = _chosen(network, parameters)
    first = next(iter(chosen.values()))
    for values in chosen.values():
        if values.dtype not in (torch.float32, torch.float64):
            advice = ": give dtype=torch.float32" if values.is_floating_point() else ""
            msg = f"model must compute in float32 or float64, got {values.dtype}{advice}"
            raise ValueError(msg)
    criterion = copy.deepcopy(loss).to(first.device, dtype) if isinstance(loss, nn.Module) else loss
    splits = group is not None and isinstance(loss, _ADD_OVER_SAMPLES) and not _mixes_samples(network)
    batches = []
    for inputs, target in _pairs(data):
        batch = Batch(_moved(inputs, first.device, dtype), _moved(target, first.device, dtype))
        size = group if splits and group is not None else len(target)
        parts = zip(torch.split(batch.inputs, size), torch.split(batch.target, size), strict=True)
        batches += [Batch(*part) for part in parts]
    counts = [_counted(criterion, batch.target) for batch in batches]
    if not sum(counts) > 0:
        msg = "data must have a sample that counts: there is none, or every target is ignored or has weight 0"
        raise ValueError(msg)
    # the mean over a batch in which nothing counts would be 0 / 0
    batches = [batch for batch, count in zip(batches, counts, strict=True) if count > 0]
    total = 1.0 if getattr(criterion, "reduction", "mean") == "sum" else sum(counts)
    return Problem(network, criterion, chosen, batches, total)


def _nothing() -> None:
    pass


class _NoGradForward(TorchFunctionMode):
    """Where a network stops gradients by `torch.no_grad` or `.data`, so does differentiation forward; not PyTorch's."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Cut the results from what they were computed from."""
        result = func(*args, **(kwargs or {}))
        stops = not torch.is_grad_enabled() or func == _DATA
        return tree_map_only(Tensor, torch.detach, result) if stops else result


def layers(model: nn.Module) -> list[str]:
    """Names of the modules that own trainable parameters, each of which `parameters=` takes.

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


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Operations inside a `with` have second derivatives, and fast ones.

    Attention, recurrent layers and weight normalization are computed by plain operations (PyTorch's fused forms have no
    second derivative, or a wrong one), and derivatives of convolutions by the kernels of training (PyTorch takes others
    for the second). The measures of this package see to it themselves; with the trace penalty, a network with one of
    the former has to compute its scores inside, and one with convolutions better does.

    Example:
        >>> with twice_differentiable():
        ...     scores = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)(torch.zeros(1, 3, 4))
    """
    with _plain_operations(), SmoothConvolutions():
        yield


@contextmanager
def _plain_operations() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), PlainLayers():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def all_digits() -> Iterator[None]:
    """Operations with all derivatives, and float32 with all of its digits on a GPU, and under autocast, too.

    There convolutions round their inputs to ten bits (TF32) unless told otherwise: the product is then no longer that
    of a symmetric matrix, and a search for eigenvalues does not converge.
    """
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    try:
        with _plain_operations(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


def memory_for(device: torch.device) -> int:
    """Bytes that intermediate values may take where none are given: 128 MiB, or half of what is free on a GPU."""
    if device.type != "cuda":
        return 2**27
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return (torch.cuda.mem_get_info(device)[0] + unused) // 2


def kept_by_forward(problem: Problem) -> int:
    """Bytes that a forward pass over the largest batch keeps for a backward pass."""
    batch = max(problem.batches, key=lambda each: len(each.target))
    kept: dict[int, int] = {}
    parameters = {name: values.detach().requires_grad_() for name, values in problem.parameters.items()}
    own = {values.untyped_storage().data_ptr() for values in (*parameters.values(), batch.inputs, batch.target)}

    def keep(values: Tensor) -> Tensor:
        kept[values.untyped_storage().data_ptr()] = values.untyped_storage().nbytes()
        return values

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda values: values):
        problem.loss(functional_call(problem.model, parameters, (batch.inputs,)), batch.target)
    return sum(size for address, size in kept.items() if address not in own)


def leaves_of(output: Tensor) -> list[Tensor]:
    """The tensors with a gradient that another was computed from: the ends of its graph."""
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


def _chosen(model: nn.Module, names: Sequence[str] | None) -> dict[str, Tensor]:
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


def _mixes_samples(model: nn.Module) -> bool:
    """Whether a BatchNorm takes statistics of the batch, as one without running ones does in evaluation mode, too."""
    norms = (module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm))
    return any(norm.training or norm.running_mean is None for norm in norms)


def _belongs(parameter: str, name: str) -> bool:
    return parameter == name or parameter.startswith(f"{name}.")


def _pairs(data: Data) -> Iterator[tuple[Tensor, Tensor]]:
    for pair in data:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(each, Tensor) for each in pair)):
            msg = f"data must yield pairs of tensors (inputs, target), got {type(pair).__name__}"
            raise TypeError(msg)
        if pair[1].ndim == 0 or len(pair[0]) != len(pair[1]):
            shapes = f"{tuple(pair[0].shape)} and {tuple(pair[1].shape)}"
            msg = f"data must yield as many inputs as targets, got shapes {shapes}"
            raise ValueError(msg)
        yield pair[0], pair[1]


def _moved(values: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    return values.detach().to(device, dtype if values.is_floating_point() else None)


def _counted(loss: Any, target: Tensor) -> float:
    """What a mean over this batch divides by; 1 for a sum.

    Targets that are no class indices (class probabilities, one number a score) are counted one by one: what is the
    same factor in each batch drops out of a share.
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
    target = target.long()  # bytes would be taken for a mask
    kept = target.flatten() if ignored is None else target[target != ignored]
    return float(len(kept) if weight is None else weight.flatten()[kept].sum())
