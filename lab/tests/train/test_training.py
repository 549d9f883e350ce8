"""Training end to end on small data: the files it writes, how it continues after a kill, and its errors."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from small_runs import CPU, DIGITS, SMALL, StoppedError, digits, history, run, stop_after, unfinished, weights

from refocal import metrics
from refocal.predictions import Predictions
from refocal_lab.cli import main
from refocal_lab.train import checkpoint
from refocal_lab.train.data import DataSet, Part
from refocal_lab.train.history import History
from refocal_lab.train.loop import _run_together, train
from refocal_lab.train.process import Process
from refocal_lab.train.recipe import TrainingRecipe, parse_recipe
from refocal_lab.train.resume import check_same_settings
from refocal_lab.train.run_folder import RunFolder
from refocal_lab.train.trained_network import load_network, read_trained_recipe
from refocal_lab.train.trial import DivergedError, Trial


@pytest.fixture
def start(launch):
    """Start a training by the command, with one thread."""

    def start(out, *options, before=()):
        words = [sys.executable, *before, "-m", "refocal_lab", "train", *options, "--device", "cpu", "--out", str(out)]
        return launch(
            words, stderr=subprocess.PIPE, text=True, encoding="utf-8", env={**os.environ, "OMP_NUM_THREADS": "1"}
        )

    return start


@pytest.fixture
def one_thread():
    """Sum in the order of a process with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_run_learns_and_leaves_what_it_measured(tmp_path):
    recipe = TrainingRecipe(data="digits", model="mlp", loss="focal", gamma=2.0, epochs=20, batch_size=32)
    records = run(recipe, tmp_path)
    folder = tmp_path / recipe.name
    card = RunFolder(folder).read_card()
    assert card["error"] < 0.08
    assert records[-1]["loss"] < records[0]["loss"] / 5
    assert [record["epoch"] for record in records] == list(range(1, 21))
    test = Predictions.read(folder / "predictions.npz").select("test")
    assert test.scores.dtype == np.float16
    probs = torch.softmax(torch.from_numpy(test.scores).double(), dim=1).numpy()
    assert card["ece"] == pytest.approx(metrics.ece(probs, test.labels), abs=1e-12)
    assert card["nll"] == pytest.approx(metrics.nll(probs, test.labels), abs=1e-12)
    assert card["error"] == pytest.approx(metrics.error(probs, test.labels), abs=1e-12)
    assert card["command"] == (
        "refocal-lab train --data digits --model mlp --loss focal --gamma 2 --epochs 20 --batch-size 32 --seed 0"
    )
    last = history(folder)[-1]
    assert last["test"]["nll"] == pytest.approx(card["nll"], rel=1e-3)  # float16 against float32
    apart = last["test"]["correct"], last["test"]["wrong"]
    shares = 1 - card["error"], card["error"]
    assert sum(part["nll"] * share for part, share in zip(apart, shares, strict=True)) == pytest.approx(
        last["test"]["nll"], rel=1e-4
    )
    network = load_network(folder, classes=10, shape=(64,))
    assert read_trained_recipe(folder) == recipe
    data = digits()
    inputs = torch.from_numpy((data.test.inputs - data.mean) / data.std).float()
    np.testing.assert_allclose(network(inputs).detach().numpy(), test.scores, atol=0.02, rtol=2e-3)


@pytest.mark.parametrize("loss", [{"loss": "adafocal"}, {"loss": "fls-532"}, {"loss": "mmce", "factor": 2.0}])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, loss):
    recipe = TrainingRecipe(**DIGITS, **loss)
    run(recipe, tmp_path / "whole")

    with pytest.raises(StoppedError):
        train([recipe], digits(), tmp_path / "parts", device=CPU, report=stop_after(2))
    run(recipe, tmp_path / "parts")
    whole, parts = (weights(tmp_path / name / recipe.name) for name in ("whole", "parts"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    assert history(tmp_path / "whole" / recipe.name) == history(tmp_path / "parts" / recipe.name)


def test_measures_of_epochs_that_count_survive_a_kill_while_later_ones_are_dropped(tmp_path, monkeypatch):
    lines = History(tmp_path / "metrics.jsonl")
    for epoch in (1, 2, 3):
        lines.append({"epoch": epoch, "loss": 0.5, "val": {"error": 0.5}})

    class KilledError(Exception):
        pass

    def kill(*_):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", kill)
        with pytest.raises(KilledError):
            lines.keep(2)
    assert [record["epoch"] for record in lines.read()] == [1, 2, 3]
    lines.keep(2)
    assert [record["epoch"] for record in lines.read()] == [1, 2]
    with pytest.raises(ValueError, match="has 2 epochs, the checkpoint beside it 5: one of them is damaged"):
        lines.keep(5)


@pytest.mark.thorough
def test_a_run_that_was_killed_ends_with_the_same_weights(tmp_path, one_thread, start):
    recipe = TrainingRecipe(data="digits", model="mlp", loss="adafocal", epochs=30, batch_size=64)
    running = start(tmp_path / "killed", *SMALL, "--epochs", "30", "--batch-size", "64", "--loss", "adafocal")
    lines = tmp_path / "killed" / recipe.name / "metrics.jsonl"
    while not (lines.exists() and lines.read_text(encoding="utf-8").count("\n") >= 5):
        assert running.poll() is None
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert running.returncode == -signal.SIGKILL
    assert not RunFolder(lines.parent).is_finished
    assert 0 < len(run(recipe, tmp_path / "killed")) < 30
    run(recipe, tmp_path / "whole")
    whole, killed = (weights(tmp_path / out / recipe.name) for out in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert all(np.array_equal(whole[key], killed[key]) for key in whole)
    assert history(tmp_path / "whole" / recipe.name) == history(tmp_path / "killed" / recipe.name)


@pytest.mark.thorough
def test_two_processes_train_what_one_trains(tmp_path, one_thread, start):
    recipe = TrainingRecipe(**{**DIGITS, "epochs": 2}, loss="focal", gamma=1.0)
    run(recipe, tmp_path / "one")
    together = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = [*SMALL, "--epochs", "2", "--batch-size", "64", "--loss", "focal", "--gamma", "1"]
    two = start(tmp_path / "two", *options, before=together)
    _, said = two.communicate()
    assert two.returncode == 0, said
    folders = [tmp_path / out / recipe.name for out in ("one", "two")]
    for alone, together in zip(*map(history, folders), strict=True):
        assert alone["loss"] == pytest.approx(together["loss"], rel=1e-4)
        assert alone["train"]["nll"] == pytest.approx(together["train"]["nll"], rel=1e-4)
    alone, together = (RunFolder(folder).read_card() for folder in folders)
    assert together["processes"] == 2
    assert checkpoint.read_info(folders[1] / "checkpoint.safetensors").processes == 2
    assert together["command"] == alone["command"].replace("refocal-lab", "torchrun --nproc-per-node 2 -m refocal_lab")
    first, second = map(weights, folders)
    for key in first:
        np.testing.assert_allclose(first[key], second[key], atol=2e-6)


def dark_and_bright():
    """Images of two kinds that a network can distinguish after a few epochs."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 96)
    images = rng.integers(0, 60, (96, 16, 16, 3), dtype=np.uint8)
    images[labels == 1, 4:12, 4:12] += 150
    part = Part(images, labels, np.arange(96))
    return DataSet(
        "cifar10", ("dark", "bright"), part, part, part, "made up", "all", np.full(3, 50.0), np.full(3, 50.0)
    )


IMAGES = {"data": "cifar10", "model": "resnet8", "epochs": 6, "batch_size": 16, "learning_rate": 0.05}


def test_images_are_trained_on_with_crops(tmp_path):
    data, recipe = dark_and_bright(), TrainingRecipe(**IMAGES, loss="focal", gamma=1.0)
    run(recipe, tmp_path, data=data, keep_logits=(2,))
    assert RunFolder(tmp_path / recipe.name).read_card()["error"] < 0.1
    kept = Predictions.read(tmp_path / recipe.name / "train-epoch-2.npz")
    assert kept.scores.shape == (96, 2)
    assert np.array_equal(kept.labels, data.train.labels)


@pytest.mark.parametrize(
    ("device", "rounding"),
    [
        ("cpu", 0.0),
        pytest.param("cuda", 0.02, marks=pytest.mark.gpu),
    ],
)
def test_images_that_were_stopped_end_with_the_same_logits(tmp_path, device, rounding):
    recipe = TrainingRecipe(**IMAGES, loss="fls-532")

    def begin(out, report):
        train([recipe], dark_and_bright(), out, device=torch.device(device), report=report, compiled=False)

    with pytest.raises(StoppedError):
        begin(tmp_path / "parts", stop_after(3))
    for out in ("parts", "whole"):
        begin(tmp_path / out, lambda *_: None)
    parts, whole = (Predictions.read(tmp_path / out / recipe.name / "predictions.npz") for out in ("parts", "whole"))
    np.testing.assert_allclose(parts.scores, whole.scores, rtol=rounding, atol=rounding)


def test_a_finished_run_is_left_alone(tmp_path):
    recipe = TrainingRecipe(**DIGITS)
    run(recipe, tmp_path)
    before = (tmp_path / recipe.name / "card.json").stat().st_mtime_ns
    assert run(recipe, tmp_path) == []
    assert (tmp_path / recipe.name / "card.json").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"holds a run with learning_rate = 0\.1, got 0\.05: choose another folder"):
        run(TrainingRecipe(**DIGITS, learning_rate=0.05), tmp_path)


def test_whole_numbers_mean_what_broken_ones_mean():
    whole, broken = (parse_recipe({**DIGITS, "loss": "focal", "gamma": gamma}) for gamma in (3, 3.0))
    assert json.dumps(whole.settings()) == json.dumps(broken.settings())


def test_other_numbers_of_processes_do_not_go_on_from_a_checkpoint(tmp_path):
    recipe = TrainingRecipe(**DIGITS)
    folder = unfinished(recipe, tmp_path)
    assert checkpoint.read_info(folder / "checkpoint.safetensors").processes == 1
    with pytest.raises(ValueError, match="holds a run of 1 processes, this is one of 2: batch norm and some losses"):
        run(recipe, tmp_path, process=Process(0, 2))


def test_other_settings_do_not_go_on_from_a_checkpoint(tmp_path):
    unfinished(TrainingRecipe(**DIGITS), tmp_path)
    with pytest.raises(ValueError, match="holds a run with batch_size = 64, got 32"):
        run(TrainingRecipe(**{**DIGITS, "batch_size": 32}), tmp_path)


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"batch_size": 32}, "s1 holds a run with batch_size = 64, got 32"),
        ({"model": "gp-cnn"}, "model 'gp-cnn' takes documents, 'digits' has arrays"),
        ({"augmentation": "crop"}, r"augmentation 'crop' is for images, got inputs of shape \(64,\): use 'none'"),
        ({"model": "resnet20"}, r"shape must be \(channels, height, width\) for resnet20"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_the_others_are(tmp_path, second, reason):
    begun = unfinished(TrainingRecipe(**DIGITS, seed=1), tmp_path)
    recipes = [TrainingRecipe(**DIGITS), TrainingRecipe(**{**DIGITS, "seed": 1} | second)]
    with pytest.raises(ValueError, match=reason):
        train(recipes, digits(), tmp_path, device=CPU, report=lambda *_: None)
    assert {path.name for path in tmp_path.iterdir()} == {begun.name}


@pytest.mark.parametrize("finished", [True, False])
def test_logits_of_epochs_that_are_past_cannot_be_kept(tmp_path, finished):
    recipe = TrainingRecipe(**DIGITS)
    run(recipe, tmp_path, keep_logits=(2,))
    folder = tmp_path / recipe.name
    if not finished:
        (folder / "card.json").unlink()
    run(recipe, tmp_path, keep_logits=(2,))
    with pytest.raises(ValueError, match="holds a run of 4 epochs that did not keep the logits of epoch 3"):
        run(recipe, tmp_path, keep_logits=(2, 3))


def test_a_run_from_before_a_setting_was_there_had_its_default(tmp_path):
    settings = TrainingRecipe(**DIGITS).settings()
    del settings["clip_norm"], settings["sum_loss"]
    check_same_settings(settings, TrainingRecipe(**DIGITS), RunFolder(tmp_path))
    with pytest.raises(ValueError, match="holds a run with sum_loss = False, got True"):
        check_same_settings(settings, TrainingRecipe(**DIGITS, sum_loss=True), RunFolder(tmp_path))
    with pytest.raises(ValueError, match="has no setting 'lookahead'"):
        check_same_settings({**settings, "lookahead": 3}, TrainingRecipe(**DIGITS), RunFolder(tmp_path))


def test_a_loss_that_is_not_a_number_names_its_step(tmp_path):
    recipe = TrainingRecipe(**DIGITS, learning_rate=1e30)
    with pytest.raises(DivergedError, match=r"the loss is (nan|inf) at step \d+ of epoch 1 \(learning rate 1e\+30\)$"):
        run(recipe, tmp_path)
    assert not RunFolder(tmp_path / recipe.name).is_finished


def test_networks_that_diverge_do_not_keep_others_from_being_trained(tmp_path):
    recipes = [
        TrainingRecipe(**{**DIGITS, "epochs": 1}, learning_rate=rate, seed=k)
        for k, rate in enumerate((1e30, 1e30, 0.1))
    ]
    with pytest.raises(DivergedError, match=r"-s0: the loss is nan .*; digits-mlp-cross-entropy-s1: the loss is nan"):
        train(recipes, digits(), tmp_path, device=CPU, report=lambda *_: None)
    assert [RunFolder(tmp_path / recipe.name).is_finished for recipe in recipes] == [False, False, True]


def test_networks_in_threads_end_apart(tmp_path):
    recipes = [TrainingRecipe(**DIGITS, learning_rate=rate, seed=k) for k, rate in enumerate((0.1, 1e30, 0.1))]
    trials = []
    for recipe in recipes:
        (tmp_path / recipe.name).mkdir()
        trials.append(Trial(recipe, digits(), RunFolder(tmp_path / recipe.name), device=CPU, compiled=False))
    (reason,) = _run_together(trials, lambda *_: None)
    assert reason.startswith("digits-mlp-cross-entropy-s1: the loss is nan")
    assert [trial.folder.is_finished for trial in trials] == [True, False, True]
    run(recipes[2], tmp_path / "alone")
    alone, beside_others = weights(tmp_path / "alone" / recipes[2].name), weights(trials[2].folder.path)
    assert all(np.array_equal(alone[name], beside_others[name]) for name in alone)


@pytest.mark.parametrize(
    ("rate", "reason"),
    [
        (1e30, r"logits of the val part reach nan after epoch 1 \(learning rate 1e\+30\), beyond float32"),
        (1e4, r"logits of the val part reach \S+ after epoch 1 \(learning rate 10000\), beyond float16"),
    ],
)
def test_weights_that_the_last_step_of_an_epoch_spoils_are_noticed(tmp_path, rate, reason):
    recipe = TrainingRecipe(**{**DIGITS, "batch_size": 5000, "epochs": 1}, learning_rate=rate)  # one step per epoch
    with pytest.raises(DivergedError, match=reason):
        run(recipe, tmp_path)
    assert not RunFolder(tmp_path / recipe.name).is_finished


def test_a_second_command_in_the_same_folder_is_refused(tmp_path):
    pytest.importorskip("fcntl")
    recipe = TrainingRecipe(**DIGITS)
    refused = []

    def begin_again(_, record):
        if record["epoch"] == 2:
            with pytest.raises(
                RuntimeError, match=r"another command is training in .*cross-entropy-s0: wait until it ends"
            ):
                run(recipe, tmp_path)
            refused.append(True)

    train([recipe], digits(), tmp_path, device=CPU, report=begin_again)
    assert refused
    assert [line["epoch"] for line in history(tmp_path / recipe.name)] == [1, 2, 3, 4]
    (tmp_path / recipe.name / "card.json").unlink()
    run(recipe, tmp_path)  # now that the first one has ended


def test_interrupted_it_keeps_its_checkpoint(tmp_path, capsys):
    path = tmp_path / "digits-mlp-cross-entropy-s0" / "checkpoint.safetensors"
    ended = threading.Event()

    def interrupt():
        while not (path.exists() or ended.is_set()):
            time.sleep(0.01)
        if not ended.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    options = [*SMALL, "--epochs", "2000", "--batch-size", "16", "--device", "cpu", "--out", str(tmp_path)]
    status = main(["train", *options])
    ended.set()
    thread.join()
    assert status == 130
    assert capsys.readouterr().err.endswith("refocal-lab: interrupted\n")
    _, epochs, _ = checkpoint.load(path)
    assert 1 <= epochs < 2000
