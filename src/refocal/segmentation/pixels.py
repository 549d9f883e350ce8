"""Pixels as rows, for everything in refocal that takes rows, and calibrators applied to images."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from refocal import _check
from refocal._containers import to_array, to_numpy
from refocal.metrics.inputs import ArrayLike
from refocal.segmentation.images import ImageBatch, classes_first

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator


class PixelRows(NamedTuple):
    """Pixels that count, one per row.

    Attributes:
        scores: Scores (M, K), in the dtype of the images; bfloat16 becomes float32.
        labels: Class indices (M,).
        images: The number of the image of each row, (M,).
    """

    scores: np.ndarray
    labels: np.ndarray
    images: np.ndarray


def to_rows(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    axis: int = 1,
    ignore_index: int | None = None,
    per_image: int | None = None,
    seed: int | np.random.Generator = 0,
) -> PixelRows:
    """Turn images into rows of pixels, all of them or a random sample of each image.

    Calibrators, `refocal.calibrate`, `refocal.evaluate` and prediction files take rows. Their intervals and tests treat
    each row as a sample of its own, so for pixels they are too optimistic: take the intervals of
    `SegmentationCalibration`. Values of scores are checked by what takes the rows.

    Args:
        scores: Scores (N, K, ...), with the classes on `axis`. K may be 1 for two classes.
        labels: Class indices (N, ...).
        axis: The axis of the classes.
        ignore_index: Labels with this value do not count.
        per_image: The number of pixels that are drawn from each image, without repetition; an image with fewer gives
            all it has. None for all pixels.
        seed: Seed or generator of the draws. Pass the same generator for each batch, and the sample does not depend on
            how the images are divided into batches.

    Example:
        >>> import numpy as np
        >>> logits = np.arange(12.0).reshape(1, 3, 2, 2)
        >>> rows = to_rows(logits, np.array([[[0, 1], [255, 2]]]), ignore_index=255)
        >>> rows.scores.tolist(), rows.labels.tolist()
        ([[0.0, 4.0, 8.0], [1.0, 5.0, 9.0], [3.0, 7.0, 11.0]], [0, 1, 2])
    """
    batch = ImageBatch.read(scores, labels, axis=axis, ignore_index=ignore_index, input="logits")
    size = None if per_image is None else _check.count(per_image, "per_image")
    rng = _check.generator(seed, "seed")
    count = batch.shape[0]
    columns = batch.sample.scores.reshape(count, batch.channels, batch.places)
    flat, counts = (part.reshape(count, batch.places) for part in (batch.labels, batch.sample.counts()))
    parts = []
    for image in range(count):
        places = np.flatnonzero(counts[image])
        if size is not None and len(places) > size:
            places = np.sort(rng.choice(places, size=size, replace=False))
        rows = to_numpy(columns[image][:, places], "scores").T
        parts.append(PixelRows(rows, flat[image, places].astype(np.intp), np.full(len(places), image)))
    return PixelRows(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def predict_proba(calibrator: Calibrator, scores: ArrayLike, *, axis: int = 1) -> np.ndarray:
    """Calibrated probabilities of images, in NumPy; `calibrator.to_torch(axis=1)` does the same in PyTorch.

    Args:
        calibrator: A fitted calibrator.
        scores: Scores (N, K, ...), with the classes on `axis`.
        axis: The axis of the classes.

    Returns:
        Probabilities in float64, with the classes on `axis`. One channel of scores becomes two of probabilities.

    Example:
        >>> import numpy as np
        >>> from refocal.calibrators import FocalPosterior
        >>> predict_proba(FocalPosterior(gamma=2), np.zeros((1, 4, 2, 2))).tolist()[0][0]
        [[0.25, 0.25], [0.25, 0.25]]
    """
    images = np.moveaxis(to_numpy(classes_first(to_array(scores, "scores"), axis), "scores"), 1, -1)
    probs = calibrator.predict_proba(images.reshape(-1, images.shape[-1]))
    return np.moveaxis(probs.reshape(*images.shape[:-1], -1), -1, axis)
