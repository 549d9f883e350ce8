"""Focal loss of a linear layer: the function, the module, and its posteriors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from refocal import _check
from refocal._arrays import PerClass
from refocal.losses.eager import is_eager
from refocal.losses.focal import FocalLoss, fit_gamma, resolve_gamma
from refocal.losses.internals import KNOWS_TRANSFORMATIONS, is_inside_transformation
from refocal.losses.linear.chunks import default_chunk_bytes
from refocal.losses.linear.differentiation import Constants, LinearCall, LinearInputs, differentiable_loss
from refocal.losses.linear.operator import check_range
from refocal.losses.linear.posteriors import LabeledStates, Layer, TopPosterior, log_posterior, top_posterior
from refocal.losses.policies import GammaPolicy, Scheduled
from refocal.losses.posterior_maps import FocalMap
from refocal.losses.rows import check_tensors, has_autocast
from refocal.losses.spec import LossSpec, Reduction, copy_gammas
from refocal.maps.posterior import MapSettings, SmoothingEdge


class LayerSettings(NamedTuple):
    """The settings that focal loss of logits does not have: the bound of the logits (0 for none), and memory."""

    softcap: float
    chunk_bytes: int | None
    sum_dtype: torch.dtype | None

    @classmethod
    def check(cls, softcap: float | None, chunk_bytes: int | None, sum_dtype: torch.dtype | None) -> LayerSettings:
        """Check each setting."""
        return cls(
            0.0 if softcap is None else _check.positive(softcap, "softcap"),
            None if chunk_bytes is None else _check.count(chunk_bytes, "chunk_bytes", most=1 << 60),
            sum_dtype,
        )


def linear_focal_loss(
    hidden: Tensor,
    head: Tensor,
    target: Tensor,
    *,
    gamma: PerClass | GammaPolicy,
    bias: Tensor | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    detached: bool = False,
    chunk_bytes: int | None = None,
    sum_dtype: torch.dtype | None = None,
) -> Tensor:
    """Focal loss of each sample from its hidden state, without keeping the logits in memory.

    Use it to train language models and classifiers with many classes, where the logits hidden head^T + bias are the
    largest tensor. Rows are processed in chunks; the gradient in a chunk's logits takes their place in memory. The loss
    is that of `focal_loss`. For a mean or sum, `LinearFocalLoss` is faster: it computes each logit only once.

    Args:
        hidden: Hidden states (..., D).
        head: Weights of the last layer (V, D).
        target: Class indices (...).
        gamma: Focusing parameter >= 0: a number, one value per class, or a schedule. At 0 the loss is cross-entropy.
        bias: Bias of the last layer (V,).
        weight: Class weights (V,).
        ignore_index: Samples with this class index have loss 0, and take no part in any computation.
        label_smoothing: Share of the uniform distribution that is mixed into the target.
        softcap: Bound c of the logits: they become c tanh(logit / c).
        detached: Stop the gradient through (1 - p)^gamma.
        chunk_bytes: Memory for the logits of a chunk. More is faster. The default is 0.4 times the memory of the
            gradients, and at least 32 MiB.
        sum_dtype: Type in which the chunks' gradients of the head are added up. The default is the type of the head;
            `torch.float32` is more accurate for a 16-bit head, and takes more memory, twice the size of the head.

    Returns:
        Losses, of the shape of `target`, at least in float32. They can be differentiated once in `hidden`, `head` and
        `bias`.

    Example:
        >>> import torch
        >>> hidden, head = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
        >>> round(linear_focal_loss(hidden, head, torch.tensor([0]), gamma=2.0).item(), 4)
        0.0109
    """
    _check_layer(hidden, head, bias)
    spec = LossSpec(
        resolve_gamma(gamma, classes=len(head)),
        _check.whole(ignore_index, "ignore_index"),
        _check.label_smoothing(label_smoothing, allow_one=True),
        detached,
    )
    layer = LayerSettings.check(softcap, chunk_bytes, sum_dtype)
    return _reduced_linear_focal_loss(hidden, head, target, bias, weight, spec, layer)


class LinearFocalLoss(nn.Module):
    """Focal loss of a linear layer, reduced, that knows the posterior of the network it trains.

    Call it with the hidden states that enter the last layer and with that layer's weights, in place of
    `FocalLoss(gamma)(hidden @ head.T, target)`. With "mean" and "sum", the gradients of `hidden`, `head` and `bias` are
    computed together with the loss, so that each logit is computed once. For float16 and with "none", the backward pass
    computes the logits again.

    Args:
        gamma: Focusing parameter >= 0: a number, one value per class, or a schedule. At 0 the loss is cross-entropy.
        weight: Class weights (V,).
        ignore_index: Class index that does not count.
        reduction: "none", "mean" or "sum", as in `nn.CrossEntropyLoss`.
        label_smoothing: In [0, 1].
        smoothing_edge: How the posterior undoes label smoothing; see `refocal.posterior`.
        softcap: Bound c of the logits: they become c tanh(logit / c).
        detached: Stop the gradient through (1 - p)^gamma.
        chunk_bytes: Memory for the logits of a chunk; see `linear_focal_loss`.
        sum_dtype: Type in which the chunks' gradients of the head are added up; see `linear_focal_loss`.

    Example:
        >>> import torch
        >>> head = torch.eye(3, 2, requires_grad=True)
        >>> criterion = LinearFocalLoss(gamma=2.0)
        >>> loss = criterion(torch.tensor([[2.0, 0.0]]), head, torch.tensor([0]))
        >>> loss.backward()
        >>> round(criterion.posterior(torch.tensor([[2.0, 0.0]]), head, top=1).probs.item(), 3)
        0.973
    """

    def __init__(
        self,
        gamma: PerClass | GammaPolicy,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        smoothing_edge: SmoothingEdge = "soft",
        softcap: float | None = None,
        detached: bool = False,
        chunk_bytes: int | None = None,
        sum_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.focal = FocalLoss(
            gamma,
            weight=weight,
            ignore_index=ignore_index,
            reduction=reduction,
            label_smoothing=label_smoothing,
            smoothing_edge=smoothing_edge,
            detached=detached,
        )
        self.layer_settings = LayerSettings.check(softcap, chunk_bytes, sum_dtype)

    def forward(self, hidden: Tensor, head: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        """The loss of hidden states (..., D) and the last layer's weights (V, D) and bias (V,), reduced."""
        _check_layer(hidden, head, bias)
        focal = self.focal
        spec = LossSpec(focal.gamma, focal.ignore_index, focal.label_smoothing, focal.detached, focal.reduction)
        return _reduced_linear_focal_loss(hidden, head, target, bias, focal.weight, spec, self.layer_settings)

    @torch.no_grad()
    def posterior(self, hidden: Tensor, head: Tensor, bias: Tensor | None = None, *, top: int) -> TopPosterior:
        """The `top` largest p(y|x) of each sample and their classes, from hidden states (..., D)."""
        layer = self._layer(hidden, head, bias)
        top = _check.count(top, "top", most=len(head))
        settings = self._check_map(len(head))
        probs, classes = top_posterior(hidden.reshape(-1, hidden.shape[-1]), layer, settings, top=top)
        shape = (*hidden.shape[:-1], top)
        return TopPosterior(probs.reshape(shape), classes.reshape(shape))

    @torch.no_grad()
    def log_posterior(self, hidden: Tensor, head: Tensor, target: Tensor, bias: Tensor | None = None) -> Tensor:
        """log p(y|x) of the classes `target` (...), from hidden states (..., D); 0 where the target is ignored.

        Its mean over the samples that count, with the sign changed, is the honest log loss of a network trained with
        focal loss, and the exponential of that its perplexity. The softmax gives other numbers, which are not class
        probabilities.
        """
        states = self.select(hidden, head, target, bias)
        found = log_posterior(states.hidden, states.target, states.layer, self._check_map(len(head)))
        return found.new_zeros(states.keep.shape).masked_scatter_(states.keep, found).reshape(target.shape)

    def select(self, hidden: Tensor, head: Tensor, target: Tensor, bias: Tensor | None = None) -> LabeledStates:
        """Check a batch as `log_posterior` does, and select the samples that count."""
        layer = self._layer(hidden, head, bias)
        _check_target(target, hidden)
        keep = target.reshape(-1) != self.focal.ignore_index
        classes = target.reshape(-1)[keep].long()
        check_range(classes, len(head))
        return LabeledStates(hidden.reshape(-1, hidden.shape[-1])[keep], classes, keep, layer)

    def _check_map(self, classes: int) -> MapSettings:
        posterior_map = self.focal.posterior_map
        assert isinstance(posterior_map, FocalMap)
        return posterior_map.check_settings(classes)

    def _layer(self, hidden: Tensor, head: Tensor, bias: Tensor | None) -> Layer:
        _check_layer(hidden, head, bias)
        if len(head) < 2:
            msg = f"head must have at least two classes for a posterior, got shape {tuple(head.shape)}"
            raise ValueError(msg)
        given = self.layer_settings
        chunk_bytes = default_chunk_bytes(hidden, head) if given.chunk_bytes is None else given.chunk_bytes
        return Layer(head, bias, given.softcap, _product_dtype(hidden), chunk_bytes)

    def extra_repr(self) -> str:
        """The settings beside those of the focal loss."""
        softcap, chunk_bytes, sum_dtype = self.layer_settings
        return f"softcap={softcap or None}, chunk_bytes={chunk_bytes}, sum_dtype={sum_dtype}"


def _reduced_linear_focal_loss(  # noqa: PLR0917 the caller's arguments
    hidden: Tensor,
    head: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    spec: LossSpec,
    layer: LayerSettings,
) -> Tensor:
    """Focal loss of a layer that fits together, reduced. Settings are checked, except the number of gammas."""
    _check_target(target, hidden)
    _check_weight(weight, head)
    spec = spec._replace(gamma=fit_gamma(spec.gamma, classes=len(head)), softcap=layer.softcap)
    if isinstance(spec.gamma, GammaPolicy) and not isinstance(spec.gamma, Scheduled):
        msg = (
            f"gamma must be a number, one value per class or a schedule, got {spec.gamma!r}, which changes with the "
            "sample: use FocalLoss on the logits"
        )
        raise TypeError(msg)
    dtype = _product_dtype(hidden)
    gammas = _find_gammas(spec, hidden, len(head), torch.promote_types(dtype, torch.float32))
    call = LinearCall(
        spec if gammas is None else spec._replace(gamma=0.0),
        default_chunk_bytes(hidden, head) if layer.chunk_bytes is None else layer.chunk_bytes,
        _check_sum_dtype(layer.sum_dtype, head),
        dtype,
    )
    classes = target.reshape(-1).long()
    inputs = LinearInputs(hidden.reshape(-1, hidden.shape[-1]), head, bias)
    losses = differentiable_loss(inputs, Constants(classes, weight, gammas), call)
    return losses.reshape(target.shape) if spec.reduction == "none" else losses


def _check_layer(hidden: Tensor, head: Tensor, bias: Tensor | None) -> None:
    """Check that hidden states, weights and bias fit together."""
    check_tensors(hidden=hidden, head=head, **({} if bias is None else {"bias": bias}))
    if KNOWS_TRANSFORMATIONS and is_inside_transformation():
        msg = "linear_focal_loss does not support transformations of torch.func: use focal_loss(hidden @ head.T, ...)"
        raise RuntimeError(msg)
    for name, tensor in {"hidden": hidden, "head": head, "bias": bias}.items():
        if tensor is None:
            continue
        if not tensor.is_floating_point():
            msg = f"{name} must have a floating-point type, got {tensor.dtype}"
            raise TypeError(msg)
        if tensor.device != hidden.device:
            msg = f"{name} must be on the device of hidden, {hidden.device}, got {tensor.device}"
            raise ValueError(msg)
        if tensor.dtype != hidden.dtype and not has_autocast(hidden.device):
            msg = f"{name} must have the type of hidden, {hidden.dtype}, got {tensor.dtype}; autocast converts them"
            raise TypeError(msg)
    if head.ndim != 2 or not head.numel():
        msg = f"head must have the shape (classes, width of hidden), got {tuple(head.shape)}"
        raise ValueError(msg)
    if not hidden.ndim or hidden.shape[-1] != head.shape[1]:
        msg = f"hidden must have the shape (..., {head.shape[1]}), as wide as the head, got {tuple(hidden.shape)}"
        raise ValueError(msg)
    if bias is not None and bias.shape != head.shape[:1]:
        msg = f"bias must have one value per class, shape {(len(head),)}, got {tuple(bias.shape)}"
        raise ValueError(msg)


def _check_target(target: Tensor, hidden: Tensor) -> None:
    """Check that there is one class index per hidden state."""
    check_tensors(target=target)
    if target.is_floating_point() or target.dtype in (torch.bool, torch.complex64, torch.complex128):
        msg = f"target must hold class indices, got the type {target.dtype}; for class probabilities use FocalLoss"
        raise TypeError(msg)
    if target.shape != hidden.shape[:-1]:
        msg = (
            f"target must have one class per hidden state, shape {tuple(hidden.shape[:-1])}, got {tuple(target.shape)}"
        )
        raise ValueError(msg)
    if target.device != hidden.device:
        msg = f"target must be on the device of hidden, {hidden.device}, got {target.device}"
        raise ValueError(msg)


def _check_weight(weight: Tensor | None, head: Tensor) -> None:
    """Check that class weights fit the head. They are constants."""
    if weight is None:
        return
    if not isinstance(weight, Tensor) or weight.shape != head.shape[:1]:
        msg = f"weight must be a tensor with one value per class, shape {(len(head),)}, got {_describe(weight)}"
        raise ValueError(msg)
    if weight.device != head.device:
        msg = f"weight must be on the device of head, {head.device}, got {weight.device}"
        raise ValueError(msg)
    if weight.requires_grad:
        msg = "weight must not require a gradient, which linear_focal_loss does not compute: use weight.detach()"
        raise ValueError(msg)


def _find_gammas(spec: LossSpec, hidden: Tensor, classes: int, dtype: torch.dtype) -> Tensor | None:
    """One gamma per class on the device of the hidden states; None if it is a number."""
    if isinstance(spec.gamma, Scheduled):  # it is being compiled, and this epoch's gamma is not a constant but a tensor
        now = torch.as_tensor(spec.gamma(torch.ones((), dtype=dtype, device=hidden.device)))
        return now.expand(classes).contiguous()
    if not isinstance(spec.gamma, tuple):
        return None
    if is_eager(hidden):
        return copy_gammas(spec, dtype, hidden.device)
    return torch.tensor(spec.gamma, dtype=dtype, device=hidden.device)


def _check_sum_dtype(sum_dtype: torch.dtype | None, head: Tensor) -> torch.dtype:
    allowed = (head.dtype, torch.promote_types(head.dtype, torch.float32))
    if sum_dtype is not None and sum_dtype not in allowed:
        msg = f"sum_dtype must be one of {', '.join(map(str, dict.fromkeys(allowed)))}, got {sum_dtype}"
        raise ValueError(msg)
    return head.dtype if sum_dtype is None else sum_dtype


def _product_dtype(hidden: Tensor) -> torch.dtype:
    """The type in which matrices are multiplied: that of autocast, if it is enabled."""
    autocast = hidden.dtype != torch.float64 and has_autocast(hidden.device)
    return torch.get_autocast_dtype(hidden.device.type) if autocast else hidden.dtype


def _describe(value: Any) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
