"""Matching agrees with pycocotools, detection by detection."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest

from drawn_boxes import draw_boxes, draw_truth
from refocal import detection

coco = pytest.importorskip("pycocotools.coco")
cocoeval = pytest.importorskip("pycocotools.cocoeval")


class KeepsIgnore(cocoeval.COCOeval):
    """COCO's evaluation without the line that overwrites "ignore" by "iscrowd"."""

    def _prepare(self):
        super()._prepare()
        for objects in self._gts.values():
            for each in objects:
                each["ignore"] = each["iscrowd"] or each.get("own_ignore", 0)


def evaluate(truth, boxes, iou):
    """Flags of pycocotools by the number of each detection: matched or not, ignored or not."""
    kept = [{**each, "own_ignore": each.get("ignore", 0)} for each in truth["annotations"]]
    with contextlib.redirect_stdout(io.StringIO()):
        known = coco.COCO()
        known.dataset = {**truth, "annotations": kept}
        known.createIndex()
        evaluation = KeepsIgnore(known, known.loadRes([dict(box) for box in boxes]), "bbox")
        evaluation.params.iouThrs = np.array([iou])
        evaluation.params.maxDets = [10_000]
        evaluation.params.areaRng = [[0, 1e10]]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.evaluate()
    taken, ignored = np.zeros(len(boxes), dtype=bool), np.zeros(len(boxes), dtype=bool)
    for image in evaluation.evalImgs:
        if image is not None:
            rows = np.array(image["dtIds"], dtype=int) - 1
            taken[rows] = image["dtMatches"][0] > 0
            ignored[rows] = image["dtIgnore"][0]
    return taken & ~ignored, ignored


@pytest.mark.parametrize("iou", [0.05, 0.5, 0.75, 1.0])
@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (0, {}),
        (1, {"crowds": 0.5}),
        (2, {"ignored": 0.4}),
        (3, {"crowds": 0.3, "ignored": 0.3, "most": 12, "categories": 1}),
        (4, {"images": 30, "most": 20, "categories": 3}),
        (5, {"crowds": 0.0, "most": 1}),
    ],
)
def test_every_detection_has_the_flags_of_pycocotools(seed, settings, iou):
    rng = np.random.default_rng(seed)
    truth = draw_truth(rng, **settings)
    boxes = draw_boxes(rng, truth)
    expected_match, expected_ignore = evaluate(truth, boxes, iou)
    found = detection.match(boxes, truth, iou=iou)
    assert np.array_equal(found.matched, expected_match)
    assert np.array_equal(found.ignored, expected_ignore)
    assert found.matched.any()


def test_equal_boxes_and_equal_scores():
    """Each tie has one answer: of equal scores the first comes first, of equal overlaps the last is taken."""
    own = {"image_id": 0, "category_id": 1, "bbox": [0, 0, 10, 10], "area": 100, "iscrowd": 0}
    truth = {
        "images": [{"id": 0}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{**own, "id": 1}, {**own, "id": 2}, {**own, "id": 3, "iscrowd": 1}],
    }
    boxes = [{"image_id": 0, "category_id": 1, "bbox": [0, 0, 10, 10], "score": 0.5} for _ in range(4)]
    matched, ignored = evaluate(truth, boxes, 0.5)
    found = detection.match(boxes, truth)
    assert found.matched.tolist() == matched.tolist() == [True, True, False, False]
    assert found.ignored.tolist() == ignored.tolist() == [False, False, True, True]
