"""Calibration measures, their uncertainty, and accumulators for any amount of data."""

from refocal.metrics.accumulator import CalibrationAccumulator, CalibrationSummary
from refocal.metrics.binned import adaptive_ece, ece, mce, top_k_ece
from refocal.metrics.calibration_tests import CalibrationTest, CalibrationTestParts, calibration_test
from refocal.metrics.classwise import classwise_ece, thresholded_ece
from refocal.metrics.decomposition import BrierDecomposition, brier_decomposition
from refocal.metrics.diagnosis import CalibrationCheck, ClassGap, Diagnosis, RangeGap, diagnose
from refocal.metrics.kernel_error import kernel_calibration_error
from refocal.metrics.means import (
    ConfidenceShare,
    brier,
    confidence_share,
    error,
    focal_score,
    kl_to_posterior,
    nll,
)
from refocal.metrics.measure_record import Interval, PairedTest
from refocal.metrics.ranking import aurc, auroc
from refocal.metrics.reliability import ReliabilityDiagram, reliability_diagram
from refocal.metrics.smooth_error import smooth_ece
from refocal.metrics.uncertainty import interval, paired_test

__all__ = [
    "BrierDecomposition",
    "CalibrationAccumulator",
    "CalibrationCheck",
    "CalibrationSummary",
    "CalibrationTest",
    "CalibrationTestParts",
    "ClassGap",
    "ConfidenceShare",
    "Diagnosis",
    "Interval",
    "PairedTest",
    "RangeGap",
    "ReliabilityDiagram",
    "adaptive_ece",
    "aurc",
    "auroc",
    "brier",
    "brier_decomposition",
    "calibration_test",
    "classwise_ece",
    "confidence_share",
    "diagnose",
    "ece",
    "error",
    "focal_score",
    "interval",
    "kernel_calibration_error",
    "kl_to_posterior",
    "mce",
    "nll",
    "paired_test",
    "reliability_diagram",
    "smooth_ece",
    "thresholded_ece",
    "top_k_ece",
]
