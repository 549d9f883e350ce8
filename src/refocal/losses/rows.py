"""A batch as rows: logits and targets of the shapes that `torch.nn.functional.cross_entropy` accepts, classes last."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class Rows(NamedTuple):
    """A batch as rows: logits (N, K); class indices (N,) or class probabilities (N, K); the shape of the losses."""

    logits: Tensor
    target: Tensor
    shape: tuple[int, ...]

    @property
    def has_indices(self) -> bool:
        """Whether the targets are class indices."""
        return self.target.ndim == 1


def check_tensors(**given: object) -> None:
    """Reject arrays of other libraries, naming the argument. Losses that call cross-entropy leave this to it."""
    for name, value in given.items():
        if not isinstance(value, Tensor):
            msg = f"{name} must be a PyTorch tensor, got {type(value).__name__}: torch.as_tensor turns arrays into one"
            raise TypeError(msg)


def check_fit(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "none",
) -> None:
    """Reject what cross-entropy rejects. Classes are on dimension 1, or on dimension 0 if there is no batch."""
    if not _is_usual(logits, target, weight, label_smoothing=label_smoothing, ignore_index=ignore_index):
        if getattr(target, "dtype", None) == torch.int32:
            reduction = "none"  # before PyTorch 2.12, the mean or sum of an empty batch ignores the indices' type
        # Cross-entropy decides about unusual arguments, and raises its own errors.
        F.cross_entropy(
            logits,
            target,
            weight=weight,
            label_smoothing=label_smoothing,
            ignore_index=ignore_index,
            reduction=reduction,
        )


def _is_usual(logits: Any, target: Any, weight: Tensor | None, *, label_smoothing: float, ignore_index: int) -> bool:
    """Whether cross-entropy is known to accept these arguments."""
    if not (isinstance(logits, Tensor) and isinstance(target, Tensor)):
        return False
    shape = logits.shape
    if target.is_floating_point():
        fits = target.shape == shape and ignore_index < 0
    else:
        fits = target.shape == (shape[:1] + shape[2:] if len(shape) > 1 else ())
        fits = fits and (weight is None or weight.dtype == loss_dtype(logits))
        if target.dtype != torch.int64:
            fits = fits and target.dtype == torch.uint8 and len(shape) < 3 and (weight is None or not label_smoothing)
    classes = shape[1:2] if len(shape) > 1 else shape
    fits = fits and len(classes) > 0 and classes[0] > 0 and (weight is None or weight.shape == classes)
    return fits and logits.dtype in _FLOATING


def parse_rows(logits: Tensor, target: Tensor, *, weight: Tensor | None, ignore_index: int = -100) -> Rows:
    """Check a batch as `check_fit` does, and turn it into rows."""
    check_fit(logits, target, weight=weight, ignore_index=ignore_index)
    return to_rows(logits, target)


def parse_index_rows(logits: Tensor, target: Tensor, *, weight: Tensor | None) -> Rows:
    """The same for a loss that takes class indices only, with logits at least in float32."""
    rows = parse_rows(logits, target, weight=weight)
    if not rows.has_indices:
        msg = f"target must hold class indices for this loss, got class probabilities of type {target.dtype}"
        raise TypeError(msg)
    return rows._replace(logits=at_least_float32(rows.logits))


def to_rows(logits: Tensor, target: Tensor) -> Rows:
    """Turn a checked batch into rows."""
    class_dim = 1 if logits.ndim > 1 else 0
    positions = (*logits.shape[:class_dim], *logits.shape[class_dim + 1 :])
    if logits.ndim == 2 and target.dtype != torch.uint8:
        return Rows(logits, target, positions)
    classes = logits.shape[class_dim]
    rows = logits.movedim(class_dim, -1).reshape(-1, classes)
    if target.is_floating_point():
        return Rows(rows, target.movedim(class_dim, -1).reshape(-1, classes), positions)
    return Rows(rows, target.reshape(-1).long(), positions)


def loss_dtype(logits: Tensor, target: Tensor | None = None, weight: Tensor | None = None) -> torch.dtype:
    """The type of the loss, as PyTorch's own losses choose it."""
    return common_dtype(
        logits.dtype,
        None if target is None else target.dtype,
        None if weight is None else weight.dtype,
        autocast=has_autocast(logits.device),
    )


def has_autocast(device: torch.device) -> bool:
    """Whether autocast is enabled on a device. PyTorch cannot say it for "meta", which has none."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def common_dtype(
    logits: torch.dtype, target: torch.dtype | None, weight: torch.dtype | None, *, autocast: bool
) -> torch.dtype:
    """The type of a loss of tensors of these types.

    It is the type of the logits. Class probabilities and their weights promote it; class indices and their weights do
    not. Under autocast it is at least float32.
    """
    dtype = logits
    if target is not None and target.is_floating_point:
        dtype = torch.promote_types(dtype, target)
        dtype = dtype if weight is None else torch.promote_types(dtype, weight)
    return torch.promote_types(dtype, torch.float32) if autocast else dtype


def at_least_float32(logits: Tensor, target: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
    """Logits in the loss's type, or in float32 if that is wider, so that sums and logarithms keep their precision."""
    return logits.to(torch.promote_types(loss_dtype(logits, target, weight), torch.float32))


def gather_target(values: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """The value at each row's target (N,), the mask of rows that count, and targets that are safe to index with."""
    keep = target != ignore_index
    safe = torch.where(keep, target, 0)
    try:
        return values.gather(1, safe[:, None])[:, 0], keep, safe
    except (RuntimeError, IndexError):
        F.cross_entropy(values, target, ignore_index=ignore_index)  # out of bounds: raises PyTorch's error
        raise


def weigh(losses: Tensor, keep: Tensor, safe: Tensor, weight: Tensor | None) -> Tensor:
    """Losses (N,) times their class weights, and 0 for rows that do not count."""
    if weight is not None:
        losses = losses * weight.flatten().to(losses.dtype)[safe]
    return torch.where(keep, losses, 0)


_BLOCK_ELEMENTS = 1 << 16  # per block, so that its temporaries stay in a core's cache


def row_blocks(rows: Tensor) -> list[slice]:
    """Slices of rows (N, K) to process one after another on a CPU; a single slice on other devices."""
    count, classes = rows.shape
    step = max(1, _BLOCK_ELEMENTS // max(1, classes)) if rows.device.type == "cpu" else max(1, count)
    return [slice(start, start + step) for start in range(0, count, step)]


def take_out_target(masses: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The mass of each row's target (n, 1), and the sum of the others. Sets the target's entry in `masses` to 0."""
    target_mass = masses.gather(1, target)
    return target_mass, masses.scatter_(1, target, 0).sum(dim=1, keepdim=True)


def scale_distance(others: Tensor, target: Tensor, rest: Tensor, scale: Tensor) -> Tensor:
    """Scale (n, 1) times (masses - sum(masses) [j = target]), without cancellation; overwrites `others`.

    `others` are the masses (n, K) with 0 at the target, and `rest` (n, 1) is their sum.
    """
    return others.mul_(scale).scatter_(1, target, -rest * scale)


def reduce(losses: Tensor, rows: Rows, reduction: str, *, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Reduce losses of shape `rows.shape` exactly as `nn.CrossEntropyLoss` does."""
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    wide = torch.promote_types(losses.dtype, torch.float32)  # a sum in float16 may overflow although the mean does not
    total = losses.sum(dtype=wide)
    if not rows.has_indices:
        return (total / losses.numel()).to(losses.dtype)
    keep = rows.target != ignore_index
    if weight is None:
        return (total / keep.sum()).to(losses.dtype)
    counted = torch.where(keep, weight.flatten()[torch.where(keep, rows.target, 0)], 0)
    return (total / counted.sum(dtype=wide)).to(losses.dtype)
