"""Prediction sets as scikit-learn estimators, as files, and exported to PyTorch and ONNX."""

from __future__ import annotations

import copy
import json
import warnings
from unittest import SkipTest

import numpy as np
import onnxruntime
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import estimator_checks_generator

from estimator_checks import EXCLUDED
from refocal import calibrators
from refocal.calibrators import FocalTemperatureScaling, IsotonicCalibration, TemperatureScaling, VennAbersCalibration
from refocal.calibrators.files import _digest
from refocal.conformal import PredictionSets, load

SHIPPED = {
    "lac": PredictionSets(),
    "lac-by-class": PredictionSets(by_class=True, calibrator=IsotonicCalibration()),
    "lac-empty": PredictionSets(coverage=0.5, allow_empty=True),
    "aps": PredictionSets(method="aps", calibrator=FocalTemperatureScaling()),
    "aps-by-class": PredictionSets(method="aps", by_class=True),
    "raps": PredictionSets(method="raps", penalty=0.02, penalty_after=2, calibrator=VennAbersCalibration()),
    "raps-chosen": PredictionSets(method="raps"),
}
every = pytest.mark.parametrize("name", list(SHIPPED))


def fit_shipped(name, *, columns=4, seed=0):
    rng = np.random.default_rng(seed)
    logits = (2 * rng.standard_normal((500, columns))).astype(np.float32)
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    logits[400:410] = np.round(logits[400:410])  # ties within rows
    logits[410:412] = [0.0] * columns, [300.0, 300.0, *[0.0] * (columns - 2)]
    return clone(SHIPPED[name]).fit(logits[:400], labels[:400]), logits


@pytest.mark.parametrize("name", ["lac", "aps"])
def test_scikit_learn_checks(name):
    run, failed = 0, {}
    for estimator, check in estimator_checks_generator(clone(SHIPPED[name].set_params(calibrator=None))):
        title = getattr(check, "func", check).__name__
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".* rows are too few, a coverage of")
                check(estimator)
            run += 1
        except Exception as error:
            if not isinstance(error, SkipTest):
                failed[title] = error
    assert not {title: error for title, error in failed.items() if title not in EXCLUDED}
    assert run >= 50


@every
def test_json_round_trip(name, tmp_path):
    sets, logits = fit_shipped(name)
    sets.save(tmp_path / "sets.json")
    same = load(tmp_path / "sets.json")
    np.testing.assert_array_equal(same.predict_set(logits), sets.predict_set(logits))
    np.testing.assert_array_equal(same.predict(logits), sets.predict(logits))
    assert repr(same) == repr(sets)
    assert [path.name for path in tmp_path.iterdir()] == ["sets.json"]


def test_infinite_thresholds_and_names_are_kept(tmp_path):
    logits = np.eye(3)
    with pytest.warns(UserWarning, match="too few"):
        sets = PredictionSets(by_class=True).fit(logits, np.array(["a", "b", "c"]))
    sets.save(tmp_path / "sets.json")
    same = load(tmp_path / "sets.json")
    assert np.isneginf(same.thresholds_).all()
    assert same.classes_.tolist() == ["a", "b", "c"]


def test_files_of_one_kind_are_not_read_as_another(tmp_path):
    sets, logits = fit_shipped("lac")
    sets.save(tmp_path / "sets.json")
    TemperatureScaling().fit(logits, sets.predict(logits)).save(tmp_path / "calibrator.json")
    with pytest.raises(ValueError, match=r"sets.json is not a calibrator file: .format. must be 'refocal calibrator'"):
        calibrators.load(tmp_path / "sets.json")
    with pytest.raises(
        ValueError, match=r"calibrator.json is not a prediction-sets file: \"format\" must be 'refocal pr"
    ):
        load(tmp_path / "calibrator.json")
    with pytest.raises(NotFittedError):
        PredictionSets().save(tmp_path / "a.json")
    sets.thresholds_ = np.full(4, np.nan)
    with pytest.raises(ValueError, match="thresholds_ must be 4 numbers, one per class, finite or -inf"):
        sets.save(tmp_path / "a.json")
    assert not (tmp_path / "a.json").exists()


MISSING = object()
HOSTILE = [
    MISSING,
    None,
    "text",
    -1,
    True,
    {"float": "nan"},
    {"float": "inf"},
    10**400,
    [1.0],
    {"array": [1.0] * 5, "shape": [5], "dtype": "<f8"},
    {"array": [1.0] * 4, "shape": [4], "dtype": "<f4"},
    {"array": ["x"] * 4, "shape": [4], "dtype": "<U1"},
    {"calibrator": {"kind": "TemperatureScaling", "parameters": {}, "learned": {}}},
    {"list": [{"list": []}]},
]


@pytest.mark.parametrize("name", ["aps", "raps"])
def test_damaged_files(name, tmp_path):
    """Sets that load must predict. An error must name the file, and the field that was learned."""
    sets, logits = fit_shipped(name)
    path = tmp_path / "sets.json"
    sets.save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    rejected = 0
    for part in ("learned", "parameters"):
        for field in content["prediction-sets"][part]:
            for value in HOSTILE:
                body = copy.deepcopy(content["prediction-sets"])
                if value is MISSING:
                    del body[part][field]
                else:
                    body[part][field] = value
                whole = {**content, "prediction-sets": body, "digest": _digest(body)}
                path.write_text(json.dumps(whole), encoding="utf-8")
                try:
                    found = load(path)
                except ValueError as error:
                    rejected += 1
                    assert str(path) in str(error)
                    assert part == "parameters" or field in str(error), (field, value, error)
                else:
                    assert found.predict_set(logits).shape == logits.shape, (field, value)
    assert rejected > 100
    path.write_text(json.dumps({**content, "digest": "0"}), encoding="utf-8")
    with pytest.raises(ValueError, match="damaged: its content does not match its digest"):
        load(path)


@every
def test_exports_give_the_same_sets(name, tmp_path):
    sets, logits = fit_shipped(name)
    expected = sets.predict_set(logits)
    module = sets.to_torch()
    for dtype in (torch.float32, torch.float64):
        found = module(torch.tensor(logits, dtype=dtype))
        assert found.dtype == torch.bool
        np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(module(torch.tensor(logits).reshape(5, 100, 4)).reshape(-1, 4).numpy(), expected)
    images = torch.tensor(logits).reshape(5, 10, 10, 4).movedim(-1, 1)
    found = sets.to_torch(axis=1)(images)
    np.testing.assert_array_equal(found.movedim(1, -1).reshape(-1, 4).numpy(), expected)
    assert "PredictionSets" in repr(module)
    sets.to_onnx(tmp_path / "sets.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "sets.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["sets"], {"logits": logits})
    assert found.dtype == bool
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(session.run(["sets"], {"logits": logits[:1]})[0], expected[:1])


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_one_column_is_exported(kind, tmp_path):
    rng = np.random.default_rng(0)
    scores = (3 * rng.standard_normal(300)).astype(np.float32)
    labels = rng.random(300) < 1 / (1 + np.exp(-scores / 2))
    if kind == "probs":
        scores = (1 / (1 + np.exp(-scores))).astype(np.float32)
    sets = PredictionSets(method="aps", coverage=0.95, input=kind).fit(scores, labels)
    expected = sets.predict_set(scores)
    sets.to_onnx(tmp_path / "sets.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "sets.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(["sets"], {kind: scores[:, None]})[0], expected)
    np.testing.assert_array_equal(sets.to_torch()(torch.tensor(scores)[:, None]).numpy(), expected)


def test_randomized_and_unfitted_sets_are_not_exported(tmp_path):
    sets = PredictionSets(method="aps", randomized=True).fit(np.eye(30)[:, :3], np.arange(30) % 3)
    for export in (lambda each: each.to_torch(), lambda each: each.to_onnx(tmp_path / "sets.onnx")):
        with pytest.raises(ValueError, match="randomized sets cannot be exported, because they need random numbers"):
            export(sets)
        with pytest.raises(NotFittedError):
            export(PredictionSets())
