"""COCO files: lists of detections, and annotations. Everything is checked before it is used; nothing is unpickled."""

from __future__ import annotations

import codecs
import json
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np

from refocal._documents import parse_json, read_document
from refocal._files import write_text

# a file, its content, or an object already read
Results: TypeAlias = "str | os.PathLike[str] | Sequence[Mapping[str, Any]] | Detections"
Truth: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | Annotations"

_NUMBERS = (int, float, np.integer, np.floating)
_LARGEST = 1e12  # of a coordinate, in pixels; areas of boxes stay finite


class CocoError(ValueError):
    """An invalid COCO file; the message gives the file, the entry, counted from 0, and the field."""


@dataclass(frozen=True, eq=False)
class Detections:
    """The boxes that a detector found, as in a COCO results file.

    Attributes:
        image_ids: The image of each detection, (N,); numbers or text.
        category_ids: The category of each detection, (N,).
        boxes: Left, top, width and height, (N, 4).
        scores: Between 0 and 1, (N,).
        entries: The entries of the file, with all their fields.
        name: The name of the file, for messages.
    """

    image_ids: tuple[Hashable, ...]
    category_ids: tuple[Hashable, ...]
    boxes: np.ndarray
    scores: np.ndarray
    entries: tuple[Mapping[str, Any], ...] = field(repr=False)
    name: str = "results"

    def __len__(self) -> int:
        """The number of detections."""
        return len(self.entries)

    @classmethod
    def read(cls, results: Results) -> Detections:
        """Read detections from a COCO results file, or from the list that such a file holds.

        Args:
            results: A file, or a list of {"image_id", "category_id", "bbox", "score"}. Further fields are kept.
                Detections stay as they are.

        Example:
            >>> found = {"image_id": 7, "category_id": 1, "bbox": [0, 0, 10, 20], "score": 0.8}
            >>> Detections.read([found]).scores.tolist()
            [0.8]
        """
        if isinstance(results, Detections):
            return results
        entries, name = _load(results, "results")
        if not isinstance(entries, Sequence) or isinstance(entries, (str, bytes)):
            is_truth = isinstance(entries, Mapping) and "annotations" in entries
            hint = ": these are annotations, not results" if is_truth else ""
            _refuse(name, f"must be a list of image_id, category_id, bbox and score, got {_show(entries)}{hint}")
        _check_objects(entries, name)
        image_ids, category_ids, boxes = _read_boxes(entries, name, "")
        scores = [_read_score(entry.get("score"), f"{name}: entry {row}") for row, entry in enumerate(entries)]
        return cls(image_ids, category_ids, boxes, np.array(scores, dtype=np.float64), tuple(entries), name)

    def select(self, rows: np.ndarray) -> Detections:
        """Select detections by their numbers."""
        numbers = rows.tolist()
        parts = (tuple(part[row] for row in numbers) for part in (self.image_ids, self.category_ids, self.entries))
        image_ids, category_ids, entries = parts
        return Detections(image_ids, category_ids, self.boxes[rows], self.scores[rows], entries, self.name)

    def with_scores(self, scores: np.ndarray) -> list[dict[str, Any]]:
        """Return the entries with other scores, (N,), and all other fields as they were."""
        pairs = zip(self.entries, scores.tolist(), strict=True)
        return [{**entry, "score": score} for entry, score in pairs]

    def write(self, path: str | os.PathLike[str], scores: np.ndarray, *, overwrite: bool = False) -> None:
        """Write a COCO results file with other scores, (N,). An interrupted write leaves no file."""
        write_text(path, json.dumps(self.with_scores(scores), allow_nan=False), overwrite=overwrite)


@dataclass(frozen=True, eq=False)
class Annotations:
    """The annotated objects, as in a COCO annotation file.

    Attributes:
        image_ids: All images, with and without objects.
        categories: The name of each category, by its id.
        object_images: The image of each object, (M,).
        object_categories: The category of each object, (M,).
        boxes: Left, top, width and height, (M, 4).
        crowd: Whether an annotation is a region with many objects, (M,).
        ignored: Whether detections of an object count neither as right nor as wrong, (M,): all crowds, and objects
            with a field "ignore" that is not 0.
        name: The name of the file, for messages.
    """

    image_ids: tuple[Hashable, ...]
    categories: Mapping[Hashable, str]
    object_images: tuple[Hashable, ...]
    object_categories: tuple[Hashable, ...]
    boxes: np.ndarray
    crowd: np.ndarray
    ignored: np.ndarray
    name: str = "annotations"

    @classmethod
    def read(cls, annotations: Truth) -> Annotations:
        """Read a COCO annotation file, or the object that such a file holds.

        Args:
            annotations: A file, or {"images": [...], "annotations": [...], "categories": [...]}.

        Example:
            >>> truth = {"images": [{"id": 7}], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
            >>> Annotations.read(truth).categories
            {1: 'cat'}
        """
        if isinstance(annotations, Annotations):
            return annotations
        document, name = _load(annotations, "annotations")
        if not isinstance(document, Mapping):
            hint = ": these look like results" if isinstance(document, list) else ""
            _refuse(name, f"must be an object with images, annotations and categories, got {_show(document)}{hint}")
        images, objects, categories = (_list(document, part, name) for part in ("images", "annotations", "categories"))
        image_ids = _read_ids(images, f"{name}: images")
        category_ids = _read_ids(categories, f"{name}: categories")
        names = [_read_name(each.get("name"), own) for each, own in zip(categories, category_ids, strict=True)]
        own_images, own_categories, boxes = _read_boxes(objects, name, "annotations ")
        known = {"image_id": (own_images, set(image_ids)), "category_id": (own_categories, set(category_ids))}
        for word, (ids, allowed) in known.items():
            for row, each in enumerate(ids):
                if each not in allowed:
                    where = "images" if word == "image_id" else "categories"
                    _refuse(f"{name}: annotations entry {row}", f"{word} {each!r:.50} is not among its {where}")
        crowd, ignore = (
            np.array(
                [
                    _read_flag(each.get(word, 0), f"{name}: annotations entry {row}: {word}")
                    for row, each in enumerate(objects)
                ],
                dtype=bool,
            )
            for word in ("iscrowd", "ignore")
        )
        by_id = dict(zip(category_ids, names, strict=True))
        return cls(image_ids, by_id, own_images, own_categories, boxes, crowd, crowd | ignore, name)

    def select(self, image_ids: Iterable[Hashable]) -> Annotations:
        """Select images by their ids, with their objects. All categories stay."""
        wanted = set(image_ids)
        rows = [row for row, image in enumerate(self.object_images) if image in wanted]
        return Annotations(
            tuple(image for image in self.image_ids if image in wanted),
            self.categories,
            tuple(self.object_images[row] for row in rows),
            tuple(self.object_categories[row] for row in rows),
            self.boxes[rows],
            self.crowd[rows],
            self.ignored[rows],
            self.name,
        )


def _load(source: Any, what: str) -> tuple[Any, str]:
    """Load the document of a file, or take one as it is; and its name for messages."""
    if not isinstance(source, (str, os.PathLike)):
        return source, what
    name = Path(source).name
    content = read_document(source).removeprefix(codecs.BOM_UTF8)
    return parse_json(content, lambda reason: CocoError(f"{name} is not valid JSON, or is incomplete: {reason}")), name


def _list(document: Mapping[str, Any], part: str, name: str) -> list[Mapping[str, Any]]:
    found = document.get(part)
    if not isinstance(found, list):
        got = "nothing" if found is None else type(found).__name__
        _refuse(name, f"must have a list {part!r}, got {got}")
    _check_objects(found, f"{name}: {part}")
    return found


def _check_objects(entries: Sequence[Any], name: str) -> None:
    for row, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            _refuse(f"{name}: entry {row}", f"must be an object, got {entry!r:.50}")


def _read_ids(entries: Sequence[Mapping[str, Any]], name: str) -> tuple[Hashable, ...]:
    ids = tuple(_read_id(entry.get("id"), f"{name}: entry {row}: id") for row, entry in enumerate(entries))
    if len(set(ids)) < len(ids):
        ((often, times),) = Counter(ids).most_common(1)
        _refuse(name, f"ids must be unique, but {often!r:.50} occurs {times} times")
    return ids


def _read_boxes(
    entries: Sequence[Mapping[str, Any]], name: str, part: str
) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...], np.ndarray]:
    """Read image, category and box of each entry."""
    places = [f"{name}: {part}entry {row}" for row in range(len(entries))]
    image_ids, category_ids = (
        tuple(_read_id(entry.get(word), f"{place}: {word}") for entry, place in zip(entries, places, strict=True))
        for word in ("image_id", "category_id")
    )
    boxes = [_read_box(entry, place) for entry, place in zip(entries, places, strict=True)]
    return image_ids, category_ids, np.array(boxes, dtype=np.float64).reshape(-1, 4)


def _read_id(value: Any, place: str) -> Hashable:
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        _refuse(place, f"must be a whole number or text, got {_show(value)}")
    return int(value)


def _read_name(value: Any, own_id: Hashable) -> str:
    return value if isinstance(value, str) and value else str(own_id)


def _read_box(entry: Mapping[str, Any], place: str) -> list[float]:
    value = entry.get("bbox")
    if not isinstance(value, (Sequence, np.ndarray)) or len(value) != 4 or not all(map(_is_number, value)):
        hint = "; masks are not supported" if value is None and "segmentation" in entry else ""
        _refuse(f"{place}: bbox", f"must be four numbers, left, top, width and height, got {_show(value)}{hint}")
    if value[2] < 0 or value[3] < 0:
        _refuse(f"{place}: bbox", f"width and height must not be negative, got {_show(value)}")
    return [float(number) for number in value]


def _read_score(value: Any, place: str) -> float:
    if not _is_number(value) or not 0 <= value <= 1:
        _refuse(f"{place}: score", f"must be a number between 0 and 1, got {_show(value)}")
    return float(value)


def _read_flag(value: Any, place: str) -> bool:
    if value not in (0, 1):
        _refuse(place, f"must be 0 or 1, got {_show(value)}")
    return bool(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool) and bool(-_LARGEST <= value <= _LARGEST)


def _show(value: Any) -> str:
    return "nothing (missing, null or NaN)" if value is None else f"{value!r:.80}"


def _refuse(place: str, message: str) -> NoReturn:
    msg = f"{place}: {message}"
    raise CocoError(msg)
