"""The training paradigms of Charoenphakdee et al. (2021): standard, TS by focal loss, label smoothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from refocal.calibrators import TemperatureScaling
from refocal_lab import zoo
from refocal_lab.reproduce.zoo_entries import Entries, Network, Predict, make_focal_map, was_trained_with
from refocal_lab.zoo.measures import LogitPart
from refocal_lab.zoo.published import parse_variant

LABELS = {"standard": "Standard", "ts-fl": "TS_FL", "label-smoothing": "LS"}
SMOOTHING = 0.1


class Setting(NamedTuple):
    """A network, its training paradigm, and the gamma of its focal loss (0 for cross-entropy)."""

    network: Network
    paradigm: str
    gamma: float

    def __str__(self) -> str:
        return f"{self.network}, {self.paradigm}, {self.gamma:g}"

    def trials(self, found: Entries) -> list[zoo.Entry]:
        """Its entries in the zoo."""
        smoothing = SMOOTHING if self.paradigm == "label-smoothing" else 0.0
        return found.trials(self.network, parse_variant(f"focal {self.gamma:g}", smoothing))

    def maps(self, val: LogitPart) -> dict[str, Predict]:
        """Maps to raw scores and to Psi^gamma of them; for TS_FL, after the temperature that minimizes focal loss."""
        temperature = 1.0
        if self.paradigm == "ts-fl":
            scaling = TemperatureScaling(objective="focal", gamma=self.gamma).fit(val.logits, val.labels)
            temperature = scaling.temperature_
        return {"raw": make_focal_map(0.0, temperature), "psi": make_focal_map(self.gamma, temperature)}


@dataclass(frozen=True)
class ParadigmParameters:
    """The networks that a figure of Charoenphakdee et al. (2021) shows.

    Attributes:
        networks: For example "svhn resnet110".
        paradigms: A selection of "standard", "ts-fl" and "label-smoothing".
        gammas: Focusing parameters; 0 for cross-entropy.
        bins: Number of bins of equal width.
    """

    networks: tuple[str, ...]
    paradigms: tuple[str, ...]
    gammas: tuple[float, ...]
    bins: int

    def wants(self, card: zoo.Card) -> bool:
        """Select the networks that were trained with one of the gammas in one of the paradigms."""
        smoothings = {SMOOTHING if paradigm == "label-smoothing" else 0.0 for paradigm in self.paradigms}
        losses = [f"focal {gamma:g}" for gamma in self.gammas]
        is_wanted = any(was_trained_with(card, losses, smoothing) for smoothing in smoothings)
        return f"{card.data} {card.model}" in self.networks and is_wanted
