"""The demonstration: focal scores that ship with the package, before and after recovery."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from refocal.core.posterior import posterior_from_logits
from refocal.core.theory import Regime, confidence_regime
from refocal.metrics import ece, error, kl_to_posterior, nll

_BINS = 15


class DemoData(NamedTuple):
    """Logits that minimise the focal risk for a known posterior, and labels drawn from it."""

    logits: np.ndarray  # (N, K)
    labels: np.ndarray  # (N,)
    posterior: np.ndarray  # (N, K)
    gamma: float


class Quality(NamedTuple):
    """Mean scores of predicted probabilities where the true posterior is known."""

    error: float
    nll: float
    ece: float
    kl: float


def load() -> DemoData:
    """The data set that ships with the package (made by tools/make_demo_data.py)."""
    with resources.files("refocal").joinpath("data/demo.npz").open("rb") as file:
        arrays = np.load(file, allow_pickle=False)
        labels = arrays["labels"].astype(np.intp)
        return DemoData(arrays["logits"], labels, arrays["posterior"], float(arrays["gamma"]))


def measure(probs: np.ndarray, data: DemoData) -> Quality:
    """Error rate, mean NLL, top-label ECE over 15 equal-width bins, and mean KL to the true posterior."""
    return Quality(
        error(probs, data.labels),
        nll(probs, data.labels),
        ece(probs, data.labels, bins=_BINS),
        kl_to_posterior(probs, data.posterior),
    )


def run() -> RenderableType:
    """What `refocal demo` shows."""
    data = load()
    softmax = posterior_from_logits(data.logits.astype(np.float64), gamma=0)
    recovered = posterior_from_logits(data.logits.astype(np.float64), gamma=data.gamma)
    table = Table(
        title=f"{len(data.labels):,} samples, {softmax.shape[1]} classes, focal loss with gamma = {data.gamma:g}"
    )
    for heading in ("probabilities", "error %", "NLL", f"ECE % ({_BINS} bins)", "KL to the truth"):
        table.add_column(heading, justify="left" if heading == "probabilities" else "right")
    for name, probs in (("softmax, as trained", softmax), ("recovered", recovered), ("true posterior", data.posterior)):
        quality = measure(probs, data)
        style = "bold" if name == "recovered" else None
        table.add_row(
            name,
            f"{100 * quality.error:.2f}",
            f"{quality.nll:.4f}",
            f"{100 * quality.ece:.2f}",
            f"{quality.kl:.1e}" if quality.kl < 1e-4 else f"{quality.kl:.4f}",
            style=style,
        )
    under = np.mean(confidence_regime(softmax, gamma=data.gamma) == Regime.UNDERCONFIDENT)
    verdict = Text(
        f"The theory calls {under:.1%} of these softmax rows underconfident: focal loss decides well, but its scores "
        "are no probabilities. The recovered ones make the same decisions and are p(y|x).",
    )
    return Group(table, verdict)
