"""A calibrator of independent classes: fitted, saved, damaged and exported."""

from __future__ import annotations

import copy
import json
import warnings

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from test_damaged_calibrators import write, write_damaged

from refocal import sigmoid_posterior
from refocal.calibrators import (
    AutoCalibrator,
    BetaCalibration,
    FocalPosterior,
    FocalTemperatureScaling,
    HistogramBinning,
    IsotonicCalibration,
    MultilabelCalibrator,
    PlattScaling,
    QuadraticScaling,
    TemperatureScaling,
    load,
)

KINDS = (
    PlattScaling(),
    BetaCalibration(),
    QuadraticScaling(),
    IsotonicCalibration(),
    HistogramBinning(),
    TemperatureScaling(),
    FocalPosterior(gamma=2.0, weight=[0.75, 0.25]),
)
NAMES = [f"class {k}" for k in range(len(KINDS))]


def draw(rows=300, classes=7, seed=0):
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((rows, classes))
    return logits, (rng.random(logits.shape) < 1 / (1 + np.exp(-logits / 2))).astype(int)


def fit_every_kind(input="logits"):
    logits, labels = draw()
    scores = logits if input == "logits" else 1 / (1 + np.exp(-logits))
    parts = [clone(kind).set_params(input=input).fit(scores[:, k], labels[:, k]) for k, kind in enumerate(KINDS)]
    return MultilabelCalibrator.join(parts, input=input, classes=NAMES), scores.astype(np.float32)


def test_each_column_is_a_task_of_its_own():
    logits, labels = draw(classes=3)
    calibrator = MultilabelCalibrator(PlattScaling())
    assert calibrator.fit(logits, labels.astype(bool)) is calibrator
    probs = calibrator.predict_proba(logits)
    for k in range(3):
        alone = PlattScaling().fit(logits[:, k], labels[:, k])
        np.testing.assert_array_equal(probs[:, k], alone.predict_proba(logits[:, k])[:, 1])
    np.testing.assert_allclose(np.exp(calibrator.predict_log_proba(logits)), probs)
    assert np.array_equal(calibrator.predict(logits), probs >= 0.5)
    assert calibrator.classes_.tolist() == [0, 1, 2]
    assert calibrator.n_parameters_ == 6
    assert 0 < calibrator.score(logits, labels) < 1
    assert isinstance(MultilabelCalibrator().fit(logits[:, :1], labels[:, :1]).calibrators_[0], AutoCalibrator)


def test_weights_and_frames():
    logits, labels = draw(classes=2)
    weights = np.arange(300) % 3
    frame = pd.DataFrame(logits, columns=["cat", "dog"])
    fitted = MultilabelCalibrator(PlattScaling()).fit(frame, pd.DataFrame(labels, columns=["cat", "dog"]), weights)
    assert fitted.classes_.tolist() == ["cat", "dog"]
    repeated = np.repeat(np.arange(300), weights)
    same = MultilabelCalibrator(PlattScaling()).fit(logits[repeated], labels[repeated])
    np.testing.assert_allclose(fitted.predict_proba(frame), same.predict_proba(logits), rtol=1e-9)
    with pytest.raises(ValueError, match="the columns of X must be in the order 'cat', 'dog', got 'dog', 'cat'"):
        fitted.predict_proba(frame[["dog", "cat"]])


def test_the_closed_form_is_the_sigmoid_posterior():
    logits, labels = draw(classes=2)
    parts = [
        FocalPosterior(gamma=gamma, weight=[1 - alpha, alpha], input="logits").fit(logits[:, k], labels[:, k])
        for k, (gamma, alpha) in enumerate([(2.0, 0.25), (1.0, 0.9)])
    ]
    probs = MultilabelCalibrator.join(parts, input="logits").predict_proba(logits)
    np.testing.assert_allclose(probs, sigmoid_posterior(logits, gamma=[2.0, 1.0], alpha=[0.25, 0.9]), rtol=1e-12)


@pytest.mark.parametrize("input", ["logits", "probs"])
def test_files_torch_and_onnx_give_the_same_numbers(input, tmp_path):
    calibrator, scores = fit_every_kind(input)
    if input == "probs":
        scores[:2] = [[0.0], [1.0]]
    else:
        scores[:2] = [[-400.0], [400.0]]
    expected = calibrator.predict_proba(scores)
    calibrator.save(tmp_path / "calibrator.json")
    same = load(tmp_path / "calibrator.json")
    assert type(same) is MultilabelCalibrator
    assert same.classes_.tolist() == NAMES
    np.testing.assert_array_equal(same.predict_proba(scores), expected)
    found = calibrator.to_torch()(torch.tensor(scores))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    images = torch.tensor(scores).reshape(20, 15, len(NAMES))
    np.testing.assert_allclose(calibrator.to_torch()(images).reshape(expected.shape).numpy(), expected, atol=1e-6)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.*deprecated")  # a FutureWarning since PyTorch 2.15
        traced = torch.jit.trace(calibrator.to_torch(), torch.tensor(scores[:5]))
    np.testing.assert_allclose(traced(torch.tensor(scores)).numpy(), expected, atol=1e-6)
    calibrator.to_onnx(tmp_path / "head.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx", providers=["CPUExecutionProvider"])
    assert session.get_outputs()[0].shape == ["batch", len(NAMES)]
    np.testing.assert_allclose(session.run(["probabilities"], {input: scores})[0], expected, atol=1e-6)


def test_mixtures_of_several_columns_are_exported():
    """The fitted numbers of column 0's second member and column 1's first must not share a name."""
    logits, labels = draw()
    few = AutoCalibrator(candidates=[TemperatureScaling(), FocalTemperatureScaling(), PlattScaling()])
    fitted = MultilabelCalibrator(few).fit(logits, labels)
    module = fitted.to_torch()
    np.testing.assert_allclose(module(torch.tensor(logits)).numpy(), fitted.predict_proba(logits), atol=1e-9)


def test_one_class_is_exported_as_one_column(tmp_path):
    logits, labels = draw(classes=1)
    calibrator = MultilabelCalibrator(PlattScaling()).fit(logits, labels)
    calibrator.to_onnx(tmp_path / "head.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "head.onnx", providers=["CPUExecutionProvider"])
    found = session.run(None, {"logits": logits.astype(np.float32)})[0]
    assert found.shape == (300, 1)
    np.testing.assert_allclose(found, calibrator.predict_proba(logits), atol=1e-6)


def test_damaged_files_name_the_field(tmp_path):
    calibrator, scores = fit_every_kind()
    path = tmp_path / "calibrator.json"
    calibrator.save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    for part, field, value in write_damaged(path, content):
        try:
            changed = load(path)
        except ValueError as error:
            assert str(path) in str(error)
            assert part == "parameters" or field in str(error), (field, value, error)
        else:
            assert part == "parameters", (field, value)
            assert np.all(np.isfinite(changed.predict_proba(scores)))


def test_parts_of_a_file_must_fit_together(tmp_path):
    calibrator, _ = fit_every_kind()
    path = tmp_path / "calibrator.json"
    calibrator.save(path)
    content = json.loads(path.read_text(encoding="utf-8"))

    def check(change, message):
        body = copy.deepcopy(content["calibrator"])
        change(body)
        write(path, content, body)
        with pytest.raises(ValueError, match=message):
            load(path)

    def parts(body):
        return body["learned"]["calibrators_"]["list"]

    check(lambda body: parts(body).pop(), "calibrators_ must be a list of 7 calibrators, one per class")
    unfitted = {"calibrator": {"kind": "PlattScaling", "parameters": {}, "learned": {}}}
    check(
        lambda body: parts(body).__setitem__(2, unfitted),
        r"calibrators_\[2\] must be a calibrator that is fitted to one column of scores",
    )
    check(
        lambda body: parts(body)[0]["calibrator"]["parameters"].update(input="probs"),
        r"calibrators_\[0\] must take logits, as all of them do, got one that takes probs",
    )
    check(
        lambda body: body["learned"].update(n_features_in_=2),
        "n_features_in_ must be 7, the number of classes, got 2",
    )
    check(
        lambda body: body["learned"]["classes_"]["array"].__setitem__(1, "class 0"),
        "classes_ must be an array of different numbers or texts, one per column",
    )
    nested = {"calibrator": content["calibrator"]}
    check(
        lambda body: body["parameters"].update(calibrator=nested),
        "parameters of MultilabelCalibrator: calibrator must be a calibrator of one column, or None",
    )


def test_errors():
    logits, labels = draw(classes=3)
    calibrator = MultilabelCalibrator(PlattScaling())
    for X, y, options, message in [
        (
            logits[:, 0],
            labels,
            {},
            r"X must have shape \(N, K\), one column per class and at least one row, got \(300,\)",
        ),
        (logits, labels[:, :2], {}, r"y must have one answer per score, shape \(300, 3\), got \(300, 2\)"),
        (logits, 2 * labels, {}, "y must be 0 or 1, got 2 in row"),
        (np.where(logits > 3, np.inf, logits), labels, {}, "X must be finite, got inf in row"),
        (1 / (1 + np.exp(-logits)), labels, {}, r"scores look like probabilities: every value lies in \[0, 1\]"),
        (logits, labels, {"input": "probs"}, r"X must lie in \[0, 1\] \(for logits, pass input='logits'\)"),
        (logits, labels, {"classes": ["a", "b"]}, "classes must have one name for each of 3 columns, got 2"),
        (logits, labels, {"classes": ["a", "b", "a"]}, "classes must be an array of different numbers or texts"),
        (
            logits,
            labels,
            {"calibrator": "platt"},
            "calibrator must be a calibrator of one column, or None, got 'platt'",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            clone(calibrator).set_params(**options).fit(X, y)
    with pytest.raises(TypeError, match="y must be 0 or 1, or booleans, got dtype <U"):
        clone(calibrator).fit(logits, labels.astype(str))
    fitted = clone(calibrator).fit(logits, labels)
    with pytest.raises(ValueError, match="X must have 3 columns, one per class, got 2"):
        fitted.predict_proba(logits[:, :2])
    with pytest.raises(ValueError, match="this MultilabelCalibrator takes logits: fit it with input='probs'"):
        fitted.predict_proba(1 / (1 + np.exp(-logits)))
    with pytest.raises(NotFittedError):
        MultilabelCalibrator().predict_proba(logits)
    with pytest.raises(ValueError, match=r"calibrators\[0\] must be a calibrator that is fitted to one column"):
        MultilabelCalibrator.join([PlattScaling()], input="logits")
