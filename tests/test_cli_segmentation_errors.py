"""What the commands say about files of images that are wrong, and what Python says about images in place of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax

import refocal
from image_files import GIVEN, IGNORED, draw, reject, write_val_and_test
from refocal import report
from refocal.calibrators import (
    FocalPosterior,
    FocalTemperatureScaling,
    MultilabelCalibrator,
    PlattScaling,
    TemperatureScaling,
)
from refocal.predictions import Predictions, PredictionsError

LOGITS, LABELS = draw(3)
FILES = {
    "wrong.npz": {"logits": LOGITS, "labels": LABELS[:, :, 1:]},
    "floats.npz": {"logits": LOGITS, "labels": LABELS.astype(float)},
    "rows.npz": {"logits": LOGITS[:, :, 0, 0], "labels": np.arange(3)},
    "none.npz": {"logits": LOGITS},
    "ignored.npz": {"logits": LOGITS, "labels": np.full_like(LABELS, IGNORED)},
    "probable.npz": {"logits": softmax(LOGITS, axis=1), "labels": LABELS},
    "probs.npz": {"probs": softmax(LOGITS, axis=1), "labels": LABELS},
    "impossible.npz": {"probs": LOGITS, "labels": LABELS},
    "whole.npz": {"logits": LOGITS.astype(int), "labels": LABELS},
    "empty.npz": {"logits": LOGITS[:0], "labels": LABELS[:0]},
    "flat.npz": {"logits": LOGITS[:, :, :0], "labels": LABELS[:, :0]},
    "split.npz": {"logits": LOGITS, "labels": LABELS, "split": np.array(["val", "val", "test"])},
    "weights.npz": {"logits": LOGITS, "labels": LABELS, "weights": np.ones(3)},
    "fortran.npz": {"logits": np.asfortranarray(LOGITS), "labels": LABELS},
    "two.npz": {"logits": LOGITS[:, :2], "labels": np.minimum(LABELS, 1)},
    "named.npz": {"logits": LOGITS, "labels": LABELS, "class_names": np.array(["a", "b"])},
    "single.npz": {"logits": LOGITS[:1], "labels": LABELS[:1]},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_val_and_test()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("wrong.npz, labels: must have shape (3, 8, 9), one label per pixel, got (3, 8, 8)", "evaluate wrong.npz"),
        ("labels: must have shape (1, 3, 8), one label per pixel, got (1, 8, 9)", "evaluate single.npz --axis -1"),
        ("floats.npz, labels: must be whole numbers, got float64", "evaluate floats.npz"),
        ("none.npz has no labels, which measuring and fitting need", "evaluate none.npz"),
        ("ignored.npz: compute() needs at least one pixel that counts: all pixels seen are ignored",
         "evaluate ignored.npz --ignore-index 255"),
        ("ignored.npz: batches have no pixel that counts", "calibrate ignored.npz --ignore-index 255"),
        ("val.npz: labels must be from 0 to 2, got 255 in row (0, 0, 0)", "evaluate val.npz"),
        ("probable.npz, logits: look like probabilities: every row sums to 1; choose with --prob",
         "evaluate probable.npz --ignore-index 255"),
        ("impossible.npz: scores must be non-negative", "evaluate impossible.npz --ignore-index 255"),
        ("whole.npz, logits: must be float16, float32 or float64, got int64", "evaluate whole.npz"),
        ("empty.npz, logits: there are no images", "evaluate empty.npz"),
        ("must have shape (images, classes, ...) for images, got (3, 3, 0, 9)", "evaluate flat.npz"),
        ("split.npz, split: does not work with images: write one file per split", "evaluate split.npz"),
        ("weights.npz, weights: does not work with images: leave it out with --ignore weights", "evaluate weights.npz"),
        ("fortran.npz, logits: is in Fortran order", "evaluate fortran.npz"),
        ("class_names: must have one name for each of 3 classes", "evaluate named.npz"),
        ("axis must not be the axis of the images, 0", "evaluate val.npz --axis 0"),
        ("axis must be an axis of logits with shape (12, 3, 8, 9), got 4", "evaluate val.npz --axis 4"),
        ("rows.npz, logits: must have shape (images, classes, ...) for images, got (3, 3)",
         "evaluate val.npz rows.npz"),
        ("rows.csv: images are read from npz files only, and never beside rows", "evaluate val.npz rows.csv"),
        ("rows.csv: images are read from npz files only", "calibrate val.npz --test rows.csv"),
        ("--ignore-index is only for the images of a segmentation network", "evaluate rows.npz --ignore-index 255"),
        ("--axis is only for the images of a segmentation network", "apply cal.json rows.npz --out a.npz --axis 1"),
        ("--axis is only for the images of a segmentation network", "calibrate nothing.csv --axis 1"),
        ("there is no column 'nope', which label names", "evaluate val.npz --ignore-index 255 --label nope"),
        ("nothing.npz: No such file", "evaluate nothing.npz --ignore-index 255"),
        ("an image of val.npz, and the sums of all images, would take about", "evaluate val.npz --memory 10K"),
        ("more than the limit of 10.0K: raise --memory", "apply cal.json val.npz --out a.npz --memory 10K"),
        ("--task does not work with the images", "evaluate val.npz --task multiclass"),
        ("--classes does not work with the images", "evaluate val.npz --classes a,b,c"),
        ("--split does not work with the images", "evaluate val.npz --split val"),
        ("--slice does not work with the images", "evaluate val.npz --slice city"),
        ("--costs does not work with the images", "calibrate val.npz --costs costs.csv"),
        ("--sets does not work with the images", "calibrate val.npz --sets 0.9"),
        ("--engine does not work with the images", "evaluate val.npz --engine local"),
        ("--engine does not work with the images", "apply cal.json val.npz --out a.npz --engine local"),
        ("--report does not work with the images", "evaluate val.npz --report a.html"),
        ("for images, --method must be one of 'auto', 'posterior'", "calibrate val.npz --method vector"),
        ("method='posterior' needs gamma", "calibrate val.npz --method posterior"),
        ("got 3 columns and one class per row", "calibrate val.npz --loss sigmoid-focal --gamma 2 --alpha .25"),
        ("one value for each of 3 classes, got 2 values",
         'calibrate val.npz --ignore-index 255 --loss {"gamma":2,"weight":[1,2]}'),
        ("val.npz cannot be both fitted to and measured on", "calibrate val.npz --test ./val.npz"),
        ("val.npz and two.npz must hold the same kind of scores, got logits of 3 classes and logits of 2",
         "calibrate val.npz --test two.npz"),
        ("must hold the same kind of scores, got logits of 3 classes and probs of 3",
         "calibrate val.npz --test probs.npz"),
        ("--holdout is only for predictions without --test", "calibrate val.npz --test test.npz --holdout .5"),
        ("--holdout must lie strictly between 0 and 1", "calibrate val.npz --holdout 1"),
        ("holdout must leave images on both sides, got 0.3 of 1 images", "calibrate single.npz --ignore-index 255"),
        ("--out must end in .npz", "calibrate val.npz --out a.csv"),
        ("--save must end in .json", "calibrate val.npz --save a.npz"),
        ("must not name another file", "calibrate val.npz --out val.npz --force"),
        ("apply takes one file of images, got 2", "apply cal.json val.npz test.npz --out a.npz"),
        ("apply takes one file of images, got 2", "apply cal.json *.npz --out a.npz"),
        ("--out needs images of one size, but those of t*.npz differ", "calibrate val.npz --test t*.npz --out a.npz"),
        ("--out must end in .npz", "apply cal.json val.npz --out folder"),
        ("the calibrator takes logits, but probs.npz holds probs", "apply cal.json probs.npz --out a.npz"),
        ("two.npz has 2 classes of scores, but the calibrator was fitted to 3", "apply cal.json two.npz --out a.npz"),
        ("the calibrator is for multi-label scores", "apply several.json val.npz --out a.npz"),
    ],
)  # fmt: skip
def test_what_is_rejected(message, words, capsys):
    for name, arrays in FILES.items():
        if name in words:
            np.savez(name, **arrays)
    rng = np.random.default_rng(0)
    rows, answers = rng.normal(size=(30, 3)), np.arange(30) % 3
    TemperatureScaling().fit(rows, answers).save("cal.json")
    if "t*.npz" in words:
        np.savez("tiny.npz", logits=LOGITS[:, :, 1:], labels=LABELS[:, 1:])
    Path("rows.csv").write_text("label,prob\n1,0.7\n0,0.2\n", encoding="utf-8")
    if "several" in words:
        several = MultilabelCalibrator(PlattScaling()).fit(rows, answers[:, None] == np.arange(3))
        several.save("several.json")
    reject(capsys, message, *words.split())
    assert not Path("a.npz").exists()


def test_damaged_files_are_reported(capsys):
    content = Path("val.npz").read_bytes()
    Path("cut.npz").write_bytes(content[:-200])
    reject(capsys, "cut.npz: cannot read the zip archive", "evaluate", "cut.npz")
    reject(capsys, "cut.npz: cannot read the zip archive", "evaluate", "cut.npz", *GIVEN)
    at = content.index(b"NUMPY") + 500
    Path("bent.npz").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    reject(capsys, "bent.npz: cannot read logits; the file is damaged", "evaluate", "bent.npz", *GIVEN)


def test_rows_of_images_are_rejected_in_python():
    logits, labels = draw(4, size=(8, 8))
    with pytest.raises(
        PredictionsError, match=r"val.npz, logits: must have shape \(rows, classes\).*: for images, use"
    ):
        Predictions.read("val.npz")
    fitted = TemperatureScaling().fit(np.eye(3), [0, 1, 2])
    for call in (
        lambda: refocal.evaluate(logits, labels),
        lambda: refocal.calibrate(logits, labels),
        lambda: report.cross_calibrate(logits, labels),
        lambda: TemperatureScaling().fit(logits, labels),
        lambda: FocalTemperatureScaling().fit(logits, labels),
        lambda: fitted.predict_proba(logits),
        lambda: FocalPosterior(gamma=2).predict_proba(logits),
    ):
        with pytest.raises(
            ValueError,
            match=r"must have shape \(N, K\), or \(N,\) for two classes.* got \(4, 3, 8, 8\): for images, use "
            "refocal.segmentation, whose intervals take an image, not a pixel, for the sample",
        ):
            call()
