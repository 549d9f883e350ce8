"""Calibrators: scikit-learn estimators that turn the logits of a trained classifier into probabilities.

Each is fitted on held-out data, `fit(logits, labels)`, predicts with `predict_proba(logits)`, and ships as JSON
(`save`, `load`), as a PyTorch module (`to_torch`) or as an ONNX graph (`to_onnx`).
"""

from refocal.calibrators.auto import AutoCalibrator
from refocal.calibrators.base import Calibrator
from refocal.calibrators.binary import BetaCalibration, PlattScaling
from refocal.calibrators.ensemble import EnsembleTemperatureScaling
from refocal.calibrators.files import load
from refocal.calibrators.focal_posterior import FocalPosterior
from refocal.calibrators.focal_temperature import FocalTemperatureScaling
from refocal.calibrators.linear import DirichletCalibration, MatrixScaling, VectorScaling
from refocal.calibrators.nonparametric import HistogramBinning, IsotonicCalibration
from refocal.calibrators.temperature import TemperatureScaling
from refocal.calibrators.wrap import Calibrated

# methods that need no setting, by the names that commands and reports use
BY_NAME: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "focal-temperature": FocalTemperatureScaling,
    "ensemble": EnsembleTemperatureScaling,
    "vector": VectorScaling,
    "matrix": MatrixScaling,
    "dirichlet": DirichletCalibration,
    "platt": PlattScaling,
    "beta": BetaCalibration,
    "isotonic": IsotonicCalibration,
    "histogram": HistogramBinning,
}

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
