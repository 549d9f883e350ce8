"""Claims of Komisarenko and Kull (2024) about their Table 1, as far as it is legible in our text copy."""

from __future__ import annotations

from itertools import combinations

from refocal_lab.claims.claim import ABOUT_NETWORKS, CheckMethod, Claim, Finding, Outcome, not_checkable, settle
from refocal_lab.zoo.published import lookup, parse_variant

_DATA = {"cifar100": "CIFAR-100", "cifar10": "CIFAR-10", "tiny-imagenet": "Tiny ImageNet"}
_BY_GAMMA = {0: "cross-entropy", 1: "focal 1", 3: "focal 3", 7: "focal 7"}
_LOSSES = (*_BY_GAMMA.values(), "flsd-53", "adafocal")


def printed_value(data: str, loss: str, method: str, measure: str) -> float | None:
    """A number of Table 1, for ResNet-50; None if it is not legible.

    Args:
        data: Data set.
        loss: For example "focal 3".
        method: "ts-nll" or "fts" for parameters chosen by log-loss, "ts-adaptive-ece" or "fts-adaptive-ece" by ECE.
        measure: "error", "nll", "adaptive_ece_15" or "temperature".

    Example:
        >>> printed_value("tiny-imagenet", "focal 3", "fts", "nll")
        2.03
    """
    cells = lookup(data, "resnet50", parse_variant(loss), method, measure)
    return next((cell.value for cell in cells if cell.paper == "003"), None)


def _falls_with_gamma(values: dict[int, float], name: str) -> Outcome:
    """Check that a value falls in most pairs of a lower and a higher gamma."""
    pairs = list(combinations(sorted(values), 2))
    falling = sum(values[high] < values[low] for low, high in pairs)
    listed = ", ".join(f"{values[gamma]:g} (γ = {gamma})" for gamma in sorted(values))
    return Outcome(falling > len(pairs) / 2, f"{name}: {listed} falls in {falling} of {len(pairs)} pairs")


def _trends(method: str, measure: str, *, accuracy: bool = False) -> Finding:
    """Judge the trend on each data set with several legible numbers; numbers are percent, except temperatures."""
    outcomes: dict[str, Outcome] = {}
    for data, name in _DATA.items():
        values = {}
        for gamma, loss in _BY_GAMMA.items():
            value = printed_value(data, loss, method, measure)
            if value is not None:
                share = 1 - value if accuracy else value
                values[gamma] = value if measure == "temperature" else round(100 * share, 2)
        if len(values) > 1:
            outcomes[name] = _falls_with_gamma(values, name)
    kept = {name: outcome.words for name, outcome in outcomes.items() if outcome.holds}
    failed = [outcome.words for outcome in outcomes.values() if not outcome.holds]
    inside = Outcome(bool(kept), "; ".join(kept.values()))
    printed = Outcome(not failed, "; ".join(failed or kept.values()))
    return settle(printed, inside=inside, where=f"on {' and '.join(kept)}")


def _improves(measure: str, methods: tuple[str, str]) -> Outcome:
    """Compare temperature scaling and focal temperature scaling wherever both are legible."""
    pairs = {
        f"{name}, {loss}": (before, after)
        for data, name in _DATA.items()
        for loss in _LOSSES
        if (before := printed_value(data, loss, methods[0], measure)) is not None
        and (after := printed_value(data, loss, methods[1], measure)) is not None
    }
    better = sum(after < before for before, after in pairs.values())
    gains = [100 * (1 - after / before) for before, after in pairs.values()]
    words = f"lower in {better} of {len(pairs)} legible pairs, by {min(gains):.0f} to {max(gains):.0f} %"
    return Outcome(better == len(pairs), words)


def _focal_scaling() -> Finding:
    return settle(_improves("adaptive_ece_15", ("ts-adaptive-ece", "fts-adaptive-ece")).prefix("ECE"))


CLAIMS = (
    Claim(
        "003-text-table-1",
        "Section 5.2 and Table 1",
        "Focal temperature scaling has a lower ECE than temperature scaling for all losses and data sets.",
        CheckMethod.TABLE,
        "ResNet-50 on three data sets, six losses; ten of the eighteen pairs are legible",
        _focal_scaling,
    ),
    Claim(
        "003-text-gamma-accuracy",
        "Section 5.2 and Table 1",
        "Models trained with a higher γ generally have a worse accuracy.",
        CheckMethod.TABLE,
        "γ = 0 (cross-entropy), 1, 3 and 7 on three data sets; we read generally as in most pairs of γ",
        lambda: _trends("fts", "error", accuracy=True),
    ),
    Claim(
        "003-text-gamma-ece",
        "Section 5.2 and Table 1",
        "Models trained with a higher γ generally have a better ECE.",
        CheckMethod.TABLE,
        "γ = 0 (cross-entropy), 1, 3 and 7 on three data sets, after focal temperature scaling; we read generally as "
        "in most pairs of γ",
        lambda: _trends("fts-adaptive-ece", "adaptive_ece_15"),
    ),
    Claim(
        "003-text-gamma-temperature",
        "Section 5.2 and Table 1",
        "The optimal temperature generally falls as γ grows.",
        CheckMethod.TABLE,
        "γ = 0 (cross-entropy), 1, 3 and 7, temperature scaling by ECE, two data sets with several legible numbers; "
        "we read generally as in most pairs of γ",
        lambda: _trends("ts-adaptive-ece", "temperature"),
    ),
    not_checkable(
        "003-experiments",
        "Sections 4 and 5, Figure 8",
        "Optimal temperature and calibration γ are related by a line for each network.",
        ABOUT_NETWORKS,
    ),
)
