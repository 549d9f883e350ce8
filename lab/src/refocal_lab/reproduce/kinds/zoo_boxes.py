"""Figures 5 and 6 of Charoenphakdee et al. (2021): box plots of ECE by gamma, raw and after Psi."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from refocal import metrics
from refocal_lab import zoo
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import NO_ENTRY, Context, Numbers
from refocal_lab.reproduce.training_paradigms import LABELS, ParadigmParameters, Setting
from refocal_lab.reproduce.zoo_entries import Network, Rows, collapse_rows, format_spread, select_entries, zoo_kind
from refocal_lab.zoo.measures import read_parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_HOW = {"raw": "raw", "psi": "after Ψ"}
_COLUMNS = 3


def compute(given: ParadigmParameters, context: Context) -> Numbers:
    """Compute the ECE of each trial. For networks with all gammas, find the best gamma and how raw ECE changes."""
    found = select_entries(given, context)
    values: dict[str, float] = {}
    absent: list[str] = []
    boxes = []
    rows: Rows = [("network", "", "", *(f"γ = {gamma:g}" for gamma in given.gammas), "best γ")]
    for network in map(Network.parse, given.networks):
        for paradigm in given.paradigms:
            eces: dict[str, list[list[float]]] = {how: [] for how in _HOW}
            for gamma in given.gammas:
                setting = Setting(network, paradigm, gamma)
                context.progress(str(setting))
                for how, several in _measure_eces(setting, setting.trials(found), given.bins).items():
                    eces[how].append(several)
            for how, by_gamma in eces.items():
                best = _find_best(given.gammas, by_gamma)
                cells = (*map(format_spread, by_gamma), "–" if best is None else f"{best:g}")
                rows.append((network.label, LABELS[paradigm], _HOW[how], *cells))
            here = _summarize(given.gammas, eces)
            values |= {f"{key}({network}, {paradigm})": value for key, value in here.items() if value is not None}
            absent += [f"{key}({network}, {paradigm})" for key, value in here.items() if value is None]
            if any(eces["raw"]):
                boxes.append({"network": str(network), "paradigm": paradigm, **eces})
    return Numbers(values, {"boxes": boxes}, collapse_rows(rows, labels=3), tuple(absent))


def _measure_eces(setting: Setting, trials: list[zoo.Entry], bins: int) -> dict[str, list[float]]:
    eces: dict[str, list[float]] = {how: [] for how in _HOW}
    for entry in trials:
        val, test = read_parts(entry)
        for how, predict in setting.maps(val).items():
            eces[how].append(metrics.ece(predict(test.logits), test.labels, bins=bins))
    return eces


def _find_best(gammas: tuple[float, ...], by_gamma: list[list[float]]) -> float | None:
    """Find the gamma with the lowest mean; None if a gamma is missing."""
    return gammas[int(np.argmin([np.mean(several) for several in by_gamma]))] if all(by_gamma) else None


def _summarize(gammas: tuple[float, ...], eces: dict[str, list[list[float]]]) -> dict[str, float | None]:
    """Compute the numbers that the paper states about the boxes; None if a gamma is missing."""
    named = ("best gamma raw", "best gamma psi", "least step of raw", "share better after psi")
    if not all(eces["raw"]):
        return dict.fromkeys(named)
    raw, psi = (np.array([np.mean(several) for several in eces[how]]) for how in _HOW)
    positive = np.array(gammas) > 0
    return {
        "best gamma raw": _find_best(gammas, eces["raw"]),
        "best gamma psi": _find_best(gammas, eces["psi"]),
        "least step of raw": float(np.diff(raw).min()),
        "share better after psi": float(np.mean(psi[positive] < raw[positive])),
    }


def draw(figure: Figure, given: ParadigmParameters, numbers: Numbers) -> None:
    """Draw one panel per network and paradigm with two or more gammas."""
    boxes = [item for item in numbers.curves["boxes"] if sum(map(bool, item["raw"])) > 1]
    columns = min(_COLUMNS, max(len(boxes), 1))
    count = max(-(-len(boxes) // columns), 1)
    figure.set_size_inches(style.WIDTH * max(columns, 1.7) / _COLUMNS, 0.5 + 2.4 * count)
    panels = figure.subplots(count, columns, squeeze=False)
    for ax, item in zip(panels.ravel(), boxes, strict=False):
        _draw_boxes(ax, given.gammas, item)
        words = LABELS[item["paradigm"]].replace("TS_FL", "TS$_{FL}$")
        ax.set_title(f"{Network.parse(item['network']).label}, {words}", fontsize=8)
    for ax in panels.ravel()[len(boxes) :]:
        ax.set_axis_off()
    if not boxes:
        panels[0, 0].text(0.5, 0.5, NO_ENTRY, ha="center")
        return
    for ax in panels[:, 0]:
        ax.set_ylabel("ECE (%)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2)


def _draw_boxes(ax: Axes, gammas: tuple[float, ...], item: dict[str, Any]) -> None:
    for index, (how, words) in enumerate(_HOW.items()):
        color = style.color(2 - index)
        held = [column for column, several in enumerate(item[how]) if several]
        at = [column + (index - 0.5) * 0.36 for column in held]
        several = [100 * np.array(item[how][column]) for column in held]
        line = {"color": color, "linewidth": 1.0}
        face = {"facecolor": "white" if how == "raw" else f"{color}40", "edgecolor": color, "linewidth": 1.0}
        ax.boxplot(
            several,
            positions=at,
            widths=0.3,
            patch_artist=True,
            showfliers=False,
            manage_ticks=False,
            boxprops=face,
            medianprops=line,
            whiskerprops=line,
            capprops=line,
        )
        x = np.repeat(at, [len(values) for values in several])
        marker = style.MARKERS[index]
        ax.plot(x, np.concatenate(several), linestyle="none", marker=marker, markersize=3, color=color, label=words)
    absent = "\n" + NO_ENTRY.replace(" ", "\n")
    ticks = [f"γ = {gamma:g}{'' if several else absent}" for gamma, several in zip(gammas, item["raw"], strict=True)]
    ax.set_xticks(range(len(gammas)), ticks)
    ax.set_xlim(-0.6, len(gammas) - 0.4)
    style.start_at_zero(ax)


KIND = zoo_kind(ParadigmParameters, compute, draw)
