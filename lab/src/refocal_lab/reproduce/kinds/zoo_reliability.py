"""Figure 4 of Charoenphakdee et al. (2021): reliability diagrams of networks, raw and after Psi."""

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


def compute(given: ParadigmParameters, context: Context) -> Numbers:
    """Compute error and ECE of each trial, and one diagram of the pooled predictions of all trials."""
    found = select_entries(given, context)
    values: dict[str, float] = {}
    absent: list[str] = []
    diagrams = []
    rows: Rows = [("network", "", "γ", "error (%)", "ECE raw (%)", "ECE after Ψ (%)")]
    for network in map(Network.parse, given.networks):
        for paradigm in given.paradigms:
            for gamma in given.gammas:
                setting = Setting(network, paradigm, gamma)
                context.progress(str(setting))
                measured = _measure(setting, setting.trials(found), given.bins)
                names = {key: f"{key}({setting})" for key in ("error", *_HOW)}
                cells = (format_spread(measured[key]) for key in names)
                rows.append((network.label, LABELS[paradigm], f"{gamma:g}", *cells))
                if "diagrams" not in measured:
                    absent += names.values()
                    continue
                values |= {name: float(np.mean(measured[key])) for key, name in names.items()}
                diagrams.append({"network": str(network), "paradigm": paradigm, "gamma": gamma, **measured["diagrams"]})
    return Numbers(values, {"diagrams": diagrams}, collapse_rows(rows, labels=3), tuple(absent))


def _measure(setting: Setting, trials: list[zoo.Entry], bins: int) -> dict[str, Any]:
    measured: dict[str, Any] = {key: [] for key in ("error", *_HOW)}
    probs: dict[str, list[np.ndarray]] = {how: [] for how in _HOW}
    labels = []
    for entry in trials:
        val, test = read_parts(entry)
        for how, predict in setting.maps(val).items():
            probs[how].append(predict(test.logits))
            measured[how].append(metrics.ece(probs[how][-1], test.labels, bins=bins))
        measured["error"].append(metrics.error(probs["raw"][-1], test.labels))
        labels.append(test.labels)
    if trials:
        together = np.concatenate(labels)
        found = {
            how: metrics.reliability_diagram(np.concatenate(probs[how]), together, bins=bins, resamples=100)
            for how in _HOW
        }
        measured["diagrams"] = {
            how: {"confidence": diagram.confidence, "accuracy": diagram.accuracy} for how, diagram in found.items()
        }
    return measured


def draw(figure: Figure, given: ParadigmParameters, numbers: Numbers) -> None:
    """Draw one row of panels per network and paradigm of the zoo, and one column per gamma."""
    diagrams = numbers.curves["diagrams"]
    settings = list(dict.fromkeys((item["network"], item["paradigm"]) for item in diagrams)) or [("", "")]
    figure.set_size_inches(style.WIDTH, 0.5 + 2.4 * len(settings))
    panels = figure.subplots(len(settings), len(given.gammas), squeeze=False, sharex=True, sharey=True)
    for (network, paradigm), row in zip(settings, panels, strict=True):
        for gamma, ax in zip(given.gammas, row, strict=True):
            ax.axline((0, 0), slope=1, color=style.GUIDE, linewidth=0.8)
            ax.set(xlim=(0, 1.02), ylim=(0, 1.02), aspect="equal")
            ax.set_title(f"{_title(network, paradigm)}, γ = {gamma:g}".lstrip(", "), fontsize=8)
            for item in diagrams:
                if (item["network"], item["paradigm"], item["gamma"]) == (network, paradigm, gamma):
                    _draw_diagram(ax, item, numbers.values)
        row[0].set_ylabel("accuracy")
    for ax in panels[-1]:
        ax.set_xlabel("confidence")
    if diagrams:
        handles, labels = next(ax for ax in panels.ravel() if len(ax.lines) > 1).get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=2)
    else:
        panels[0, 0].text(0.5, 0.4, NO_ENTRY, ha="center")


def _title(network: str, paradigm: str) -> str:
    return f"{Network.parse(network).label}, {LABELS[paradigm].replace('TS_FL', 'TS$_{FL}$')}" if network else ""


def _draw_diagram(ax: Axes, item: dict[str, Any], values: dict[str, float]) -> None:
    setting = Setting(Network.parse(item["network"]), item["paradigm"], item["gamma"])
    for index, (how, words) in enumerate(_HOW.items()):
        ax.plot(
            item[how]["confidence"],
            item[how]["accuracy"],
            marker=style.MARKERS[index],
            markersize=3.5,
            markerfacecolor="white" if how == "raw" else style.color(1),
            label=words,
            **style.line(2 - index, linewidth=1.2),
        )
    lines = (
        f"ERR {100 * values[f'error({setting})']:.2f}",
        f"ECE raw {100 * values[f'raw({setting})']:.2f}",
        f"ECE Ψ {100 * values[f'psi({setting})']:.2f}",
    )
    ax.text(0.97, 0.03, "\n".join(lines), ha="right", va="bottom", fontsize=7.5)


KIND = zoo_kind(ParadigmParameters, compute, draw)
