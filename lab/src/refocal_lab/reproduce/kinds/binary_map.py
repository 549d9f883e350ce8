"""Figure 1 of Komisarenko and Kull (2024): binary focal loss as a map and a proper loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import refocal
from refocal_lab.reproduce import style
from refocal_lab.reproduce.computation import Context, Kind, Numbers
from refocal_lab.reproduce.kinds.minimizer import rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOOKS: dict[str, dict[str, Any]] = {"focal": {"linewidth": 1.3}, "proper": {"linewidth": 2.4}}
_DASHES = {"focal": ((0, (4, 1.5)), (0, (1, 1.2))), "proper": ("-", (0, (5, 1, 1, 1)))}


@dataclass(frozen=True)
class Parameters:
    """The curves: losses on the left, maps on the right.

    Attributes:
        loss_gammas: Gammas of focal loss and its proper part.
        map_gammas: Gammas of the map, > -1.
        points: Number of points per curve.
        posterior: Posterior whose focal scores are recorded.
    """

    loss_gammas: tuple[float, ...]
    map_gammas: tuple[float, ...]
    points: int
    posterior: float


def compute(given: Parameters, _: Context) -> Numbers:
    """Compute the losses of the true class and the maps."""
    inside = np.linspace(0, 1, given.points + 2)[1:-1]
    true = np.zeros(len(inside), dtype=int)
    values, focal_losses, proper_losses = {}, [], []
    for gamma in given.loss_gammas:
        focal = refocal.focal_partial(np.log(inside), np.log1p(-inside), gamma=gamma)
        proper = refocal.proper_focal_partial(rows(inside, 2), true, gamma=gamma)
        focal_losses.append(focal)
        proper_losses.append(proper)
        below = inside < 0.5
        agree = np.where(below, proper < focal, proper >= focal)
        values[f"proper part on the stated side({gamma:g})"] = float(np.mean(agree[inside != 0.5]))
    for gamma in (gamma for gamma in given.map_gammas if gamma > 0):
        score = refocal.minimizer(np.array([given.posterior, 1 - given.posterior]), gamma=gamma)
        values[f"q({given.posterior:g}, {gamma:g})"] = float(score[0])
    losses = {"p": inside, "cross_entropy": -np.log(inside), "focal": focal_losses, "proper": proper_losses}
    p = np.linspace(0, 1, given.points)
    maps = [refocal.posterior(rows(p, 2), gamma=gamma)[:, 0] for gamma in given.map_gammas]
    return Numbers(values, {"losses": losses, "p": p, "maps": maps})


def draw(figure: Figure, given: Parameters, numbers: Numbers) -> None:
    """Draw losses on the left, maps on the right."""
    figure.set_size_inches(style.WIDTH, 3.3)
    left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
    losses = numbers.curves["losses"]
    left.plot(losses["p"], losses["cross_entropy"], label="cross-entropy", **style.line(0))
    for index, gamma in enumerate(given.loss_gammas):
        for name, words in (("focal", "focal"), ("proper", "its proper part")):
            look = {"color": style.color(index + 1), **_LOOKS[name], "linestyle": _DASHES[name][index % 2]}
            left.plot(losses["p"], losses[name][index], label=f"{words}, γ = {gamma:g}", **look)
    left.set(xlim=(0, 1), ylim=(0, 4), xlabel="predicted probability of the true class", ylabel="loss (nats)")
    left.legend(loc="upper right")
    style.label_panel(left, 0)
    right.plot([0, 1], [0, 1], color=style.GUIDE, linewidth=0.8)
    for index, (gamma, curve) in enumerate(zip(given.map_gammas, numbers.curves["maps"], strict=True)):
        right.plot(numbers.curves["p"], curve, label=f"γ = {gamma:g}".replace("-", "−"), **style.line(index))
    right.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="predicted probability", ylabel="after the focal map")
    right.legend(loc="lower right", handlelength=2.2)
    style.label_panel(right, 1)


KIND = Kind(Parameters, compute, draw)
