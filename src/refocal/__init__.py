"""refocal: class probabilities you can act on, from the scores of a classifier.

A network trained with focal loss decides well, but its softmax output is provably not p(y|x). `posterior` and
`posterior_from_logits` give p(y|x) back in closed form.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refocal.maps.focal import focal_partial, phi
    from refocal.maps.minimizer import minimizer, proper_focal_partial
    from refocal.maps.posterior import posterior, posterior_from_logits
    from refocal.maps.sigmoid import sigmoid_minimizer, sigmoid_posterior
    from refocal.maps.theory import (
        Regime,
        closest_temperature,
        confidence_regime,
        gamma_star,
        temperature_bounds,
        thresholds,
    )
    from refocal.report import calibrate, evaluate

__version__ = "0.1.0"

# where each public name lives; it is imported when it is first asked for
_HOMES = {
    "Regime": "maps.theory",
    "calibrate": "report",
    "closest_temperature": "maps.theory",
    "confidence_regime": "maps.theory",
    "evaluate": "report",
    "focal_partial": "maps.focal",
    "gamma_star": "maps.theory",
    "minimizer": "maps.minimizer",
    "phi": "maps.focal",
    "posterior": "maps.posterior",
    "posterior_from_logits": "maps.posterior",
    "proper_focal_partial": "maps.minimizer",
    "sigmoid_minimizer": "maps.sigmoid",
    "sigmoid_posterior": "maps.sigmoid",
    "temperature_bounds": "maps.theory",
    "thresholds": "maps.theory",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    if name not in _HOMES:
        msg = f"module 'refocal' has no attribute {name!r}"
        raise AttributeError(msg)
    found = getattr(importlib.import_module(f"refocal.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


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
