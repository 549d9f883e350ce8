"""The verdict in words: are the probabilities to be trusted, why or why not, and what helps."""

from __future__ import annotations

import numpy as np

from refocal.core.theory import Regime, confidence_regime
from refocal.report import words
from refocal.report.record import Method, Verdict

_LEVEL = 0.05


def verdict(
    given: Method, chosen: Method, probs: np.ndarray, changed: float, *, gamma: float | None, alone: bool
) -> Verdict:
    """Put into words what was measured.

    Args:
        given: The probabilities as they came.
        chosen: The recommended ones.
        probs: The probabilities as they came (N, K).
        changed: The share of decisions that differ between the two.
        gamma: What the network was trained with, where it is known.
        alone: Whether nothing else was tried.
    """
    title = f"{chosen.title[0].lower()}{chosen.title[1:]}"
    sure, right = words.sure_and_right(given.diagram)
    if given.p_value > _LEVEL:
        regime = "calibrated"
        first = "These probabilities can be trusted: no sign of miscalibration"
    else:
        regime = "overconfident" if sure > right else "underconfident"
        first = f"These scores are {regime}"
    if chosen.given:
        first += "." if alone or regime == "calibrated" else "; no method that was tried does better."
    elif regime == "calibrated":
        first += f", though {title} fits a little better."
    else:
        first += f"; {title} makes them probabilities that you can use."
    p_value = words.p_value(given.p_value)
    sentences = [
        first,
        f"On average they are {words.percent(sure)} sure and {words.percent(right)} right (test of calibration: "
        f"p {p_value if p_value.startswith('<') else '= ' + p_value}).",
    ]
    if gamma:
        share = float(np.mean(confidence_regime(probs, gamma=gamma) == Regime.UNDERCONFIDENT))
        sentences.append(
            f"The network was trained with focal loss, γ = {gamma:g}: in theory {words.percent(share)} of these scores "
            "lie below the true probability."
        )
    if not chosen.given:
        before, after = given.measures["ece"], chosen.measures["ece"]
        decisions = "All decisions stay" if changed == 0 else f"{words.percent(changed, 2)} of the decisions change"
        sentences.append(
            f"{chosen.title} takes ECE from {words.percent(before.value)} to {words.percent(after.value)} and NLL from "
            f"{words.number(given.measures['nll'].value)} to {words.number(chosen.measures['nll'].value)}. {decisions}."
        )
        after_p = words.p_value(chosen.p_value)
        left = "no sign of miscalibration is left" if chosen.p_value > _LEVEL else "some miscalibration is left"
        sentences.append(f"After it, {left} (p {after_p if after_p.startswith('<') else '= ' + after_p}).")
    return Verdict(regime, tuple(sentences))
