"""Prediction files (npz, parquet, csv): the scores of a classifier and their labels, checked when they are read."""

from refocal.predictions.errors import PredictionsError
from refocal.predictions.predictions import Predictions
from refocal.predictions.reader import PredictionsReader
from refocal.predictions.writer import PredictionsWriter

__all__ = ["Predictions", "PredictionsError", "PredictionsReader", "PredictionsWriter"]
