"""Claims of Mukhoti et al. (2020) about their printed tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import and_

import numpy as np

from refocal_lab.claims.claim import ABOUT_NETWORKS, CheckMethod, Claim, Finding, Outcome, not_checkable, settle
from refocal_lab.zoo.published import lookup, parse_variant

_NETWORKS = {
    "resnet50": "ResNet-50",
    "resnet110-bottleneck": "ResNet-110",
    "wide-resnet26-10": "Wide ResNet",
    "densenet121": "DenseNet",
}
# The ten rows of each table: data set and network, and how they are written
_ROWS = {
    **{("cifar100", model): f"{name}, CIFAR-100" for model, name in _NETWORKS.items()},
    **{("cifar10", model): f"{name}, CIFAR-10" for model, name in _NETWORKS.items()},
    ("newsgroups20", "gp-cnn"): "20 Newsgroups",
    ("sst", "tree-lstm"): "SST",
}
_LOSSES = {
    "cross-entropy": "cross-entropy",
    "brier": "Brier",
    "mmce": "MMCE",
    **{f"focal {gamma}": f"γ = {gamma}" for gamma in (1, 2, 3)},
    "fls-531": "schedule 5,3,1",
    "fls-532": "schedule 5,3,2",
    "fla-532": "sample-wise 5,3,2",
    "fla-53": "sample-wise 5,3",
}
_BASELINES = ("cross-entropy", "brier", "mmce")
_AFTER = {"ece_15": "ts-ece", "adaptive_ece_15": "ts-adaptive-ece"}
_NAMES = {"ece_15": "ECE", "adaptive_ece_15": "AdaECE"}
_WHEN = {"raw": "before", "ts-ece": "after", "ts-adaptive-ece": "after"}


def printed_value(row: tuple[str, str], loss: str, method: str, measure: str) -> float:
    """A number that the paper prints: a temperature, or a measure in percent.

    Args:
        row: Data set and network.
        loss: For example "focal 3".
        method: "raw", "ts-ece" or "ts-adaptive-ece".
        measure: For example "ece_15" or "temperature".

    Example:
        >>> printed_value(("cifar10", "resnet50"), "fla-53", "raw", "ece_15")
        1.55
    """
    [found] = [cell for cell in lookup(*row, parse_variant(loss), method, measure) if cell.paper == "002"]
    return found.value if measure == "temperature" else round(100 * found.value, 6)


def _column(loss: str, method: str, measure: str) -> np.ndarray:
    return np.array([printed_value(row, loss, method, measure) for row in _ROWS])


def _lower(one: str, other: str, method: str, measure: str) -> Outcome:
    """Check that one column is lower than another in every row."""
    mine, theirs = (_column(loss, method, measure) for loss in (one, other))
    name = f"{_NAMES[measure]} {_WHEN[method]} temperature scaling"
    higher = np.flatnonzero(mine >= theirs)
    if not len(higher):
        return Outcome(True, f"{name} is lower in all {len(_ROWS)} rows")
    place = list(_ROWS.values())[higher[0]]
    example = f"{place}: {_LOSSES[one]} {mine[higher[0]]:g}, {_LOSSES[other]} {theirs[higher[0]]:g}"
    return Outcome(False, f"{name} is not lower in {len(higher)} of {len(_ROWS)} rows, for example {example}")


def _mostly_lowest(one: str, others: tuple[str, ...], method: str, measure: str) -> Outcome:
    """Check that a column is the lowest in more than half of the rows, and on average."""
    columns = np.array([_column(loss, method, measure) for loss in (one, *others)])
    rows, means = int(np.sum(columns[0] < columns[1:].min(axis=0))), columns.mean(axis=1)
    words = (
        f"{_WHEN[method]} temperature scaling it is lowest in {rows} of {len(_ROWS)} rows and has mean {means[0]:.2f}, "
        f"the next lowest is {means[1:].min():.2f}"
    )
    return Outcome(rows > len(_ROWS) / 2 and bool(means[0] < means[1:].min()), words)


def _fixed_gamma() -> Finding:
    before, after = (
        _mostly_lowest("focal 3", ("focal 1", "focal 2"), method, "ece_15") for method in ("raw", "ts-ece")
    )
    least, most = (printed_value(("sst", "tree-lstm"), loss, "raw", "ece_15") for loss in ("focal 2", "focal 3"))
    worst = f"on SST γ = 3 has the highest ECE before, {most:g} against {least:g} with γ = 2"
    return settle(
        (before & after)._replace(words=f"{after.words}; {worst}"), inside=before, where="without temperature scaling"
    )


def _best_of_all() -> Finding:
    others = tuple(loss for loss in _LOSSES if loss != "fla-53")
    columns = np.array([_column(loss, "raw", "ece_15") for loss in ("fla-53", *others)])
    rows, means = int(np.sum(columns[0] < columns[1:].min(axis=0))), columns.mean(axis=1)
    average = Outcome(
        bool(means[0] < means[1:].min()), f"its mean ECE is {means[0]:.2f}, the next lowest {means[1:].min():.2f}"
    )
    each = Outcome(rows == len(_ROWS), f"it has the lowest ECE in {rows} of {len(_ROWS)} rows")
    return settle(each, inside=average, where="on average over the ten rows, before temperature scaling")


def _schedules() -> Finding:
    pair = ("fls-532", "fls-531")
    before = _lower(*pair, "raw", "ece_15") & _lower(*pair, "raw", "adaptive_ece_15")
    after = _lower(*pair, "ts-ece", "ece_15") & _lower(*pair, "ts-adaptive-ece", "adaptive_ece_15")
    return settle(before & after, inside=before, where="before temperature scaling")


def _policies() -> Finding:
    outcomes = [
        _mostly_lowest("fla-53", ("fla-532",), method, measure).prefix(name)
        for measure, name in _NAMES.items()
        for method in ("raw", _AFTER[measure])
    ]
    return settle(reduce(and_, outcomes))


def _temperatures(loss: str) -> dict[str, float]:
    """Temperatures of Tables 1 and 2 by place."""
    return {
        f"{_LOSSES[loss]}, {place}, by {_NAMES[measure]}": printed_value(row, loss, method, "temperature")
        for measure, method in _AFTER.items()
        for row, place in _ROWS.items()
    }


def _range_of_temperatures() -> Finding:
    found = _temperatures("cross-entropy") | _temperatures("mmce")
    outside = {place: value for place, value in found.items() if not 2.0 <= value <= 2.8}
    examples = "; ".join(f"{place}: {value:g}" for place, value in outside.items() if place.endswith("by ECE"))
    on_cifar = [value for place, value in found.items() if "CIFAR-10," in place]
    return settle(
        Outcome(not outside, f"{len(outside)} of {len(found)} lie outside: {examples}, and the same five by AdaECE"),
        inside=Outcome(
            all(2.0 <= value <= 2.8 for value in on_cifar),
            f"all {len(on_cifar)} lie between {min(on_cifar):g} and {max(on_cifar):g}",
        ),
        where="for CIFAR-10",
    )


def _higher_temperatures() -> Finding:
    focal = np.array(list(_temperatures("fla-53").values()))
    ratios = np.concatenate(
        [np.array(list(_temperatures(loss).values())) / focal for loss in ("cross-entropy", "mmce")]
    )
    words = f"in all {len(ratios)} pairs, by a factor of {ratios.min():.2f} to {ratios.max():.2f}"
    return settle(Outcome(bool(ratios.min() > 1), words))


def _near_one() -> Finding:
    values = list(_temperatures("fla-53").values())
    near = sum(0.9 <= value <= 1.1 for value in values)
    words = f"{near} of {len(values)} do; the others range from {min(values):g} to {max(values):g}"
    return settle(Outcome(near > len(values) / 2, words))


def _confident() -> Finding:
    """|S99| in percent after temperature scaling (Table 6), for cross-entropy, MMCE and focal loss."""
    rows = {
        _NETWORKS[model]: [
            printed_value(("cifar10", model), loss, "ts-ece", "confident_99")
            for loss in ("cross-entropy", "mmce", "fla-53")
        ]
        for model in ("resnet110-bottleneck", "resnet50")
    }
    higher = all(focal > max(others) for *others, focal in rows.values())
    words = "; ".join(
        f"{name}: {focal:g} % with focal loss, {one:g} % and {two:g} % with the others"
        for name, (one, two, focal) in rows.items()
    )
    return settle(Outcome(higher, words))


def _lowest_claim(id: str, table: int, method: str, measure: str) -> Claim:
    def check() -> Finding:
        return settle(_mostly_lowest("fla-53", _BASELINES, method, measure))

    return _table_claim(
        id,
        "Section 6, performance gains",
        "Focal loss with sample-wise γ outperforms all the baselines: it broadly has the lowest "
        f"{_NAMES[measure]} {_WHEN[method]} temperature scaling (Table {table}).",
        "cross-entropy, Brier score and MMCE; we read broadly as in most of ten rows and on average",
        check,
    )


def _table_claim(id: str, where: str, statement: str, domain: str, check: Callable[[], Finding]) -> Claim:
    return Claim(id, where, statement, CheckMethod.TABLE, domain, check)


CLAIMS = (
    _table_claim(
        "002-text-best",
        "Section 4, implicit regularization",
        "Of all approaches that the paper compares, sample-wise γ gives the best result.",
        "ECE before temperature scaling, ten losses, ten rows of Tables 1 and 7",
        _best_of_all,
    ),
    _lowest_claim("002-text-table-1", 1, "raw", "ece_15"),
    _lowest_claim("002-text-table-1-after", 1, "ts-ece", "ece_15"),
    _lowest_claim("002-text-table-2", 2, "raw", "adaptive_ece_15"),
    _lowest_claim("002-text-table-2-after", 2, "ts-adaptive-ece", "adaptive_ece_15"),
    _table_claim(
        "002-text-table-7",
        "Section 6, performance gains",
        "Of the fixed γ, γ = 3 gives the best ECE.",
        "ECE before and after temperature scaling, in most of ten rows of Table 7 and on average",
        _fixed_gamma,
    ),
    _table_claim(
        "002-text-policies",
        "Section 6, performance gains",
        "Of the two sample-wise policies, 5,3 gives better results than 5,3,2.",
        "ECE and AdaECE before and after temperature scaling, in most of ten rows of Tables 7 and 8 and on average",
        _policies,
    ),
    _table_claim(
        "002-text-schedules",
        "Section 6, performance gains",
        "The schedule 5,3,2 has a better ECE and AdaECE than 5,3,1 for every model and data set.",
        "before and after temperature scaling, ten rows of Tables 7 and 8",
        _schedules,
    ),
    _table_claim(
        "002-text-temperatures",
        "Section 6, confident and calibrated models",
        "The optimal temperatures of cross-entropy and MMCE lie between 2.0 and 2.8.",
        "forty entries of Tables 1 and 2",
        _range_of_temperatures,
    ),
    _table_claim(
        "002-text-temperatures-higher",
        "Section 6, confident and calibrated models",
        "The optimal temperatures of cross-entropy and MMCE are higher than those of focal loss with sample-wise γ.",
        "forty pairs of entries of Tables 1 and 2",
        _higher_temperatures,
    ),
    _table_claim(
        "002-text-near-one",
        "Section 6, confident and calibrated models",
        "With sample-wise γ, most optimal temperatures lie between 0.9 and 1.1.",
        "twenty entries of Tables 1 and 2; we read mostly as more than half",
        _near_one,
    ),
    _table_claim(
        "002-text-s99",
        "Section 6 and Table 6",
        "After temperature scaling, focal loss has more predictions above 99 % confidence than cross-entropy and MMCE.",
        "two networks on CIFAR-10",
        _confident,
    ),
    not_checkable(
        "002-experiments",
        "Sections 3 to 6, Tables 1 to 13, Figures 1 to 4 and 8",
        "Networks trained with focal loss are better calibrated than with cross-entropy, Brier score or MMCE.",
        ABOUT_NETWORKS,
    ),
)
