"""Perceptrons with a penalty on the trace of the Hessian."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from refocal_lab.reproduce.computation import Context
from refocal_lab.reproduce.kinds import curvature_penalty
from refocal_lab.reproduce.penalized_networks import PenaltyRecipe, load_parts, train_penalized
from refocal_lab.train.data import load

pytestmark = pytest.mark.forward_mode
RECIPE = PenaltyRecipe(hidden=6, epochs=3, batch=50, probes=4)


@pytest.fixture(scope="module")
def parts():
    return load_parts("digits", None, train=200, val=60)


def test_parts_are_standardized_and_apart(parts):
    published = load("digits")
    assert [len(part.labels) for part in parts[:3]] == [200, 60, len(published.test.labels)]
    assert parts.classes == 10
    assert parts.train.features.mean().abs() < 1e-5
    assert parts.train.features.std() == pytest.approx(1, abs=1e-3)
    rows = {tuple(row) for row in parts.train.features.tolist()}
    assert not rows & {tuple(row) for row in parts.val.features.tolist()}


def test_without_penalty_it_is_plain_training(parts):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    order = torch.Generator().manual_seed(1)
    for _ in range(3):
        for batch in torch.randperm(200, generator=order).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(parts.train.features[batch]), parts.train.labels[batch]).backward()
            optimizer.step()
    wrong = (network(parts.test.features).argmax(dim=1) != parts.test.labels).float().mean().item()
    state = torch.get_rng_state()
    found = train_penalized(parts, RECIPE, tau=0.0, rate=0.1, seed=1)
    assert found["error"] == pytest.approx(wrong)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_penalty_lowers_the_trace(parts):
    recipe = replace(RECIPE, probes=20)
    plain, penalized = (train_penalized(parts, recipe, tau=tau, rate=0.1, seed=0) for tau in (0.0, 0.03))
    assert penalized["trace"] + 3 * penalized["trace_error"] < plain["trace"] - 3 * plain["trace_error"]


def test_a_network_that_diverges_has_no_measures(parts):
    found = train_penalized(parts, RECIPE, tau=0.0, rate=1e30, seed=0)
    assert found == {"tau": 0.0, "rate": 1e30, "seed": 0, "diverged": True}


def test_diverged_networks_are_left_out_of_the_figure():
    given = curvature_penalty.Parameters(
        *("digits", 100, 50, 4, (0.0, 0.01), (0.1, 1e30)), seeds=2, epochs=1, batch=50, probes=2
    )
    numbers = curvature_penalty.compute(given, Context())
    assert numbers.values["diverged"] == 4
    assert {"rank correlation of trace and tau(1e+30)", "ece fall, low(1e+30, 0.01)"} <= set(numbers.absent)
    assert not set(numbers.absent) & numbers.values.keys()
    assert {row[2:] for row in numbers.table if row[0] == "1e+30"} == {("diverged", "diverged")}
    figure = Figure(layout="constrained")
    curvature_penalty.draw(figure, given, numbers)
    traces = [x for line in figure.axes[0].lines for x in line.get_xdata()]
    assert len(traces) == 4
    assert np.all(np.isfinite(traces))
