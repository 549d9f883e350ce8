"""refocal: class probabilities you can act on, from the scores of a classifier.

A network trained with focal loss decides well, but its softmax output is provably not p(y|x). `posterior` and
`posterior_from_logits` give p(y|x) back in closed form.
"""

from refocal.core.focal import focal_partial, phi
from refocal.core.inverse import minimizer, proper_focal_partial
from refocal.core.posterior import posterior, posterior_from_logits
from refocal.core.sigmoid import sigmoid_minimizer, sigmoid_posterior
from refocal.core.theory import (
    Regime,
    closest_temperature,
    confidence_regime,
    gamma_star,
    temperature_bounds,
    thresholds,
)

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """`calibrate` and `evaluate` bring in scikit-learn: only when they are asked for."""
    if name in {"calibrate", "evaluate"}:
        from refocal import report

        return getattr(report, name)
    msg = f"module 'refocal' has no attribute {name!r}"
    raise AttributeError(msg)


__all__ = [
    "Regime",
    "calibrate",
    "closest_temperature",
    "confidence_regime",
    "evaluate",
    "focal_partial",
    "gamma_star",
    "minimizer",
    "phi",
    "posterior",
    "posterior_from_logits",
    "proper_focal_partial",
    "sigmoid_minimizer",
    "sigmoid_posterior",
    "temperature_bounds",
    "thresholds",
]
