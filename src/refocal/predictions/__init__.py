"""Prediction files (npz, parquet, csv): the scores of a classifier and their labels, checked when they are read."""

from refocal.predictions.column_choice import ColumnChoice
from refocal.predictions.errors import PredictionsError, PredictionsWarning
from refocal.predictions.predictions import Predictions
from refocal.predictions.reader import PredictionsReader
from refocal.predictions.writer import PredictionsWriter

__all__ = [
    "ColumnChoice",
    "Predictions",
    "PredictionsError",
    "PredictionsReader",
    "PredictionsWarning",
    "PredictionsWriter",
]
