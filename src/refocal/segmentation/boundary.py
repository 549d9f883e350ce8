"""The pixels near the boundaries between labels."""

from __future__ import annotations

import numpy as np
import scipy

from refocal import _check
from refocal._containers import to_numpy
from refocal.metrics.inputs import ArrayLike


def boundary_band(labels: ArrayLike, *, distance: int = 2, ignore_index: int | None = None) -> np.ndarray:
    """Find the pixels near a boundary between labels, where segmentation networks err most.

    A pixel is in the band if another label lies within `distance` pixels of it, in steps along the axes and diagonals
    (Chebyshev distance). So the band takes `distance` pixels on each side of a boundary. The border of the image is no
    boundary. Ignored pixels are neither in the band nor do they make a boundary.

    Args:
        labels: Labels (N, ...), one image after another, with any number of spatial axes: whole numbers or booleans.
        distance: The largest distance, at least 1.
        ignore_index: The label of pixels that do not count.

    Returns:
        Booleans of the shape of `labels`.

    Example:
        >>> boundary_band([[[0, 0, 0, 1, 1, 1]]], distance=1).astype(int).tolist()
        [[[0, 0, 1, 1, 0, 0]]]
    """
    array = to_numpy(labels, "labels")
    distance = _check.count(distance, "distance")
    if array.ndim < 2 or array.dtype.kind not in "iub":
        msg = f"labels must be whole numbers of shape (N, ...), got dtype {array.dtype} and shape {array.shape}"
        raise ValueError(msg)
    values = array.astype(np.int64)
    counted = np.ones(values.shape, dtype=bool)
    if ignore_index is not None:
        counted = values != _check.whole(ignore_index, "ignore_index")
    if not counted.any():
        return counted
    size = (1,) + (2 * distance + 1,) * (values.ndim - 1)
    # Beyond the border, "nearest" repeats pixels of the border, which are at most as far away.
    lowest, highest = values[counted].min(), values[counted].max()
    above = scipy.ndimage.maximum_filter(np.where(counted, values, lowest), size=size, mode="nearest")
    below = scipy.ndimage.minimum_filter(np.where(counted, values, highest), size=size, mode="nearest")
    return counted & ((above > values) | (below < values))
