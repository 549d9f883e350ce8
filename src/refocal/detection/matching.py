"""Which detections are right: matching boxes to objects, as COCO's evaluation does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from refocal import _check
from refocal.detection.coco import Annotations, CocoError, Detections, Results, Truth

_BELOW_ONE = 1 - 1e-10  # boxes that are equal up to rounding overlap by 1, as in COCO's evaluation
_MOST_PAIRS = 1 << 20  # of boxes and objects whose overlaps are held at a time


@dataclass(frozen=True, eq=False)
class Matches:
    """Detections and whether each is right, at one IoU threshold.

    Attributes:
        detections: The detections, (N,) in the order of the file.
        annotations: The objects.
        threshold: The least IoU of a right box.
        matched: Whether a detection is matched to an object of its category, (N,).
        ignored: Whether it is matched to a crowd or to an ignored object, (N,): it counts as neither right nor wrong.
        iou: IoU with the matched object, (N,); 0 if there is none.
    """

    detections: Detections
    annotations: Annotations
    threshold: float
    matched: np.ndarray
    ignored: np.ndarray
    iou: np.ndarray

    @property
    def counted(self) -> np.ndarray:
        """The numbers of the detections that count as right or wrong."""
        return np.flatnonzero(~self.ignored)

    @property
    def objects(self) -> int:
        """The number of objects that a detector should find."""
        return int(np.count_nonzero(~self.annotations.ignored))

    def number_images(self) -> np.ndarray:
        """The number of each detection's image, (N,)."""
        return _number(self.detections.image_ids, self.annotations.image_ids)

    def number_categories(self) -> np.ndarray:
        """The number of each detection's category, (N,), in the order of the annotations."""
        return _number(self.detections.category_ids, tuple(self.annotations.categories))


def match(
    results: Results,
    annotations: Truth,
    *,
    iou: float = 0.5,
) -> Matches:
    """Match detections to objects, image by image and category by category, as COCO's evaluation does.

    Detections come in order of decreasing score. Each takes the object with the largest IoU among those that are free
    and overlap by `iou` or more. If there is none, it may take an ignored object or a crowd, and is ignored; a crowd
    can be taken many times, and its overlap is the part of the box that lies inside. All detections are matched: there
    is no limit per image, and no range of sizes.

    pycocotools overwrites a field "ignore" of annotations by "iscrowd"; here both count.

    Args:
        results: A COCO results file, the list that it holds, or `Detections`.
        annotations: A COCO annotation file, the object that it holds, or `Annotations`.
        iou: The least intersection over union of a right box, from 0 to 1. With 0, any overlap is enough.

    Example:
        >>> truth = {
        ...     "images": [{"id": 1}],
        ...     "categories": [{"id": 1, "name": "cat"}],
        ...     "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}],
        ... }
        >>> box = {"image_id": 1, "category_id": 1}
        >>> found = [box | {"bbox": [0, 0, 10, 8], "score": 0.6}, box | {"bbox": [0, 0, 10, 10], "score": 0.3}]
        >>> matches = match(found, truth)
        >>> matches.matched.tolist(), matches.iou.tolist()
        ([True, False], [0.8, 0.0])

    Reference: Lin et al. (2014), "Microsoft COCO", and its evaluation code.
    """
    least = _check_threshold(iou)
    found = Detections.read(results)
    truth = Annotations.read(annotations)
    _check_ids(found, truth)
    objects: dict[tuple[Hashable, Hashable], list[int]] = defaultdict(list)
    for index, key in enumerate(zip(truth.object_images, truth.object_categories, strict=True)):
        objects[key].append(index)
    groups: dict[tuple[Hashable, Hashable], list[int]] = defaultdict(list)
    for index, key in enumerate(zip(found.image_ids, found.category_ids, strict=True)):
        groups[key].append(index)
    chosen = np.full(len(found), -1, dtype=np.intp)
    overlap = np.zeros(len(found))
    for key, rows in groups.items():
        there = objects.get(key)
        if there is not None:
            own, at = np.array(rows), np.array(there)
            order = own[np.argsort(-found.scores[own], kind="stable")]
            flags = truth.ignored[at], truth.crowd[at]
            places, overlap[order] = _match_greedily(found.boxes[order], truth.boxes[at], *flags, least=least)
            chosen[order] = np.where(places >= 0, at[places], -1)
    is_taken = chosen >= 0
    ignored = np.zeros(len(found), dtype=bool)
    ignored[is_taken] = truth.ignored[chosen[is_taken]]
    matched = is_taken & ~ignored
    return Matches(found, truth, float(iou), matched, ignored, np.where(matched, overlap, 0.0))


def measure_overlaps(boxes: np.ndarray, objects: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """IoU of boxes (n, 4) with objects (m, 4), (n, m); for a crowd, the part of the box that lies inside it."""
    first, second = boxes[:, None], objects[None]
    ends = np.minimum(first[..., :2] + first[..., 2:], second[..., :2] + second[..., 2:])
    sides = np.maximum(ends - np.maximum(first[..., :2], second[..., :2]), 0.0)
    common = sides[..., 0] * sides[..., 1]
    own, other = (each[..., 2] * each[..., 3] for each in (first, second))
    union = np.where(crowd, own, own + other - common)
    return np.divide(common, union, out=np.zeros_like(common), where=common > 0)


def _match_greedily(
    boxes: np.ndarray, objects: np.ndarray, ignored: np.ndarray, crowd: np.ndarray, *, least: float
) -> tuple[np.ndarray, np.ndarray]:
    """The place of the object that each box takes, (n,), -1 for none, and their overlap, in order of the boxes."""
    free = np.ones(len(objects), dtype=bool)
    places, overlap = np.full(len(boxes), -1, dtype=np.intp), np.zeros(len(boxes))
    step = max(1, _MOST_PAIRS // len(objects))
    for start in range(0, len(boxes), step):
        ious = measure_overlaps(boxes[start : start + step], objects, crowd)
        for row in np.flatnonzero((ious >= least).any(axis=1)):
            possible = (ious[row] >= least) & free
            wanted = possible & ~ignored
            pool = np.flatnonzero(wanted if wanted.any() else possible)
            if len(pool):
                best = ious[row, pool]
                place = pool[np.flatnonzero(best == best.max())[-1]]  # of equal ones COCO's evaluation takes the last
                places[start + row], overlap[start + row] = place, ious[row, place]
                free[place] = crowd[place]
    return places, overlap


def _check_threshold(iou: float) -> float:
    value = _check.finite(iou, "iou", least=0.0)
    if value > 1 or isinstance(iou, (bool, np.bool_)):
        msg = f"iou must be from 0 to 1, got {iou!r}"
        raise ValueError(msg)
    return min(value, _BELOW_ONE) or float(np.finfo(np.float64).tiny)


def _check_ids(found: Detections, truth: Annotations) -> None:
    """Reject detections of images and categories that have no annotations: they would all count as wrong."""
    for word, ids, known in (
        ("image_id", found.image_ids, set(truth.image_ids)),
        ("category_id", found.category_ids, set(truth.categories)),
    ):
        for row, each in enumerate(ids):
            if each not in known:
                where = "images" if word == "image_id" else "categories"
                msg = f"{found.name}: entry {row}: {word} {each!r:.50} is not among the {where} of {truth.name}"
                raise CocoError(msg)


def _number(values: Sequence[Hashable], known: Sequence[Hashable]) -> np.ndarray:
    places = {value: index for index, value in enumerate(known)}
    return np.array([places[value] for value in values], dtype=np.intp)
