"""Calibrator files with a correct digest and wrong content. Each error names the file and the field."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
from labeled_logits import SHIPPED, draw_calibrated
from sklearn.base import clone

from refocal._documents import parse_json
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, TemperatureScaling, load
from refocal.calibrators.files import _digest

LOGITS, LABELS = draw_calibrated(200, 3)
MISSING = object()


def nest(levels):
    value = []
    for _ in range(levels):
        value = {"list": [value]}
    return value


HOSTILE = {
    "missing": MISSING,
    "null": None,
    "text": "2.0",
    "nan": {"float": "nan"},
    "inf": {"float": "inf"},
    "-inf": {"float": "-inf"},
    "bare nan": math.nan,
    "negative": -3,
    "true": True,
    "list": [1.0, 2.0],
    "object": {"no": "key"},
    "nested": nest(50),
    "huge number": 10**400,
    "huge exponent": {"float": "1e999"},
    "large float": 1e308,
    "not a float": {"float": "two"},
    "wrong shape": {"array": [1.0] * 5, "shape": [5], "dtype": "<f8"},
    "shape that lies": {"array": [1.0], "shape": [10**9], "dtype": "<f8"},
    "negative shape": {"array": [1.0], "shape": [-1], "dtype": "<f8"},
    "dtype that lies": {"array": ["a", "b", "c"], "shape": [3], "dtype": "<U900000000"},
    "void": {"array": [1.0], "shape": [1], "dtype": "V900000000"},
    "no dtype": {"array": [1.0], "shape": [1], "dtype": "nonsense"},
    "objects": {"array": [{"list": []}, 1, "a"], "shape": [3], "dtype": "O"},
    "array of text": {"array": ["x", "y", "z"], "shape": [3], "dtype": "<f8"},
    "array of nan": {"array": [math.nan] * 3, "shape": [3], "dtype": "<f8"},
    "unhashable key": {"dict": [[{"list": []}, 1]]},
    "another calibrator": {"calibrator": {"kind": "TemperatureScaling", "parameters": {}, "learned": {}}},
}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The content of one file per calibrator."""
    folder = tmp_path_factory.mktemp("records")
    found = {}
    for name, calibrator in SHIPPED.items():
        clone(calibrator).fit(LOGITS, LABELS).save(folder / "calibrator.json", overwrite=True)
        found[name] = json.loads((folder / "calibrator.json").read_text(encoding="utf-8"))
    return found


def write(path, content, body):
    body = parse_json(json.dumps(body), ValueError)  # as `load` reads it: a bare NaN becomes null
    path.write_text(json.dumps({**content, "calibrator": body, "digest": _digest(body)}), encoding="utf-8")


def write_damaged(path, content):
    """Write the file with every kind of damage to every field, and yield which one."""
    for part in ("learned", "parameters"):
        for field in content["calibrator"][part]:
            for value in HOSTILE.values():
                body = copy.deepcopy(content["calibrator"])
                if value is MISSING:
                    del body[part][field]
                else:
                    body[part][field] = value
                write(path, content, body)
                yield part, field, value


@pytest.mark.parametrize("name", list(SHIPPED))
def test_every_field_with_every_kind_of_damage(records, name, tmp_path):
    """A calibrator that loads must predict. An error must name the file and the field."""
    content, path = records[name], tmp_path / "calibrator.json"
    rejected = 0
    for part, field, value in write_damaged(path, content):
        try:
            calibrator = load(path)
        except ValueError as error:
            rejected += 1
            assert str(path) in str(error), (field, value)
            assert part == "parameters" or field in str(error), (field, value, error)
        else:
            with np.errstate(over="ignore"):  # a given gamma may be 1e308
                probs = calibrator.predict_proba(LOGITS)
            np.testing.assert_allclose(probs.sum(axis=1), 1, err_msg=f"{field}: {value!r:.80}")
    assert rejected > len(HOSTILE)


@pytest.mark.parametrize("name", list(SHIPPED))
def test_fitted_attributes_are_required_and_keep_their_shape(records, name, tmp_path):
    """Each fitted attribute is required, and an array of another shape is rejected."""
    content, path = records[name], tmp_path / "calibrator.json"
    given = SHIPPED[name].__class__ is FocalPosterior and not name.endswith("fit")
    optional = ("gamma_", "gamma_error_") if given else tuple(SHIPPED[name]._earlier)
    for field, value in content["calibrator"]["learned"].items():
        body = copy.deepcopy(content["calibrator"])
        del body["learned"][field]
        write(path, content, body)
        if field not in optional:
            with pytest.raises(ValueError, match=f"calibrator.json is damaged: {field} is missing"):
                load(path)
        if isinstance(value, dict) and value.get("array"):
            longer = {**value, "array": value["array"] * 8, "shape": [8 * value["shape"][0], *value["shape"][1:]]}
            body["learned"][field] = longer
            write(path, content, body)
            with pytest.raises(ValueError, match=field):
                load(path)


@pytest.mark.parametrize("value", [-1.0, 0.0, {"float": "inf"}, {"float": "-inf"}, {"float": "nan"}])
def test_temperatures_must_be_positive_and_finite(records, value, tmp_path):
    path = tmp_path / "calibrator.json"
    body = copy.deepcopy(records["temperature"]["calibrator"])
    body["learned"]["temperature_"] = value
    write(path, records["temperature"], body)
    with pytest.raises(ValueError, match=r"calibrator\.json is damaged: temperature_ must be positive and finite, got"):
        load(path)


@pytest.mark.parametrize(
    ("place", "array", "message"),
    [
        ("quadratic range_", [[1.0] * 3, [-1.0] * 3], "range_ must be lower ends, and upper ends not below them"),
        ("quadratic slopes_", [[-1.0] * 3, [1.0] * 3], "slopes_ must be finite, from 0"),
        ("beta weights_", [[-1.0] * 3, [1.0] * 3], "weights_ must be finite, from 0"),
        ("ensemble weights_", [0.5, 0.5, 0.5], "weights_ must be shares that sum to 1"),
        ("isotonic knots_", [[2.0, 1.0]] * 3, "knots_ must be in ascending order"),
        ("isotonic knots_", [[0.0, 1.0, 2.0]] * 3, "knots_ must be tables of 2.k columns"),
        ("histogram values_", [[1.5]] * 3, "values_ must be"),
        ("posterior-all classes_", [1.0, 1.0, 2.0], "classes_ must be different labels"),
    ],
)
def test_ranges_of_arrays(records, place, array, message, tmp_path):
    path, (name, field) = tmp_path / "calibrator.json", place.split()
    body = copy.deepcopy(records[name]["calibrator"])
    items = np.array(array)
    body["learned"][field] = {"array": items.ravel().tolist(), "shape": list(items.shape), "dtype": "<f8"}
    write(path, records[name], body)
    with pytest.raises(ValueError, match=message):
        load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda upper: upper[:, ::-1], "upper_ must be in ascending order"),
        (lambda upper: 0 * upper, "upper_ must be above 0 and at least lower_, which must be below 1"),
        (lambda upper: upper + 1, r"upper_ must be in \[0, 1\]"),
    ],
)
def test_ends_of_intervals(records, change, message, tmp_path):
    path, content = tmp_path / "calibrator.json", records["venn-abers"]
    body = copy.deepcopy(content["calibrator"])
    stored = body["learned"]["upper_"]
    items = change(np.array(stored["array"]).reshape(stored["shape"]))
    body["learned"]["upper_"] = {**stored, "array": items.ravel().tolist()}
    write(path, content, body)
    with pytest.raises(ValueError, match=message):
        load(path)


def test_results_name_each_candidate_once(records, tmp_path):
    path, body = tmp_path / "calibrator.json", copy.deepcopy(records["auto"]["calibrator"])
    text = json.dumps(body)
    assert '["index", 2]' in text
    write(path, records["auto"], json.loads(text.replace('["index", 2]', '["index", 1]')))
    with pytest.raises(ValueError, match="results_ must have each index from 0 to 7 once, got"):
        load(path)


def test_bodies_that_are_no_record(records, tmp_path):
    """A correct digest does not make other content a record."""
    path, content = tmp_path / "calibrator.json", records["temperature"]
    for body in (None, [], "text", 3, {}, {"kind": []}, {**content["calibrator"], "learned": 3}):
        write(path, content, body)
        with pytest.raises(ValueError, match=r"calibrator\.json is damaged: "):
            load(path)
    nested = {**content["calibrator"], "learned": nest(400)}
    write(path, content, nested)
    with pytest.raises(ValueError, match=r"calibrator\.json"):
        load(path)
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"calibrator\.json is not a calibrator file: it is nested too deeply"):
        load(path)
    path.write_text("9" * 5000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"calibrator\.json is not a calibrator file: "):
        load(path)


def test_a_calibrator_that_could_not_be_loaded_is_not_written(tmp_path):
    calibrator = TemperatureScaling().fit(LOGITS, LABELS)
    calibrator.temperature_ = math.inf
    with pytest.raises(ValueError, match="temperature_ must be positive and finite, got inf"):
        calibrator.save(tmp_path / "calibrator.json")
    assert not list(tmp_path.iterdir())


def test_extreme_fits_can_be_loaded(tmp_path):
    """Data that determine nothing, long labels, and a map that was never fitted."""
    path = tmp_path / "calibrator.json"
    for calibrator in (TemperatureScaling(), FocalTemperatureScaling(), *SHIPPED.values()):
        flat = clone(calibrator).fit(np.zeros((6, 3)), [0, 1, 2, 0, 1, 2])
        flat.save(path, overwrite=True)
        np.testing.assert_array_equal(load(path).predict_proba(LOGITS), flat.predict_proba(LOGITS))
    labels = np.array(["a" * 400, "b", "c"])
    TemperatureScaling().fit(LOGITS, labels[LABELS]).save(path, overwrite=True)
    assert load(path).classes_.tolist() == labels.tolist()
    for weight in (None, [1.0, 2.0, 5.0]):
        FocalPosterior(gamma=[0.0, 1.0, 2.0], weight=weight).save(path, overwrite=True)
        assert load(path).predict_proba(LOGITS).shape == LOGITS.shape
