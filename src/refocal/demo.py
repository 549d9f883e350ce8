"""Predictions that ship with the package, of networks trained with focal loss on scikit-learn's digits."""

from __future__ import annotations

from importlib import resources

from refocal.predictions import Predictions

__all__ = ["load"]

GAMMA = 3.0
SOURCE = "digits, networks trained with focal loss"


def load() -> Predictions:
    """Load the predictions, which have the splits val and test (made by tools/make_demo_data.py)."""
    with resources.as_file(resources.files("refocal").joinpath("data/digits.npz")) as path:
        return Predictions.read(path)
