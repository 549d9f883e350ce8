"""The calibration of a segmentation network, measured batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal._probability_look import optional_input_word, resolve_input
from refocal.metrics.defaults import BINS, LEVEL, RESAMPLES
from refocal.metrics.inputs import ArrayLike
from refocal.metrics.measure_record import Interval
from refocal.segmentation.boundary import boundary_band
from refocal.segmentation.image_intervals import error_interval
from refocal.segmentation.image_sums import REGIONS, ImageSums, PixelTotals
from refocal.segmentation.images import ImageBatch
from refocal.segmentation.summary import ClassCalibration, RegionCalibration, SegmentationSummary
from refocal.stats.binning import Bins
from refocal.stats.image_means import bound_mean

if TYPE_CHECKING:
    from refocal.calibrators import Calibrator

_INTERIOR, _BOUNDARY = range(REGIONS)


class SegmentationCalibration:
    """Whether the pixel probabilities of a segmentation network can be trusted, measured batch by batch.

    Measures are means over all pixels that count. Their intervals treat the images as the sample: the pixels of an
    image err together, and intervals that treat each pixel as a sample are far too short. Of each image,
    (K + 2) x bins + 10 numbers are kept, whatever its size, where K is the number of classes.

    Args:
        classes: Number of classes K. For two classes, scores may have a single channel: the logit or the probability of
            class 1.
        axis: The axis of the classes: 1 for (N, K, H, W), -1 for (N, H, W, K). Images are on axis 0.
        ignore_index: Labels with this value do not count, such as 255 or -100.
        boundary: The width in pixels, on each side of a boundary between labels, of the band that is also measured
            separately; see `boundary_band`. None to measure no band.
        classwise: Whether to measure the probability of each class. With many classes, this takes most of the time and
            memory.
        bins: Number of bins of equal width.
        input: "logits" or "probs". None for logits; scores that look like probabilities are then rejected.
        calibrator: A fitted calibrator, whose probabilities are then measured in place of those of the scores. It knows
            what scores it takes, so leave out `input`.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> calibration = SegmentationCalibration(3, ignore_index=255)
        >>> for _ in range(5):
        ...     logits = rng.normal(size=(4, 3, 16, 16))
        ...     labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        ...     labels[:, :4] = 255
        ...     calibration.update(3 * logits, labels)
        >>> summary = calibration.compute()
        >>> summary.images, summary.overall.pixels, summary.overall.ece.low > 0.2
        (20, 3840, True)
    """

    def __init__(
        self,
        classes: int,
        *,
        axis: int = 1,
        ignore_index: int | None = None,
        boundary: int | None = 2,
        classwise: bool = True,
        bins: int = BINS,
        input: Input | None = None,
        calibrator: Calibrator | None = None,
    ) -> None:
        self.classes = _check.count(classes, "classes", least=2)
        self.axis = _check.whole(axis, "axis")
        self.ignore_index = None if ignore_index is None else _check.whole(ignore_index, "ignore_index")
        self.boundary = None if boundary is None else _check.count(boundary, "boundary")
        self.classwise = bool(classwise)
        self.bins = _check.count(bins, "bins")
        self.input = optional_input_word(input)
        self.calibrator = calibrator
        if calibrator is not None:
            _check_calibrator(calibrator, input)
            self.input = calibrator.input_
        empty = self._empty()
        self._bins, self._class_bins = empty.bins, empty.classes  # sums over all images
        self._totals: list[np.ndarray] = []  # of each image, (5, REGIONS)
        self._residuals: list[np.ndarray] = []  # of each image, (REGIONS, bins)
        self._class_residuals: list[np.ndarray] = []  # of each image, (K, bins)

    def update(self, scores: ArrayLike, labels: ArrayLike) -> None:
        """Add a batch of images; a batch that is rejected changes nothing.

        Args:
            scores: Scores (N, K, ...), with the classes on `axis`, in NumPy, PyTorch or another library.
            labels: Class indices (N, ...); for two classes also booleans.
        """
        kind: Input = "logits" if self.input is None else self.input
        batch = ImageBatch.read(scores, labels, axis=self.axis, ignore_index=self.ignore_index, input=kind)
        if batch.channels != self.classes and not (batch.channels == 1 and self.classes == 2):
            msg = f"scores must have {self.classes} classes on axis {self.axis}, got {batch.channels}"
            raise ValueError(msg)
        near = np.zeros(batch.shape, dtype=bool)
        if self.boundary is not None:
            near = boundary_band(batch.labels, distance=self.boundary, ignore_index=self.ignore_index)
        near = near.reshape(len(near), -1)
        found = [self._empty() for _ in range(len(near))]
        for image, places, block in batch.parts():
            if self.calibrator is None:
                resolve_input(self.input, block.scores)
                found[image].add(block, near[image, places], is_logits=kind == "logits")
            else:  # log-probabilities are logits, too, and do not underflow
                mapped = block._replace(scores=self.calibrator.predict_log_proba(block.scores))
                found[image].add(mapped, near[image, places], is_logits=True)
        for sums in found:
            self._add(sums)

    def merge(self, other: object) -> Self:
        """Add the images of another object with the same settings, in place. Its axis of classes may differ."""
        if not isinstance(other, SegmentationCalibration):
            msg = f"other must be a SegmentationCalibration, got {type(other).__name__}"
            raise TypeError(msg)
        if self._settings() != other._settings():
            msg = f"other must have the same settings {self._settings()}, got {other._settings()}"
            raise ValueError(msg)
        self._bins = self._bins + other._bins
        if self._class_bins is not None and other._class_bins is not None:
            self._class_bins = self._class_bins + other._class_bins
        # copies, so that an object can be merged with itself
        self._totals = [*self._totals, *other._totals]
        self._residuals = [*self._residuals, *other._residuals]
        self._class_residuals = [*self._class_residuals, *other._class_residuals]
        return self

    def compute(
        self, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int | np.random.Generator = 0
    ) -> SegmentationSummary:
        """The measures of all images seen so far.

        Means have Student's limits, accuracy has Wilson's, and ECE has those of an inverted test with a bootstrap of
        images. `benchmarks/results/segmentation_intervals.md` shows how often they cover.

        Args:
            level: Confidence level.
            resamples: Number of bootstrap resamples of the images.
            seed: Seed or generator of the resamples.
        """
        level = _check.share(level, "level")
        resamples = _check.count(resamples, "resamples", least=100)
        rng = _check.generator(seed, "seed")
        totals = np.array(self._totals).reshape(-1, len(PixelTotals._fields), REGIONS)
        residuals = np.array(self._residuals).reshape(-1, REGIONS, self.bins)
        pixels = totals[:, 0].sum(axis=1)
        if not pixels.any():
            why = "all pixels seen are ignored" if self._totals else "call update() first"
            msg = f"compute() needs at least one pixel that counts: {why}"
            raise ValueError(msg)
        settings: dict[str, Any] = {"level": level, "resamples": resamples, "rng": rng}

        def measure(*regions: int) -> RegionCalibration:
            place = list(regions)
            sums = PixelTotals(*totals[:, :, place].sum(axis=2).T)
            bins = Bins(*self._bins[:, place].sum(axis=1))
            return _measure_region(sums, residuals[:, place].sum(axis=1), bins, **settings)

        overall = measure(_INTERIOR, _BOUNDARY)  # first, so that its resamples do not depend on what else is measured
        banded = self.boundary is not None
        by_class = self._measure_classes(pixels, **settings) if self.classwise else None
        return SegmentationSummary(
            images=int(np.count_nonzero(pixels)),
            level=level,
            overall=overall,
            boundary=measure(_BOUNDARY) if banded else None,
            interior=measure(_INTERIOR) if banded else None,
            classwise_ece=by_class[0] if by_class else None,
            classes=by_class[1] if by_class else None,
        )

    def image_nll(self) -> tuple[np.ndarray, np.ndarray]:
        """The sum of the NLL over the pixels of each image, and their number, both (N,)."""
        totals = PixelTotals(*np.array(self._totals).reshape(-1, len(PixelTotals._fields), REGIONS).sum(axis=2).T)
        return totals.nll, totals.pixels

    def _measure_classes(self, pixels: np.ndarray, **settings: Any) -> tuple[Interval, tuple[ClassCalibration, ...]]:
        assert self._class_bins is not None
        sums, residuals = Bins(*self._class_bins), np.array(self._class_residuals)
        total = float(pixels.sum())
        classes = tuple(
            ClassCalibration(
                error_interval(residuals[:, k], pixels, Bins(*(part[k] for part in sums)), **settings),
                float(sums.confidence[k].sum() / total),
                float(sums.correct[k].sum() / total),
            )
            for k in range(self.classes)
        )
        flat = Bins(*(part.ravel() for part in sums))
        mean = error_interval(residuals.reshape(len(pixels), -1), pixels, flat, classes=self.classes, **settings)
        return mean, classes

    def _add(self, sums: ImageSums) -> None:
        self._totals.append(sums.totals)
        self._residuals.append(sums.bins[1] - sums.bins[2])
        self._bins = self._bins + sums.bins
        if self._class_bins is not None and sums.classes is not None:
            self._class_residuals.append(sums.classes[1] - sums.classes[2])
            self._class_bins = self._class_bins + sums.classes

    def _empty(self) -> ImageSums:
        return ImageSums(bins=self.bins, classes=self.classes if self.classwise else None)

    def _settings(self) -> dict[str, Any]:
        names = ("classes", "ignore_index", "boundary", "classwise", "bins", "input")
        settings = {name: getattr(self, name) for name in names}
        if self.calibrator is not None:
            from refocal.calibrators.files import digest

            settings["calibrator"] = f"{type(self.calibrator).__name__}, {digest(self.calibrator)[:8]}"
        return settings


def _check_calibrator(calibrator: object, input: Input | None) -> None:
    from refocal.scale.parts import check_calibrator

    check_calibrator(calibrator)
    if input is not None:
        msg = f"input must be left out if a calibrator is given, which knows what scores it takes, got {input!r}"
        raise ValueError(msg)


def _measure_region(
    sums: PixelTotals, residuals: np.ndarray, bins: Bins, *, level: float, resamples: int, rng: np.random.Generator
) -> RegionCalibration:
    def mean(values: np.ndarray, low: float, high: float, *, is_rate: bool = False) -> Interval:
        return Interval(*bound_mean(values, sums.pixels, level=level, bounds=(low, high), is_rate=is_rate))

    return RegionCalibration(
        pixels=int(sums.pixels.sum()),
        images=int(np.count_nonzero(sums.pixels)),
        ece=error_interval(residuals, sums.pixels, bins, level=level, resamples=resamples, rng=rng),
        overconfidence=mean(sums.confidence - sums.correct, -1.0, 1.0),
        nll=mean(sums.nll, 0.0, np.inf),
        brier=mean(sums.brier, 0.0, 2.0),
        accuracy=mean(sums.correct, 0.0, 1.0, is_rate=True),
        bins=bins,
    )
