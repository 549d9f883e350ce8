"""The figures of the runs of `curvature.py`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from refocal_lab.reproduce import Numbers, style
from refocal_lab.reproduce.curvature_runs import HESSIANS, Runs, interval, names


def draw_against_gamma(figure: Figure, runs: Runs) -> None:
    """Draw lambda_max and ECE against gamma, with intervals over seeds."""
    networks = names(runs, "network")
    figure.set_size_inches(style.WIDTH, 2.6 * len(networks))
    rows = figure.subplots(len(networks), 2, squeeze=False)
    for index, (axes, network) in enumerate(zip(rows, networks, strict=True)):
        chosen = [run for run in runs if run["network"] == network]
        for number, (name, label) in enumerate(HESSIANS.items()):
            _draw_band(axes[0], chosen, f"lambda_max_{name}", number, label=label)
        _draw_band(axes[1], chosen, "ece", 2)
        axes[0].set(ylim=(0, None), ylabel="λmax on validation data", xlabel="γ")
        axes[1].set(ylim=(0, None), ylabel="ECE on test data", xlabel="γ")
        style.label_panels(axes, index, f"Fashion-MNIST, {network}")
    style.add_common_legend(figure, rows.ravel())


def draw_against_trace(figure: Figure, runs: Runs, *, fits: dict[str, Any]) -> None:
    """Draw ECE against the trace with the fitted cubic, with one color per gamma."""
    networks = names(runs, "network")
    figure.set_size_inches(style.WIDTH, 2.6 * len(networks))
    rows = figure.subplots(len(networks), 2, squeeze=False)
    for index, (axes, network) in enumerate(zip(rows, networks, strict=True)):
        chosen = [run for run in runs if run["network"] == network]
        for axis, (name, label) in zip(axes, HESSIANS.items(), strict=True):
            trace = np.array([run[f"trace_{name}"] for run in chosen])
            shown = axis.scatter(
                trace, [run["ece"] for run in chosen], c=[run["gamma"] for run in chosen], cmap="viridis", s=22
            )
            grid = np.linspace(trace.min(), trace.max(), 200)
            fit = fits[f"{network}, {name}"]["cubic_in_trace"]
            axis.plot(grid, np.polyval(fit, grid), color="0.3", linewidth=1)
            axis.set(xlabel=f"Tr(H), {label}", ylabel="ECE on test data", ylim=(0, None))
        style.label_panels(axes, index, f"Fashion-MNIST, {network}")
    figure.colorbar(shown, ax=rows, label="γ", shrink=0.6)


def save(draw: Callable[[Figure, Runs], None], runs: Runs, folder: Path) -> None:
    """Draw runs in the style of the other figures, as SVG and PNG."""
    files = style.render(
        lambda figure, _, numbers: draw(figure, numbers.curves["runs"]), None, Numbers({}, {"runs": runs})
    )
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _draw_band(axis: Any, runs: Runs, key: str, index: int, *, label: str = "") -> None:
    places = names(runs, "gamma")
    limits = [interval([run[key] for run in runs if run["gamma"] == place]) for place in places]
    axis.plot(places, [each["mean"] for each in limits], label=label, **style.line(index))
    dots: dict[str, Any] = {"marker": style.MARKERS[index], "markersize": 3, "linestyle": "none"}
    axis.plot([run["gamma"] for run in runs], [run[key] for run in runs], color=style.color(index), **dots)
    low, high = ([each[end] for each in limits] for end in ("low", "high"))
    axis.fill_between(places, low, high, color=style.color(index), alpha=0.15, linewidth=0)
