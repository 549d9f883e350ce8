"""Conformal prediction: sets of classes that contain the true class with a given probability.

Fit `PredictionSets` to held-out scores with `fit(scores, labels)`, on top of any calibrator, and get the sets of new
scores with `predict_set(scores)`. Save it as JSON (`save`, `load`), or export it (`to_torch`, `to_onnx`).
"""

from typing import TYPE_CHECKING

from refocal._lazy import lazy_names

if TYPE_CHECKING:
    from refocal.conformal.prediction_sets import PredictionSets, load

__getattr__, __dir__ = lazy_names(__name__, {"prediction_sets": ("PredictionSets", "load")})

__all__ = ["PredictionSets", "load"]
