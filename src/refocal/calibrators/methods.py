"""Calibrators that need no settings, by the names that commands and reports use."""

from __future__ import annotations

from refocal.calibrators.base import Calibrator
from refocal.calibrators.binary import BetaCalibration, PlattScaling, QuadraticScaling
from refocal.calibrators.ensemble import EnsembleTemperatureScaling
from refocal.calibrators.focal_temperature import FocalTemperatureScaling
from refocal.calibrators.linear import DirichletCalibration, MatrixScaling, VectorScaling
from refocal.calibrators.nonparametric import HistogramBinning, IsotonicCalibration
from refocal.calibrators.temperature import TemperatureScaling
from refocal.calibrators.venn_abers import VennAbersCalibration

BY_NAME: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "focal-temperature": FocalTemperatureScaling,
    "ensemble": EnsembleTemperatureScaling,
    "vector": VectorScaling,
    "matrix": MatrixScaling,
    "dirichlet": DirichletCalibration,
    "platt": PlattScaling,
    "beta": BetaCalibration,
    "quadratic": QuadraticScaling,
    "isotonic": IsotonicCalibration,
    "histogram": HistogramBinning,
    "venn-abers": VennAbersCalibration,
}
