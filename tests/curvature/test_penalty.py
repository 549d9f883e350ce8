"""The trace as a term of the loss: its value, its gradient, and its use in training."""

from __future__ import annotations

import os

import curvature_cases as cases
import pytest
import torch
from torch import multiprocessing, nn

from refocal.curvature import CurvatureRegularized, HessianTracePenalty, twice_differentiable
from refocal.curvature.penalty import find_parameters
from refocal.losses import FocalLoss


@pytest.mark.parametrize("name", cases.LOSSES)
def test_value_and_gradient_in_one_parameter(name):
    """A single parameter has one sign vector up to its sign, so the penalty is the second derivative itself."""
    loss, (inputs, target) = cases.LOSSES[name](reduction="mean"), cases.samples(name)
    direction = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def value(number):
        return loss(torch.tanh(number * inputs) @ direction, target)

    scale = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))
    penalty = HessianTracePenalty(0.5)(value(scale), [scale])
    second = torch.func.grad(torch.func.grad(value))
    assert penalty.item() == pytest.approx(0.5 * second(scale.detach()).item(), rel=1e-9, abs=1e-12)
    penalty.backward()
    third = torch.func.grad(second)(scale.detach()).item()
    assert scale.grad.item() == pytest.approx(0.5 * third, rel=1e-8, abs=1e-10)


def test_mean_over_many_probes_is_the_trace_with_its_gradient():
    """Within six standard errors of 24 means of 4 probes, in 52 numbers: fails by chance with probability 2e-4."""
    model, loss, (inputs, target) = cases.network(), FocalLoss(2.0), cases.samples("focal")
    parameters = {name: values.detach() for name, values in model.named_parameters()}

    def trace(values):
        whole = torch.func.hessian(lambda inner: loss(torch.func.functional_call(model, inner, (inputs,)), target))(
            values
        )
        return sum(whole[name][name].reshape(each.numel(), -1).trace() for name, each in values.items())

    truth = torch.cat(
        [trace(parameters)[None], *(part.flatten() for part in torch.func.grad(trace)(parameters).values())]
    )
    penalty, found = HessianTracePenalty(1.0, probes=4), []
    for _ in range(24):
        value = penalty(loss(model(inputs), target), model.parameters())
        slopes = torch.autograd.grad(value, list(model.parameters()), materialize_grads=True)
        found.append(torch.cat([value.detach()[None], *(slope.flatten() for slope in slopes)]))
    spread = torch.stack(found).std(dim=0) / 24**0.5
    assert ((torch.stack(found).mean(dim=0) - truth).abs() <= 6 * spread + 1e-12).all()


def test_a_sum_has_the_trace_of_a_sum():
    model, (inputs, target) = cases.network(), cases.samples("focal")
    mean, total = (
        HessianTracePenalty(1.0)(FocalLoss(2.0, reduction=reduction)(model(inputs), target), model.parameters())
        for reduction in ("mean", "sum")
    )
    assert total.item() == pytest.approx((target != -100).sum().item() * mean.item(), rel=1e-12)


def test_drop_in_loss_finds_the_parameters():
    model, (inputs, target) = cases.network(), cases.samples("focal")
    scores = model(inputs)
    assert {id(each) for each in find_parameters(scores)} == {id(each) for each in model.parameters()}
    loss, penalty = FocalLoss(2.0), HessianTracePenalty(0.1, seed=4)
    expected = loss(scores, target) + penalty(loss(scores, target), find_parameters(scores))
    criterion = CurvatureRegularized(loss, 0.1, seed=4)
    torch.testing.assert_close(criterion(scores, target), expected)
    subset = CurvatureRegularized(loss, 0.1, seed=4, parameters=model[2].parameters())
    assert subset(scores, target).item() != pytest.approx(expected.item(), rel=1e-6)
    plain = loss(scores, target)
    assert criterion.eval()(scores, target).item() == plain.item()
    with torch.no_grad():
        assert criterion.train()(model(inputs), target).item() == plain.item()


def test_every_other_call_twice_as_strong():
    model, (inputs, target) = cases.network(), cases.samples("focal")

    def called(penalty, times):
        return [penalty(FocalLoss(2.0)(model(inputs), target), model.parameters()).item() for _ in range(times)]

    lazy, always = called(HessianTracePenalty(1.0, every=2), 4), called(HessianTracePenalty(1.0), 4)
    assert lazy[1] == lazy[3] == 0
    assert [lazy[0], lazy[2]] == pytest.approx([2 * always[0], 2 * always[2]])
    assert called(HessianTracePenalty(0.0), 1) == [0.0]


def test_state_goes_on_where_it_was():
    model, (inputs, target) = cases.network(), cases.samples("focal")
    first = HessianTracePenalty(1.0, seed=5)
    values = [first(FocalLoss(2.0)(model(inputs), target), model.parameters()).item() for _ in range(2)]
    second = HessianTracePenalty(1.0, seed=5)
    second.load_state_dict({"_extra_state": {"calls": 1}})
    assert second(FocalLoss(2.0)(model(inputs), target), model.parameters()).item() == values[1]
    assert first.state_dict()["_extra_state"] == {"calls": 2}
    assert values[0] != values[1]


def test_accumulated_gradients_are_those_of_the_sum():
    model, (inputs, target) = cases.network(), cases.samples("focal")
    halves = [(inputs[:8], target[:8]), (inputs[8:], target[8:])]
    criterion = CurvatureRegularized(FocalLoss(2.0), 0.1)
    for half in halves:
        (criterion(model(half[0]), half[1]) / 2).backward()
    accumulated = [values.grad.clone() for values in model.parameters()]
    model.zero_grad()
    again = CurvatureRegularized(FocalLoss(2.0), 0.1)
    (sum(again(model(half[0]), half[1]) for half in halves) / 2).backward()
    for values, slope in zip(model.parameters(), accumulated, strict=True):
        torch.testing.assert_close(values.grad, slope)


def test_a_loss_linear_in_the_parameters_has_no_penalty():
    weight = nn.Parameter(torch.ones(3))
    penalty = HessianTracePenalty(1.0)((weight * torch.arange(3.0)).sum(), [weight])
    assert penalty.item() == 0


def test_what_the_penalty_needs():
    weight, penalty = nn.Parameter(torch.ones(3)), HessianTracePenalty(1.0)
    for loss, parameters in (
        ((weight**2).sum().detach(), [weight]),
        (weight**2, [weight]),
        ((weight**2).sum(), [torch.ones(3)]),
    ):
        with pytest.raises(ValueError, match="needs one number with a graph, and parameters that require a gradient"):
            penalty(loss, parameters)


def test_parameters_that_are_not_a_list_of_tensors_are_refused():
    model, (inputs, target) = cases.network(), cases.samples("focal")
    loss, words = FocalLoss(2.0), r"parameters must be a list of tensors, such as model\.parameters\(\), got"
    for parameters, name in (
        (model, "Sequential"),
        (model[0].weight, "Parameter"),
        (model.named_parameters(), "tuple"),
        ("0.weight", "str"),
    ):
        with pytest.raises(TypeError, match=f"{words} {name}"):
            CurvatureRegularized(loss, 0.1, parameters=parameters)
    with pytest.raises(TypeError, match=f"{words} Parameter"):
        HessianTracePenalty(0.1)(loss(model(inputs), target), model[0].weight)


def test_fused_attention_is_named():
    model, inputs = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), torch.randn(2, 3, 8)
    criterion, target = CurvatureRegularized(FocalLoss(2.0), 0.1), torch.tensor([0, 1])
    with pytest.raises(RuntimeError, match="fused attention has no second derivative"):
        criterion(model(inputs).flatten(1), target)
    with twice_differentiable():
        scores = model(inputs).flatten(1)
    criterion(scores, target).backward()


def test_autocast_is_refused():
    model, inputs = nn.Linear(3, 2), torch.randn(4, 3)
    criterion = CurvatureRegularized(FocalLoss(2.0), 0.1)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(RuntimeError, match=r"needs full precision.*outside of torch\.autocast"),
    ):
        criterion(model(inputs), torch.tensor([0, 1, 0, 1]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tau": -1.0}, "tau must be positive and finite, got -1.0"),
        ({"tau": 1.0, "probes": 0}, "probes must be at least 1, got 0"),
        ({"tau": 1.0, "every": 0}, "every must be at least 1, got 0"),
        ({"tau": 1.0, "seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_settings_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        HessianTracePenalty(**settings)


def _slopes_of_half(rank, folder):
    """One of two processes, with half of the samples: the gradient under DistributedDataParallel."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(cases.network())
    inputs, target = (each[rank::2] for each in cases.samples("focal"))
    scores = model(inputs)
    loss = FocalLoss(2.0)(scores, target)
    penalty = HessianTracePenalty(0.3)(loss, model.parameters())
    alone = torch.autograd.grad(loss + penalty, list(model.parameters()), retain_graph=True)
    (loss + penalty).backward()
    torch.save(([values.grad for values in model.parameters()], alone, penalty.item()), f"{folder}/{rank}.pt")
    torch.distributed.barrier()  # the first to leave would break the other's connection
    torch.distributed.destroy_process_group()
    os._exit(0)  # PyTorch threads that outlive main sometimes abort a regular exit


@pytest.mark.thorough
def test_two_processes_average_different_probes(tmp_path):
    multiprocessing.spawn(_slopes_of_half, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for shared, also, one, two in zip(first[0], second[0], first[1], second[1], strict=True):
        torch.testing.assert_close(shared, (one + two) / 2)
        torch.testing.assert_close(shared, also)
    assert first[2] != second[2]
