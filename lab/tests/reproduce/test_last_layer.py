"""Gradient norms of the last layer, against gradients of single samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from refocal.losses import FocalLoss
from refocal_lab.reproduce import last_layer
from refocal_lab.train.data import load
from refocal_lab.train.loop import train
from refocal_lab.train.models import build
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.trained_network import load_network


def one_by_one(network, loss, inputs, labels):
    """The norms from one backward pass per sample."""
    weights = list(network.parameters())[-2]
    found = []
    for row in range(len(labels)):
        network.zero_grad()
        loss(network(inputs[row : row + 1]), labels[row : row + 1]).backward()
        found.append(weights.grad.double().norm().item())
    return np.array(found)


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), FocalLoss(1), FocalLoss(3)], ids=["ce", "g1", "g3"])
@pytest.mark.parametrize("model", ["mlp", "resnet8"])
def test_norms_are_those_of_single_samples(model, loss):
    torch.manual_seed(0)
    shape = (12,) if model == "mlp" else (3, 32, 32)
    network = build(model, classes=5, shape=shape).eval()
    inputs, labels = torch.randn(9, *shape), torch.randint(0, 5, (9,))
    found = last_layer.gradient_norms(network, loss, inputs, labels)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, one_by_one(network, loss, inputs, labels), rtol=1e-5)


def test_batches_do_not_matter(monkeypatch):
    torch.manual_seed(1)
    network, loss = build("mlp", classes=3, shape=(4,)).eval(), FocalLoss(2)
    inputs, labels = torch.randn(7, 4), torch.randint(0, 3, (7,))
    whole = last_layer.gradient_norms(network, loss, inputs, labels)
    monkeypatch.setattr(last_layer, "_BATCH", 3)
    np.testing.assert_allclose(last_layer.gradient_norms(network, loss, inputs, labels), whole, rtol=1e-6)
    assert last_layer.gradient_norms(network, loss, inputs[:0], labels[:0]).shape == (0,)


def test_the_ratio_of_norms_is_g():
    # Proposition 1: the gradient of focal loss is g(p, gamma) times that of cross-entropy.
    from refocal import phi

    torch.manual_seed(2)
    network = build("mlp", classes=4, shape=(6,)).eval()
    inputs, labels = 3 * torch.randn(20, 6), torch.randint(0, 4, (20,))
    plain, focal = (
        last_layer.gradient_norms(network, loss, inputs, labels) for loss in (nn.CrossEntropyLoss(), FocalLoss(3))
    )
    probs = network(inputs).detach().double().softmax(dim=1).numpy()[np.arange(20), labels.numpy()]
    np.testing.assert_allclose(focal / plain, phi(probs, gamma=3), rtol=1e-4)


def test_networks_that_do_not_fit_are_refused():
    inputs, labels = torch.randn(2, 3), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="network must be in evaluation mode, got one in training mode"):
        last_layer.gradient_norms(nn.Linear(3, 2), nn.CrossEntropyLoss(), inputs, labels)
    scaled = nn.Sequential(nn.Linear(3, 2), nn.Softmax(dim=1)).eval()
    with pytest.raises(ValueError, match="network must end with a linear layer of vectors, got Sequential"):
        last_layer.gradient_norms(scaled, nn.CrossEntropyLoss(), inputs, labels)


def test_a_run(tmp_path):
    recipe = TrainingRecipe(data="digits", model="mlp", loss="focal", gamma=2.0, epochs=1, batch_size=64)
    data = load("digits")
    train([recipe], data, tmp_path, device=torch.device("cpu"))
    run = tmp_path / recipe.name
    norms = last_layer.measure_run(run, part="val")
    assert norms.shape == data.val.labels.shape
    network = load_network(run, classes=10, shape=data.shape)
    rows = slice(0, 5)
    inputs = (torch.from_numpy(data.val.inputs[rows]) - torch.from_numpy(data.mean).float()) / torch.from_numpy(
        data.std
    ).float()
    labels = torch.from_numpy(data.val.labels[rows])
    np.testing.assert_allclose(norms[rows], one_by_one(network, FocalLoss(2), inputs, labels), rtol=1e-4)
