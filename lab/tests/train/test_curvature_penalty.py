"""Training with the trace of the Hessian in the loss."""

from __future__ import annotations

import threading

import pytest
import torch

from refocal.curvature import hessian_trace
from refocal.losses import FocalLoss
from refocal_lab.train.batches import normalize
from refocal_lab.train.data import load
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.run_folder import RunFolder
from refocal_lab.train.trial import Trial


def trial(folder, tau, epochs=2):
    recipe = TrainingRecipe(
        data="digits", model="mlp", loss="focal", gamma=1.0, curvature_penalty=tau, epochs=epochs, milestones=(5,)
    )
    folder.mkdir(exist_ok=True)
    return Trial(recipe, load("digits"), RunFolder(folder), device=torch.device("cpu"), compiled=False)


def ignore(_trial, _record):
    pass


def test_the_penalty_flattens(tmp_path):
    data = load("digits")
    mean, std = (torch.from_numpy(each).float() for each in (data.mean, data.std))
    inputs = normalize(torch.from_numpy(data.val.inputs), mean, 1 / std, torch.float32)
    batches = [(inputs, torch.from_numpy(data.val.labels))]
    traces = []
    for tau in (None, 1e-2):
        one = trial(tmp_path / str(tau), tau)
        one.run(ignore, stop=threading.Event())
        traces.append(hessian_trace(one.network, FocalLoss(1.0), batches, probes=20).value)
    assert traces[1] < 0.7 * traces[0]
    card = RunFolder(tmp_path / "0.01").read_card()
    assert card["name"] == "digits-mlp-focal-g1-tau0.01-s0"
    assert "--curvature-penalty 0.01" in card["command"]


def test_a_stopped_run_goes_on_with_the_same_probes(tmp_path):
    whole = trial(tmp_path / "whole", 1e-2)
    whole.run(ignore, stop=threading.Event())
    stop = threading.Event()
    trial(tmp_path / "parts", 1e-2).run(lambda *_: stop.set(), stop=stop)
    rest = trial(tmp_path / "parts", 1e-2)
    assert rest.epochs_done == 1
    rest.run(ignore, stop=threading.Event())
    for one, other in zip(whole.network.parameters(), rest.network.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_penalty_must_be_positive():
    with pytest.raises(ValueError, match="curvature_penalty must be positive and finite, got -1"):
        TrainingRecipe(data="digits", model="mlp", curvature_penalty=-1.0)
