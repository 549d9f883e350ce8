"""Focal loss: the function, the module, and the choice of the fastest path to its value."""

from __future__ import annotations

import functools
from typing import Any, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from refocal import _check
from refocal._arrays import PerClass
from refocal.losses.base import FIT_INSTEAD, AbstractSoftmaxLoss, NoPosteriorError, is_checked, length
from refocal.losses.cpu import blocks, one_pass
from refocal.losses.formulas import focal_rows
from refocal.losses.gpu import dispatch
from refocal.losses.policies import GammaPolicy
from refocal.losses.posterior_maps import FocalMap
from refocal.losses.rows import at_least_float32, check_fit, loss_dtype, reduce, to_rows
from refocal.losses.spec import LossSpec, Reduction
from refocal.maps.posterior import SmoothingEdge


def focal_loss(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: PerClass | GammaPolicy,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    detached: bool = False,
) -> Tensor:
    """Focal loss of each sample: cross-entropy that counts samples less the better they are classified.

    The loss is sum_c t_c w_c (1 - p_c)^gamma (-log p_c) with p = softmax(logits).

    Args:
        logits: Scores (N, K, ...), or (K,) for one sample.
        target: Class indices (N, ...), or class probabilities t of the shape of `logits`.
        gamma: Focusing parameter >= 0: a number, one value per class, or a policy (see `refocal.losses.policies`).
        weight: Class weights w (K,).
        ignore_index: Samples with this class index have loss 0.
        label_smoothing: Share of the uniform distribution that is mixed into t.
        detached: Stop the gradient through (1 - p)^gamma, as some implementations do. Training then converges to a
            different point, whose posterior map also needs `detached=True`.

    Returns:
        Losses, of the shape of a class-index target. At gamma = 0 they equal cross-entropy.

    Example:
        >>> import torch
        >>> round(focal_loss(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), gamma=2.0).item(), 4)
        0.0109

    Reference: Charoenphakdee et al. (2021), Eq. 5.
    """
    ignore_index = _check.whole(ignore_index, "ignore_index")
    label_smoothing = _check.label_smoothing(label_smoothing, allow_one=True)
    exponent = resolve_gamma(gamma, classes=_count_classes(logits))
    return reduced_focal_loss(logits, target, weight, LossSpec(exponent, ignore_index, label_smoothing, detached))


class FocalLoss(AbstractSoftmaxLoss):
    """Focal loss: a drop-in for `nn.CrossEntropyLoss` that knows the posterior of the network it trains.

    Choose it when easy samples dominate, or when a network trained with cross-entropy is overconfident. Use `posterior`
    for probabilities: the softmax of a network trained with focal loss is systematically wrong. At gamma = 0 the loss
    is cross-entropy. See `focal_loss` for the formula.

    The module accepts the shapes and types that cross-entropy accepts on a CPU, raises the same errors for others, and
    returns the same type. Class weights for class indices must have the type of the logits, after autocast has widened
    both. It accepts more in two cases: a single sample whose index is in a vector has a derivative, which cross-entropy
    does not give, and uint8 indices can be compiled.

    Args:
        gamma: Focusing parameter >= 0: a number, one value per class, or a policy such as `FLSD53`.
        weight: Class weights (K,).
        ignore_index: Class index that does not count.
        reduction: "none", "mean" or "sum", as in `nn.CrossEntropyLoss`.
        label_smoothing: In [0, 1]. At 1 the labels do not count and there is no posterior.
        smoothing_edge: How `posterior` undoes label smoothing: "soft" for positive probabilities, "exact" for the exact
            inverse, which has zeros; see `refocal.posterior`.
        detached: Stop the gradient through (1 - p)^gamma.

    Example:
        >>> import torch
        >>> criterion = FocalLoss(gamma=3)
        >>> loss = criterion(torch.tensor([[0.6, 0.0]], requires_grad=True), torch.tensor([0]))
        >>> round(criterion.posterior(torch.tensor([[0.6065, 0.0]]))[0, 0].item(), 3)  # p(y|x); softmax gives 0.647
        0.9

    Reference: Charoenphakdee et al. (2021), Eq. 5 and Theorem 11.
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
        detached: bool = False,
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        given: Any = gamma
        if isinstance(given, GammaPolicy):
            self.gamma: Any = given
        elif callable(given):  # `fls531` or `AdaFocal` itself
            msg = f"gamma must be a number, one value per class or a policy, got {given!r}: call it to make a policy"
            raise TypeError(msg)
        else:
            self.gamma = _check.gamma(given, classes=length(given), least=0.0)
        self.label_smoothing = _check.label_smoothing(label_smoothing, allow_one=True)
        self.smoothing_edge: SmoothingEdge = _check.one_of(smoothing_edge, "smoothing_edge", get_args(SmoothingEdge))
        self.detached = detached

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced; on a GPU in one pass with its gradient."""
        # Small batches are host-bound, and reading a buffer as an attribute costs time.
        weight = self._buffers["weight"] if "weight" in self._buffers else self.weight  # noqa: SIM401
        spec = LossSpec(self.gamma, self.ignore_index, self.label_smoothing, self.detached, self.reduction)
        return reduced_focal_loss(logits, target, weight, spec)

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""
        return focal_loss(
            logits,
            target,
            gamma=self.gamma,
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            detached=self.detached,
        )

    @property
    def posterior_map(self) -> nn.Module:
        """Psi^gamma with the loss's weights, smoothing and detachment."""
        gamma = self.gamma
        if self.label_smoothing == 1:
            msg = f"with label_smoothing = 1, focal loss has no posterior: no label counts; got {self}"
            raise NoPosteriorError(msg)
        if isinstance(gamma, GammaPolicy):
            if gamma.closed_form_gamma is None:
                reason = f"with {type(gamma).__name__}, gamma changes with the sample"
                msg = f"focal loss has no closed-form posterior here: {reason}; {FIT_INSTEAD}"
                raise NoPosteriorError(msg)
            gamma = gamma.closed_form_gamma
        return FocalMap(
            gamma,
            weight=self._class_weights,
            label_smoothing=self.label_smoothing,
            smoothing_edge=self.smoothing_edge,
            detached=self.detached,
        )

    def extra_repr(self) -> str:
        """The settings."""
        gamma = "" if isinstance(self.gamma, GammaPolicy) else f"gamma={self.gamma}, "
        return f"{gamma}{super().extra_repr()}, label_smoothing={self.label_smoothing}, detached={self.detached}"


def reduced_focal_loss(logits: Tensor, target: Tensor, weight: Tensor | None, spec: LossSpec) -> Tensor:
    """Focal loss, reduced as `nn.CrossEntropyLoss` does: the one place where a path to its value is chosen.

    Gamma is checked: a number, a tuple, or a policy.
    """
    # 1. A schedule has one gamma for all samples.
    if isinstance(spec.gamma, GammaPolicy) and spec.gamma.current_gamma is not None:
        spec = spec._replace(gamma=spec.gamma.current_gamma)
    # 2. A kernel on the tensors as they are. This comes before any check: small batches are host-bound.
    loss = dispatch.focal_loss(logits, target, weight, spec)
    if loss is not None:
        return loss
    # 3. Cross-entropy raises if the tensors do not fit together. It computes gamma = 0, and losses without classes,
    #    where there is no probability to focus on.
    likewise: dict[str, Any] = {
        "weight": weight,
        "ignore_index": spec.ignore_index,
        "reduction": spec.reduction,
        "label_smoothing": spec.label_smoothing,
    }
    check_fit(logits, target, **likewise)
    spec = spec._replace(gamma=fit_gamma(spec.gamma, classes=_count_classes(logits)))
    if spec.gamma == 0.0 or not _count_classes(logits):
        return F.cross_entropy(logits, target, **likewise)
    # 4. Rows without gaps, and a weight of the loss's type and of one dimension.
    dtype, rows = loss_dtype(logits, target, weight), to_rows(logits, target)
    weight = None if weight is None else weight.flatten().to(dtype)
    # 5. A kernel on these rows; on a CPU one pass; else the plain formula. Step 2 comes before the checks, so
    #    it must not copy tensors whose layout no kernel supports.
    if dispatch.supports_focal(rows.logits, rows.target, weight, spec):
        loss = dispatch.focal_loss(rows.logits.contiguous(), rows.target.contiguous(), weight, spec)
        if loss is not None:
            return loss.reshape(rows.shape) if spec.reduction == "none" else loss
    soft_policy = isinstance(spec.gamma, GammaPolicy) and (spec.label_smoothing or not rows.has_indices)
    if one_pass.supports(logits, target, weight) and not soft_policy:
        wide = rows._replace(logits=at_least_float32(rows.logits, rows.target, weight))
        loss = blocks.focal_loss(wide, weight, spec, functools.partial(focal_rows, weight=weight, spec=spec))
        return (loss.reshape(rows.shape) if spec.reduction == "none" else loss).to(dtype)
    losses = focal_rows(rows, weight, spec).reshape(rows.shape)
    return reduce(losses, rows, spec.reduction, weight=weight, ignore_index=spec.ignore_index).to(dtype)


def _count_classes(logits: Any) -> int:
    return logits.shape[min(logits.ndim - 1, 1)] if isinstance(logits, Tensor) and logits.ndim else 0


def resolve_gamma(gamma: PerClass | GammaPolicy, *, classes: int) -> Any:
    """A number, a tuple with one number per class, or a policy whose gamma depends on the sample."""
    if isinstance(gamma, GammaPolicy):
        return gamma if gamma.current_gamma is None else gamma.current_gamma
    return _check.gamma(gamma, classes=classes, least=0.0)


def fit_gamma(gamma: Any, *, classes: int) -> Any:
    """The same for a gamma whose values are checked, so that a call need not check one per class again."""
    return gamma if is_checked(gamma, classes) else resolve_gamma(gamma, classes=classes)
