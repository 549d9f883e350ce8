"""How the fused kernels of softmax losses and of the posterior map are laid out over a GPU and launched.

What depends on shapes and settings alone is worked out once and kept: the host's time is what small batches wait for.
Batches of ever new sizes gain nothing by it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from refocal.losses.compiled import ALIGNMENT, Launch, current_stream, is_capturing, multiprocessors
from refocal.losses.layouts import LONGEST_ROW_ON_CHIP, LONGEST_TILED_ROW, Layout, layout_of, tiling
from refocal.losses.targets import common_dtype

_LONGEST_RAGGED_ROW_ON_CHIP = 65_536  # rows that start at odd addresses are read slowly, and better only once
# A gradient of this size stays in the L2 cache until a backward pass corrects what the mean divides by, so one launch
# does for the loss. A larger one is better written once, its targets counted before.
_MOST_BYTES_CORRECTED = 1 << 25


class Settings(NamedTuple):
    """Everything a focal loss depends on beside its data."""

    gamma: Any
    weight: Tensor | None
    ignore_index: int
    label_smoothing: float
    detached: bool


@functools.lru_cache(maxsize=64)
def _gammas(values: tuple[float, ...], device: torch.device) -> Tensor:
    """One gamma a class, on the device; kept, because a copy from the host would make it wait."""
    return torch.tensor(values, dtype=torch.float32, device=device)


def whole(gamma: float) -> int:
    """Gamma where it is a small whole number, whose powers are products; else 0."""
    return int(gamma) if gamma.is_integer() and 1 <= gamma <= 8 else 0


def at_once(dtype: torch.dtype, reduction: str) -> bool:
    """Whether the gradient is computed with the loss, for an incoming 1, and scaled later.

    Not so where one gradient comes in for each loss; nor in float16, in which gradients divided by the number of
    samples would underflow before the incoming one, which a gradient scaler made large, could lift them.
    """
    return reduction != "none" and dtype != torch.float16


class Case(NamedTuple):
    """What decides on the kernels of a softmax loss, and on how they are compiled and called."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    target_shape: torch.Size
    target_strides: tuple[int, ...]
    target_dtype: torch.dtype
    weight_shape: torch.Size | None
    weight_dtype: torch.dtype | None
    gamma: float | tuple[float, ...]
    ignore_index: int
    label_smoothing: float
    detached: bool
    reduction: str
    autocast: bool
    differentiable: bool
    incoming: int = 0  # as the kernels take it: 0, 1 or 2

    @property
    def has_indices(self) -> bool:
        """Whether the targets are class indices."""
        return not self.target_dtype.is_floating_point

    @property
    def hard(self) -> bool:
        """Whether one class a row has a loss."""
        return self.has_indices and not self.label_smoothing

    @property
    def counted(self) -> bool:
        """Whether a mean divides by a number that depends on the targets."""
        return self.reduction == "mean" and self.has_indices

    @property
    def gradient(self) -> bool:
        """Whether the gradient is computed: with the loss, or for one that has come in."""
        return self.incoming > 0 or (self.differentiable and at_once(self.dtype, self.reduction))

    @property
    def expected(self) -> float:
        """What the sum of losses is divided by, but for rows that do not count and for weights."""
        return math.prod(self.shape) / self.shape[1] if self.reduction == "mean" else 1.0

    @property
    def loss_dtype(self) -> torch.dtype:
        """The type of the loss."""
        return common_dtype(self.dtype, self.target_dtype, self.weight_dtype, autocast=self.autocast)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The launches of a softmax loss, and what it takes to call them."""

    case: Case
    losses: int  # to add up: one a row, or a tile of them
    gradient: bool
    gradient_strides: tuple[int, ...] | None  # None where they are those of the logits
    gammas: Tensor | None  # one a class, on the device
    has_indices: bool
    counted: bool
    adds: bool  # whether `compute` adds up; else, `count` comes before and `finish` after it
    loss: Tensor  # new ones are made like it
    correction: Tensor
    compute: Launch
    count: Launch
    finish: Launch
    multiply: Launch


@functools.lru_cache(maxsize=256)
def plan_for(*facts: Any) -> Plan | None:
    """The plan of a case; None where no kernel serves it, be it that its tensors do not lie or fit as they should."""
    from refocal.losses.kernels import sums

    case = Case(*facts)
    layout = layout_of(case.shape, case.strides)
    if layout is None or not _is_sound(case):
        return None
    target_layout = layout if case.has_indices else layout_of(case.shape, case.target_strides)
    if target_layout is None or layout.span != target_layout.span:
        return None
    size, classes = math.prod(case.shape), case.shape[1]
    rows = size // classes
    _, tile_rows, _, programs = tiling(rows, classes, layout.span)
    small = size * case.dtype.itemsize <= _MOST_BYTES_CORRECTED and programs <= sums.MOST_PROGRAMS.value
    adds = small and case.reduction != "none" and not case.incoming
    losses = programs if tile_rows > 1 and case.reduction != "none" else rows
    strides, gamma = layout.strides_of_gradient(case.shape), case.gamma
    return Plan(
        case=case,
        losses=losses,
        gradient=case.gradient,
        gradient_strides=None if strides == case.strides else strides,
        gammas=_gammas(gamma, case.device) if isinstance(gamma, tuple) else None,
        has_indices=case.has_indices,
        counted=case.counted,
        adds=adds,
        loss=torch.empty((), dtype=case.loss_dtype, device=case.device),
        correction=torch.empty((), dtype=torch.float32, device=case.device),
        compute=_compute(case, layout, target_layout, adds=adds),
        count=Launch(
            sums.count_targets,
            sums.COUNTS.value,
            (rows, classes, case.ignore_index),
            warps=16,
            BLOCK=4096,
            WEIGHTED=case.weight_dtype is not None,
        ),
        finish=finishing(losses, case.expected, counted=case.counted, beside=False),
        multiply=multiplication(size, case.dtype, case.loss_dtype, case.device, corrected=case.counted and adds),
    )


def _is_sound(case: Case) -> bool:
    """Whether shapes fit each other, and a kernel knows this loss."""
    shape, classes = case.shape, case.shape[1]
    if case.target_shape != (shape[:1] + shape[2:] if case.has_indices else shape) or not math.prod(shape):
        return False
    # a gamma of 0 is for PyTorch's cross-entropy
    gamma_fits = len(case.gamma) == classes if isinstance(case.gamma, tuple) else case.gamma > 0
    # class probabilities with an index to ignore are for PyTorch to refuse
    target_fits = case.target_dtype == torch.int64 if case.has_indices else case.ignore_index < 0
    # a weight of another type is for PyTorch to refuse, or to bring to the loss's
    weight_fits = case.weight_dtype is None or (case.weight_shape, case.weight_dtype) == (shape[1:2], case.loss_dtype)
    if not (gamma_fits and target_fits and weight_fits) or case.loss_dtype == torch.float64:
        return False
    return case.hard or classes <= LONGEST_ROW_ON_CHIP


def _compute(case: Case, layout: Layout, target_layout: Layout, *, adds: bool) -> Launch:
    """The kernel that computes losses and gradient."""
    from refocal.losses.kernels import hard, soft

    classes = case.shape[1]
    rows = math.prod(case.shape) // classes
    constants: dict[str, Any] = {
        "CLASSES": classes,
        "STRIDE": layout.stride,
        "COUNTED": case.counted,
        "ADDS": adds,
        "GAMMA_BY_CLASS": isinstance(case.gamma, tuple),
        "WEIGHTED": case.weight_dtype is not None,
        "WHOLE": 0 if isinstance(case.gamma, tuple) else whole(case.gamma),
        "DETACHED": case.detached,
        "GRADIENT": case.gradient,
        "INCOMING": case.incoming,
    }
    numbers = (rows, 0.0 if isinstance(case.gamma, tuple) else case.gamma, case.ignore_index, case.expected)
    resident = min(rows, multiprocessors(case.device))
    if case.hard and classes > (_LONGEST_RAGGED_ROW_ON_CHIP if classes % 8 else LONGEST_ROW_ON_CHIP):
        # no more rows at once than the L2 cache holds for their second reading
        return Launch(hard.rows_in_chunks, resident, numbers, warps=32, LANES=2048, WIDTH=8, **constants)
    block, tile_rows, warps, programs = tiling(rows, classes, layout.span)
    constants["BLOCK"] = block
    if case.hard and block > LONGEST_TILED_ROW:
        if block == LONGEST_ROW_ON_CHIP and case.dtype.itemsize == 2:
            # one program fills a multiprocessor, whose memory has room for the next rows
            return Launch(hard.whole_rows, resident, numbers, warps=warps, STAGES=3, **constants)
        return Launch(hard.whole_rows, programs, numbers, warps=warps, STAGES=1, **constants)
    constants |= {"ROWS": tile_rows, "SPAN": layout.span, "IMAGE": layout.image}
    constants["BY_ROW"] = case.reduction == "none" and not case.incoming
    if case.hard:
        return Launch(hard.tiles_of_rows, programs, numbers, warps=warps, **constants)
    constants |= {"TARGET_IMAGE": target_layout.image, "TARGET_STRIDE": target_layout.stride}
    constants |= {"INDICES": case.has_indices, "SMOOTHED": case.label_smoothing > 0}
    warps = min(32, 2 * warps)  # it holds twice as much
    return Launch(soft.rows_on_chip, programs, (*numbers, case.label_smoothing), warps=warps, **constants)


def loss_and_gradient(
    plan: Plan, logits: Tensor, target: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The loss, reduced; its gradient in the logits for an incoming 1; and the correction of a mean's gradient."""
    target, weight = _without_gaps(plan, target, weight)
    gradient = _empty_gradient(plan, logits) if plan.gradient else None
    correction = torch.empty_like(plan.correction) if plan.counted else None
    if not plan.adds:
        return _large_loss(plan, logits, target, weight, gradient, correction), gradient, correction
    loss, device = torch.empty_like(plan.loss), logits.get_device()
    stream = current_stream(device)
    # kernels of a stream follow each other and share a buffer; a graph may be replayed on any, beside any other work
    work = _new_scratch(device) if is_capturing() else _scratch_of_stream(device, stream)
    compute, gammas = plan.compute, plan.gammas
    start, logits_at, target_at = compute.starts.get(stream), logits.data_ptr(), target.data_ptr()
    weight_at = 0 if weight is None else weight.data_ptr()
    if start is None or (logits_at | target_at | weight_at) % ALIGNMENT:
        compute(logits, target, gradient, work, loss, correction, gammas, weight, None)
    else:
        start(
            logits_at,
            target_at,
            0 if gradient is None else gradient.data_ptr(),
            work.data_ptr(),
            loss.data_ptr(),
            0 if correction is None else correction.data_ptr(),
            0 if gammas is None else gammas.data_ptr(),
            weight_at,
            0,
            *compute.tail,
        )
    return loss, gradient, correction


def _large_loss(  # noqa: PLR0917 as its caller has them
    plan: Plan,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    gradient: Tensor | None,
    correction: Tensor | None,
) -> Tensor:
    """The loss by three launches, which count targets, compute, and add up; its gradient is left in `gradient`."""
    from refocal.losses.kernels.sums import LOSSES

    case = plan.case
    empty = (
        logits.new_empty if plan.counted or case.reduction == "none" else logits.new_zeros
    )  # counting sets the ticket
    work = empty(LOSSES.value + plan.losses, dtype=torch.float32)
    if plan.counted:
        plan.count(target, weight, work)
    plan.compute(logits, target, gradient, work, None, correction, plan.gammas, weight, None)
    if case.reduction == "none":
        return work[LOSSES.value :].reshape(case.shape[:1] + case.shape[2:]).to(case.loss_dtype, copy=True)
    loss = torch.empty_like(plan.loss)
    plan.finish(work, loss, correction)
    return loss


def gradient_alone(
    case: Case,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    *,
    incoming: Tensor,
    correction: Tensor | None,
) -> Tensor:
    """The gradient in the logits, given the one that comes in and the correction."""
    plan = plan_for(*case._replace(incoming=1 if case.reduction != "none" else 2))
    assert plan is not None, "the loss had one"
    target, weight = _without_gaps(plan, target, weight)
    gradient = _empty_gradient(plan, logits)
    plan.compute(logits, target, gradient, None, None, correction, plan.gammas, weight, incoming.contiguous())
    return gradient


def _without_gaps(plan: Plan, target: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Class indices and weights, side by side; class probabilities as they lie."""
    return target.contiguous() if plan.has_indices else target, None if weight is None else weight.contiguous()


def _empty_gradient(plan: Plan, logits: Tensor) -> Tensor:
    if plan.gradient_strides is None:
        return torch.empty_like(logits)
    return torch.empty_strided(logits.shape, plan.gradient_strides, dtype=logits.dtype, device=logits.device)


def multiply(plan: Plan, gradient: Tensor, incoming: Tensor, correction: Tensor | None) -> None:
    """Multiply a gradient computed with the loss by the one that comes in, in place."""
    launch, incoming_at = plan.multiply, incoming.data_ptr()
    start = launch.starts.get(current_stream(gradient.get_device()))
    if start is None or incoming_at % ALIGNMENT:
        launch(gradient, incoming, correction)
    else:
        start(gradient.data_ptr(), incoming_at, 0 if correction is None else correction.data_ptr(), *launch.tail)


def _new_scratch(device: int) -> Tensor:
    """A buffer, ticket at 0, for kernels that add up."""
    from refocal.losses.kernels.sums import SIZE_TO_ADD

    return torch.zeros(SIZE_TO_ADD.value, dtype=torch.float32, device="cpu" if device < 0 else device)


@functools.lru_cache(maxsize=256)
def _scratch_of_stream(device: int, stream: int) -> Tensor:  # noqa: ARG001 one for each
    return _new_scratch(device)


@functools.lru_cache(maxsize=256)
def multiplication(
    size: int,
    dtype: torch.dtype,  # noqa: ARG001 kernels are compiled for them
    incoming_dtype: torch.dtype,  # noqa: ARG001
    device: torch.device,
    *,
    corrected: bool,
) -> Launch:
    """The kernel that multiplies a gradient by the incoming one, and by a correction."""
    from refocal.losses.kernels import sums

    block = 4096
    programs = min(-(-size // block), 4 * multiprocessors(device))
    return Launch(sums.scale_all, programs, (size,), warps=8, CORRECTED=corrected, BLOCK=block)


def finishing(losses: int, expected: float, *, counted: bool, beside: bool) -> Launch:
    """The kernel that adds up many losses, which lie in a buffer, the counts beside them or made before."""
    from refocal.losses.kernels import sums

    constants = {"COUNTED": counted, "COUNTED_BESIDE": beside, "BLOCK": 8192}
    return Launch(sums.finish, sums.COUNTS.value, (losses, expected), warps=16, **constants)


class _MapCase(NamedTuple):
    """What decides on the kernel of a posterior map, and on how it is compiled and called."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    gamma: float


@functools.lru_cache(maxsize=256)
def _map_plan(case: _MapCase) -> tuple[Launch, tuple[int, ...]] | None:
    from refocal.losses.kernels import posterior

    layout = layout_of(case.shape, case.strides)
    if layout is None:
        return None
    classes = case.shape[1]
    rows = math.prod(case.shape) // classes
    block, tile_rows, warps, programs = tiling(rows, classes, layout.span)
    constants = {
        "CLASSES": classes,
        "SPAN": layout.span,
        "IMAGE": layout.image,
        "STRIDE": layout.stride,
        "WHOLE": whole(case.gamma),
    }
    numbers = (rows, case.gamma)
    launch = Launch(posterior.rows_on_chip, programs, numbers, warps=warps, BLOCK=block, ROWS=tile_rows, **constants)
    return launch, layout.strides_of_gradient(case.shape)


def posterior_map(logits: Tensor, gamma: float) -> Tensor:
    """Psi^gamma over dimension 1."""
    plan = _map_plan(_MapCase(logits.shape, logits.stride(), logits.dtype, logits.device, gamma))
    if plan is None:
        rows = logits.movedim(1, -1).contiguous()
        return posterior_map(rows.reshape(-1, rows.shape[-1]), gamma).reshape(rows.shape).movedim(-1, 1)
    launch, strides = plan
    probs = torch.empty_strided(logits.shape, strides, dtype=logits.dtype, device=logits.device)
    launch(logits, probs)
    return probs
