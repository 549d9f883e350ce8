"""The main job for images: fit calibrators to some images, choose one, and compare all of them on other images."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from refocal import _check
from refocal._arrays import ClassWeights
from refocal._check import Input
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling
from refocal.calibrators.fit.held_out import compare
from refocal.metrics.defaults import LEVEL, RESAMPLES
from refocal.report.choice import Choice
from refocal.report.evaluation import POSTERIOR, Step
from refocal.report.selection import Candidate, check_loss
from refocal.report.words import GIVEN, GIVEN_TITLE, lower_title
from refocal.segmentation.calibration import SegmentationCalibration
from refocal.segmentation.comparison import MeasuredMethod, SegmentationComparison
from refocal.segmentation.fitting import Batches, fit
from refocal.segmentation.images import ImageBatch

METHODS = ("auto", POSTERIOR, "temperature", "focal-temperature")
_MOST_NLL = 700.0  # a probability of 0 counts as e^-700, so that means stay comparable


@dataclass(frozen=True)
class SegmentationSelection:
    """Calibrators fitted to the same images, and the one chosen among them.

    Attributes:
        chosen: The recommended calibrator; "given" if no calibrator is better than the scores as given.
        candidates: All calibrators, the scores as given first.
        choice: The NLLs that the choice follows from; None if the caller named the method.
        axis: The axis of the classes.
        ignore_index: Labels with this value do not count.
    """

    chosen: Candidate
    candidates: tuple[Candidate, ...]
    choice: Choice | None
    axis: int
    ignore_index: int | None

    def measure(
        self,
        batches: Iterable[tuple[Any, Any]],
        *,
        level: float = LEVEL,
        resamples: int = RESAMPLES,
        seed: int = 0,
        source: str = "test images",
        protocol: str = "",
    ) -> SegmentationComparison:
        """Measure every calibrator on other images, in one pass over the batches.

        Args:
            batches: Pairs of scores (N, K, ...) and labels (N, ...).
            level: Confidence level.
            resamples: Number of bootstrap resamples of the images.
            seed: Seed of the resamples, the same for each calibrator.
            source: Name of the images.
            protocol: A sentence that says which images were measured.
        """
        measured = _measure(self.candidates, batches, axis=self.axis, ignore_index=self.ignore_index)
        methods = tuple(
            MeasuredMethod(
                each.name,
                each.title,
                each.parameters,
                each.name == self.chosen.name,
                calibration.compute(level=level, resamples=resamples, seed=seed),
            )
            for each, calibration in zip(self.candidates, measured, strict=True)
        )
        return SegmentationComparison(source, methods, None if self.choice is None else self.choice.rule, protocol)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the chosen calibrator as JSON; `refocal.calibrators.load` reads it.

        Args:
            path: The file to write. Its folder must exist.
            overwrite: Whether to replace an existing file; if False, one raises FileExistsError.
        """
        self.chosen.calibrator.save(Path(path), overwrite=overwrite)


def calibrate(
    batches: Batches,
    *,
    gamma: float | None = None,
    weight: ClassWeights = None,
    label_smoothing: float = 0.0,
    detached: bool = False,
    method: str = "auto",
    axis: int = 1,
    ignore_index: int | None = None,
    input: Input | None = None,
    progress: Step = lambda _: None,
) -> SegmentationSelection:
    """Fit calibrators to held-out images, without keeping their pixels, and choose one.

    Temperature scaling and focal temperature scaling are fitted to all pixels, as by `fit`. "auto" chooses by the NLL
    of all pixels of the same images: the calibrator with the fewest parameters among those that are worse than the best
    by at most the standard error of the difference, where images are the sample. So it needs two images or more.

    Args:
        batches: Pairs of scores (N, K, ...) and labels (N, ...), iterable several times, as for `fit`.
        gamma: Focusing parameter of the focal loss that the network was trained with. If given, the closed-form
            posterior is one of the candidates.
        weight: Class weights of that loss.
        label_smoothing: Label smoothing of that loss.
        detached: Whether that loss detached its focusing factor from the gradient.
        method: "auto", "posterior", "temperature" or "focal-temperature".
        axis: The axis of the classes.
        ignore_index: Labels with this value do not count.
        input: "logits" or "probs". None for logits; scores that look like probabilities are then rejected.
        progress: Called with a description of each step.

    Returns:
        The fitted calibrators. Its `measure` compares all of them on other images, and its `save` writes the chosen one
        to a file.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> batches = []
        >>> for _ in range(4):
        ...     logits = rng.normal(size=(4, 3, 16, 16))
        ...     batches.append((3 * logits, np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)))
        >>> calibrate(batches).chosen.title  # of an overconfident network
        'Temperature scaling'
    """
    _check.one_of(method, "method", METHODS)
    gamma = check_loss(gamma, weight, label_smoothing, detached=detached, method=method)
    channels = _count_channels(batches, axis=axis, ignore_index=ignore_index, input=input)
    given = Candidate(GIVEN, GIVEN_TITLE, _number_classes(FocalPosterior(gamma=0.0, input=input), channels), None)
    candidates = [given]
    if gamma is not None:
        posterior = FocalPosterior(
            gamma=gamma, weight=weight, label_smoothing=label_smoothing, detached=detached, input=input
        )
        candidates.append(Candidate.of(_number_classes(posterior, channels)))
    for calibrator in (TemperatureScaling(input=input), FocalTemperatureScaling(input=input)):
        progress(f"fitting {lower_title(Candidate.of(calibrator).title)}")
        candidates.append(Candidate.of(fit(calibrator, batches, axis=axis, ignore_index=ignore_index)))
    if method != "auto":
        chosen = next(each for each in candidates if each.name == method)
        return SegmentationSelection(chosen, tuple(candidates), None, axis, ignore_index)
    progress(f"comparing {len(candidates)} calibrators")
    choice = _choose(candidates, batches, axis=axis, ignore_index=ignore_index)
    chosen = next(each for each in candidates if each.name == choice.chosen.name)
    return SegmentationSelection(chosen, tuple(candidates), choice, axis, ignore_index)


def _count_channels(batches: Batches, *, axis: int, ignore_index: int | None, input: Input | None) -> int:
    """The number of scores per pixel, from the first batch."""
    first = next(iter(batches), None)
    if first is None:
        msg = "batches must not be empty"
        raise ValueError(msg)
    return ImageBatch.read(*first, axis=axis, ignore_index=ignore_index, input=input or "logits").channels


def _number_classes(calibrator: FocalPosterior, channels: int) -> FocalPosterior:
    """Let a map that needs no fit know its classes, and check its settings against them."""
    calibrator.n_features_in_, calibrator.classes_ = channels, np.arange(max(2, channels))
    calibrator.predict_proba(np.full((1, channels), 1 / max(2, channels)))
    return calibrator


def _choose(candidates: Sequence[Candidate], batches: Batches, **layout: Any) -> Choice:
    """Choose by the one-standard-error rule, with images as the sample.

    The NLL of the images that were fitted to will do: if a parameter is needless and its estimate is z standard errors
    away, the parameter gains z^2 / 2 and the standard error of this gain is |z|. So it is taken only if |z| > 2.
    """
    found = [each.image_nll() for each in _measure(candidates, batches, boundary=None, **layout)]
    pixels = found[0][1]
    counted = pixels > 0
    if np.count_nonzero(counted) == 1:
        msg = "method='auto' needs two images or more, whose differences tell the standard error: name a method"
        raise ValueError(msg)
    means = np.array([sums[counted] / pixels[counted] for sums, _ in found])
    # An image counts by its pixels; the sum of the counts is the effective number of images (Kish).
    counts = pixels[counted] * (pixels.sum() / np.square(pixels).sum())
    parameters = [each.calibrator.n_parameters_ for each in candidates]
    results = compare(np.minimum(means, _MOST_NLL), counts, np.array(parameters))
    # No p-values: the scores are those of the fitted images.
    results = [{**each, "parameters": float(parameters[each["index"]]), "p_value": None} for each in results]
    return Choice.of(results, [(each.name, each.title) for each in candidates], score="NLL on the fitted images")


def _measure(
    candidates: Sequence[Candidate], batches: Iterable[tuple[Any, Any]], **settings: Any
) -> list[SegmentationCalibration]:
    """Measure candidates in one pass; `settings` are those of `SegmentationCalibration`."""

    def start(candidate: Candidate) -> SegmentationCalibration:
        calibrator = candidate.calibrator
        own: dict[str, Any] = {"input": calibrator.input} if candidate.name == GIVEN else {"calibrator": calibrator}
        return SegmentationCalibration(len(calibrator.classes_), classwise=False, **own, **settings)

    measured = [start(each) for each in candidates]
    for scores, labels in batches:
        for calibration in measured:
            calibration.update(scores, labels)
    return measured
