"""Fitting a calibrator to batches of images, without keeping their pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
from sklearn.base import clone

from refocal._probability_look import resolve_input
from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.metrics.inputs import ArrayLike
from refocal.scale.engines import fold_blocks
from refocal.scale.fitting import learn_by_passes
from refocal.scale.parts import Block
from refocal.segmentation.images import ImageBatch

T = TypeVar("T")
C = TypeVar("C", bound=TemperatureScaling | FocalTemperatureScaling)
_MOST_PASSES = 50  # far more than are needed unless the labels are separable
Batches = Iterable[tuple[ArrayLike, ArrayLike]]  # pairs of scores and labels


def fit(calibrator: C, batches: Batches, *, axis: int = 1, ignore_index: int | None = None) -> C:
    """Fit temperature or focal temperature scaling to all pixels of a data set that does not fit into memory.

    Newton's method takes one pass over the batches for each evaluation, usually ten or fewer. The result is that of a
    fit to all pixels in memory. For other calibrators, fit to the pixels that `to_rows` draws.

    Args:
        calibrator: `TemperatureScaling` by NLL, or `FocalTemperatureScaling` by Newton's method. It is not changed.
        batches: Pairs of scores (N, K, ...) and labels (N, ...). Each pass iterates over them again and must find the
            same: a list, or an object whose `__iter__` runs the network in evaluation mode, but not a generator.
        axis: The axis of the classes.
        ignore_index: Labels with this value do not count.

    Returns:
        A fitted copy of the calibrator.

    Example:
        >>> import numpy as np
        >>> from refocal.calibrators import TemperatureScaling
        >>> rng = np.random.default_rng(0)
        >>> batches = []
        >>> for _ in range(4):
        ...     logits = rng.normal(size=(2, 3, 32, 32))
        ...     batches.append((3 * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)))
        >>> abs(fit(TemperatureScaling(), batches).temperature_ - 3) < 0.2
        True
    """
    _check_supported(calibrator)
    if isinstance(batches, Iterator):
        msg = f"batches must be iterable several times, such as a list, got a {type(batches).__name__}"
        raise TypeError(msg)
    result: C = clone(calibrator)
    source = _Blocks(result, batches, axis=axis, ignore_index=ignore_index)
    learn_by_passes(_BlockFolder(), source, result, input=result.input_, files=1, most_passes=_MOST_PASSES)
    assert source.channels is not None  # without pixels, there was an error
    result.n_features_in_, result.classes_ = source.channels, np.arange(max(2, source.channels))
    return result


class _Blocks:
    """The pixels of batches as blocks of checked rows."""

    def __init__(self, calibrator: Any, batches: Batches, *, axis: int, ignore_index: int | None) -> None:
        self.calibrator, self.batches = calibrator, batches
        self.axis, self.ignore_index = axis, ignore_index
        self.channels: int | None = None

    def __iter__(self) -> Iterator[Block]:
        input = self.calibrator.input_
        for scores, labels in self.batches:
            batch = ImageBatch.read(scores, labels, axis=self.axis, ignore_index=self.ignore_index, input=input)
            if self.channels is None:
                self.channels = batch.channels
            if batch.channels != self.channels:
                msg = f"scores must have {self.channels} classes in all batches, got {batch.channels}"
                raise ValueError(msg)
            for part in batch.parts():
                rows = part.block.scores.reshape(len(part.places), -1)
                resolve_input(self.calibrator.input, rows)
                if not np.isfinite(rows).all():
                    msg = "scores must be finite for a fit to batches, got -inf: fit to rows of `to_rows` instead"
                    raise ValueError(msg)
                yield Block(rows, part.block.labels, None)


class _BlockFolder:
    """Runs passes over blocks."""

    def __init__(self) -> None:
        self._passes = 0

    def fold(
        self,
        source: Iterable[Block],
        function: Callable[[Block], T],
        merge: Callable[[T, T], T],
        *,
        what: str,  # noqa: ARG002 for engines that report progress
    ) -> T | None:
        """See `refocal.scale.engines.Folder`."""
        found = fold_blocks(source, function, merge)[0]
        self._passes += 1
        if found is None and self._passes == 1:
            msg = "batches have no pixel that counts"
            raise ValueError(msg)
        if found is None:
            msg = f"batches must be iterable several times, such as a list, but pass {self._passes} found none"
            raise TypeError(msg)
        return found


def _check_supported(calibrator: Any) -> None:
    supported = (isinstance(calibrator, TemperatureScaling) and calibrator.check_objective() == "nll") or (
        isinstance(calibrator, FocalTemperatureScaling) and calibrator.check_search() == "newton"
    )
    if not supported or calibrator.classes is not None:
        msg = (
            "for batches, calibrator must be TemperatureScaling by NLL or FocalTemperatureScaling by Newton's method, "
            f"with classes=None, got {calibrator!r}: fit others to the pixels that `to_rows` draws"
        )
        raise ValueError(msg)
