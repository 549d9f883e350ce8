"""Calibrators: scikit-learn estimators that turn the logits of a trained classifier into probabilities.

Each is fitted on held-out data, `fit(logits, labels)`, predicts with `predict_proba(logits)`, and ships as JSON
(`save`, `load`), as a PyTorch module (`to_torch`) or as an ONNX graph (`to_onnx`).
"""

from typing import TYPE_CHECKING

from refocal._lazy import lazy_names

if TYPE_CHECKING:
    from refocal.calibrators.auto import AutoCalibrator
    from refocal.calibrators.base import Calibrator
    from refocal.calibrators.binary import BetaCalibration, PlattScaling
    from refocal.calibrators.ensemble import EnsembleTemperatureScaling
    from refocal.calibrators.files import load
    from refocal.calibrators.focal_posterior import FocalPosterior
    from refocal.calibrators.focal_temperature import FocalTemperatureScaling
    from refocal.calibrators.linear import DirichletCalibration, MatrixScaling, VectorScaling
    from refocal.calibrators.methods import BY_NAME
    from refocal.calibrators.nonparametric import HistogramBinning, IsotonicCalibration
    from refocal.calibrators.temperature import TemperatureScaling
    from refocal.calibrators.wrap import Calibrated

# scikit-learn, which every calibrator builds on, takes a second to import: it comes with the first name
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "auto": ("AutoCalibrator",),
        "base": ("Calibrator",),
        "binary": ("BetaCalibration", "PlattScaling"),
        "ensemble": ("EnsembleTemperatureScaling",),
        "files": ("load",),
        "focal_posterior": ("FocalPosterior",),
        "focal_temperature": ("FocalTemperatureScaling",),
        "linear": ("DirichletCalibration", "MatrixScaling", "VectorScaling"),
        "methods": ("BY_NAME",),
        "nonparametric": ("HistogramBinning", "IsotonicCalibration"),
        "temperature": ("TemperatureScaling",),
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
    "PlattScaling",
    "TemperatureScaling",
    "VectorScaling",
    "load",
]
