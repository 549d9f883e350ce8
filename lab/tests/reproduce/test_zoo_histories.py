"""Figures of training histories in a zoo, and which networks a figure shows."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from made_zoo import add, add_history, write_zoo
from refocal_lab import reproduce
from refocal_lab.reproduce import Context, result_files
from refocal_lab.reproduce.zoo_entries import Network
from zoo_experiments import SPECS, computed


def test_histories(tmp_path):
    found = computed("002-fig-3", write_zoo(tmp_path / "zoo"))
    # The artificial measures fall linearly over ten epochs from 2 / (1 + gamma); the learning rate drops after four.
    path = 2 / (1 + 1) * (1 - np.arange(1, 11) / 11)
    np.testing.assert_allclose(found.curves["paths"]["cifar10 resnet20"]["focal 1"]["test.wrong.nll"], path)
    assert found.values["first test.wrong.nll(cifar10 resnet20, focal 1)"] == pytest.approx(path[0])
    rise = found.values["rise of test.wrong.nll(cifar10 resnet20, focal 1)"]
    assert rise == pytest.approx(path[-1] - path[4:9].mean())
    assert "last head_norm(cifar10 resnet50, focal 1)" in found.absent


def test_a_learning_rate_that_never_drops(tmp_path):
    folder = write_zoo(tmp_path / "zoo", seeds=1, gammas=(0.0,))
    file = folder / "g0-s0.jsonl.gz"
    epochs = [json.loads(line) | {"learning_rate": 0.1} for line in gzip.decompress(file.read_bytes()).splitlines()]
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, epochs)).encode()))
    found = computed("002-fig-1", folder)
    assert "rise of test.nll(cifar10 resnet20, cross-entropy)" in found.absent
    assert "last test.nll(cifar10 resnet20, cross-entropy)" in found.values


@pytest.mark.parametrize(
    ("name", "curves", "shown"),
    [
        ("002-fig-1", "paths", ["cifar10 resnet50"]),  # it has the only loss of the figure
        ("002-fig-3", "paths", ["cifar10 resnet50", "cifar10 resnet20"]),
        ("002-fig-4b", "histograms", ["cifar10 resnet50", "cifar10 resnet20"]),
        ("002-fig-8", "shown", ["cifar10 resnet50", "cifar10 resnet20"]),
    ],
)
def test_networks_are_drawn_up_to_the_first_that_has_all_losses(name, curves, shown, tmp_path):
    folder = write_zoo(tmp_path / "zoo", seeds=1)
    for loss in ({}, {"loss": "focal", "gamma": 1.0}):
        add(folder, f"paper-{len(loss)}", data="cifar10", model="resnet50", **loss)
        add_history(folder, f"paper-{len(loss)}", epochs=20)
    numbers = computed(name, folder)
    found = numbers.curves[curves]
    names = [item["network"] for item in found] if curves == "histograms" else list(found)
    assert list(dict.fromkeys(names)) == shown
    figure = Figure(layout="constrained")
    reproduce.KINDS[SPECS[name].kind].draw(figure, SPECS[name].parameters["smoke"], numbers)
    texts = " ".join(text.get_text() for text in figure.findobj(Text))
    assert [network for network in ("ResNet-50", "ResNet-20") if network in texts] == [
        Network.parse(text).model_label for text in shown
    ]


def test_a_history_without_mistakes(tmp_path):
    folder = write_zoo(tmp_path / "zoo", gammas=(0.0,))
    for seed, without in ((0, 3), (1, 5)):  # number of final epochs without training errors
        file = folder / f"g0-s{seed}.jsonl.gz"
        epochs = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
        for epoch in epochs[-without:]:
            epoch["train"] = {**epoch["train"], "wrong": None}
        file.write_bytes(gzip.compress("\n".join(map(json.dumps, epochs)).encode()))
    result = reproduce.reproduce(
        SPECS["002-fig-2"], scale="smoke", results=tmp_path / "results", context=Context(zoo=folder)
    ).result
    path = result.numbers.curves["paths"]["cifar10 resnet20"]["cross-entropy"]["train.wrong.true_probability"]
    assert path[:7] == pytest.approx(1 - (1 - np.arange(1, 8) / 11), rel=1e-4)
    assert path[7:] == [None] * 3
    assert "last train.wrong.entropy(cifar10 resnet20, cross-entropy)" in result.numbers.absent
    assert "first train.wrong.entropy(cifar10 resnet20, cross-entropy)" in result.numbers.values
    assert result_files.load(tmp_path / "results", SPECS["002-fig-2"], "smoke") == result
