"""Write tabular data sets of scikit-learn in the format that the experiments read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

SETS = {"wine": load_wine, "wdbc": load_breast_cancer, "optdigits": load_digits}


def write_sets(folder: Path) -> Path:
    (folder / "tabular").mkdir()
    for name, load in SETS.items():
        features, labels = load(return_X_y=True)
        numeric = np.zeros(features.shape[1], dtype=bool)
        np.savez(folder / f"tabular/{name}.npz", X=features, y=labels, categorical=numeric)
    return folder
