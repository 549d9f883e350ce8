"""Losses as modules: they hold the settings, reduce, and know the posterior map of what they train."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refocal import _check
from refocal.losses.focal import (
    brier_loss,
    dual_focal_loss,
    focal_loss,
    focal_loss_otherwise,
    inverse_focal_loss,
    proper_focal_loss,
    reduced_dual_focal_loss,
    reduced_inverse_focal_loss,
)
from refocal.losses.gpu import dispatch
from refocal.losses.gpu.plan import Settings
from refocal.losses.mmce import counted_log_probs, mmce_of
from refocal.losses.policies import GammaPolicy
from refocal.losses.posterior_maps import FocalMap, InverseFocalMap, SigmoidMap, SoftmaxMap
from refocal.losses.rows import at_least_float32, check_tensors, loss_dtype, reduce, rows_of
from refocal.losses.sigmoid_focal import sigmoid_focal_loss

Reduction = Literal["none", "mean", "sum"]
_FIT_INSTEAD = "fit refocal.calibrators.FocalTemperatureScaling to held-out predictions instead"


class AbstractLoss(nn.Module):
    """Abstract: a loss of (logits, target) with a reduction and a posterior map."""

    def __init__(self, reduction: Reduction) -> None:
        super().__init__()
        if reduction not in ("none", "mean", "sum"):
            msg = f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}"
            raise ValueError(msg)
        self.reduction = reduction

    @abstractmethod
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced."""

    @property
    @abstractmethod
    def posterior_map(self) -> nn.Module:
        """The module that turns logits of a network trained with this loss into p(y|x); it has no state."""

    def posterior(self, logits: Tensor) -> Tensor:
        """p(y|x) from the logits of a network trained with this loss, classes on the same dimension."""
        return self.posterior_map(logits)


class AbstractSoftmaxLoss(AbstractLoss):
    """Abstract: a loss that is one value a sample, reduced as `nn.CrossEntropyLoss` does."""

    weight: Tensor | None

    def __init__(self, weight: Tensor | None, ignore_index: int, reduction: Reduction) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = _check.whole(ignore_index, "ignore_index")

    @property
    def _class_weights(self) -> list[float] | Tensor | None:
        """The weights (K,) of an array that may have another shape for images; as numbers where these are known."""
        if self.weight is None:
            return None
        weight = self.weight.flatten()
        return weight if torch.compiler.is_compiling() else weight.tolist()

    @abstractmethod
    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced."""
        losses = self.per_sample(logits, target)
        rows = rows_of(logits, target)
        return reduce(losses, rows, self.reduction, weight=self.weight, ignore_index=self.ignore_index)

    def extra_repr(self) -> str:
        """The settings."""
        return f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"


class FocalLoss(AbstractSoftmaxLoss):
    """Focal loss; a drop-in for `nn.CrossEntropyLoss`, whose values it has at gamma = 0.

    It takes the shapes and types that cross-entropy takes on a CPU, refuses the others in the same words, and gives a
    loss of the same type. Class weights for class indices must be of the logits' type, after autocast has widened both.
    This loss goes further in two points: one sample with its index in a vector, whose cross-entropy has no derivative,
    has one here, and indices in uint8 may be compiled.

    Args:
        gamma: Focusing parameter >= 0: a number, one value a class, or a policy.
        weight: Class weights (K,).
        ignore_index: Class index that does not count.
        reduction: "none", "mean" or "sum", with the meaning of `nn.CrossEntropyLoss`.
        label_smoothing: In [0, 1]; at 1, the labels do not count and there is no posterior.
        detached: Stop the gradient through (1 - p)^gamma.

    Example:
        >>> import torch
        >>> criterion = FocalLoss(gamma=3)
        >>> loss = criterion(torch.tensor([[0.6, 0.0]], requires_grad=True), torch.tensor([0]))
        >>> round(criterion.posterior(torch.tensor([[0.6065, 0.0]]))[0, 0].item(), 3)  # p(y|x); softmax says 0.647
        0.9
    """

    def __init__(
        self,
        gamma: Any,
        *,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
        label_smoothing: float = 0.0,
        detached: bool = False,
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        if isinstance(gamma, GammaPolicy):
            self.gamma: Any = gamma
        else:
            self.gamma = _check.gamma(gamma, classes=_length(gamma), least=0.0)
        self.label_smoothing = _check.label_smoothing(label_smoothing, allow_one=True)
        self.detached = detached

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced; in one pass with its gradient on a GPU."""
        # small batches wait for the host, to which a buffer's attribute and a tuple of settings are work
        weight = self._buffers["weight"] if "weight" in self._buffers else self.weight  # noqa: SIM401
        gamma, ignore_index, smoothing, detached = self.gamma, self.ignore_index, self.label_smoothing, self.detached
        loss = dispatch.focal_loss(logits, target, gamma, weight, ignore_index, smoothing, detached, self.reduction)
        if loss is not None:
            return loss
        settings = Settings(gamma, weight, ignore_index, smoothing, detached)
        return focal_loss_otherwise(logits, target, settings, self.reduction)

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
                msg = f"focal loss has no closed-form posterior here: {reason}; {_FIT_INSTEAD}"
                raise NoPosteriorError(msg)
            gamma = gamma.closed_form_gamma
        return FocalMap(gamma, weight=self._class_weights, label_smoothing=self.label_smoothing, detached=self.detached)

    def extra_repr(self) -> str:
        """The settings."""
        gamma = "" if isinstance(self.gamma, GammaPolicy) else f"gamma={self.gamma}, "
        return f"{gamma}{super().extra_repr()}, label_smoothing={self.label_smoothing}, detached={self.detached}"


class NoPosteriorError(ValueError):
    """A loss was asked for a posterior map that has no closed form."""


class AbstractGammaLoss(AbstractSoftmaxLoss):
    """Abstract: a softmax loss with one number gamma >= 0."""

    def __init__(
        self, gamma: float, *, weight: Tensor | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        self.gamma = _check.scalar_gamma(gamma, least=0.0)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, {super().extra_repr()}"


class InverseFocalLoss(AbstractGammaLoss):
    """Inverse focal loss -(1 + p)^gamma log p; see `inverse_focal_loss`."""

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""
        return inverse_focal_loss(logits, target, gamma=self.gamma, weight=self.weight, ignore_index=self.ignore_index)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced."""
        settings = Settings(self.gamma, self.weight, self.ignore_index, 0.0, False)
        return reduced_inverse_focal_loss(logits, target, settings, self.reduction)

    @property
    def posterior_map(self) -> nn.Module:
        """The map for gamma up to 1, with the loss's class weights."""
        if self.gamma > 1:
            msg = f"inverse focal loss with gamma > 1 has no closed-form posterior, got {self.gamma}; {_FIT_INSTEAD}"
            raise NoPosteriorError(msg)
        return InverseFocalMap(self.gamma, weight=self._class_weights)


class DualFocalLoss(AbstractGammaLoss):
    """Dual focal loss; see `dual_focal_loss`. It has no closed-form posterior."""

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""
        return dual_focal_loss(logits, target, gamma=self.gamma, weight=self.weight, ignore_index=self.ignore_index)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced."""
        settings = Settings(self.gamma, self.weight, self.ignore_index, 0.0, False)
        return reduced_dual_focal_loss(logits, target, settings, self.reduction)

    @property
    def posterior_map(self) -> nn.Module:
        """There is none."""
        msg = f"dual focal loss has no closed-form posterior: it looks at two probabilities; {_FIT_INSTEAD}"
        raise NoPosteriorError(msg)


class BrierLoss(AbstractSoftmaxLoss):
    """Brier score; see `brier_loss`. It is proper: the posterior is the softmax."""

    def __init__(self, *, ignore_index: int = -100, reduction: Reduction = "mean") -> None:
        super().__init__(None, ignore_index, reduction)

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""
        return brier_loss(logits, target, ignore_index=self.ignore_index)

    @property
    def posterior_map(self) -> nn.Module:
        """Softmax."""
        return SoftmaxMap()


class ProperFocalLoss(AbstractSoftmaxLoss):
    """The proper part of focal loss; see `proper_focal_loss`. Its posterior is the softmax, over class weights."""

    def __init__(
        self, gamma: Any, *, weight: Tensor | None = None, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        self.gamma = _check.gamma(gamma, classes=_length(gamma), least=0.0)

    def per_sample(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of each sample."""
        return proper_focal_loss(logits, target, gamma=self.gamma, weight=self.weight, ignore_index=self.ignore_index)

    @property
    def posterior_map(self) -> nn.Module:
        """Softmax; with class weights, divided by them and normalized."""
        return SoftmaxMap() if self.weight is None else FocalMap(0.0, weight=self._class_weights)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, {super().extra_repr()}"


class MMCELoss(AbstractLoss):
    """Cross-entropy plus `factor` times the maximum mean calibration error of the batch; see `mmce_loss`.

    Cross-entropy is proper and MMCE is 0 at the truth, so the posterior is the softmax. Class weights move the minimum
    of cross-entropy away from where MMCE is 0, and the weighted form of MMCE is not 0 at the truth (where one posterior
    holds for all samples, it is |1 - 2 r|): with either of them there is no closed-form posterior.

    Args:
        factor: Weight of the MMCE, >= 0 (002 uses 2 for images, 8 for text).
        weighted: Use the weighted form of MMCE.
        kernel_width: Width of its kernel, > 0.
        weight: Class weights of the cross-entropy.
        ignore_index: Class index that does not count.
        reduction: "mean" or "sum" over the cross-entropy; with "sum" the MMCE counts once a sample.
    """

    weight: Tensor | None

    def __init__(
        self,
        factor: float,
        *,
        weighted: bool = False,
        kernel_width: float = 0.4,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if reduction == "none":
            msg = "MMCE is a property of a batch: reduction must be 'mean' or 'sum'"
            raise ValueError(msg)
        self.factor, self.weighted = _check.finite(factor, "factor", least=0.0), weighted
        self.kernel_width = _check.positive(kernel_width, "kernel_width")
        self.register_buffer("weight", weight)
        self.ignore_index = _check.whole(ignore_index, "ignore_index")

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy and regularizer."""
        counted = counted_log_probs(logits, target, ignore_index=self.ignore_index, weight=self.weight)
        log_probs = counted.log_probs
        weight = None if self.weight is None else self.weight.flatten().to(log_probs.dtype)
        cross_entropy = F.nll_loss(
            log_probs, counted.target, weight=weight, ignore_index=self.ignore_index, reduction=self.reduction
        )
        mmce = mmce_of(counted, weighted=self.weighted, width=self.kernel_width)
        if self.reduction == "sum":
            mmce = mmce * counted.keep.sum()
        return (cross_entropy + self.factor * mmce).to(loss_dtype(logits))

    @property
    def posterior_map(self) -> nn.Module:
        """Softmax; none with class weights, nor for the weighted form of MMCE."""
        if self.weighted:
            reason = "its weighted form is not 0 at the truth"
        elif self.weight is not None and len(set(self.weight.flatten().tolist())) > 1:
            reason = "with class weights, cross-entropy has its minimum where MMCE has none"
        else:
            return SoftmaxMap()
        msg = f"MMCE has no closed-form posterior here: {reason}; {_FIT_INSTEAD}"
        raise NoPosteriorError(msg)

    def extra_repr(self) -> str:
        """The settings."""
        return (
            f"factor={self.factor}, weighted={self.weighted}, kernel_width={self.kernel_width}, "
            f"ignore_index={self.ignore_index}, reduction={self.reduction!r}"
        )


class SigmoidFocalLoss(AbstractLoss):
    """Sigmoid focal loss; see `sigmoid_focal_loss`. A mean is taken over the scores that count.

    Args:
        gamma: Focusing parameter >= 0: a number, or one value for each entry of the last dimension.
        alpha: Weight of the positives in (0, 1), or None.
        ignore_index: Target that does not count.
        reduction: "none", "mean" or "sum".
    """

    def __init__(
        self, gamma: Any = 2.0, *, alpha: Any = 0.25, ignore_index: int = -100, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        self.gamma = _check.gamma(gamma, classes=_length(gamma), least=0.0)
        self.alpha = _check.alpha(alpha, classes=_length(alpha))
        self.ignore_index = _check.whole(ignore_index, "ignore_index")

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss, reduced; in one pass with its gradient on a GPU."""
        check_tensors(logits=logits, target=target)
        if (
            self.reduction != "none"
            and target.shape == logits.shape
            and dispatch.serves_sigmoid(logits, target, self.gamma, self.alpha)
        ):
            return dispatch.sigmoid_focal(
                logits, target, self.gamma, self.alpha, self.ignore_index, reduction=self.reduction
            )
        settings: dict[str, Any] = {"gamma": self.gamma, "alpha": self.alpha, "ignore_index": self.ignore_index}
        if self.reduction == "none":
            return sigmoid_focal_loss(logits, target, **settings)
        total = sigmoid_focal_loss(at_least_float32(logits), target, **settings).sum()
        loss = total if self.reduction == "sum" else total / (target != self.ignore_index).sum()
        return loss.to(loss_dtype(logits))

    @property
    def posterior_map(self) -> nn.Module:
        """The binary map of each score."""
        return SigmoidMap(self.gamma, self.alpha)

    def extra_repr(self) -> str:
        """The settings."""
        return f"gamma={self.gamma}, alpha={self.alpha}, ignore_index={self.ignore_index}, reduction={self.reduction!r}"


def _length(value: Any) -> int | None:
    """How many values are given; None for a number, be it an array without axes."""
    return len(value) if hasattr(value, "__len__") and getattr(value, "ndim", None) != 0 else None
