"""Training on texts end to end, on made-up trees and messages, with the loop, checkpoints and cards of images."""

import json

import numpy as np
import pytest
import texts
import torch
from safetensors.numpy import load_file
from small_runs import CPU, StoppedError, stop_after

from refocal import metrics
from refocal.predictions import Predictions
from refocal_lab import cli
from refocal_lab.train import data as data_sets
from refocal_lab.train.batches import ArrayBatches, Order
from refocal_lab.train.data import _load
from refocal_lab.train.loop import train
from refocal_lab.train.models import input_kind, names
from refocal_lab.train.models.layers import Head
from refocal_lab.train.process import Process
from refocal_lab.train.recipe import TrainingRecipe, parse_recipe
from refocal_lab.train.results import write_command
from refocal_lab.train.run_folder import RunFolder
from refocal_lab.train.step import Step
from refocal_lab.train.text_batches import TextBatches
from refocal_lab.train.trained_network import load_network, read_trained_recipe


def tiny(kind, folder, *, word_vectors="learned"):
    files, published = texts.trees() if kind == "sst" else texts.messages(train=200, test=40)
    texts.write(folder, files)
    stripped = {"by_date": True, "left_out": "headers, quotes and signatures"}
    spec = published.spec() if kind == "sst" else published.spec(**stripped)
    return _load(kind, spec, folder, download=False, split_seed=0, word_vectors=word_vectors), spec


def settings(kind, **others):
    model = "tree-lstm" if kind == "sst" else "gp-cnn"
    return TrainingRecipe(data=kind, model=model, **{"epochs": 6, "batch_size": 8, "word_vectors": "learned"} | others)


def run(recipe, data, out, *, until=None):
    train([recipe], data, out, device=CPU, report=stop_after(until))


@pytest.mark.parametrize("kind", ["sst", "newsgroups20"])
def test_the_command_learns_and_leaves_a_card(tmp_path, monkeypatch, capsys, kind):
    data, spec = tiny(kind, tmp_path / "data")
    words = tmp_path / "vectors.txt"
    words.write_bytes(texts.vectors([*data.vocabulary[:-1], "elsewhere"]))
    monkeypatch.setitem(data_sets._SPECS, kind, spec)
    options = ["--data", kind, "--model", "tree-lstm" if kind == "sst" else "gp-cnn", "--loss", "focal", "--gamma", "3"]
    options += ["--epochs", "12", "--batch-size", "8", "--word-vectors", str(words), "--device", "cpu", "--json"]
    options += ["--data-folder", str(tmp_path / "data"), "--out", str(tmp_path / "runs")]
    assert cli.main(["train", *options]) == 0
    (card,) = json.loads(capsys.readouterr().out)
    assert card["error"] < 0.2
    assert card["word_vectors"] == f"vectors.txt: {len(data.vocabulary) - 1} of {len(data.vocabulary)} words"
    folder = tmp_path / "runs" / card["name"]
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert history[-1]["loss"] < history[0]["loss"] / 2
    errors = [epoch["val"]["error"] for epoch in history]
    assert card["kept_epoch"] == 1 + int(np.argmin(errors))
    test = Predictions.read(folder / "predictions.npz").select("test")
    assert test.scores.shape == (len(data.test), 2)
    np.testing.assert_array_equal(test.labels, data.test.labels)
    probs = torch.softmax(torch.from_numpy(test.scores).double(), dim=1).numpy()
    assert card["nll"] == pytest.approx(metrics.nll(probs, test.labels), abs=1e-12)
    assert history[card["kept_epoch"] - 1]["test"]["nll"] == pytest.approx(card["nll"], rel=1e-2, abs=1e-3)
    network = load_network(folder, classes=len(data.classes), shape=(1 + len(data.vocabulary), 32))
    recipe = read_trained_recipe(folder)
    assert recipe.optimizer == ("adagrad" if kind == "sst" else "adam")
    given = load_file(folder / "weights.safetensors")["words.weight"]
    np.testing.assert_array_equal(network.words.weight.detach().numpy(), given)


@pytest.mark.parametrize("kind", ["sst", "newsgroups20"])
def test_a_run_that_was_stopped_ends_the_same(tmp_path, kind):
    data, _ = tiny(kind, tmp_path / "data")
    recipe = settings(kind)
    run(recipe, data, tmp_path / "whole")
    with pytest.raises(StoppedError):
        run(recipe, data, tmp_path / "parts", until=3)
    run(recipe, data, tmp_path / "parts")
    whole, parts = (load_file(tmp_path / out / recipe.name / "weights.safetensors") for out in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)
    cards = [RunFolder(tmp_path / out / recipe.name).read_card() for out in ("whole", "parts")]
    assert cards[0] | {"seconds": 0} == cards[1] | {"seconds": 0}


def test_logits_of_classes_that_no_sample_has_are_kept_too(tmp_path):
    data, _ = tiny("sst", tmp_path / "data")
    recipe = settings("sst", epochs=1)
    run(recipe, data, tmp_path)
    some, every = (
        Predictions.read(tmp_path / recipe.name / f"{name}.npz").select("test")
        for name in ("predictions", "all-classes")
    )
    assert every.scores.shape == (len(data.test), len(data.classes))
    np.testing.assert_array_equal(every.scores[:, list(data.scored)], some.scores)
    np.testing.assert_array_equal(every.labels, np.array(data.scored)[some.labels])
    network = load_network(tmp_path / recipe.name, classes=3, shape=data.shape)
    batches = TextBatches(
        data.train, scored=None, order=Order(8, batch_size=8, seed=0, process=Process(0, 1)), device=CPU
    )
    logits = torch.cat(list(batches.evaluation(data.test).logits(network)))
    np.testing.assert_allclose(every.scores, logits.detach().numpy(), atol=2e-3)


def test_the_last_epoch_is_kept_where_asked(tmp_path):
    data, _ = tiny("sst", tmp_path / "data")
    recipe = settings("sst", keep="last", epochs=3)
    run(recipe, data, tmp_path)
    assert RunFolder(tmp_path / recipe.name).read_card()["kept_epoch"] == 3
    assert not (tmp_path / recipe.name / "best.safetensors").exists()


@pytest.mark.parametrize("loss", [{"loss": "mmce", "factor": 8.0}, {"loss": "fls-532"}, {"loss": "adafocal"}])
def test_every_kind_of_loss_takes_nodes(tmp_path, loss):
    data, _ = tiny("sst", tmp_path / "data")
    recipe = settings("sst", epochs=3, **loss)
    run(recipe, data, tmp_path)
    assert np.isfinite(RunFolder(tmp_path / recipe.name).read_card()["nll"])


def test_a_sample_s_loss_is_the_sum_over_its_nodes(tmp_path):
    data, _ = tiny("sst", tmp_path / "data")
    every = len(data.train)
    losses = {}
    for summed in (True, False):
        recipe = settings("sst", epochs=1, batch_size=every, sum_loss=summed)
        run(recipe, data, tmp_path / str(summed))
        losses[summed] = json.loads(
            (tmp_path / str(summed) / recipe.name / "metrics.jsonl").read_text(encoding="utf-8")
        )["loss"]
    assert losses[True] / every == pytest.approx(losses[False], rel=1e-5)


def test_words_absent_from_a_batch_stay_as_they_are(tmp_path):
    data, _ = tiny("sst", tmp_path / "data")
    recipe = settings("sst", epochs=1, weight_decay=0.5)
    run(recipe, data, tmp_path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        before = torch.empty(1 + len(data.vocabulary), 100).normal_()  # the values that PyTorch draws first
        before = before.normal_(std=0.1)
    after = load_file(tmp_path / recipe.name / "weights.safetensors")["words.weight"]
    np.testing.assert_array_equal(after[0], before[0].numpy())  # the training part has no unknown word
    assert np.abs(after[1:] - before[1:].numpy()).min(axis=1).max() > 0


def test_optimisers_train_vectors_too(tmp_path):
    for optimizer, rate in (("adam", 0.005), ("adagrad", 0.05)):
        recipe = TrainingRecipe(
            data="digits", model="mlp", optimizer=optimizer, learning_rate=rate, epochs=5, batch_size=32
        )
        train([recipe], data_sets.load("digits"), tmp_path / optimizer, device=CPU, report=lambda *_: None)
        assert RunFolder(tmp_path / optimizer / recipe.name).read_card()["error"] < 0.1


def test_defaults_are_the_papers():
    words = {"optimizer", "learning_rate", "weight_decay", "epochs", "batch_size", "keep", "milestones", "word_vectors"}
    found = {
        name: {
            key: value for key, value in parse_recipe({"data": name, "model": "x"}).settings().items() if key in words
        }
        for name in ("sst", "newsgroups20-bydate", "cifar10")
    }
    assert found["sst"] == {
        **{"optimizer": "adagrad", "learning_rate": 0.05, "weight_decay": 1e-4, "epochs": 25, "batch_size": 25},
        **{"keep": "best-validation", "milestones": [], "word_vectors": "glove"},
    }
    assert found["newsgroups20-bydate"] == {
        **{"optimizer": "adam", "learning_rate": 0.001, "weight_decay": 0.0, "epochs": 50, "batch_size": 128},
        **{"keep": "best-validation", "milestones": [], "word_vectors": "glove"},
    }
    assert found["cifar10"] == {
        **{"optimizer": "sgd", "learning_rate": 0.1, "weight_decay": 5e-4, "epochs": 200, "batch_size": 128},
        **{"keep": "last", "milestones": [80, 150], "word_vectors": None},
    }
    assert write_command(TrainingRecipe(data="sst", model="tree-lstm")) == (
        "refocal-lab train --data sst --model tree-lstm --loss cross-entropy --epochs 25 --seed 0"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": "digits", "optimizer": "sdg"}, "optimizer must be one of 'sgd', 'adam', 'adagrad', got 'sdg'"),
        (
            {"data": "digits", "keep": "best"},
            "keep must be one of 'last', 'best-validation', 'best-refinement', got 'best'",
        ),
        ({"data": "sst", "momentum": 0.9}, "momentum needs optimizer 'sgd', got 0.9 with 'adagrad'"),
        ({"data": "digits", "word_vectors": "glove"}, "word_vectors are for newsgroups20, .*, got 'glove' for digits"),
    ],
)
def test_settings_that_do_not_fit_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        TrainingRecipe(model="mlp", **given)


def test_a_network_takes_one_kind_of_data(tmp_path):
    data, _ = tiny("sst", tmp_path / "data")
    assert {name for name in names() if input_kind(name) != "arrays"} == {"gp-cnn", "tree-lstm"}
    for model, kind in (("mlp", "arrays"), ("gp-cnn", "documents")):
        with pytest.raises(ValueError, match=f"model '{model}' takes {kind}, 'sst' has trees"):
            run(TrainingRecipe(data="sst", model=model), data, tmp_path)
    with pytest.raises(ValueError, match="model 'tree-lstm' takes trees, 'digits' has arrays"):
        run(TrainingRecipe(data="digits", model="tree-lstm"), data_sets.load("digits"), tmp_path)


class Turned(torch.nn.Module):
    """A network whose gradient has another order in memory than its weights."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 64 * 32).reshape(32, 64))
        self.head = Head(32, 10)

    def forward(self, inputs):
        return self.head(inputs @ self.weight.t().contiguous())


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad"])
def test_gradients_meet_their_weights_in_any_order_of_memory(optimizer):
    part = data_sets.load("digits").train
    recipe = TrainingRecipe(data="digits", model="mlp", optimizer=optimizer, learning_rate=0.01, weight_decay=0.0)
    batches = ArrayBatches(
        *(part.inputs, part.labels),
        **{"mean": np.zeros(1), "std": np.ones(1), "augmentation": "none", "batch_size": 64, "seed": 0},
        **{"device": CPU, "dtype": torch.float32},
    )
    torch.manual_seed(0)
    network, plain = Turned(), Turned()
    plain.load_state_dict(network.state_dict())
    Step(network, torch.nn.CrossEntropyLoss(), batches, recipe, classes=10, half=False, compiled=False).run_epoch(
        0, rate=0.01
    )
    maker = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adagrad": torch.optim.Adagrad}[optimizer]
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    slow = maker(plain.parameters(), lr=0.01, foreach=False, **momentum)
    batches.draw(0)
    for _ in range(batches.steps):
        inputs, labels = batches.next()
        slow.zero_grad()
        torch.nn.functional.cross_entropy(plain(inputs), labels).backward()
        slow.step()
        batches.advance()
    torch.testing.assert_close(network.weight, plain.weight, rtol=1e-4, atol=1e-5)
