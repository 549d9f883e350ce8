"""`refocal curvature` on a run of `refocal train`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from refocal.cli import main
from refocal.cli.curvature import load_run
from refocal.curvature import gradient_norm, hessian_top_eigenvalues
from refocal.losses import FocalLoss
from refocal.train import runs

TRAINED = ["train", "--data", "digits", "--model", "mlp", "--epochs", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    assert main([*TRAINED, "--loss", "focal", "--gamma", "2", "--out", str(out)]) == 0
    return out / "digits-mlp-focal-g2-s0"


def test_numbers_are_those_of_the_package_and_stand_on_the_card(folder, capsys):
    asked = ["curvature", "--run", str(folder), "--samples", "100", "--probes", "5", "--device", "cpu"]
    assert main([*asked, "--eigenvalues", "2", "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    model, loss, data = load_run(folder, part="val", loss="trained", samples=100, folder=None, device="cpu")
    assert isinstance(loss, FocalLoss)
    assert loss.gamma == 2
    top = hessian_top_eigenvalues(model, loss, [data], k=2)
    assert entry["largest_eigenvalues"] == pytest.approx(top.algebraic.tolist(), rel=1e-5)
    assert entry["gradient_norm"] == pytest.approx(gradient_norm(model, loss, [data]), rel=1e-5)
    assert entry["samples"] == 100
    assert main([*asked, "--loss", "cross-entropy", "--part", "train", "--matrix", "ggn"]) == 0
    assert "Gauss-Newton matrix of cross-entropy, 100 samples of train" in capsys.readouterr().out
    card = runs.read_card(folder)
    assert [(each["part"], each["loss"], each["matrix"]) for each in card["curvature"]] == [
        ("val", "trained", "hessian"),
        ("train", "cross-entropy", "ggn"),
    ]
    assert card["curvature"][0] == entry
    assert card["name"] == "digits-mlp-focal-g2-s0"


def test_the_network_is_the_trained_one(folder):
    model, _, (inputs, target) = load_run(
        folder, part="test", loss="cross-entropy", samples=10_000, folder=None, device="cpu"
    )
    with torch.no_grad():
        scores = model(inputs)
    assert nn.functional.cross_entropy(scores, target).item() == pytest.approx(runs.read_card(folder)["nll"], rel=1e-2)


def test_what_is_refused(folder, tmp_path, capsys):
    for words, message in (
        (["--run", str(folder), "--part", "all"], "--part must be one of 'train', 'val', 'test', got 'all'"),
        (["--run", str(folder), "--loss", "focal"], "--loss must be one of 'trained', 'cross-entropy', got 'focal'"),
        (["--run", str(folder), "--samples", "0"], "--samples must be at least 1, got 0"),
        (["--run", str(folder), "--probes", "1", "--samples", "9"], "probes must be at least 2, got 1"),
        (["--run", str(tmp_path)], "holds no finished run"),
    ):
        assert main(["curvature", *words]) == 1
        assert message in capsys.readouterr().err


def test_gammas_that_change(tmp_path, capsys):
    for loss in ("adafocal", "fls-531"):
        assert main([*TRAINED, "--loss", loss, "--out", str(tmp_path)]) == 0
    settings = {"part": "val", "samples": 10, "folder": None, "device": "cpu"}
    with pytest.raises(ValueError, match=r"trained with AdaFocal.*use --loss cross-entropy"):
        load_run(tmp_path / "digits-mlp-adafocal-s0", loss="trained", **settings)
    _, loss, _ = load_run(Path(tmp_path) / "digits-mlp-fls-531-s0", loss="trained", **settings)
    assert loss.gamma.closed_form_gamma == 1.0
    capsys.readouterr()
