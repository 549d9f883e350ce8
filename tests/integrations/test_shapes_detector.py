"""A detector that is trained here: its scores before and after the map and a calibrator (docs/how-to/detection.md)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from refocal import cli, detection, sigmoid_posterior

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.timeout(900)  # the first test trains the detector

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_shapes_detector.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of the example, trained once: results and annotations of val and test."""
    spec = importlib.util.spec_from_file_location("train_shapes_detector", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    found = tmp_path_factory.mktemp("shapes")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the sums, and so the network, depend on it
    example.write_detections(example.train(), found)
    torch.set_num_threads(threads)
    return found


@pytest.mark.thorough
def test_the_closed_form_and_a_fit_correct_the_scores(folder):
    matches = detection.match(folder / "test.json", folder / "instances_test.json")
    scores = matches.detections.scores
    logits = np.log(scores) - np.log1p(-scores)
    posterior = sigmoid_posterior(logits, gamma=2, alpha=0.25)
    fitted = detection.calibrate(folder / "val.json", folder / "instances_val.json", gamma=2, alpha=0.25)
    before, mapped, after = (
        detection.d_ece(matches, scores=each) for each in (scores, posterior, fitted.predict(scores))
    )
    assert before > 0.07
    assert mapped < before / 3
    assert after < before / 6
    sure = scores > 0.5
    assert matches.matched[sure].mean() > 0.9
    assert scores[sure].mean() < 0.75
    assert posterior[sure].mean() == pytest.approx(matches.matched[sure].mean(), abs=0.06)


def test_average_precision_stays(folder):
    """The map and Platt scaling keep the order of boxes, so the same boxes are right."""
    matches = detection.match(folder / "test.json", folder / "instances_test.json")
    fitted = detection.calibrate(folder / "val.json", folder / "instances_val.json", method="platt")
    again = matches.detections.with_scores(fitted.predict(matches.detections.scores))
    assert np.array_equal(detection.match(again, folder / "instances_test.json").matched, matches.matched)


@pytest.mark.thorough
def test_the_commands(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    out = tmp_path / "calibrated.json"
    words = (
        "calibrate val.json --annotations instances_val.json --test test.json --test-annotations instances_test.json"
    )
    loss = "--loss sigmoid-focal --gamma 2 --alpha 0.25 --min-score 0.1 --json"
    assert cli.main([*words.split(), *loss.split(), "--out", str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    measured = {method["name"]: method["measures"]["d_ece"] for method in report["report"]["methods"]}
    assert measured["posterior"]["high"] < measured["given"]["low"]
    chosen = next(method for method in report["report"]["methods"] if method["chosen"])
    assert chosen["measures"]["d_ece"]["high"] < measured["given"]["low"]
    written = json.loads(out.read_text(encoding="utf-8"))
    given = json.loads(Path("test.json").read_text(encoding="utf-8"))
    kept = [box for box in given if box["score"] >= 0.1]
    assert [box | {"score": 0} for box in written] == [box | {"score": 0} for box in kept]
