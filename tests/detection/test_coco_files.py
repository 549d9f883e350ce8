"""Reading COCO files: what is valid, and a clear error for everything else."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest

from drawn_boxes import draw_scored, write
from refocal.detection import Annotations, CocoError, Detections

BOX = {"image_id": 1, "category_id": 2, "bbox": [0, 1, 2.5, 3], "score": 0.5}
TRUTH = {
    "images": [{"id": 1}],
    "categories": [{"id": 2, "name": "cat"}],
    "annotations": [{"id": 9, "image_id": 1, "category_id": 2, "bbox": [0, 0, 5, 5]}],
}


def test_a_file_and_what_it_holds_are_the_same(tmp_path):
    boxes, truth = draw_scored(np.random.default_rng(0), images=5)
    for found in (Detections.read(boxes), Detections.read(write(tmp_path / "a.json", boxes))):
        assert found.scores.tolist() == [box["score"] for box in boxes]
        assert found.boxes.tolist() == [box["bbox"] for box in boxes]
        assert list(found.image_ids) == [box["image_id"] for box in boxes]
    for known in (Annotations.read(truth), Annotations.read(write(tmp_path / "b.json", truth))):
        assert known.categories == {1: "cat", 2: "dog", 3: "bird"}
        assert len(known.boxes) == len(truth["annotations"])
    assert Detections.read(found) is found
    assert Annotations.read(known) is known


def test_scores_change_and_everything_else_stays(tmp_path):
    """Text, numbers of any kind, nested values and the order of fields."""
    odd = {
        "segmentation": {"size": [1, 2], "counts": "aé\u202e"},
        "big": 12345678901234567890,
        "tiny": 1e-320,
        "no": None,
    }
    boxes = [{"score": 0.25, **odd, "bbox": [0, 0, 1, 1], "image_id": "x/1", "category_id": 3}, BOX]
    found = Detections.read(boxes)
    found.write(tmp_path / "out.json", np.array([0.75, 1.0]))
    again = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert again == [{**boxes[0], "score": 0.75}, {**BOX, "score": 1.0}]
    assert list(again[0]) == list(boxes[0])
    assert found.entries[0]["score"] == 0.25
    with pytest.raises(FileExistsError, match=r"out\.json"):
        found.write(tmp_path / "out.json", np.array([0.75, 1.0]))


def test_numbers_of_numpy_are_numbers():
    made = {"image_id": np.int64(1), "category_id": np.int32(2), "bbox": np.arange(4.0), "score": np.float32(0.5)}
    found = Detections.read([made])
    assert (found.image_ids, found.category_ids, found.scores.tolist()) == ((1,), (2,), [0.5])
    assert found.boxes.tolist() == [[0, 1, 2, 3]]


def test_lists_without_entries_are_valid():
    assert len(Detections.read([])) == 0
    assert Detections.read([]).boxes.shape == (0, 4)
    empty = Annotations.read({"images": [], "annotations": [], "categories": []})
    assert empty.boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": float("nan")}, r"entry 1: score: must be a number between 0 and 1, got nan"),
        ({"score": None}, r"entry 1: score: must be .*, got nothing \(missing, null or NaN\)"),
        ({"score": 1.0000001}, r"entry 1: score: must be a number between 0 and 1, got 1.0000001"),
        ({"score": -0.1}, r"entry 1: score: must be"),
        ({"score": "0.5"}, r"entry 1: score: must be .* got '0.5'"),
        ({"score": True}, r"entry 1: score: must be .* got True"),
        ({"bbox": [0, 0, -1, 2]}, r"entry 1: bbox: width and height must not be negative, got \[0, 0, -1, 2\]"),
        ({"bbox": [0, 0, 1]}, r"entry 1: bbox: must be four numbers, left, top, width and height, got \[0, 0, 1\]"),
        ({"bbox": [0, 0, 1, float("inf")]}, r"entry 1: bbox: must be four numbers"),
        ({"bbox": [0, 0, 1, 10**400]}, r"entry 1: bbox: must be four numbers"),
        ({"bbox": [0, 0, 1, "1"]}, r"entry 1: bbox: must be four numbers"),
        ({"bbox": None}, r"entry 1: bbox: must be four numbers, .* got nothing \(missing, null or NaN\)$"),
        ({"bbox": None, "segmentation": {}}, r"entry 1: bbox: must be .*; masks are not supported$"),
        ({"image_id": 1.5}, r"entry 1: image_id: must be a whole number or text, got 1.5"),
        ({"image_id": True}, r"entry 1: image_id: must be"),
        ({"category_id": None}, r"entry 1: category_id: must be"),
    ],
)
def test_invalid_results(change, message):
    with pytest.raises(CocoError, match=message):
        Detections.read([BOX, {**BOX, **change}])


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"a": 1}, r"results: must be a list of image_id, category_id, bbox and score, got \{'a': 1\}$"),
        (TRUTH, r"got \{'images'.*: these are annotations, not results"),
        (None, r"results: must be a list .* got nothing"),
        (3, r"results: must be a list .* got 3"),
        ([BOX, [1]], r"results: entry 1: must be an object, got \[1\]"),
    ],
)
def test_what_is_no_list_of_results(document, message):
    with pytest.raises(CocoError, match=message):
        Detections.read(document)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": None}, r"annotations: must have a list 'images', got nothing"),
        ({"categories": {}}, r"annotations: must have a list 'categories', got dict"),
        ({"images": [{"id": 1}, {"id": 1}]}, r"annotations: images: ids must be unique, but 1 occurs 2 times"),
        ({"categories": [{"id": 2}, {"name": "x"}]}, r"categories: entry 1: id: must be a whole number or text"),
        ({"images": [{"id": 5}]}, r"annotations entry 0: image_id 1 is not among its images"),
        ({"categories": [{"id": 3}]}, r"annotations entry 0: category_id 2 is not among its categories"),
        ({"annotations": [{"image_id": 1, "category_id": 2}]}, r"annotations entry 0: bbox: must be four numbers"),
        ({"annotations": [{**TRUTH["annotations"][0], "iscrowd": 2}]}, r"entry 0: iscrowd: must be 0 or 1, got 2"),
        ({"annotations": [{**TRUTH["annotations"][0], "ignore": "no"}]}, r"entry 0: ignore: must be 0 or 1, got 'no'"),
        ({"annotations": [7]}, r"annotations: annotations: entry 0: must be an object, got 7"),
    ],
)
def test_invalid_annotations(change, message):
    with pytest.raises(CocoError, match=message):
        Annotations.read({**TRUTH, **change})


def test_results_in_place_of_annotations():
    with pytest.raises(CocoError, match=r"must be an object with images, .*: these look like results"):
        Annotations.read([BOX])


def test_a_category_without_a_name_has_its_number():
    known = Annotations.read({**TRUTH, "categories": [{"id": 2}, {"id": 3, "name": ""}, {"id": 4, "name": 5}]})
    assert known.categories == {2: "2", 3: "3", 4: "4"}


def test_truncated_files_name_the_file(tmp_path):
    text = json.dumps([BOX] * 3)
    for cut in (0, 1, len(text) // 2, len(text) - 1):
        (tmp_path / "cut.json").write_text(text[:cut], encoding="utf-8")
        with pytest.raises(CocoError, match=r"cut\.json is not valid JSON, or is incomplete"):
            Detections.read(tmp_path / "cut.json")
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(CocoError, match="nested too deeply"):
        Detections.read(tmp_path / "deep.json")
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CocoError, match="is not valid JSON"):
        Detections.read(tmp_path / "bytes.json")


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'sprung'}",)

    (tmp_path / "trap.json").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(CocoError, match="is not valid JSON"):
        Detections.read(tmp_path / "trap.json")
    assert not (tmp_path / "sprung").exists()


def test_nan_in_a_file_is_no_score(tmp_path):
    (tmp_path / "nan.json").write_text(json.dumps([{**BOX, "score": float("nan")}]), encoding="utf-8")
    with pytest.raises(CocoError, match=r"nan\.json: entry 0: score: must be .* got nothing \(missing, null or NaN\)"):
        Detections.read(tmp_path / "nan.json")
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ValueError, match="must be a regular file, got a FIFO"):
        Detections.read(tmp_path / "pipe.json")


def test_long_names_are_cut_in_messages():
    with pytest.raises(CocoError) as caught:
        Detections.read([{**BOX, "score": "x" * 10_000}])
    assert len(str(caught.value)) < 200
    with pytest.raises(CocoError) as caught:
        Annotations.read({**TRUTH, "annotations": [{**TRUTH["annotations"][0], "image_id": "y" * 10_000}]})
    assert len(str(caught.value)) < 200


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path):
    (tmp_path / "bom.json").write_text(json.dumps([BOX]), encoding="utf-8-sig")
    assert len(Detections.read(tmp_path / "bom.json")) == 1


def test_images_are_selected_with_their_objects():
    box = TRUTH["annotations"][0]
    objects = [box, {**box, "image_id": 8, "iscrowd": 1}, {**box, "bbox": [5, 5, 1, 1]}]
    truth = Annotations.read({**TRUTH, "images": [{"id": 8}, {"id": 1}], "annotations": objects})
    part = truth.select([1, 1, 99])
    assert part.image_ids == part.object_images[:1] == (1,)
    assert (len(part.object_categories), part.crowd.tolist(), part.ignored.tolist()) == (2, [False] * 2, [False] * 2)
    assert part.boxes.tolist() == [box["bbox"], [5, 5, 1, 1]]
    assert (part.categories, part.name) == (truth.categories, truth.name)
    assert truth.select([]).boxes.shape == (0, 4)
