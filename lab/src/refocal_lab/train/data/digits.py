"""The handwritten digits that ship with scikit-learn: 1,797 images of 8x8 pixels, as vectors of values in [0, 1]."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from refocal_lab.train.data import splits
from refocal_lab.train.data.data_set import Part
from refocal_lab.train.data.sources import DataSetSpec, FileLayout, PublishedData

_TEST = 360


def spec(*, held_out: int) -> DataSetSpec:
    """How the data set is found and divided."""
    return DataSetSpec(layouts=(FileLayout(("",), (), _read),), held_out=held_out, key="digits")


def _read(_folder: Path) -> PublishedData:
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    every = Part((pixels / 16).astype(np.float32), labels.astype(np.int64), np.arange(len(labels)))
    test = splits.draw(every.indices, _TEST, key="digits/test", seed=0)
    train = np.setdiff1d(every.indices, test)
    return PublishedData(every.take(train), every.take(test), tuple("0123456789"), "scikit-learn's load_digits")
