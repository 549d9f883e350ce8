"""The losses that networks are trained with, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refocal import _check
from refocal_lab.train.own_parts import call_own, check_name, is_own

if TYPE_CHECKING:
    from torch import nn

    from refocal_lab.train.recipe import TrainingRecipe

# the settings that each loss needs
_NEEDS: dict[str, tuple[str, ...]] = {
    "cross-entropy": (),
    "focal": ("gamma",),
    "flsd-53": (),
    "fla-53": (),
    "fla-532": (),
    "fls-531": (),
    "fls-532": (),
    "adafocal": (),
    "brier": (),
    "mmce": ("factor",),
    "dual-focal": ("gamma",),
    "inverse-focal": ("gamma",),
    "proper-focal": ("gamma",),
}
LOSSES = tuple(_NEEDS)
SCHEDULED = ("fls-531", "fls-532")
_UNSMOOTHED = ("brier", "mmce", "dual-focal", "inverse-focal", "proper-focal")
_SCHEDULE = (100 / 350, 250 / 350)  # Mukhoti et al. (2020) change gamma after 100 and 250 of 350 epochs


def check_loss(name: str, *, gamma: float | None, label_smoothing: float, factor: float | None) -> None:
    """Reject settings that a loss does not have, and the lack of settings that it needs.

    A loss of your own may have any of them: its function says so.
    """
    check_name(name, "loss", LOSSES)
    for setting, value in (("gamma", gamma), ("factor", factor)):
        if not is_own(name) and (value is not None) != (setting in _NEEDS[name]):
            msg = f"loss {name!r} {'needs' if value is None else 'has no'} {setting}"
            raise ValueError(msg)
    if label_smoothing and name in _UNSMOOTHED:
        msg = f"loss {name!r} has no label_smoothing"
        raise ValueError(msg)
    _check.label_smoothing(label_smoothing)
    if gamma is not None:
        _check.scalar_gamma(gamma, least=0.0)
    if factor is not None:
        _check.positive(factor, "factor")


def build_schedule(name: str, epochs: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The epochs after which a scheduled loss changes gamma, and the values of gamma.

    Example:
        >>> build_schedule("fls-532", 350)
        ((100, 250), (5.0, 3.0, 2.0))
    """
    _check.one_of(name, "name", SCHEDULED)
    milestones = tuple(max(1 + k, round(share * epochs)) for k, share in enumerate(_SCHEDULE))
    return milestones, (5.0, 3.0, float(name[-1]))


def gamma_at_epoch(name: str, *, epochs: int, epoch: int) -> float:
    """The gamma of one epoch of a scheduled loss.

    Args:
        name: Of the loss, one of `SCHEDULED`.
        epochs: Number of epochs of the training.
        epoch: The epoch, counted from 1.

    Example:
        >>> [gamma_at_epoch("fls-532", epochs=350, epoch=epoch) for epoch in (100, 101, 350)]
        [5.0, 3.0, 2.0]
    """
    milestones, gammas = build_schedule(name, epochs)
    return gammas[sum(epoch > milestone for milestone in milestones)]


def build_loss(recipe: TrainingRecipe) -> nn.Module:
    """The loss module of a recipe, which takes logits (N, K) and class indices (N,).

    The function of a loss of your own gets those of the settings `gamma`, `factor` and `label_smoothing` that the
    recipe has.
    """
    return _build_own_loss(recipe) if is_own(recipe.loss) else _build_known_loss(recipe)


def _build_own_loss(recipe: TrainingRecipe) -> nn.Module:
    from torch import nn

    settings = {"gamma": recipe.gamma, "factor": recipe.factor, "label_smoothing": recipe.label_smoothing or None}
    given = {name: value for name, value in settings.items() if value is not None}
    return call_own(recipe.loss, "loss", nn.Module, **given)


def _build_known_loss(recipe: TrainingRecipe) -> nn.Module:
    from refocal import losses

    sum_or_mean: dict[str, Any] = {"reduction": "sum" if recipe.sum_loss else "mean"}
    gamma: Any = recipe.gamma
    match recipe.loss:
        case "brier":
            return losses.BrierLoss(**sum_or_mean)
        case "mmce":
            assert recipe.factor is not None
            return losses.MMCELoss(recipe.factor, **sum_or_mean)
        case "dual-focal":
            return losses.DualFocalLoss(gamma, **sum_or_mean)
        case "inverse-focal":
            return losses.InverseFocalLoss(gamma, **sum_or_mean)
        case "proper-focal":
            return losses.ProperFocalLoss(gamma, **sum_or_mean)
        case "cross-entropy":
            gamma = 0.0
        case "flsd-53":
            gamma = losses.FLSD53
        case "fla-53":
            gamma = losses.FLA53
        case "fla-532":
            gamma = losses.FLA532
        case "fls-531" | "fls-532":
            gamma = losses.Scheduled(*build_schedule(recipe.loss, recipe.epochs))
        case "adafocal":
            gamma = losses.AdaFocal()
    return losses.FocalLoss(gamma, label_smoothing=recipe.label_smoothing, **sum_or_mean)
