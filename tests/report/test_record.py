"""The record: its JSON has the documented keys, and its rows survive packing."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest

import sample
from refocal.calibrators import loss_parts
from refocal.metrics import diagnosis
from refocal.report import answers, evaluate, evaluate_multilabel, multilabel_record, record, saving
from refocal.report.record import Slider

DOCUMENT = Path(__file__).parents[2] / "docs/reference/report.md"


def documented_keys():
    """The keys of each schema table, by its heading."""
    schema = DOCUMENT.read_text(encoding="utf-8").split("## JSON, schema version", 1)[1]
    return {
        part.splitlines()[0].strip(): re.findall(r"^\| `(\w+)` \|", part, flags=re.M)
        for part in schema.split("\n### ")[1:]
    }


def test_documented_keys_are_the_ones_written():
    written = json.loads(sample.sample_report(2000).to_json())
    keys = documented_keys()
    found = written["methods"][0]["diagnosis"]
    examples = {
        "Report": written,
        "Verdict": written["verdict"],
        "Method": written["methods"][0],
        "Diagnosis": found,
        "CertainClaims": json.loads(evaluate([0.0, 0.5], [1, 0], input="probs").to_json())["methods"][0]["diagnosis"][
            "certain"
        ],
        "CalibrationCheck": found["checks"][0],
        "ClassGap": next(check["classes"][0] for check in found["checks"] if check["classes"]),
        "RangeGap": found["range"],
        "Estimate": written["methods"][0]["measures"]["nll"],
        "Diagram": written["methods"][0]["diagram"],
        "Change": written["changes"][0],
        "Slider": written["slider"],
        "Subgroup": written["worst_classes"][0],
        "SubgroupCalibration": written["slices"][0]["given"],
        "CostDecisions": written["costs"],
        "CostOutcome": written["costs"]["given"],
        "SetPredictions": written["sets"],
        "SetOutcome": written["sets"]["given"],
        "MultilabelReport": json.loads(evaluate_multilabel(np.eye(3)[[0, 1]], np.eye(3)[[0, 1]]).to_json()),
        "Refinement": written["refinement"],
        "ThresholdDecisions": json.loads(sample.sample_report(200, 2).to_json())["thresholds"],
    }
    assert {name: list(example) for name, example in examples.items()} == keys
    modules = {**vars(diagnosis), **vars(record), **vars(answers), **vars(multilabel_record), **vars(loss_parts)}
    records = {name for name, value in modules.items() if dataclasses.is_dataclass(value) and name != "Sample"}
    assert records == set(keys)
    assert written["schema"] == saving.SCHEMA
    assert f"JSON, schema version {saving.SCHEMA}" in DOCUMENT.read_text(encoding="utf-8")
    assert f"{record.SLIDER_LOGITS:,}" in DOCUMENT.read_text(encoding="utf-8")


def test_nan_and_infinite_numbers_are_null_in_json():
    written = json.loads(sample.sample_report(200).to_json())
    assert written["methods"][0]["measures"]["own_measure"] == {"value": 0.25, "low": None, "high": None}


def test_json_can_be_written_whatever_the_names():
    report = sample.sample_report(50)
    text = report.to_json()
    assert text.isascii()
    assert json.loads(text)["class_names"] == list(report.class_names)


def test_packed_rows_are_the_logits_less_their_largest():
    rng = np.random.default_rng(0)
    logits = 1e6 + rng.normal(size=(50, 4)) * 30
    logits[3, 1] = -np.inf
    logits[4, 2] = -1e300  # outside the range of float32, but not masked
    rows = Slider.pack(logits, rng.integers(4, size=50), gamma=1.0, temperature=1.0).rows()
    exact = logits - logits.max(axis=1, keepdims=True)
    assert rows.max(axis=1).tolist() == [0.0] * 50
    assert np.isneginf(rows[3, 1])
    assert np.isfinite(rows[4, 2])
    exact[4, 2] = rows[4, 2]
    np.testing.assert_allclose(rows, exact, rtol=1e-7)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (np.zeros((3, 2)), np.zeros(2, int), r"logits must have shape \(N, K\) and labels \(N,\)"),
        (np.zeros((0, 2)), np.zeros(0, int), "N >= 1"),
        (np.zeros((2, 2, 2)), np.zeros(2, int), r"got \(2, 2, 2\) and \(2,\)"),
        (np.zeros((3, 1)), np.zeros(3, int), "at least 2 classes"),
        (np.full((1, 2), np.nan), np.zeros(1, int), "must be finite"),
        (np.zeros((3, 2)), np.array([0, 1, 2]), "labels must be integers from 0 to 1"),
        (np.zeros((3, 2)), np.zeros(3), "labels must be integers"),
        (np.zeros((200_001, 2)), np.zeros(200_001, int), "at most 400,000 numbers, got 400,002: choose fewer rows"),
    ],
)
def test_rows_that_cannot_be_packed_are_refused(logits, labels, message):
    with pytest.raises(ValueError, match=message):
        Slider.pack(logits, labels, gamma=1.0, temperature=1.0)


def test_parameters_without_a_map_are_refused():
    with pytest.raises(ValueError, match="gamma must"):
        Slider.pack(np.zeros((1, 2)), np.zeros(1, int), gamma=-1.0, temperature=1.0)
    with pytest.raises(ValueError, match="temperature must be positive"):
        Slider.pack(np.zeros((1, 2)), np.zeros(1, int), gamma=1.0, temperature=0.0)
