"""refocal: class probabilities you can act on, from the scores of a classifier.

A network trained with focal loss classifies well, but its softmax output is provably not p(y|x). `posterior` and
`posterior_from_logits` recover p(y|x) in closed form. `evaluate` measures how well any scores are calibrated, and
`calibrate` turns them into calibrated probabilities.
"""

from typing import TYPE_CHECKING

from refocal._lazy import lazy_names

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
    from refocal.report import calibrate, calibrate_multilabel, evaluate, evaluate_multilabel

__version__ = "0.1.0"

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "maps.focal": ("focal_partial", "phi"),
        "maps.minimizer": ("minimizer", "proper_focal_partial"),
        "maps.posterior": ("posterior", "posterior_from_logits"),
        "maps.sigmoid": ("sigmoid_minimizer", "sigmoid_posterior"),
        "maps.theory": (
            "Regime",
            "closest_temperature",
            "confidence_regime",
            "gamma_star",
            "temperature_bounds",
            "thresholds",
        ),
        "report": ("calibrate", "calibrate_multilabel", "evaluate", "evaluate_multilabel"),
    },
    packages=(
        "boosting",
        "calibrators",
        "conformal",
        "curvature",
        "detection",
        "jax",
        "language_models",
        "losses",
        "maps",
        "metrics",
        "predictions",
        "report",
        "scale",
        "segmentation",
        "stats",
    ),
)

__all__ = [
    "Regime",
    "calibrate",
    "calibrate_multilabel",
    "closest_temperature",
    "confidence_regime",
    "evaluate",
    "evaluate_multilabel",
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
