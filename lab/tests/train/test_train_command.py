"""`refocal-lab train`: its options, its files and its errors."""

import json
import re
import shlex

import numpy as np
import pytest
import torch

from refocal.calibrators import refinement
from refocal.predictions import Predictions
from refocal_lab.cli import main
from refocal_lab.cli.parser import build_parser
from refocal_lab.cli.recipes import build_recipes
from refocal_lab.train.process import Process, join_processes
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.results import write_command
from refocal_lab.train.run_folder import RunFolder

SMALL = ("--data", "digits", "--model", "mlp")


def test_the_command_trains_each_gamma_and_seed(tmp_path, capsys):
    options = [*SMALL, "--loss", "focal", "--gamma", "1", "2", "--trials", "2", "--epochs", "1"]
    assert main(["train", *options, "--json", "--device", "cpu", "--out", str(tmp_path)]) == 0
    cards = json.loads(capsys.readouterr().out)
    assert [(card["gamma"], card["seed"]) for card in cards] == [(1.0, 0), (1.0, 1), (2.0, 0), (2.0, 1)]
    assert len({card["nll"] for card in cards}) == 4


def test_the_command_reads_a_file(tmp_path, capsys):
    recipe = tmp_path / "plan.toml"
    recipe.write_text(
        'data = "digits"\nmodel = "mlp"\nepochs = 1\n'
        '[[runs]]\nloss = "brier"\n[[runs]]\nloss = "dual-focal"\ngamma = 5\n',
        encoding="utf-8",
    )
    assert main(["train", str(recipe), "--device", "cpu", "--out", str(tmp_path / "runs")]) == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "digits-mlp-brier-s0",
        "digits-mlp-dual-focal-g5-s0",
    }
    assert "digits-mlp-brier-s0" in capsys.readouterr().out


def test_ce_is_short_for_cross_entropy_in_a_file_too(tmp_path):
    (tmp_path / "plan.toml").write_text('data = "digits"\nmodel = "mlp"\nloss = "ce"\n', encoding="utf-8")
    options = build_parser().parse_args(["train", str(tmp_path / "plan.toml")])
    assert build_recipes(options) == [TrainingRecipe(data="digits", model="mlp", loss="cross-entropy")]


def test_a_run_goes_on_unless_told_to_begin_anew(tmp_path):
    command = ["train", *SMALL, "--device", "cpu", "--out", str(tmp_path), "--epochs"]
    folder = tmp_path / "digits-mlp-cross-entropy-s0"
    assert main([*command, "2", "--keep-logits", "2"]) == 0
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    trained = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main([*command, "2", "--resume"]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == trained
    assert main([*command, "1", "--no-resume"]) == 0
    assert (
        len((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        == RunFolder(folder).read_card()["epochs"]
        == 1
    )
    assert trained.keys() - {path.name for path in folder.iterdir()} == {"train-epoch-2.npz"}


@pytest.mark.parametrize(
    "settings", [{"learning_rate": 0.123456789, "milestones": ()}, {"clip_norm": 2.0, "sum_loss": True}]
)
def test_the_command_of_a_card_trains_the_same(settings):
    recipe = TrainingRecipe(data="digits", model="mlp", loss="focal", gamma=1 / 3, seed=4, **settings)
    options = build_parser().parse_args(shlex.split(write_command(recipe))[1:])
    assert build_recipes(options) == [recipe]


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda", "nccl"), (None, "nccl")])
def test_processes_talk_as_their_device_can(monkeypatch, device, backend):
    asked = []
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "init_process_group", asked.append)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    assert join_processes(device) == Process(1, 2)
    assert asked == [backend]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--data", "digits"], "the command line needs model"),
        ([*SMALL, "--loss", "focal"], "loss 'focal' needs gamma"),
        ([*SMALL, "--gamma", "1"], "loss 'cross-entropy' has no gamma"),
        (["--data", "letters", "--model", "mlp"], "data must be one of 'cifar10'"),
        (["--data", "digits", "--model", "resnt20"], "model must be one of 'resnet8'"),
        (["--data", "digits", "--model", "resnet20"], "shape must be .* for resnet20"),
        ([*SMALL, "--augmentation", "crop"], "augmentation 'crop' is for images"),
        ([*SMALL, "--epochs", "0"], "epochs must be at least 1"),
        ([*SMALL, "--seed", str(2**64)], f"seed must be at most {2**64 - 1:,}, got {2**64}"),
        ([*SMALL, "--milestones", "3", "2"], "milestones must increase"),
        ([*SMALL, "--milestones", "-1"], "milestones must be at least 1, got -1"),
        (["--data", "cifar10", "--model", "resnet20", "--data-folder", "nowhere"], "cifar10"),
        (["absent.toml"], "absent.toml"),
        ([*SMALL, "--trials", "0"], "trials must be 1 to 10000, got 0"),
        ([*SMALL, "--at-once", "0"], "at_once must be at least 1, got 0"),
        ([*SMALL, "--epochs", "3", "--keep-logits", "4"], "keep_logits must be 1 to 3, got 4"),
        ([*SMALL, "--out", "plan.toml/runs"], "plan.toml"),
    ],
)
def test_what_cannot_be_trained_is_refused(tmp_path, monkeypatch, capsys, options, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text("no folder", encoding="utf-8")
    assert main(["train", *options, "--device", "cpu"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("refocal-lab: ")
    assert said.count("\n") == 1
    assert re.search(reason, said), said


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("trials = 0", "trials must be 1 to 10000, got 0"),
        ('trials = "3"', "trials must be a whole number, 1 to 10000, got '3'"),
        ("runs = []", "runs in plan.toml must be tables of settings"),
        ("[[runs]]\n[[runs]]", "two runs of plan.toml would have the name digits-mlp-cross-entropy-s0"),
        ("[[runs]]\n[[runs]]\nlearning_rate = 0.2", "two runs of plan.toml would have the name"),
        ('learning_rate = "fast"', "learning_rate in plan.toml must be of type float, got 'fast'"),
        ("seed = -1", "seed must be at least 0, got -1"),
        ("leaning_rate = 0.1", "has no setting 'leaning_rate', did you mean 'learning_rate'"),
        ('[[runs]]\n[[runs]]\nseed = 1\nmodel = "mpl"', "model must be one of .*, got 'mpl'"),
        ("epochs = 1.5", "epochs in plan.toml must be of type int, got 1.5"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, lines, reason, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.toml").write_text(f'data = "digits"\nmodel = "mlp"\n{lines}\n', encoding="utf-8")
    assert main(["train", "plan.toml", "--device", "cpu"]) == 1
    assert re.search(reason, capsys.readouterr().err)
    assert not (tmp_path / "runs").exists()


def test_the_epoch_with_the_best_refinement_is_kept(tmp_path, capsys):
    options = ["train", *SMALL, "--loss", "focal", "--gamma", "5", "--epochs", "6", "--learning-rate", "1"]
    options += ["--keep", "best-refinement", "--device", "cpu", "--json", "--out", str(tmp_path)]
    assert main(options) == 0
    (card,) = json.loads(capsys.readouterr().out)
    lines = (tmp_path / card["name"] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    history = [json.loads(line) for line in lines]
    kept = 1 + int(np.argmin([epoch["val"]["refinement"] for epoch in history]))
    assert card["kept_epoch"] == kept
    predictions = Predictions.read(tmp_path / card["name"] / "predictions.npz").select("val")
    found = refinement(predictions.scores, predictions.labels, input="logits").refinement
    assert found == pytest.approx(history[kept - 1]["val"]["refinement"], rel=1e-2, abs=1e-3)
    assert "refinement" not in history[0]["test"]
