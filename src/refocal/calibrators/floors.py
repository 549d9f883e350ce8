"""The floor of probabilities: which number stands for a probability that is 0, or too small to believe.

Forests, nearest neighbors and saturated networks give probabilities of exactly 0, whose logarithm no calibrator can
use. From n samples nobody can tell a probability of 0 from one of 1 / (n + 1), the estimate of the rule of succession
for an event that has not been seen (up to 1 in n). Small probabilities of a network are often real, though: raised to
1 / (n + 1), they would be lost. So there are two candidates, and the likelihood decides.
"""

from __future__ import annotations

import numpy as np

from refocal.calibrators.fit.maximum_likelihood import fit_temperature
from refocal.calibrators.fit.temperature_likelihood import LabeledLogits

_LEAST = float(np.finfo(np.float32).tiny)


def choose_floor(data: LabeledLogits, samples: float, least: float) -> float:
    """Choose the floor of probabilities: 1 / (n + 1), or the smallest positive probability if that is less.

    The one with which temperature scaling fits better is taken.

    Args:
        data: Logarithms of probabilities, with labels; all samples, or some of them.
        samples: The number of all samples, n.
        least: The smallest positive probability of all samples.
    """
    unseen = 1 / (max(samples, 1.0) + 1)
    if least >= unseen:
        return unseen
    nlls = {floor: fit_temperature(raise_logits(data, floor)).nll for floor in (unseen, least)}
    return min(nlls, key=nlls.__getitem__)


def raise_logits(data: LabeledLogits, floor: float) -> LabeledLogits:
    """Raise probabilities, given by their logarithms, to the floor."""
    return LabeledLogits.prepare(np.maximum(data.logits, np.log(floor)), data.labels, data.share * data.samples)


def find_least(probs: np.ndarray) -> float:
    """Find the smallest positive probability in (N, K); one column also stands for the probabilities of the rest.

    Numbers below the smallest normal number of float32 count as 0, because devices may round them to 0.
    """
    parts = [probs, 1 - probs] if probs.shape[1] == 1 else [probs]
    return float(min(np.min(part, initial=1.0, where=part >= _LEAST) for part in parts))
