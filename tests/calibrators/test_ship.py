"""Fitted calibrators saved as JSON, and exported to PyTorch and ONNX."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from labeled_logits import SATURATED, SHIPPED, draw_calibrated
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from refocal.calibrators import (
    AutoCalibrator,
    BetaCalibration,
    Calibrated,
    FocalPosterior,
    TemperatureScaling,
    VectorScaling,
    load,
)

every = pytest.mark.parametrize("name", list(SHIPPED))


def fit_shipped(name, *, columns=3, seed=0):
    logits, labels = draw_calibrated(400, columns, seed=seed, dtype=np.float32)
    return clone(SHIPPED[name]).fit(1.5 * logits, labels), np.concatenate([logits[:40], SATURATED[:, :columns]])


@every
def test_json_round_trip(name, tmp_path):
    calibrator, logits = fit_shipped(name)
    calibrator.save(tmp_path / "calibrator.json")
    same = load(tmp_path / "calibrator.json")
    assert type(same) is type(calibrator)
    np.testing.assert_array_equal(same.predict_proba(logits), calibrator.predict_proba(logits))
    assert same.n_parameters_ == calibrator.n_parameters_
    assert [path.name for path in tmp_path.iterdir()] == ["calibrator.json"]
    content = json.loads((tmp_path / "calibrator.json").read_text(encoding="utf-8"))
    assert content["schema"] == 1
    same.save(tmp_path / "again.json")  # a file's digest is the same, so `apply` continues with a loaded calibrator
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "calibrator.json").read_bytes()


def test_json_keeps_names_and_settings(tmp_path):
    logits, labels = draw_calibrated(50, 3)
    names = np.array(["cat", "dog", "eel"], dtype=object)
    calibrator = VectorScaling(penalty=7.0, classes=list(names)).fit(logits, names[labels])
    calibrator.save(tmp_path / "a.json")
    same = load(tmp_path / "a.json")
    assert same.get_params() == calibrator.get_params()
    assert same.predict(logits).tolist() == calibrator.predict(logits).tolist()
    auto = AutoCalibrator(candidates=[TemperatureScaling(), VectorScaling()], cv=2).fit(logits, labels)
    auto.save(tmp_path / "b.json")
    assert load(tmp_path / "b.json").results_ == auto.results_


def test_damaged_and_foreign_files(tmp_path):
    logits, labels = draw_calibrated(50, 3)
    path = tmp_path / "calibrator.json"
    TemperatureScaling().fit(logits, labels).save(path)
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)

    def check(changed, message):
        path.write_text(changed if isinstance(changed, str) else json.dumps(changed), encoding="utf-8")
        with pytest.raises(ValueError, match=message):
            load(path)

    check(
        text[: len(text) // 2], "is not a calibrator file: .*; the method save, or calibrate --save, writes such files"
    )
    check("[]", 'is not a calibrator file: "format" must be')
    check({**content, "schema": 2}, "has schema 2; this version of refocal reads schemas 1 to 1: update refocal")
    check({**content, "schema": "1"}, "has schema '1'")
    check(text.replace('"temperature_": ', '"temperature_": 9'), "damaged: its content does not match its digest")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a calibrator file"):
        load(path)
    from refocal.calibrators.files import _digest

    for change, message in [
        ({"kind": "os.system"}, "calibrator.json is damaged: kind must be one of"),
        ({"learned": {"_head": 1}}, "damaged: learned has an unknown name, '_head'"),
        ({"parameters": {"nonsense": 1}}, "damaged: parameters has an unknown name, 'nonsense'"),
    ]:
        body = {**content["calibrator"], **change}
        check({**content, "calibrator": body, "digest": _digest(body)}, message)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nothing.json")


def test_calibrators_that_cannot_be_saved(tmp_path):
    logits, labels = draw_calibrated(50, 3)
    with pytest.raises(NotFittedError):
        TemperatureScaling().save(tmp_path / "a.json")
    odd = FocalPosterior(gamma=1.0, classes=[complex(k) for k in range(3)])
    with pytest.raises(TypeError, match="a complex cannot be saved as JSON"):
        odd.save(tmp_path / "a.json")
    assert not list(tmp_path.iterdir())
    assert not hasattr(Calibrated(LogisticRegression(), TemperatureScaling()), "save")
    auto = AutoCalibrator(candidates=[TemperatureScaling()], cv=__import__("sklearn").model_selection.KFold(2))
    with pytest.raises(TypeError, match="a KFold cannot be saved as JSON"):
        auto.fit(logits, labels).save(tmp_path / "a.json")


@every
def test_torch_module_gives_the_same_numbers(name):
    calibrator, logits = fit_shipped(name)
    module = calibrator.to_torch()
    expected = calibrator.predict_proba(logits)
    found = module(torch.tensor(logits))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(module(torch.tensor(logits, dtype=torch.float64)).numpy(), expected, atol=1e-12)
    assert module(torch.tensor(logits, dtype=torch.bfloat16)).dtype == torch.bfloat16
    images = torch.tensor(logits).reshape(9, 5, 3)
    np.testing.assert_allclose(module(images).reshape(-1, 3).numpy(), expected, atol=1e-6)
    assert type(calibrator).__name__ in repr(module)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")  # a FutureWarning since PyTorch 2.15
@every
def test_torch_module_is_traced(name):
    """The trace holds for other rows and other numbers of rows."""
    calibrator, logits = fit_shipped(name)
    module = calibrator.to_torch()
    rows = torch.tensor(logits)
    traced = torch.jit.trace(module, rows[:7])
    torch.testing.assert_close(traced(rows), module(rows))


@every
def test_torch_module_of_images(name):
    """Classes on axis 1, as networks of images have them."""
    calibrator, logits = fit_shipped(name)
    images = torch.tensor(logits).reshape(3, 3, 5, 3).movedim(-1, 1)
    module = calibrator.to_torch(axis=1)
    expected = calibrator.to_torch()(images.movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(module(images), expected, rtol=0, atol=0)
    assert "axis=1" in repr(module)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated")  # a FutureWarning since PyTorch 2.15
def test_a_torch_module_of_images_is_exported():
    calibrator, logits = fit_shipped("focal-temperature")
    images = torch.tensor(logits).reshape(3, 3, 5, 3).movedim(-1, 1)
    module = calibrator.to_torch(axis=1)
    sizes = ({0: torch.export.Dim("batch", min=2), 2: torch.export.Dim("height", min=2)},)
    exported = torch.export.export(module, (images[:2],), dynamic_shapes=sizes).module()
    for run in (exported, torch.jit.trace(module, images)):
        torch.testing.assert_close(run(images), module(images))


def test_a_wrong_axis_of_a_torch_module_is_rejected():
    calibrator, logits = fit_shipped("temperature")
    with pytest.raises(TypeError, match="axis must be a whole number, got 'classes'"):
        calibrator.to_torch(axis="classes")
    with pytest.raises(ValueError, match=r"axis must be an axis of scores with shape \(45, 3\), got 2"):
        calibrator.to_torch(axis=2)(torch.tensor(logits))


# Another fit may have another map: other members, tables of another length, or a base without gamma.
OTHER_MAPS = ("auto", "isotonic", "venn-abers", "vector", "matrix", "dirichlet")


@pytest.mark.parametrize("name", [name for name in SHIPPED if not name.startswith(OTHER_MAPS)])
def test_a_loaded_state_changes_what_a_module_predicts(name):
    """Every fitted value is in the state: a module of one fit becomes the module of another."""
    first, logits = fit_shipped(name)
    if name.startswith("posterior") and name != "posterior-fit":
        other = clone(first).set_params(gamma=np.add(first.gamma, 0.25).tolist()).fit(logits, [0, 1, 2] * 15)
    else:
        other, _ = fit_shipped(name, seed=1)
        other = clone(other).fit(0.7 * draw_calibrated(400, 3, seed=2)[0], draw_calibrated(400, 3, seed=2)[1])
    module, expected = first.to_torch(), other.predict_proba(logits)
    assert np.abs(first.predict_proba(logits) - expected).max() > 1e-3
    state = other.to_torch().state_dict()
    module.load_state_dict(state)
    found = module(torch.tensor(logits, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_temperature_and_gamma_are_buffers():
    calibrator, logits = fit_shipped("focal-temperature")
    module = calibrator.to_torch()
    state = module.state_dict()
    assert {name: float(value) for name, value in state.items()} == {
        "temperature": calibrator.temperature_,
        "gamma": calibrator.gamma_,
    }
    assert not list(module.parameters())
    module.load_state_dict({"temperature": torch.tensor(2.0), "gamma": torch.tensor(-0.97)})
    flat = FocalPosterior(gamma=-0.97).predict_proba(logits / 2)
    np.testing.assert_allclose(module(torch.tensor(logits)).numpy(), flat, atol=1e-6)
    # temperature scaling has no gamma, so its module stays as cheap as a softmax
    assert list(fit_shipped("temperature")[0].to_torch().state_dict()) == ["temperature"]


def run_onnx(path, name, scores):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(["probabilities"], {name: scores.astype(np.float32)})[0]


def test_coefficients_beyond_float32_are_exported(tmp_path):
    """If all probabilities of a class are tiny, so is log(1 - p), and its coefficient is huge."""
    rng = np.random.default_rng(3)
    logits = 100 * rng.standard_normal((40, 5)) - [400, 0, 0, 0, 0]
    labels = np.argmax(logits / 60 + rng.gumbel(size=logits.shape), axis=1)
    labels[:3] = 0
    calibrator = BetaCalibration().fit(logits, labels)
    assert calibrator.weights_.max() > np.finfo(np.float32).max
    single = logits.astype(np.float32)
    calibrator.to_onnx(tmp_path / "head.onnx")
    for found in (
        calibrator.to_torch()(torch.tensor(single)).numpy(),
        run_onnx(tmp_path / "head.onnx", "logits", single),
    ):
        np.testing.assert_allclose(found, calibrator.predict_proba(single), rtol=1e-5, atol=1e-7)


@every
def test_onnx_graph_gives_the_same_numbers(name, tmp_path):
    calibrator, logits = fit_shipped(name)
    path = tmp_path / "head.onnx"
    calibrator.to_onnx(path)
    found = run_onnx(path, "logits", logits)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, calibrator.predict_proba(logits), atol=1e-6)
    np.testing.assert_array_equal(run_onnx(path, "logits", logits[:1]), found[:1])  # any batch size
    assert [part.name for part in tmp_path.iterdir()] == ["head.onnx"]
    model = onnx.load(path)
    assert model.producer_name == "refocal"
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


@pytest.mark.parametrize("name", ["temperature", "focal-temperature", "platt", "histogram", "venn-abers", "matrix"])
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_one_column_and_probabilities_are_exported(name, kind, tmp_path):
    rng = np.random.default_rng(0)
    scores = (3 * rng.standard_normal(300)).astype(np.float32)
    labels = rng.random(300) < 1 / (1 + np.exp(-scores / 2))
    if kind == "probs":
        scores = np.concatenate([1 / (1 + np.exp(-scores[:-2])), [0.0, 1.0]]).astype(np.float32)
    calibrator = clone(SHIPPED[name]).set_params(input=kind).fit(scores, labels)
    expected = calibrator.predict_proba(scores)
    calibrator.to_onnx(tmp_path / "head.onnx")
    np.testing.assert_allclose(run_onnx(tmp_path / "head.onnx", kind, scores[:, None]), expected, atol=1e-6)
    np.testing.assert_allclose(calibrator.to_torch()(torch.tensor(scores)[:, None]).numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("name", ["histogram", "isotonic", "venn-abers"])
def test_steps_of_float32_probabilities_are_exported(name, tmp_path):
    """A logarithm in float32 would move samples over the edges of bins."""
    logits, labels = draw_calibrated(300, 9, spread=30.0)
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs = (probs / probs.sum(axis=1, keepdims=True)).astype(np.float32)
    calibrator = clone(SHIPPED[name]).set_params(input="probs").fit(probs, labels)
    calibrator.to_onnx(tmp_path / "head.onnx")
    expected = calibrator.predict_proba(probs)
    np.testing.assert_allclose(calibrator.to_torch()(torch.tensor(probs)).numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(run_onnx(tmp_path / "head.onnx", "probs", probs), expected, atol=1e-6)


def test_an_export_needs_the_number_of_classes(tmp_path):
    for export in (lambda c: c.to_torch(), lambda c: c.to_onnx(tmp_path / "head.onnx")):
        with pytest.raises(NotFittedError, match="fit this FocalPosterior or give it classes: an export needs"):
            export(FocalPosterior(gamma=2.0))
        with pytest.raises(NotFittedError):
            export(TemperatureScaling())


@pytest.mark.parametrize("classes", [10, list("abcdefghij"), np.int64(10)])
def test_a_known_posterior_is_exported_without_a_fit(classes, tmp_path):
    """With the number of classes there is nothing left to learn: all exports agree with the fitted calibrator's."""
    logits, labels = draw_calibrated(400, 10, dtype=np.float32)
    calibrator = FocalPosterior(gamma=3, classes=classes)
    expected = FocalPosterior(gamma=3).fit(logits, labels).predict_proba(logits)
    np.testing.assert_array_equal(calibrator.predict_proba(logits), expected)
    np.testing.assert_allclose(calibrator.to_torch()(torch.tensor(logits)).numpy(), expected, atol=1e-6)
    calibrator.to_onnx(tmp_path / "head.onnx")
    np.testing.assert_allclose(run_onnx(tmp_path / "head.onnx", "logits", logits), expected, atol=1e-6)
    calibrator.save(tmp_path / "a.json")
    same = load(tmp_path / "a.json")
    np.testing.assert_array_equal(same.predict(logits), calibrator.predict(logits))
    same.to_onnx(tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == (tmp_path / "head.onnx").read_bytes()
    assert clone(calibrator).fit(logits, calibrator.predict(logits)).classes_.tolist() == (
        list(range(10)) if np.ndim(classes) == 0 else classes
    )


def test_the_number_of_classes_is_checked(tmp_path):
    with pytest.raises(ValueError, match="X must have 10 columns, one for each of classes, got 3"):
        FocalPosterior(gamma=3, classes=10).predict_proba(np.zeros((2, 3)))
    assert FocalPosterior(gamma=3, classes=2).predict_proba(np.zeros(2)).shape == (2, 2)
    with pytest.raises(ValueError, match="classes must be at least 2, got 1"):
        FocalPosterior(gamma=3, classes=1).to_torch()
    with pytest.raises(TypeError, match="classes must be a whole number, at least 2, got True"):
        FocalPosterior(gamma=3, classes=True).to_torch()
    with pytest.raises(ValueError, match="classes must be 3 different labels, one for each column of X, got 10"):
        FocalPosterior(gamma=3, classes=10).fit(np.eye(3), [0, 1, 2])
    with pytest.raises(ValueError, match=r"weight must .*10"):
        FocalPosterior(gamma=3, weight=[1.0, 2.0], classes=10).save(tmp_path / "a.json")
