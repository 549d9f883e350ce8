"""Files of predictions: scores of a classifier with their labels, in npz, parquet and csv, checked as they are read."""

from refocal.predictions.errors import PredictionsError
from refocal.predictions.predictions import Predictions
from refocal.predictions.reader import PredictionsReader
from refocal.predictions.writer import PredictionsWriter

__all__ = ["Predictions", "PredictionsError", "PredictionsReader", "PredictionsWriter"]
