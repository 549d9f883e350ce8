"""Networks, losses and data sets of the user's own, from a module that the command line or a file names."""

import json
import re
import shlex
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import CPU, StoppedError, stop_after, weights

from refocal.losses import FocalLoss
from refocal_lab.cli import main
from refocal_lab.cli.parser import build_parser
from refocal_lab.cli.recipes import build_recipes
from refocal_lab.train.data import load, make_data_set
from refocal_lab.train.loop import train
from refocal_lab.train.models import build
from refocal_lab.train.own_parts import OwnPartError, is_own
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.run_folder import RunFolder
from refocal_lab.train.trained_network import load_loss, load_network

MODULE = """
import numpy as np
import torch
from torch import nn
from refocal.losses import FocalLoss, Scheduled
from refocal_lab.train.data import load, make_data_set

calls = []

def small(*, classes, shape):
    calls.append((classes, shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, classes))

def norms(*, classes, shape):  # without a linear layer
    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.centers = nn.Parameter(torch.zeros(classes, shape[0]))

        def forward(self, inputs):
            return -torch.cdist(inputs, self.centers).square()

    return Norms()

class Sharp(nn.Module):
    def __init__(self, sharpness):
        super().__init__()
        self.sharpness = sharpness

    def forward(self, logits, target):
        return nn.functional.cross_entropy(self.sharpness * logits, target)

def sharp(gamma=2.0):
    return Sharp(gamma)

def scheduled():
    return FocalLoss(Scheduled((1, 2), (3.0, 2.0, 1.0)))

def blobs(split_seed=0):
    rng = np.random.default_rng(split_seed)
    labels = rng.integers(0, 3, 300)
    inputs = rng.normal(size=(300, 5)) + 3 * np.eye(3, 5)[labels]
    parts = [(inputs[rows], labels[rows]) for rows in (slice(200), slice(200, 250), slice(250, 300))]
    return make_data_set("blobs", classes=("a", "b", "c"), train=parts[0], val=parts[1], test=parts[2])

def wide(*, classes, shape):
    return nn.Linear(shape[0], classes + 1)

def no_module(*, classes, shape):
    return "a network"

def broken(*, classes, shape):
    return nn.Linear(shape[1], classes)

def narrow(*, classes, shape):
    return nn.Linear(3, classes)

class Layered(nn.Module):  # with a layer that the logits do not depend on
    def __init__(self, *, classes, shape):
        super().__init__()
        self.used, self.idle = nn.Linear(shape[0], classes), nn.Linear(3, 3)

    def forward(self, inputs):
        return self.used(inputs)

class Shared(nn.Module):  # with a weight of two names, and a buffer that state_dict leaves out
    def __init__(self, *, classes, shape):
        super().__init__()
        self.first, self.second = nn.Linear(shape[0], shape[0]), nn.Linear(shape[0], shape[0])
        self.second.weight = self.first.weight
        self.last = nn.Linear(shape[0], classes)
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, inputs):
        return self.last(self.second(self.first(inputs).relu()).relu()) * self.scale

class Averaged(nn.Module):  # with running statistics that are plain averages
    def __init__(self, *, classes, shape):
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(1, momentum=None), nn.Linear(shape[0], classes)

    def forward(self, inputs):
        return self.last(self.norm(inputs[:, None, None])[:, 0, 0])

def frozen(*, classes, shape):
    return nn.Linear(shape[0], classes).requires_grad_(False)

class Detached(nn.Module):
    def forward(self, logits, target):
        return logits.detach().mean()

def each_sample():
    return nn.CrossEntropyLoss(reduction="none")

def learned():
    return nn.PReLU()

def bad_labels():
    import dataclasses
    data = blobs()
    return dataclasses.replace(data, val=dataclasses.replace(data.val, labels=data.val.labels + 7))

def strange_labels():
    part = np.eye(2), np.array([1, 2])
    return make_data_set("strange", classes=("a", "b"), train=part, val=part, test=part)

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    """A folder with a module, in which commands are run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    (tmp_path / "sick.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in ("mine", "sick"):
        sys.modules.pop(name, None)


OWN = ["--data", "mine:blobs", "--model", "mine:small", "--loss", "mine:sharp"]
QUICK = ["--epochs", "4", "--batch-size", "20", "--device", "cpu"]
NAME = "mine.blobs-mine.small-mine.sharp"


def test_a_network_a_loss_and_data_of_ones_own_are_trained(tmp_path, capsys):
    assert main(["train", *OWN, *QUICK, "--json"]) == 0
    (card,) = json.loads(capsys.readouterr().out)
    assert card["name"] == f"{NAME}-s0"
    assert (card["data"], card["model"], card["loss"]) == ("blobs", "mine:small", "mine:sharp")
    assert card["recipe"]["data"] == "mine:blobs"
    assert card["split"] == "200 / 50 / 50, as given"
    assert card["error"] < 0.1
    recipe = TrainingRecipe(
        data="mine:blobs", model="mine:small", loss="mine:sharp", epochs=4, batch_size=20, learning_rate=0.1
    )
    assert build_recipes(build_parser().parse_args(shlex.split(card["command"])[1:])) == [recipe]
    folder = tmp_path / "runs" / card["name"]
    network = load_network(folder, classes=3, shape=(5,))
    data = load("mine:blobs")
    inputs = torch.from_numpy((data.test.inputs - data.mean) / data.std).float()
    assert np.mean(network(inputs).argmax(dim=1).numpy() != data.test.labels) == pytest.approx(card["error"])
    assert load_loss(folder).sharpness == 2.0


def test_a_stopped_run_goes_on_with_the_same_parts(tmp_path):
    (recipe,) = build_recipes(build_parser().parse_args(["train", *OWN, *QUICK]))

    with pytest.raises(StoppedError):
        train([recipe], load(recipe.data), tmp_path / "parts", device=CPU, report=stop_after(2))
    for out in ("parts", "whole"):
        assert main(["train", *OWN, *QUICK, "--out", out]) == 0
    whole, parts = (weights(tmp_path / out / recipe.name) for out in ("whole", "parts"))
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_curvature_is_measured_of_them(tmp_path, capsys):
    assert main(["train", *OWN, *QUICK, "--gamma", "1.5"]) == 0
    run = tmp_path / "runs" / f"{NAME}-g1.5-s0"
    measured = ["curvature", "--run", str(run), "--samples", "20", "--probes", "2", "--device", "cpu", "--json"]
    capsys.readouterr()
    assert main(measured) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["loss"] == "trained"
    assert RunFolder(run).read_card()["curvature"] == [{k: v for k, v in entry.items() if k != "run"}]


def test_a_file_names_them_too_and_gamma_reaches_the_loss(tmp_path, capsys):
    (tmp_path / "plan.toml").write_text(
        'data = "mine:blobs"\nmodel = "mine:norms"\nloss = "mine:sharp"\nepochs = 2\nlearning_rate = 0.01\n'
        "[[runs]]\ngamma = 0.5\n[[runs]]\ngamma = 3\n",
        encoding="utf-8",
    )
    assert main(["train", "plan.toml", "--device", "cpu", "--json"]) == 0
    cards = json.loads(capsys.readouterr().out)
    folders = [tmp_path / "runs" / card["name"] for card in cards]
    assert [load_loss(folder).sharpness for folder in folders] == [0.5, 3.0]
    last = json.loads(RunFolder(folders[0]).history.read_text(encoding="utf-8").splitlines()[-1])
    assert last["head_norm"] is None  # the network has no linear layer


def test_a_schedule_of_ones_own_is_that_of_the_kept_epoch(tmp_path):
    assert main(["train", "--data", "digits", "--model", "mlp", "--loss", "mine:scheduled", *QUICK]) == 0
    folder = tmp_path / "runs" / "digits-mlp-mine.scheduled-s0"
    logits, target = torch.tensor([[1.0, 0.0, -1.0]]), torch.tensor([0])
    for kept, gamma in ((4, 1.0), (3, 1.0), (2, 2.0), (1, 3.0)):  # all but epoch 4 are the first with their gamma
        RunFolder(folder).update_card(kept_epoch=kept)
        loss, stated = load_loss(folder), FocalLoss(gamma)
        torch.testing.assert_close(loss(logits, target), stated(logits, target))
        torch.testing.assert_close(loss.posterior(logits), stated.posterior(logits))


def test_a_layer_that_is_not_used_does_not_stop_a_training(tmp_path):
    assert main(["train", *OWN, *QUICK, "--model", "mine:Layered", "--weight-decay", "0"]) == 0
    recipe = {"data": "mine:blobs", "model": "mine:Layered", "loss": "mine:sharp"}
    network = load_network(tmp_path / "runs" / TrainingRecipe(**recipe).name, classes=3, shape=(5,))
    torch.manual_seed(0)
    fresh = build("mine:Layered", classes=3, shape=(5,))
    assert torch.equal(network.idle.weight, fresh.idle.weight)
    assert not torch.equal(network.used.weight, fresh.used.weight)


@pytest.mark.parametrize("name", ["Shared", "Averaged"])
def test_networks_with_unusual_tensors_are_trained_and_loaded(tmp_path, capsys, name):
    assert main(["train", *OWN, *QUICK, "--model", f"mine:{name}", "--json"]) == 0
    (card,) = json.loads(capsys.readouterr().out)
    network = load_network(tmp_path / "runs" / card["name"], classes=3, shape=(5,))
    data = load("mine:blobs")
    inputs = torch.from_numpy((data.test.inputs - data.mean) / data.std).float()
    assert np.mean(network(inputs).argmax(dim=1).numpy() != data.test.labels) == pytest.approx(card["error"])
    assert card["error"] < 0.2
    assert card["parameters"] == sum(weight.numel() for weight in network.parameters())
    if name == "Averaged":
        assert network.norm.num_batches_tracked == 4 * 10
        assert network.norm.running_var != 1


def test_weights_of_another_network_are_refused(tmp_path):
    assert main(["train", *OWN, *QUICK]) == 0
    folder = tmp_path / "runs" / f"{NAME}-s0"
    RunFolder(folder).update_card(recipe=RunFolder(folder).read_card()["recipe"] | {"model": "mine:norms"})
    with pytest.raises(ValueError, match=r"weights.safetensors cannot be read: it is of another network, 1.bias"):
        load_network(folder, classes=3, shape=(5,))


def test_another_split_is_asked_of_the_data(tmp_path, capsys):
    assert main(["train", *OWN, *QUICK, "--split-seed", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["recipe"]["split_seed"] == 3
    assert not np.array_equal(load("mine:blobs").train.labels, load("mine:blobs", split_seed=3).train.labels)


def test_reading_a_card_imports_nothing(tmp_path):
    assert main(["train", *OWN, *QUICK]) == 0
    sys.modules.pop("mine")
    folder = tmp_path / "runs" / f"{NAME}-s0"
    assert RunFolder(folder).read_card()["model"] == "mine:small"
    assert main(["zoo", "add", str(folder), "--zoo", str(tmp_path / "zoo")]) == 0
    assert "mine" not in sys.modules


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ["--model", "yours:small"],
            "model 'yours:small': no module 'yours' in the current folder or among",
        ),
        (["--model", "mine.py:small"], "model 'mine.py:small': no module 'mine.py' in .*; leave out .py"),
        (["--model", "sick:small"], "the module cannot be imported: ModuleNotFoundError: .*nowhere.*sick.py, line 1"),
        (["--model", "mine:big"], r"model 'mine:big': mine \(.*mine.py\) has no function 'big'"),
        (["--model", "mine:number"], r"mine \(.*mine.py\) has no function 'number'"),
        (["--model", "mine:"], "model must be a name or package.module:function, got 'mine:'"),
        (["--model", "./mine:small"], "model must be a name or package.module:function, got './mine:small'"),
        (["--model", "mine:no_module"], "model 'mine:no_module' must return an instance of torch's Module, got str"),
        (["--model", "mine:blobs"], "model 'mine:blobs' failed: TypeError: blobs.. got an unexpected keyword argument"),
        (["--model", "mine:broken"], r"model 'mine:broken' failed: IndexError: .*mine.py, line \d+"),
        (["--model", "mine:narrow"], r"model 'mine:narrow' failed on inputs of shape \(2, 5\): RuntimeError"),
        (["--model", "mine:frozen"], "model 'mine:frozen' has no parameters to train"),
        (["--model", "mine:wide"], r"model 'mine:wide' must return logits of shape \(2, 3\), got shape \(2, 4\)"),
        (["--loss", "mine:small"], "loss 'mine:small' failed: TypeError: small.. missing 2 required keyword-only"),
        (["--loss", "mine:blobs"], "loss 'mine:blobs' must return an instance of torch's Module, got DataSet"),
        (["--loss", "mine:each_sample"], r"must return one number with a gradient, .* got a tensor of shape \(2,\)"),
        (["--loss", "mine:Detached"], r"one number with a gradient, .* got a tensor of shape \(\) without a gradient"),
        (["--loss", "mine:learned"], "loss 'mine:learned' has parameters to train"),
        (["--loss", "mine:sharp", "--sum-loss"], "sum_loss is for the lab's losses, got loss 'mine:sharp'"),
        (["--loss", "mine:sharp", "--factor", "2"], "loss 'mine:sharp' failed: TypeError: .*'factor'"),
        (["--data", "mine:sharp"], "data 'mine:sharp' must return an instance of refocal_lab's DataSet, got Sharp"),
        (["--data", "mine:bad_labels"], "data 'mine:bad_labels': val.labels must be 0 to 2, got 7 to 9"),
        (
            ["--data", "mine:strange_labels"],
            r"failed: ValueError: train.labels must be 0 to 1, got 1 to 2 \(.*mine.py, l",
        ),
        (["--device", "tpu"], "device must be 'cpu', 'cuda' or 'cuda:N', got 'tpu'"),
        (["--device", "meta"], "device must be 'cpu', 'cuda' or 'cuda:N', got 'meta'"),
        (["--data-folder", "."], "folder and download are for the lab's data sets, got data 'mine:blobs'"),
        (["--word-vectors", "glove"], "word_vectors are for newsgroups20"),
        (["--augmentation", "crop"], "augmentation 'crop' is for images"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, capsys, options, reason):
    assert main(["train", *OWN, *QUICK, *options]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(reason, said), said
    assert not list((tmp_path / "runs").glob("*"))


def test_the_current_folder_does_not_hide_packages(tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError\n", encoding="utf-8")
    assert build("mine:small", classes=3, shape=(5,))[1].in_features == 5
    assert sys.path.index(str(tmp_path)) == len(sys.path) - 1
    with pytest.raises(OwnPartError, match="has no function 'small'"):
        build("json:small", classes=3, shape=(5,))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"classes": ("a",)}, "classes must have at least 2 names, got 1"),
        ({"val": (np.zeros((0, 4)), np.zeros(0, int))}, "val must have at least one sample"),
        ({"val": (np.zeros((2, 4)), np.zeros(3, int))}, "val must have one label per input, got 2 inputs and 3 labels"),
        (
            {"val": (np.zeros((2, 3)), np.zeros(2, int))},
            r"val.inputs must have samples of shape \(4,\), as train has, got \(3,\)",
        ),
        ({"test": (np.zeros((2, 4)), np.array([0, 2]))}, "test.labels must be 0 to 1, got 0 to 2"),
        ({"test": (np.zeros((2, 4, 4, 1)), np.zeros(2, int))}, "test.inputs must be uint8 images"),
        ({"test": (np.full((2, 4), np.nan), np.zeros(2, int))}, "test.inputs must be finite"),
        ({"test": (np.zeros((2, 4)), np.zeros((2, 1), int))}, r"test.labels must be an int64 array of shape \(N,\)"),
    ],
)
def test_arrays_that_make_no_data_set_are_refused(changes, reason):
    part = np.arange(16.0).reshape(4, 4), np.array([0, 1, 0, 1])
    given = {"classes": ("a", "b"), "train": part, "val": part, "test": part}
    data = make_data_set("four", **given)
    assert data.mean == pytest.approx(7.5)
    assert data.kind == "arrays"
    with pytest.raises(ValueError, match=reason):
        make_data_set("four", **given | changes)
    with pytest.raises(TypeError, match=r"val.labels must be integers, got float64"):
        make_data_set("four", **given | {"val": (part[0], part[1] / 2)})


def test_images_of_ones_own_are_bytes():
    images, labels = np.arange(2 * 3 * 3 * 2, dtype=np.uint8).reshape(2, 3, 3, 2), np.array([0, 1])
    part = images, labels
    data = make_data_set("small", classes=("a", "b"), train=part, val=part, test=part)
    assert data.shape == (2, 3, 3)
    np.testing.assert_allclose(data.mean, images.mean(axis=(0, 1, 2)))
    assert is_own("a:b")
    assert not is_own("digits")


def test_the_example_of_the_page_trains(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    section = page.partition("## Train your own")[2]
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1], encoding="utf-8")
    command = re.search(r"```sh\nrefocal-lab (.*?)\n```", section, re.DOTALL)[1]
    assert main([*shlex.split(command), "--device", "cpu"]) == 0
    cards = [RunFolder(folder).read_card() for folder in (tmp_path / "runs").iterdir()]
    assert sorted(card["gamma"] for card in cards) == [1.0, 3.0]
    assert all(card["error"] < 0.1 for card in cards)
