"""Everything that writes a file: an existing one is kept, unless `overwrite=True` says otherwise."""

from __future__ import annotations

import numpy as np
import pytest

import refocal
from refocal import conformal, demo, detection, metrics, segmentation
from refocal.calibrators import TemperatureScaling

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(60, 3))
LABELS = RNG.integers(0, 3, 60)
BOXES = [
    {"image_id": number // 2, "category_id": 1, "bbox": [20 * (number % 2), 0, 10, 10], "score": (number + 1) / 50}
    for number in range(40)
]
TRUTH = {
    "images": [{"id": number} for number in range(20)],
    "categories": [{"id": 1, "name": "cat"}],
    "annotations": [box for number, box in enumerate(BOXES) if number % 3],
}


def fit():
    return TemperatureScaling().fit(LOGITS, LABELS)


def report():
    return refocal.calibrate(LOGITS, LABELS, method="temperature").report(LOGITS, LABELS)


def report_many():
    found = refocal.calibrate_multilabel(LOGITS, np.eye(3)[LABELS], method="temperature")
    return found, found.report(LOGITS, np.eye(3)[LABELS])


def find_sets():
    return conformal.PredictionSets().fit(LOGITS, LABELS)


def select_for_images():
    images = [(RNG.normal(size=(1, 3, 4, 4)), RNG.integers(0, 3, (1, 4, 4))) for _ in range(6)]
    return segmentation.calibrate(images, method="temperature", input="logits")


WRITERS = {
    "calibrator.json": lambda: fit().save,
    "calibrator.onnx": lambda: fit().to_onnx,
    "selection.json": lambda: refocal.calibrate(LOGITS, LABELS, method="temperature").save,
    "report.html": lambda: report().save,
    "report.json": lambda: report().save,
    "report.onnx": lambda: report().to_onnx,
    "multilabel.json": lambda: report_many()[0].save,
    "multilabel.html": lambda: report_many()[1].save,
    "multilabel.onnx": lambda: report_many()[1].to_onnx,
    "sets.json": lambda: find_sets().save,
    "sets.onnx": lambda: find_sets().to_onnx,
    "boxes.json": lambda: detection.calibrate(BOXES, TRUTH).save,
    "boxes.html": lambda: detection.evaluate(BOXES, TRUTH).save,
    "images.json": lambda: select_for_images().save,
    "sums.npz": lambda: metrics.CalibrationAccumulator().save,
    "predictions.npz": lambda: demo.load().write,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_replaced_only_on_request(name, tmp_path):
    if name.endswith(".onnx"):
        pytest.importorskip("onnx")
    write, path = WRITERS[name](), tmp_path / name
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match=f"{name} exists; pass overwrite=True to replace it"):
        write(path)
    assert path.read_text(encoding="utf-8") == "mine"
    write(path, overwrite=True)
    assert path.read_bytes() != b"mine"
    assert list(tmp_path.iterdir()) == [path]
