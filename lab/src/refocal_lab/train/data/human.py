"""CIFAR-10H: the answers of about fifty people to each CIFAR-10 test image."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from refocal_lab.train.data.sources import DataError, check_md5, convert_errors

_FILES = ("cifar10h-counts.npy", "counts.npz")
_SHAPE = (10_000, 10)
_MD5 = "6d64a4f1a4749da37fff1826dafd9342"


def read(root: Path, *, md5: str = _MD5) -> np.ndarray:
    """Read the shares of the answers, float64 (10,000, 10), in the order of the test images."""
    for folder in (root / "cifar10h", root):
        for name in _FILES:
            path = folder / name
            if path.is_file():
                counts = _read_counts(path)
                check_md5(counts.data, md5, path)
                return counts / counts.sum(axis=1, keepdims=True)
    msg = (
        f"CIFAR-10H is not in {root} or its subfolder cifar10h: it needs {' or '.join(_FILES)}; the publisher's is "
        "https://github.com/jcpeterson/cifar-10h/raw/master/data/cifar10h-counts.npy (CC BY-NC-SA 4.0)"
    )
    raise FileNotFoundError(msg)


def _read_counts(path: Path) -> np.ndarray:
    """Read the counts as int64, so that one checksum fits all files."""
    with convert_errors(path), open(path, "rb") as file:
        content = np.load(file, allow_pickle=False)
        counts = content if isinstance(content, np.ndarray) else content["counts"]
    if counts.ndim != 2:
        msg = f"{path} must hold counts of shape {_SHAPE}, got {counts.shape}"
        raise DataError(msg)
    return np.ascontiguousarray(counts, dtype=np.int64)
