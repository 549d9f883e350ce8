"""The training step against PyTorch's own optimizer, and its captured form against the plain one on a GPU."""

import copy
import threading

import numpy as np
import pytest
import torch

from refocal.losses import FocalLoss
from refocal_lab.train.batches import ArrayBatches
from refocal_lab.train.models import build
from refocal_lab.train.objective import build_loss
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.step import Step


def make(device="cpu", *, model="resnet8", seed=0, half=False, compiled=False, samples=64, **settings):
    device = torch.device(device)
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 256, (samples, 8, 8, 3), dtype=np.uint8), rng.integers(0, 10, samples)
    recipe = TrainingRecipe(**({"data": "cifar10", "model": model, "loss": "focal", "gamma": 2.0} | settings))
    torch.manual_seed(seed)
    network = build(model, shape=(3, 8, 8)).to(device).to(memory_format=torch.channels_last)
    batches = ArrayBatches(
        images,
        labels,
        mean=np.full(3, 127.0),
        std=np.full(3, 74.0),
        augmentation="crop-flip",
        batch_size=16,
        seed=seed,
        device=device,
        dtype=torch.bfloat16 if half else torch.float32,
    )
    loss = build_loss(recipe).to(device)
    return Step(network, loss, batches, recipe, classes=10, half=half, compiled=compiled)


@pytest.mark.parametrize("settings", [{}, {"sum_loss": True, "clip_norm": 2.0}, {"momentum": 0.0, "weight_decay": 0.0}])
def test_an_epoch_is_what_pytorchs_loop_makes(settings):
    step = make(**settings)
    network = copy.deepcopy(step.network)
    recipe = TrainingRecipe(data="cifar10", model="resnet8", loss="focal", gamma=2.0, **settings)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=0.05, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    criterion = FocalLoss(2.0, reduction="sum" if recipe.sum_loss else "mean")
    batches = make(**settings)._batches
    batches.draw(7)
    losses = []
    for _ in range(batches.steps):
        inputs, labels = batches.next()
        batches.advance()
        optimizer.zero_grad()
        loss = criterion(network(inputs), labels)
        loss.backward()
        if recipe.clip_norm:
            torch.nn.utils.clip_grad_norm_(network.parameters(), recipe.clip_norm)
        optimizer.step()
        losses.append(loss.item())
    step.run_epoch(7, rate=0.05)
    np.testing.assert_allclose(step.losses.numpy(), losses, rtol=1e-5)
    for ours, theirs in zip(step.parameters, network.parameters(), strict=True):
        torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-4, atol=1e-6)


def test_a_state_brings_an_epoch_back():
    step = make()
    step.run_epoch(0, rate=0.05)
    state = {name: tensor.clone() for name, tensor in step.state().items()}
    step.run_epoch(1, rate=0.05)
    after = {name: tensor.clone() for name, tensor in step.state().items()}
    other = make(seed=0)
    other.restore(state)
    other.run_epoch(1, rate=0.05)
    assert all(torch.equal(after[name], tensor) for name, tensor in other.state().items())


def test_half_precision_keeps_exact_weights_and_a_precise_head():
    step = make(half=True)
    step.run_epoch(0, rate=0.05)
    kinds = {name: parameter.dtype for name, parameter in step.network.named_parameters()}
    assert set(kinds.values()) == {torch.bfloat16, torch.float32}
    assert all(parameter.dtype == torch.float32 for parameter in step.parameters)
    assert step.network(torch.zeros(1, 3, 8, 8, dtype=torch.bfloat16)).dtype == torch.float32
    for used, kept in zip(step.network.parameters(), step.parameters, strict=True):
        assert torch.equal(used.detach(), kept.detach().to(used.dtype))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({"loss": "focal", "gamma": 2.0}, 0.01),
        ({"loss": "focal", "gamma": 2.0, "optimizer": "adam"}, 0.0001),
        ({"loss": "adafocal", "gamma": None}, 0.01),
        ({"loss": "brier", "gamma": None}, 0.01),
    ],
)
def test_a_captured_step_is_the_plain_one(compiled, settings, rate):
    plain, captured = (make("cuda", half=True, compiled=compiled, **settings) for _ in range(2))
    captured.capture()
    for step in (plain, captured):
        with torch.cuda.stream(step.stream):
            step.run_epoch(0, rate=rate)
        torch.cuda.synchronize()
    torch.testing.assert_close(plain.losses, captured.losses, rtol=2e-2, atol=1e-3)


@pytest.mark.gpu
def test_networks_side_by_side_learn_what_each_learns_alone():
    alone, together = ([make("cuda", half=True, seed=seed, samples=512) for seed in range(4)] for _ in range(2))

    def run(step):
        with torch.cuda.stream(step.stream):
            for epoch in range(5):
                step.run_epoch(epoch, rate=0.01)
            torch.cuda.current_stream().synchronize()

    for step in (*alone, *together):
        step.capture()
    for step in alone:
        run(step)
    threads = [threading.Thread(target=run, args=(step,)) for step in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(alone, together, strict=True):
        torch.testing.assert_close(one.losses, other.losses, rtol=5e-2, atol=5e-3)
