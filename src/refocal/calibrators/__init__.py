"""Calibrators: scikit-learn estimators that turn the logits of a trained classifier into probabilities.

Fit a calibrator to held-out data with `fit(logits, labels)` and predict with `predict_proba(logits)`. Save it as JSON
(`save`, `load`), or export it to a PyTorch module (`to_torch`) or to an ONNX graph (`to_onnx`).
"""

from typing import TYPE_CHECKING

from refocal._lazy import lazy_names

if TYPE_CHECKING:
    from refocal.calibrators.auto import AutoCalibrator
    from refocal.calibrators.base import Calibrator
    from refocal.calibrators.binary import BetaCalibration, PlattScaling, QuadraticScaling
    from refocal.calibrators.ensemble import EnsembleTemperatureScaling
    from refocal.calibrators.files import load
    from refocal.calibrators.focal_posterior import FocalPosterior
    from refocal.calibrators.focal_temperature import FocalTemperatureScaling
    from refocal.calibrators.linear import DirichletCalibration, MatrixScaling, VectorScaling
    from refocal.calibrators.loss_parts import Refinement, refinement
    from refocal.calibrators.methods import BY_NAME
    from refocal.calibrators.multilabel import MultilabelCalibrator
    from refocal.calibrators.nonparametric import HistogramBinning, IsotonicCalibration
    from refocal.calibrators.temperature import TemperatureScaling
    from refocal.calibrators.venn_abers import VennAbersCalibration
    from refocal.calibrators.wrap import Calibrated

# Every calibrator needs scikit-learn, which takes a second to import, so names are imported when they are first used.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "auto": ("AutoCalibrator",),
        "base": ("Calibrator",),
        "binary": ("BetaCalibration", "PlattScaling", "QuadraticScaling"),
        "ensemble": ("EnsembleTemperatureScaling",),
        "files": ("load",),
        "focal_posterior": ("FocalPosterior",),
        "focal_temperature": ("FocalTemperatureScaling",),
        "linear": ("DirichletCalibration", "MatrixScaling", "VectorScaling"),
        "loss_parts": ("Refinement", "refinement"),
        "methods": ("BY_NAME",),
        "multilabel": ("MultilabelCalibrator",),
        "nonparametric": ("HistogramBinning", "IsotonicCalibration"),
        "temperature": ("TemperatureScaling",),
        "venn_abers": ("VennAbersCalibration",),
        "wrap": ("Calibrated",),
    },
)

__all__ = [
    "BY_NAME",
    "AutoCalibrator",
    "BetaCalibration",
    "Calibrated",
    "Calibrator",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FocalPosterior",
    "FocalTemperatureScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "MultilabelCalibrator",
    "PlattScaling",
    "QuadraticScaling",
    "Refinement",
    "TemperatureScaling",
    "VectorScaling",
    "VennAbersCalibration",
    "load",
    "refinement",
]
