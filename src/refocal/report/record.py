"""What a report says, as frozen records that turn into JSON and back."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from refocal import _check
from refocal._files import write_text

SCHEMA = 1
SLIDER_LOGITS = 400_000  # rows x classes; as text they take 2.2 MB of a page


@dataclass(frozen=True)
class Estimate:
    """A measure with its confidence limits."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Diagram:
    """A reliability diagram: bins that hold samples, and where a calibrated model's accuracy would lie.

    Attributes:
        count: Samples in each bin.
        confidence: Their mean confidence.
        accuracy: How often they came true.
        low: Lower limit of the consistency band.
        high: Upper limit of the consistency band.
    """

    count: tuple[float, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Method:
    """One way to turn the scores into probabilities, measured on the test data.

    Attributes:
        name: Short and unique, such as "temperature".
        title: For people, such as "Temperature scaling".
        parameters: What was fitted or given, by name.
        chosen: Whether this is the one that the report recommends.
        given: Whether these are the probabilities as they came.
        measures: By the name of the function of `refocal.metrics`.
        p_value: Of the hypothesis that the top label's confidence is calibrated.
        fit_seconds: How long fitting took; None where nothing was fitted.
        diagram: Of the top label.
        histogram: How many samples have their confidence in each of 20 equal parts of [0, 1].
        class_diagrams: Of each class's probability, for the classes that the report shows.
    """

    name: str
    title: str
    parameters: Mapping[str, float]
    chosen: bool
    given: bool
    measures: Mapping[str, Estimate]
    p_value: float
    fit_seconds: float | None
    diagram: Diagram
    histogram: tuple[int, ...]
    class_diagrams: tuple[Diagram, ...]


@dataclass(frozen=True)
class Change:
    """A sample whose confidence changed much between the scores as given and the chosen method."""

    row: int
    label: int
    predicted: int
    before: float
    after: float


@dataclass(frozen=True)
class Slider:
    """Test rows that the page recomputes for any gamma and T: a part of them where all would make it too large.

    Attributes:
        logits: Row after row as little-endian float32, in base64; the largest of each row is 0.
        labels: One a row.
        gamma: The fitted value.
        temperature: The fitted value.
    """

    logits: str
    labels: tuple[int, ...]
    gamma: float
    temperature: float

    @classmethod
    def pack(cls, logits: np.ndarray, labels: np.ndarray, *, gamma: float, temperature: float) -> Slider:
        """Pack the rows that were chosen.

        Args:
            logits: Shape (N, K) with N >= 1, at most 400,000 numbers unless it is one row; -inf masks a class.
            labels: Shape (N,), integers below K.
            gamma: Fitted focusing parameter, > -1.
            temperature: Fitted temperature, > 0.

        Example:
            >>> slider = Slider.pack(np.array([[2.0, 0.0, 1.0]]), np.array([0]), gamma=3.0, temperature=1.2)
            >>> slider.rows().tolist()
            [[0.0, -2.0, -1.0]]
        """
        _, logits = _check.floating(logits, "logits")
        _check.classes_last(logits, "logits")
        _check.logits(logits, "logits", xp=np)
        labels = np.asarray(_check.unmasked(labels, "labels"))
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or len(labels) == 0:
            msg = f"logits must have shape (N, K) and labels (N,) with N >= 1, got {logits.shape} and {labels.shape}"
            raise ValueError(msg)
        if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= logits.shape[1]:
            msg = f"labels must be integers from 0 to {logits.shape[1] - 1}"
            raise ValueError(msg)
        if logits.size > SLIDER_LOGITS and len(logits) > 1:
            msg = f"logits must hold at most {SLIDER_LOGITS:,} numbers, got {logits.size:,}: choose fewer rows"
            raise ValueError(msg)
        # only differences matter: those from the largest lose the fewest digits in float32
        wide = logits.astype(np.float64)
        shifted = np.maximum(wide - wide.max(axis=1, keepdims=True), np.finfo(np.float32).min)
        narrow = np.where(np.isneginf(wide), -np.inf, shifted).astype("<f4")
        return cls(
            base64.b64encode(narrow.tobytes()).decode("ascii"),
            tuple(labels.tolist()),
            _check.scalar_gamma(gamma),
            _check.positive(temperature, "temperature"),
        )

    def rows(self) -> np.ndarray:
        """The logits in float64, (N, K)."""
        numbers = np.frombuffer(base64.b64decode(self.logits), dtype="<f4")
        return numbers.reshape(len(self.labels), -1).astype(np.float64)


@dataclass(frozen=True)
class Verdict:
    """What was found, in words.

    Attributes:
        regime: "underconfident", "overconfident", "miscalibrated" (both, in different places) or "calibrated" (there is
            no sign of anything else).
        sentences: Plain English, the first one the answer.
    """

    regime: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """Can these probabilities be trusted, and which ones can.

    Attributes:
        source: Where the predictions came from, such as a file name.
        samples: Number of test samples.
        classes: Number of classes.
        class_names: One a class.
        shown_classes: The classes that `class_diagrams` are of: the most frequent.
        verdict: In words.
        methods: The scores as given first, then by rising NLL.
        changes: The largest changes of confidence first.
        slider: For the page's live diagram.
        versions: Of the packages that computed it.
    """

    source: str
    samples: int
    classes: int
    class_names: tuple[str, ...]
    shown_classes: tuple[int, ...]
    verdict: Verdict
    methods: tuple[Method, ...]
    changes: tuple[Change, ...]
    slider: Slider
    versions: Mapping[str, str]

    @property
    def given(self) -> Method:
        """The probabilities as they came."""
        return next(method for method in self.methods if method.given)

    @property
    def chosen(self) -> Method:
        """The recommended ones."""
        return next(method for method in self.methods if method.chosen)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the page (.html) or the record (.json), whole or not at all."""
        suffix = Path(path).suffix
        if suffix == ".html":
            from refocal.report.page import save_page

            save_page(self, path, overwrite=overwrite)
        elif suffix == ".json":
            write_text(path, self.to_json(), overwrite=overwrite)
        else:
            msg = f"path must end in .html or .json, got {str(path)!r}"
            raise ValueError(msg)

    def to_json(self) -> str:
        """The whole report in ASCII, with its schema version; NaN and infinite numbers are null."""
        return json.dumps({"schema": SCHEMA, **_plain(self)}, allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def freeze(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A mapping that cannot be changed."""
    return MappingProxyType(dict(values))
