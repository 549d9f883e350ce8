"""The result of `TokenCalibration`: a record, and a table of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from refocal import _check
from refocal.language_models.documents import Moments
from refocal.language_models.readouts import TokenCalibrator
from refocal.metrics import Interval


@dataclass(frozen=True)
class TokenReadout:
    """The measures of one way to read probabilities from the logits.

    Attributes:
        nll: Mean negative log-likelihood per token, in nats.
        accuracy: Share of tokens that are the most probable class.
        confidence: Mean probability of the most probable class.
        overconfidence: `confidence` minus `accuracy`; negative for an underconfident model.
        ece: Expected calibration error of the most probable class, over bins of equal width.
    """

    nll: Interval
    accuracy: Interval
    confidence: Interval
    overconfidence: Interval
    ece: float

    @property
    def perplexity(self) -> Interval:
        """The exponential of the NLL and of its limits."""
        return Interval(*map(_exp, self.nll))


@dataclass(frozen=True)
class FittedReadout:
    """A calibrator that was fitted to the tokens, with its measures on the same tokens.

    Attributes:
        calibrator: The fitted calibrator, to predict with or to save.
        nll: Mean negative log-likelihood per token, in nats.
        ece: Expected calibration error of the most probable class, interpolated.
    """

    calibrator: TokenCalibrator
    nll: float
    ece: float

    @property
    def perplexity(self) -> float:
        """The exponential of the NLL."""
        return _exp(self.nll)


@dataclass(frozen=True)
class TokenReport:
    """How well the token probabilities of a language model are calibrated. `print` shows it as a table.

    Intervals take documents as independent samples. Their limits are NaN if there is only one document.

    Attributes:
        tokens: Number of tokens that count.
        documents: Number of documents that have such tokens.
        readouts: The measures of the softmax, of the posterior and of the given calibrators, by name.
        temperature: Temperature scaling, fitted to the tokens; None if nothing was fitted.
        focal_temperature: Focal temperature scaling, likewise.
        level: Level of the intervals.
    """

    tokens: int
    documents: int
    readouts: Mapping[str, TokenReadout]
    temperature: FittedReadout | None
    focal_temperature: FittedReadout | None
    level: float
    _moments: Moments = field(repr=False, compare=False)

    def compare(self, first: str, second: str) -> Interval:
        """The mean NLL of one readout minus that of another, with its limits.

        Both see the same tokens, so the interval of the difference is much shorter than those of the two NLLs.
        """
        names = tuple(self.readouts)
        weights = np.zeros(len(self._moments.total))
        weights[nll_place(names.index(_check.one_of(first, "first", names)))] += 1
        weights[nll_place(names.index(_check.one_of(second, "second", names)))] -= 1
        return self._moments.compute_interval(weights, level=self.level)

    def __str__(self) -> str:
        rows = [("", "NLL", f"{100 * self.level:g}% limits", "perplexity", "accuracy", "confidence", "ECE")]
        for name, found in self.readouts.items():
            limits = f"{found.nll.low:.4f} to {found.nll.high:.4f}"
            shares = f"{found.accuracy.value:.2%}", f"{found.confidence.value:.2%}"
            rows.append(
                (name, f"{found.nll.value:.4f}", limits, f"{found.perplexity.value:.2f}", *shares, _rate(found))
            )
        for name, fitted in self._fitted().items():
            rows.append((name, f"{fitted.nll:.4f}", "", f"{fitted.perplexity:.2f}", "", "", _rate(fitted)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (_align(row, widths) for row in rows)
        return "\n".join([f"{self.tokens:,} tokens of {self.documents:,} documents", *lines])

    def _fitted(self) -> dict[str, FittedReadout]:
        """The fitted calibrators, by a name with their parameters."""
        found: dict[str, FittedReadout] = {}
        if self.temperature is not None:
            found[f"T = {self.temperature.calibrator.temperature_:.3f}"] = self.temperature
        if self.focal_temperature is not None:
            calibrator = self.focal_temperature.calibrator
            found[f"gamma = {calibrator.gamma_:.2f}, T = {calibrator.temperature_:.3f}"] = self.focal_temperature
        return found


def nll_place(readout: int) -> int:
    """The place of a readout's NLL in the vector of a document.

    The vector has the number of tokens, then the sums of NLL, confidence and hits of each readout.
    """
    return 1 + 3 * readout


def _rate(found: TokenReadout | FittedReadout) -> str:
    return f"{found.ece:.2%}"


def _align(row: tuple[str, ...], widths: list[int]) -> str:
    first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join([first.strip().ljust(widths[0]), *others])


def _exp(value: float) -> float:
    """The exponential; infinite if it is too large."""
    with np.errstate(over="ignore"):
        return float(np.exp(value))
