"""The records that answer further questions: about classes, slices, costs, thresholds and prediction sets."""

from __future__ import annotations

from dataclasses import dataclass

from refocal.report.record import Estimate


@dataclass(frozen=True)
class SubgroupCalibration:
    """How well calibrated one method is on a part of the data.

    Attributes:
        predicted: Mean probability: of the class, of the top label, or P(y = 1) for two classes.
        observed: How often it came true.
        gap: Predicted minus observed.
        ece: ECE of these probabilities.
        p_value: Of the hypothesis that they are calibrated, corrected for the number of slices; None for a class, and
            for too few samples.
    """

    predicted: float
    observed: float
    gap: Estimate
    ece: Estimate
    p_value: float | None


@dataclass(frozen=True)
class Subgroup:
    """A class, or the rows with one value of a column, before and after.

    Attributes:
        column: The name of the column; "class" for a class.
        value: The name of the class, or the value as text.
        samples: Number of samples of the class or the slice.
        given: The probabilities as given.
        chosen: The recommended method; None if that is the probabilities as given.
    """

    column: str
    value: str
    samples: int
    given: SubgroupCalibration
    chosen: SubgroupCalibration | None


@dataclass(frozen=True)
class CostOutcome:
    """The mean cost per sample of the cheapest decisions by the probabilities of one method.

    Attributes:
        promised: The mean cost if the probabilities were right.
        actual: The mean cost with the true labels.
    """

    promised: float
    actual: Estimate


@dataclass(frozen=True)
class CostDecisions:
    """What the probabilities are worth for decisions with costs.

    Attributes:
        costs: Row y holds the cost of each decision if the true class is y.
        changed: The fraction of samples whose decision differs between the two methods.
        given: The probabilities as given.
        chosen: The recommended method; None if that is the probabilities as given.
    """

    costs: tuple[tuple[float, ...], ...]
    changed: float
    given: CostOutcome
    chosen: CostOutcome | None


@dataclass(frozen=True)
class ThresholdDecisions:
    """Decisions by P(y = 1) >= threshold, for each threshold. Counts are sums of weights if samples have weights.

    Attributes:
        thresholds: From 0.01 to 0.99.
        total: Number of samples; of a data set that was sampled, those of the sample.
        positives: Number of samples with y = 1.
        flagged_given: Number of samples at or above each threshold, as given.
        hits_given: How many of these have y = 1.
        flagged_chosen: The same under the recommended method.
        hits_chosen: How many of these have y = 1.
        changed: Number of samples whose decision differs between the two methods.
    """

    thresholds: tuple[float, ...]
    total: float
    positives: float
    flagged_given: tuple[float, ...]
    hits_given: tuple[float, ...]
    flagged_chosen: tuple[float, ...]
    hits_chosen: tuple[float, ...]
    changed: tuple[float, ...]


@dataclass(frozen=True)
class SetOutcome:
    """Prediction sets by the probabilities of one method.

    Attributes:
        coverage: How often a set contains the true class. The limits are for new rows, with a threshold from all rows.
        size: Mean number of classes in a set.
        sizes: Number of samples whose set has 1, 2, ... classes; sums of weights if samples have weights.
        worst_class: The class, by its index, whose rows are covered least often.
        worst_coverage: How often they are.
    """

    coverage: Estimate
    size: Estimate
    sizes: tuple[float, ...]
    worst_class: int
    worst_coverage: Estimate


@dataclass(frozen=True)
class SetPredictions:
    """Sets of classes that contain the true class with a given probability, before and after.

    Attributes:
        target: The coverage that was asked for.
        folds: Number of folds; the threshold for the sets of each fold comes from the others.
        given: The probabilities as given.
        chosen: The recommended method; None if that is the probabilities as given.
    """

    target: float
    folds: int
    given: SetOutcome
    chosen: SetOutcome | None
