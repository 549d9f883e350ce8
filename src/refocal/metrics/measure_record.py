"""The record that describes a measure to `interval` and `paired_test`, and the request that a method answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import numpy as np

from refocal import _check
from refocal._check import Input
from refocal.metrics.inputs import TASKS, ArrayLike, Sample, Task, read

# The parts of `confidence_share` and of `brier_decomposition`.
Part = Literal["share", "accuracy", "brier", "calibration", "refinement", "uncertainty", "resolution"]


class Interval(NamedTuple):
    """A measure and its confidence limits."""

    value: float
    low: float
    high: float


class PairedTest(NamedTuple):
    """The measure of two models on the same samples, and the two-sided p-value of their difference."""

    first: float
    second: float
    p_value: float


class CommonArguments(TypedDict):
    """The arguments that (almost) all measures share."""

    input: Input
    sample_weight: ArrayLike | None
    task: Task
    ignore_index: int | None


@dataclass(frozen=True)
class Measure:
    """A measure and how its uncertainty is computed.

    Attributes:
        function: The public function.
        methods: The interval method of each part, by the name of the part; None for a measure that is one number.
        tasks: The tasks that the function supports.
    """

    function: Callable[..., Any]
    methods: Mapping[Part | None, IntervalMethod]
    tasks: tuple[Task, ...] = TASKS

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of the function."""
        return inspect.signature(self.function).parameters

    def choose_method(self, part: Part | None) -> IntervalMethod:
        """The method for a part; an error if the measure has no such part."""
        if None not in self.methods:
            _check.one_of(part, "part", tuple(filter(None, self.methods)))
        elif part is not None:
            msg = f"part must be None for a measure that is one number, got {part!r}"
            raise ValueError(msg)
        return self.methods[part]

    def complete_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of the function that are not common to all measures, with its defaults."""
        own = {
            name: parameter
            for name, parameter in self.parameters.items()
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in CommonArguments.__annotations__
        }
        for name in settings:
            if name not in own:
                msg = f"{self.name} has no setting {name!r}"
                raise TypeError(msg)
        complete = {name: settings.get(name, parameter.default) for name, parameter in own.items()}
        for name, value in complete.items():
            if value is inspect.Parameter.empty:
                msg = f"{self.name} needs the setting {name!r}"
                raise TypeError(msg)
        return complete

    def check_common(self, common: CommonArguments) -> None:
        """Reject common arguments that the function does not support."""
        _check.one_of(common["task"], "task", self.tasks)
        if common["ignore_index"] is not None and "ignore_index" not in self.parameters:
            msg = f"ignore_index must be None for {self.name}, got {common['ignore_index']!r}"
            raise ValueError(msg)


@dataclass(frozen=True)
class Request:
    """A measure with all its arguments but the scores, and the settings of the resampling."""

    measure: Measure
    labels: ArrayLike
    common: CommonArguments
    settings: Mapping[str, Any]
    part: Part | None
    resamples: int
    rng: np.random.Generator

    def read(self, scores: ArrayLike) -> Sample:
        """Check the scores, with the labels and the common arguments."""
        return read(scores, self.labels, **self.common)

    def value(self, scores: ArrayLike) -> float:
        """The value of the measure, or of its part."""
        common = {name: value for name, value in self.common.items() if name in self.measure.parameters}
        value = self.measure.function(scores, self.labels, **common, **self.settings)
        return float(value if self.part is None else getattr(value, self.part))


class IntervalMethod(Protocol):
    """A way to compute confidence intervals and paired tests."""

    def interval(self, request: Request, scores: ArrayLike, *, level: float) -> Interval:
        """The measure with its confidence limits."""
        ...

    def paired_test(self, request: Request, first: ArrayLike, second: ArrayLike) -> PairedTest:
        """The measures of two models, and the p-value of their difference."""
        ...
