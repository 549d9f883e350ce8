"""`refocal-lab curvature` on a run of `refocal-lab train`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from refocal.curvature import gradient_norm, hessian_top_eigenvalues
from refocal.losses import FocalLoss
from refocal_lab.cli import main
from refocal_lab.cli.curvature import load_run
from refocal_lab.train.data import load
from refocal_lab.train.run_folder import RunFolder

LOADED = {
    "part": "val",
    "samples": 10,
    "load_data": lambda name, split_seed: load(name, split_seed=split_seed),
    "device": "cpu",
}
TRAINED = ["train", "--data", "digits", "--model", "mlp", "--epochs", "2", "--device", "cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    assert main([*TRAINED, "--loss", "focal", "--gamma", "2", "--out", str(out)]) == 0
    return out / "digits-mlp-focal-g2-s0"


def test_numbers_are_those_of_the_package_and_stand_on_the_card(folder, capsys):
    asked = ["curvature", "--run", str(folder), "--samples", "100", "--probes", "5", "--device", "cpu"]
    assert main([*asked, "--eigenvalues", "2", "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown.pop("run") == folder.name
    entry = shown
    model, loss, data = load_run(folder, loss="trained", **{**LOADED, "samples": 100})
    assert isinstance(loss, FocalLoss)
    assert loss.gamma == 2
    top = hessian_top_eigenvalues(model, loss, [data], k=2)
    assert entry["largest_eigenvalues"] == pytest.approx(top.algebraic.tolist(), rel=1e-5)
    assert entry["gradient_norm"] == pytest.approx(gradient_norm(model, loss, [data]), rel=1e-5)
    assert entry["samples"] == 100
    assert main([*asked, "--loss", "cross-entropy", "--part", "train", "--matrix", "ggn"]) == 0
    assert "Gauss-Newton matrix of cross-entropy, 100 samples of train" in capsys.readouterr().out
    card = RunFolder(folder).read_card()
    assert [(each["part"], each["loss"], each["matrix"]) for each in card["curvature"]] == [
        ("val", "trained", "hessian"),
        ("train", "cross-entropy", "ggn"),
    ]
    assert card["curvature"][0] == entry
    assert card["name"] == "digits-mlp-focal-g2-s0"


def test_ce_is_short_for_cross_entropy(tmp_path, capsys):
    assert main([*TRAINED, "--loss", "ce", "--curvature-penalty", "1e-3", "--out", str(tmp_path)]) == 0
    run = tmp_path / "digits-mlp-cross-entropy-tau0.001-s0"
    assert main(["curvature", "--run", str(run), "--samples", "50", "--probes", "2", "--loss", "ce"]) == 0
    assert "Hessian of cross-entropy, 50 samples of val" in capsys.readouterr().out
    assert RunFolder(run).read_card()["curvature"][0]["loss"] == "cross-entropy"


def test_the_network_is_the_trained_one(folder):
    model, _, (inputs, target) = load_run(folder, loss="cross-entropy", **{**LOADED, "part": "test", "samples": 10_000})
    with torch.no_grad():
        scores = model(inputs)
    assert nn.functional.cross_entropy(scores, target).item() == pytest.approx(
        RunFolder(folder).read_card()["nll"], rel=1e-2
    )


def test_errors(folder, tmp_path, capsys):
    for words, message in (
        (["--run", str(folder), "--part", "all"], "--part must be one of 'train', 'val', 'test', got 'all'"),
        (["--run", str(folder), "--loss", "focal"], "--loss must be one of 'trained', 'cross-entropy', got 'focal'"),
        (["--run", str(folder), "--samples", "0"], "--samples must be at least 1, got 0"),
        (["--run", str(folder), "--probes", "1", "--samples", "9"], "probes must be at least 2, got 1"),
        (["--run", str(tmp_path)], "holds no finished run"),
    ):
        assert main(["curvature", *words]) == 1
        assert message in capsys.readouterr().err


def test_several_runs_by_several_losses(tmp_path, capsys):
    assert main([*TRAINED, "--loss", "focal", "--gamma", "0", "1", "--out", str(tmp_path)]) == 0
    folders = sorted(map(str, tmp_path.iterdir()))
    asked = ["curvature", "--run", *folders, "--loss", "trained", "cross-entropy", "--samples", "50", "--probes", "4"]
    capsys.readouterr()
    for _ in range(2):  # a second measurement replaces the first
        assert main([*asked, "--device", "cpu", "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert [(each["run"], each["loss"]) for each in shown] == [
            (Path(folder).name, loss) for folder in folders for loss in ("trained", "cross-entropy")
        ]
        assert len(RunFolder(folders[0]).read_card()["curvature"]) == 2
    zero, one = (RunFolder(folder).read_card()["curvature"] for folder in folders)
    assert zero[0]["largest_eigenvalues"] == pytest.approx(zero[1]["largest_eigenvalues"], rel=1e-3)
    assert one[0]["largest_eigenvalues"] != pytest.approx(one[1]["largest_eigenvalues"], rel=1e-2)
    assert main(["zoo", "add", *folders, "--zoo", str(tmp_path / "zoo")]) == 0
    assert (
        json.loads((tmp_path / "zoo" / f"{Path(folders[1]).name}.json").read_text(encoding="utf-8"))["curvature"] == one
    )
    capsys.readouterr()


def test_a_run_that_fails_does_not_stop_the_others(tmp_path, capsys):
    assert main([*TRAINED, "--seed", "1", "--trials", "2", "--out", str(tmp_path)]) == 0
    bad, good = sorted(tmp_path.iterdir())
    weights = safetensors.torch.load_file(bad / "weights.safetensors")
    safetensors.torch.save_file({name: each * torch.nan for name, each in weights.items()}, bad / "weights.safetensors")
    capsys.readouterr()
    asked = ["--samples", "20", "--probes", "4", "--device", "cpu"]
    assert main(["curvature", "--run", str(bad), str(good), *asked]) == 1
    printed = capsys.readouterr()
    assert f"{bad.name}, trained: derivatives of the loss are not finite" in printed.err.replace("\n", "")
    assert good.name in printed.out
    assert "curvature" not in RunFolder(bad).read_card()
    assert len(RunFolder(good).read_card()["curvature"]) == 1


def test_gammas_that_change(tmp_path, capsys):
    for loss in ("adafocal", "fls-531"):
        assert main([*TRAINED, "--loss", loss, "--out", str(tmp_path)]) == 0
    scheduled = tmp_path / "digits-mlp-fls-531-s0"
    card = RunFolder(scheduled).read_card()
    for kept, gamma in ((1, 5.0), (2, 3.0)):  # the epochs that end at the milestones
        (scheduled / "card.json").write_text(json.dumps({**card, "kept_epoch": kept}), encoding="utf-8")
        _, loss, _ = load_run(scheduled, loss="trained", **LOADED)
        assert loss.gamma == gamma
    run = tmp_path / "digits-mlp-adafocal-s0"
    _, loss, _ = load_run(run, loss="trained", **LOADED)
    kept = safetensors.torch.load_file(run / "checkpoint.safetensors")
    assert torch.equal(loss.gamma.gammas, kept["loss.gamma.gammas"])
    assert loss.gamma.gammas.unique().numel() > 1
    (run / "checkpoint.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint.safetensors, .* learned gammas: use cross-entropy"):
        load_run(run, loss="trained", **LOADED)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (("weights.safetensors", ""), "weights.safetensors cannot be read: "),
        (("card.json", '{"schema": 1}'), "card.json must be a card of schema 1, with a recipe"),
    ],
)
def test_a_damaged_run_is_reported_in_one_line(folder, tmp_path, capsys, damage, reason):
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    name, content = damage
    (damaged / name).write_text(content, encoding="utf-8")
    assert main(["curvature", "--run", str(damaged), "--samples", "10", "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1
