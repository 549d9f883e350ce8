"""Logits and targets as `torch.nn.functional.cross_entropy` takes them, turned into rows with classes last."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Rows(NamedTuple):
    """A batch as rows: logits (N, K); class indices (N,) or class probabilities (N, K); the shape of the losses."""

    logits: Tensor
    target: Tensor
    shape: tuple[int, ...]

    @property
    def has_indices(self) -> bool:
        """Whether the targets are class indices."""
        return self.target.ndim == 1


def check_fit(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> None:
    """Refuse what cross-entropy refuses: classes are on dimension 1 (0 without a batch), positions on the others."""
    shape = logits.shape
    if target.is_floating_point():
        fits = len(shape) > 0 and target.shape == shape and ignore_index < 0
    else:
        positions = shape[:1] + shape[2:] if len(shape) > 1 else ()
        fits = target.shape == positions or (len(shape) == 1 and target.shape == (1,))
        fits = fits and len(shape) > 0 and target.dtype in (torch.int64, torch.uint8)
    weight_fits = weight is None or weight.shape == (shape[1:2] if len(shape) > 1 else shape)
    if not (fits and weight_fits and logits.is_floating_point() and 0.0 <= label_smoothing <= 1.0):
        # raises, with its own words
        F.cross_entropy(logits, target, weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
        msg = f"logits of shape {tuple(logits.shape)} and target of shape {tuple(target.shape)} do not fit"
        if weight is not None:
            msg += f" each other, or weight of shape {tuple(weight.shape)}"
        raise ValueError(msg)


def as_rows(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
) -> Rows:
    """Rows of a batch with classes on dimension 1 (0 without a batch); what cross-entropy refuses, it refuses here."""
    check_fit(logits, target, weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index)
    class_dim = 1 if logits.ndim > 1 else 0
    positions = (*logits.shape[:class_dim], *logits.shape[class_dim + 1 :])
    if logits.ndim == 2 and target.dtype != torch.uint8:
        return Rows(logits, target, positions)
    classes = logits.shape[class_dim]
    rows = logits.movedim(class_dim, -1).reshape(-1, classes)
    if target.is_floating_point():
        return Rows(rows, target.movedim(class_dim, -1).reshape(-1, classes), positions)
    return Rows(rows, target.reshape(-1).long(), positions)


def loss_dtype(logits: Tensor) -> torch.dtype:
    """The type of the loss: that of the logits, or float32 under autocast, as for PyTorch's own losses."""
    return torch.float32 if torch.is_autocast_enabled(logits.device.type) else logits.dtype


def at_least_float32(logits: Tensor) -> Tensor:
    """Logits in a type in which sums and logarithms keep their digits."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def gather_target(values: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The value at each row's target (N,), the mask of counted rows, and targets that are safe to index with."""
    keep = target != ignore_index
    safe = torch.where(keep, target, 0)
    try:
        return values.gather(1, safe[:, None])[:, 0], keep, safe
    except (RuntimeError, IndexError):
        F.cross_entropy(values, target, ignore_index=ignore_index)  # an index out of bounds: raises with its own words
        raise


def reduce(losses: Tensor, rows: Rows, reduction: str, *, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Reduce losses of shape `rows.shape` exactly as `nn.CrossEntropyLoss` does."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    wide = torch.promote_types(losses.dtype, torch.float32)  # a sum of many in float16 overflows, their mean does not
    total = losses.sum(dtype=wide)
    if not rows.has_indices:
        return (total / losses.numel()).to(losses.dtype)
    keep = rows.target != ignore_index
    if weight is None:
        return (total / keep.sum()).to(losses.dtype)
    counted = torch.where(keep, weight[torch.where(keep, rows.target, 0)], 0)
    return (total / counted.sum(dtype=wide)).to(losses.dtype)
