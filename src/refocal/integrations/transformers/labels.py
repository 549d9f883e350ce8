"""What a label means to Trainer: which ones count, which position predicts them, and what a sum is divided by."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from refocal.losses.base import AbstractSoftmaxLoss

IGNORED = -100  # Trainer pads labels with this value, and does not count it


def check_criterion(criterion: nn.Module) -> None:
    """Reject a loss that has no value per label, or that ignores another label than Trainer."""
    if not isinstance(criterion, AbstractSoftmaxLoss):
        msg = (
            "criterion must be a loss of refocal.losses with one value per label, such as FocalLoss(gamma=2), "
            f"got {type(criterion).__name__}"
        )
        raise TypeError(msg)
    if criterion.ignore_index != IGNORED:
        msg = f"criterion must have ignore_index={IGNORED}, which Trainer does not count, got {criterion.ignore_index}"
        raise ValueError(msg)


def align(logits: Tensor, labels: Tensor, *, shift_labels: bool) -> tuple[Tensor, Tensor]:
    """Logits as rows (N, K), and the label (N,) that each row predicts.

    Args:
        logits: Scores (..., K).
        labels: Class indices (...).
        shift_labels: Whether the position before a label predicts it. The first label then has no row.
    """
    if logits.ndim < 2 or logits.shape[-1] < 2:
        msg = f"logits must have the shape (..., classes) with two classes or more, got {tuple(logits.shape)}"
        raise ValueError(msg)
    if labels.shape != logits.shape[:-1] or labels.is_floating_point():
        msg = (
            f"labels must be class indices of shape {tuple(logits.shape[:-1])}, one per row of logits "
            f"{tuple(logits.shape)}, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
        raise ValueError(msg)
    if shift_labels:
        if logits.ndim < 3:
            msg = f"shift_labels=True needs logits (batch, positions, classes), got shape {tuple(logits.shape)}"
            raise ValueError(msg)
        logits, labels = logits[..., :-1, :], labels[..., 1:]
    return logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).to(logits.device, torch.long)


def divide(total: Tensor, labels: Tensor, num_items_in_batch: Tensor | float | None) -> Tensor:
    """A sum of losses over the number of labels in all batches of an optimizer step, or in this one if that is unknown.

    Args:
        total: The sum.
        labels: The labels (...) that it is over.
        num_items_in_batch: Trainer's count. With `nn.DataParallel` it is repeated for each device, and Trainer scales
            the loss as if it were one device's share. The loss of gathered outputs already covers all devices;
            dividing by the sum of the repeated counts corrects for this.

    Returns:
        The quotient; 0, with gradients of 0, if no label counts.
    """
    count = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
    return total / torch.as_tensor(count, device=total.device).sum().clamp(min=1)


def at_least_float32(logits: Tensor) -> Tensor:
    """Logits in float32, or in float64 if that is their type, as the losses of transformers compute."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
