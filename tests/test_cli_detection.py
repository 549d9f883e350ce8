"""The commands with the boxes of a detector: COCO results and annotations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drawn_boxes import draw_scored, write
from refocal import cli, detection
from refocal.calibrators import TemperatureScaling, load

GIVEN = ("--annotations", "truth.json")
DETACHED = '{"gamma":2,"detached":true}'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Boxes whose scores are too low, and their annotations; the first 100 images are val.json."""
    monkeypatch.chdir(tmp_path)
    boxes, truth = draw_scored(np.random.default_rng(0), images=150, power=2)
    write(tmp_path / "boxes.json", boxes)
    write(tmp_path / "truth.json", truth)
    write(tmp_path / "val.json", [box for box in boxes if box["image_id"] < 100])
    write(tmp_path / "test.json", [box for box in boxes if box["image_id"] >= 100])
    return tmp_path


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    shown, said = capsys.readouterr()
    assert status == 0, said
    return shown


def reject(capsys, message, *arguments):
    assert cli.main([str(argument) for argument in arguments]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert message in said
    assert len(said) < 500


def read(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))


def test_evaluate(capsys):
    shown = run(capsys, "evaluate", "boxes.json", *GIVEN, "--report", "a.html")
    assert "The probabilities of a right box are too low." in shown
    assert "boxes.json: 600 boxes in 150 images" in shown
    assert "D-ECE" in shown
    assert "Limits of D-ECE and LaECE resample images" in " ".join(shown.split())
    assert "refocal evaluate boxes.json" in Path("a.html").read_text(encoding="utf-8")


def test_evaluate_as_json(capsys):
    report = json.loads(run(capsys, "evaluate", "boxes.json", *GIVEN, "--iou", ".75", "--min-score", ".1", "--json"))
    expected = detection.evaluate("boxes.json", "truth.json", iou=0.75, min_score=0.1)
    assert (report["task"], report["iou"], report["min_score"]) == ("detection", 0.75, 0.1)
    estimate = report["report"]["methods"][0]["measures"]["d_ece"]
    assert estimate["value"] == expected.measures["d_ece"].value
    assert (estimate["low"], estimate["high"]) == (expected.measures["d_ece"].low, expected.measures["d_ece"].high)


def test_evaluate_several_files(capsys):
    both = json.loads(run(capsys, "evaluate", "val.json", "test.json", *GIVEN, "--json"))
    assert [report["detections"] for report in both["files"]] == [400, 200]
    reject(capsys, "--report takes one file, got 2", "evaluate", "val.json", "test.json", *GIVEN, "--report", "a.html")


def test_calibrate_apply_and_everything_written(capsys):
    files = ("--save", "cal.json", "--out", "out.json", "--report", "report.json")
    words = ("calibrate", "val.json", *GIVEN, "--test", "test.json", "--method", "platt", *files)
    shown = run(capsys, *words)
    assert "calibrator: cal.json" in shown
    report, out, given = read("report.json"), read("out.json"), read("test.json")
    assert report["report"]["settings"]["command"].startswith("refocal calibrate val.json --annotations truth.json")
    chosen = next(method for method in report["report"]["methods"] if method["chosen"])
    assert chosen["measures"]["nll"]["value"] < report["report"]["methods"][0]["measures"]["nll"]["value"] - 0.03
    assert [box | {"score": 0} for box in out] == [box | {"score": 0} for box in given]
    run(capsys, "apply", "cal.json", "test.json", "--out", "again.json")
    assert read("again.json") == out
    expected = detection.apply(load("cal.json"), np.array([box["score"] for box in given]))
    assert [box["score"] for box in out] == expected.tolist()
    reject(capsys, "cal.json exists", *words)
    run(capsys, *words, "--force")


def test_calibrate_one_file_by_cross_fitting_or_a_holdout(capsys):
    loss = ("--loss", "sigmoid-focal", "--gamma", "2", "--alpha", ".25", "--method", "platt")
    report = json.loads(run(capsys, "calibrate", "boxes.json", *GIVEN, *loss, "--json", "--out", "a.json"))
    assert "Cross-fitting in 5 folds of images" in report["report"]["protocol"]
    assert "posterior" in {method["name"] for method in report["report"]["methods"]}
    assert report["report"]["settings"]["class_weights"] == [0.75, 0.25]
    assert report["written"] == {"predictions": "a.json"}
    assert len(read("a.json")) == 600
    words = ("calibrate", "boxes.json", *GIVEN, "--holdout", ".2", "--seed", "1", "--method", "platt")
    held = json.loads(run(capsys, *words, "--json", "--out", "b.json"))
    assert "boxes of 30 images held out" in held["report"]["protocol"]
    assert len(read("b.json")) == held["detections"] == 120


def test_other_annotations_of_the_test_images(capsys):
    boxes, truth = draw_scored(np.random.default_rng(5), images=60, power=2)
    write(Path("other.json"), boxes)
    write(Path("other_truth.json"), truth)
    words = ("calibrate", "boxes.json", *GIVEN, "--test", "other.json", "--test-annotations", "other_truth.json")
    report = json.loads(run(capsys, *words, "--method", "platt", "--json"))
    assert report["images"] == 60


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("COCO results: add --annotations", "evaluate boxes.json"),
        ("COCO results: add --annotations", "calibrate val.json --test test.json"),
        ("--iou is only for the boxes of a detector", "evaluate a.csv --iou 0.5"),
        ("--min-score is only for", "calibrate a.csv --min-score 0.5"),
        ("--test-annotations is only for --test", "calibrate val.json --annotations truth.json --test-annotations t"),
        ("--label does not work with the boxes", "evaluate boxes.json --annotations truth.json --label y"),
        ("--slice does not work with the boxes", "evaluate boxes.json --annotations truth.json --slice y"),
        ("--engine does not work with the boxes", "evaluate boxes.json --annotations truth.json --engine local"),
        ("--split does not work with the boxes", "evaluate boxes.json --annotations truth.json --split val"),
        ("--task does not work with the boxes", "calibrate boxes.json --annotations truth.json --task multilabel"),
        ("must hold boxes of different images", "calibrate boxes.json --annotations truth.json --test test.json"),
        ("--test must not be the file", "calibrate boxes.json --annotations truth.json --test ./boxes.json"),
        ("must hold boxes of different images", "calibrate boxes.json --annotations truth.json --test test.json "
         "--test-annotations truth.json"),
        ("--seed has no effect", "evaluate boxes.json --annotations truth.json --seed 1"),
        ("--seed has no effect", "calibrate val.json --annotations truth.json --test test.json --seed 1"),
        ("--engine does not work with the boxes", "apply cal.json boxes.json --out a.json --engine local"),
        ("--prob does not work with the boxes", "apply cal.json boxes.json --out a.json --prob p"),
        ("--out must end in .json", "calibrate boxes.json --annotations truth.json --out a.csv"),
        ("--out must end in .json", "apply cal.json boxes.json --out a.npz"),
        ("boxes.json is not a calibrator file", "apply boxes.json cal.json --out a.json"),
        ("apply takes one file of boxes, got 2", "apply cal.json boxes.json val.json --out a.json"),
        ("must not name another file", "calibrate boxes.json --annotations truth.json --out truth.json --force"),
        ("would take about", "evaluate boxes.json --annotations truth.json --memory 100K"),
        ("boxes.json would take about", "apply cal.json boxes.json --out a.json --memory 10K"),
        ("iou must be from 0 to 1, got 2.0", "evaluate boxes.json --annotations truth.json --iou 2"),
        ("alpha", "calibrate boxes.json --annotations truth.json --alpha 0.25"),
        ("takes gamma and alpha only", f"calibrate boxes.json --annotations truth.json --loss {DETACHED}"),
        ("No such file", "evaluate boxes.json --annotations nothing.json"),
        ("No such file", "evaluate nothing.json --annotations truth.json"),
        ("these are annotations, not results", "evaluate truth.json --annotations truth.json"),
        ("these look like results", "evaluate boxes.json --annotations boxes.json"),
    ],
)  # fmt: skip
def test_what_is_rejected(message, words, capsys):
    TemperatureScaling().fit(np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), [0, 1, 1]).save("cal.json")
    reject(capsys, message, *words.split())


def test_damaged_files_and_escapes(folder, capsys):
    write(folder / "cut.json", [])
    (folder / "cut.json").write_text('[{"image_id": 1, ', encoding="utf-8")
    reject(capsys, "cut.json is not valid JSON, or is incomplete", "evaluate", "cut.json", *GIVEN)
    box = {"image_id": "\x1b[31m" * 100, "category_id": 1, "bbox": [0, 0, 1, 1], "score": 0.5}
    write(folder / "evil.json", [box])
    assert cli.main(["evaluate", "evil.json", *GIVEN]) == 1
    said = capsys.readouterr().err
    assert "\x1b" not in said
    assert len(said) < 300
    long = f"{'x' * 200}.json"
    write(folder / long, read("boxes.json"))
    assert json.loads(run(capsys, "evaluate", long, *GIVEN, "--json"))["report"]["source"] == long


def test_a_calibrator_of_something_else(capsys):
    np.savez("three.npz", logits=np.random.default_rng(0).standard_normal((60, 3)), labels=np.arange(60) % 3)
    run(capsys, "calibrate", "three.npz", "--method", "temperature", "--save", "three.json")
    reject(capsys, "the calibrator must map one column", "apply", "three.json", "boxes.json", "--out", "a.json")
    assert not Path("a.json").exists()


@pytest.mark.parametrize(
    "weight", ["[1]", "[1,2,3]", "[0,0]", "[1,-1]", "[true,1]", "[1,1e999]", "[1,NaN]", '{"a":1}', "3", '["a","b"]']
)
def test_weights_are_those_of_wrong_and_right_boxes(weight, capsys):
    words = ("calibrate", "boxes.json", *GIVEN, "--loss", f'{{"gamma":2,"weight":{weight}}}')
    reject(capsys, "weight in --loss must be two positive numbers for boxes", *words)


def test_weights_are_alpha(capsys):
    words = ("calibrate", "boxes.json", *GIVEN, "--method", "posterior", "--json", "--loss")
    found = json.loads(run(capsys, *words, '{"gamma":2,"weight":[3,1]}'))
    assert found["report"]["settings"]["class_weights"] == [0.75, 0.25]


def test_only_images_and_scores_that_are_measured_count(capsys):
    words = ("calibrate", "val.json", *GIVEN, "--test", "test.json", "--method", "platt", "--min-score", ".3")
    found = json.loads(run(capsys, *words, "--json", "--out", "a.json"))
    assert found["images"] == 50
    assert found["objects"] == sum(each["image_id"] >= 100 for each in read("truth.json")["annotations"])
    assert "Only images with boxes in test.json count." in found["report"]["protocol"]
    kept = [box for box in read("test.json") if box["score"] >= 0.3]
    assert [box["bbox"] for box in read("a.json")] == [box["bbox"] for box in kept]
    assert found["detections"] == len(kept)
