"""Matching, against loops that are slow and obvious."""

from __future__ import annotations

import numpy as np
import pytest

from drawn_boxes import draw_boxes, draw_truth
from refocal.detection import CocoError, Detections, match, matching, measure_overlaps

TRUTH = {
    "images": [{"id": 1}, {"id": 2}],
    "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
    "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}],
}
BOX = {"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10], "score": 0.5}


def overlap(box, other, *, crowd):
    """IoU of two boxes, by counting cells of a grid; corners must be whole numbers."""
    cells = {(x, y) for x in range(box[0], box[0] + box[2]) for y in range(box[1], box[1] + box[3])}
    others = {(x, y) for x in range(other[0], other[0] + other[2]) for y in range(other[1], other[1] + other[3])}
    both = len(cells & others)
    whole = len(cells) if crowd else len(cells | others)
    return both / whole if both else 0.0


def match_slowly(boxes, truth, least):
    """(matched, ignored) of each box: the rule of COCO in words, one box after the other."""
    flags = [(False, False)] * len(boxes)
    taken = set()
    order = sorted(range(len(boxes)), key=lambda row: -boxes[row]["score"])  # stable
    for row in order:
        box = boxes[row]
        found = {True: None, False: None}  # by whether the object is ignored
        for number, each in enumerate(truth["annotations"]):
            same = (each["image_id"], each["category_id"]) == (box["image_id"], box["category_id"])
            crowd = bool(each.get("iscrowd"))
            if not same or (number in taken and not crowd):
                continue
            own = overlap(box["bbox"], each["bbox"], crowd=crowd)
            ignored = crowd or bool(each.get("ignore"))
            if own >= least and (found[ignored] is None or own >= found[ignored][0]):
                found[ignored] = (own, number)
        for ignored in (False, True):
            if found[ignored] is not None:
                taken.add(found[ignored][1])
                flags[row] = (not ignored, ignored)
                break
    return flags


@pytest.mark.parametrize("least", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_boxes_are_matched_as_the_loop_does(seed, least):
    rng = np.random.default_rng(seed)
    truth = draw_truth(rng, images=25, most=6, crowds=0.2, ignored=0.2)
    boxes = draw_boxes(rng, truth)
    found = match(boxes, truth, iou=least)
    assert list(zip(found.matched.tolist(), found.ignored.tolist(), strict=True)) == match_slowly(boxes, truth, least)
    assert (found.iou[found.matched] >= least).all()
    assert (found.iou[~found.matched] == 0).all()
    assert found.objects == sum(not (each["iscrowd"] or each["ignore"]) for each in truth["annotations"])


def test_overlaps_are_counted_cells():
    rng = np.random.default_rng(0)
    boxes, objects = (np.hstack([rng.integers(0, 9, (20, 2)), rng.integers(0, 9, (20, 2))]) for _ in range(2))
    crowd = rng.random(20) < 0.5
    found = measure_overlaps(boxes.astype(float), objects.astype(float), crowd)
    expected = [[overlap(b, o, crowd=c) for o, c in zip(objects, crowd, strict=True)] for b in boxes]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_order_of_the_file_does_not_matter():
    rng = np.random.default_rng(1)
    truth = draw_truth(rng)
    boxes = draw_boxes(rng, truth, decimals=9)
    order = rng.permutation(len(boxes))
    plain, shuffled = match(boxes, truth), match([boxes[row] for row in order], truth)
    assert np.array_equal(plain.matched[order], shuffled.matched)
    assert np.array_equal(plain.iou[order], shuffled.iou)


def test_with_threshold_zero_any_overlap_is_enough_but_none_is_not():
    apart, corner = {**BOX, "bbox": [20, 20, 5, 5]}, {**BOX, "bbox": [9, 9, 10, 10]}
    assert match([apart], TRUTH, iou=0).matched.tolist() == [False]
    assert match([corner], TRUTH, iou=0).iou.tolist() == pytest.approx([1 / 199])
    touching = {**BOX, "bbox": [10, 0, 5, 5]}
    assert not match([touching], TRUTH, iou=0).matched.any()


def test_boxes_without_an_area_match_nothing():
    truth = {**TRUTH, "annotations": [{"image_id": 1, "category_id": 1, "bbox": [3, 3, 0, 0]}]}
    for box in ([3, 3, 0, 0], [0, 0, 10, 10]):
        assert not match([{**BOX, "bbox": box}], truth, iou=0).matched.any()


def test_images_and_categories_stay_apart():
    found = match([{**BOX, "image_id": 2}, {**BOX, "category_id": 2}, BOX], TRUTH)
    assert found.matched.tolist() == [False, False, True]
    assert found.number_images().tolist() == [1, 0, 0]
    assert found.number_categories().tolist() == [0, 1, 0]


def test_nothing_to_match():
    assert match([], TRUTH).matched.shape == (0,)
    assert not match([BOX], {**TRUTH, "annotations": []}).matched.any()


def test_ids_may_be_text_but_are_not_mixed_with_numbers():
    text = {**TRUTH, "images": [{"id": "1"}], "annotations": []}
    with pytest.raises(CocoError, match="entry 0: image_id 1 is not among the images of annotations"):
        match([BOX], text)
    assert len(match([{**BOX, "image_id": "1"}], text).matched) == 1


def test_unknown_ids():
    with pytest.raises(CocoError, match="results: entry 1: image_id 7 is not among the images of annotations"):
        match([BOX, {**BOX, "image_id": 7}], TRUTH)
    with pytest.raises(CocoError, match="results: entry 0: category_id 'cat' is not among the categories"):
        match([{**BOX, "category_id": "cat"}], TRUTH)


@pytest.mark.parametrize(
    ("iou", "message"),
    [
        (1.5, "from 0 to 1, got 1.5"),
        (-0.1, "iou must be"),
        (float("nan"), "iou"),
        (True, "iou must be from 0 to 1, got True"),
    ],
)
def test_impossible_thresholds(iou, message):
    with pytest.raises(ValueError, match=message):
        match([BOX], TRUTH, iou=iou)


def test_detections_are_selected_with_all_their_parts():
    found = Detections.read([BOX, {**BOX, "score": 0.75, "image_id": 2}])
    some = found.select(np.array([1]))
    assert (some.image_ids, some.scores.tolist(), some.entries[0]["score"]) == ((2,), [0.75], 0.75)


def test_blocks_of_boxes_share_their_objects(monkeypatch):
    rng = np.random.default_rng(0)
    truth = draw_truth(rng, images=4, most=30, crowds=0.2, categories=1)
    boxes = draw_boxes(rng, truth, wrong=10)
    whole = match(boxes, truth)
    monkeypatch.setattr(matching, "_MOST_PAIRS", 40)  # one or two boxes at a time
    parts = match(boxes, truth)
    assert whole.matched.sum() > 20
    for name in ("matched", "ignored", "iou"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
