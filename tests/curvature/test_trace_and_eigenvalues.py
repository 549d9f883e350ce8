"""Estimates against exact values, their side effects, and the arguments that they reject."""

from __future__ import annotations

import itertools

import curvature_cases as cases
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from refocal.curvature import (
    NotConvergedError,
    curvature_summary,
    gradient_norm,
    hessian_top_eigenvalues,
    hessian_trace,
)
from refocal.curvature.modes import full_precision
from refocal.losses import FocalLoss


def exact(name, loss):
    return cases.exact_hessian(cases.network(), loss, *cases.samples(name))


@pytest.mark.parametrize("name", cases.LOSSES)
def test_largest_eigenvalues_to_a_millionth(name):
    loss = cases.LOSSES[name](reduction="mean")
    values = np.linalg.eigvalsh(exact(name, loss).numpy())
    k = 1 if name == "proper focal" else 3  # its products take long
    found = hessian_top_eigenvalues(cases.network(), loss, [cases.samples(name)], k=k)
    np.testing.assert_allclose(found.algebraic, values[::-1][:k], rtol=1e-6)
    np.testing.assert_allclose(found.modulus, values[np.argsort(-np.abs(values))][:k], rtol=1e-6)


def against(scores, target):
    return -F.cross_entropy(scores, target)


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_largest_in_modulus_may_be_negative(matrix):
    inputs, target = cases.samples("focal")
    target = target.clamp(min=0)
    whole = (cases.exact_hessian if matrix == "hessian" else cases.exact_ggn)(cases.network(), against, inputs, target)
    values = np.linalg.eigvalsh(whole.numpy())
    found = hessian_top_eigenvalues(cases.network(), against, [(inputs, target)], matrix=matrix)
    assert found.modulus[0] == pytest.approx(values[0], rel=1e-6) and values[0] < 0
    assert found.algebraic[0] == pytest.approx(values[-1], abs=1e-6 * abs(values[0]))


def test_small_matrices_are_written_down():
    model = nn.Linear(2, 2).double()
    data = [(torch.randn(5, 2, dtype=torch.float64), torch.randint(2, (5,)))]
    whole = cases.exact_hessian(model, FocalLoss(2.0), *data[0])
    found = hessian_top_eigenvalues(model, FocalLoss(2.0), data, k=6)
    np.testing.assert_allclose(found.algebraic, np.linalg.eigvalsh(whole.numpy())[::-1], atol=1e-12)
    assert found.products == 6


def test_lanczos_takes_fewer_products_than_power_iteration():
    loss, data = FocalLoss(2.0), cases.batches("focal")
    whole = exact("focal", loss)
    top = np.linalg.eigvalsh(whole.numpy())[-1]
    vector, products = torch.ones(len(whole), dtype=torch.float64), 0
    while abs(float(vector @ whole @ vector / (vector @ vector)) / top - 1) > 1e-6:
        vector, products = F.normalize(whole @ vector, dim=0), products + 1
    assert hessian_top_eigenvalues(cases.network(), loss, data).products < products


@pytest.mark.parametrize("group", [None, 8, 10**6])
@pytest.mark.thorough
def test_trace_is_unbiased_and_knows_its_error(group):
    """100 estimates: their mean is off by 5.2 standard errors, or their spread by 40 %, with probability below 2e-6."""
    loss, data = FocalLoss(2.0), [cases.samples("focal")]
    truth = exact("focal", loss).trace().item()
    found = [hessian_trace(cases.network(), loss, data, probes=10, group=group, seed=seed) for seed in range(100)]
    values = np.array([each.value for each in found])
    assert abs(values.mean() - truth) < 5.2 * values.std(ddof=1) / np.sqrt(100)
    said = np.sqrt(np.mean([each.standard_error**2 for each in found]))
    assert said == pytest.approx(values.std(ddof=1), rel=0.4)


def test_probes_for_each_group_err_less():
    inputs = torch.randn(200, 4, dtype=torch.float64) + 2
    data = [(inputs, torch.randint(3, (200,)))]
    errors = [
        hessian_trace(cases.network(), nn.CrossEntropyLoss(), data, probes=200, group=group).standard_error
        for group in (10**6, 20)
    ]
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize("method", ["hutch++", "xtrace"])
@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_sketching_estimators(method, matrix):
    loss = FocalLoss(2.0)
    whole = (cases.exact_hessian if matrix == "hessian" else cases.exact_ggn)(
        cases.network(), loss, *cases.samples("focal")
    )
    found = hessian_trace(cases.network(), loss, cases.batches("focal"), probes=72, method=method, matrix=matrix)
    # The error has a t distribution with 3 degrees of freedom.
    assert abs(found.value - whole.trace().item()) < 10 * found.standard_error


@pytest.mark.parametrize("method", ["hutch++", "xtrace"])
def test_sketching_is_exact_where_the_rank_is_low(method):
    """Two samples and three classes: a Hessian of rank four, which a sketch of six vectors spans."""
    model = nn.Linear(10, 3).double()
    data = [(torch.randn(2, 10, dtype=torch.float64), torch.tensor([0, 2]))]
    whole = cases.exact_hessian(model, nn.CrossEntropyLoss(), *data[0])
    found = hessian_trace(model, nn.CrossEntropyLoss(), data, probes=72, method=method)
    assert found.value == pytest.approx(whole.trace().item(), rel=1e-6)


def peak(call):
    """The peak of allocated bytes, by the profiler."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as recorded:
        call()
    changes = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in changes))


@pytest.mark.parametrize("kind", ["linear", "convolutions", "embedding"])
def test_probes_keep_to_their_memory(kind):
    torch.manual_seed(0)
    inputs, last = torch.randn(100, 3, 10, 10), [nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)]
    if kind == "linear":
        model = nn.Sequential(nn.Flatten(), nn.Linear(300, 50), *last)
    elif kind == "convolutions":
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), *last)
    else:
        inputs = torch.randint(2000, (100, 16))
        model = nn.Sequential(nn.Embedding(2000, 32), nn.Tanh(), *last)
    model(inputs)
    data, memory = [(inputs, torch.randint(10, (100,)))], 2 * 10**7
    found = peak(lambda: hessian_trace(model, nn.CrossEntropyLoss(), data, probes=40, group=100, memory=memory))
    assert memory / 3 < found <= memory


def test_nothing_of_the_network_changes():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 3))
    model[1].eval()
    model[3].bias.requires_grad_(False)
    inputs, target = torch.randn(12, 4), torch.randint(3, (12,))
    loss = FocalLoss(2.0, weight=torch.tensor([1.0, 2.0, 3.0]))
    loss(model(inputs), target).backward()
    state = {name: values.clone() for name, values in model.state_dict().items()}
    slopes = [None if values.grad is None else values.grad.clone() for values in model.parameters()]
    modes = [module.training for module in model.modules()]
    before = torch.get_rng_state()
    for settings in ({}, {"dtype": torch.float64}, {"batch_statistics": True}, {"matrix": "ggn"}):
        curvature_summary(model, loss, [(inputs, target)], probes=5, **settings)
    hessian_trace(model, loss, [(inputs, target)], probes=12, method="hutch++")
    assert torch.equal(torch.get_rng_state(), before)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(values, state[name]) for name, values in model.state_dict().items())
    for values, slope in zip(model.parameters(), slopes, strict=True):
        assert (values.grad is None) if slope is None else torch.equal(values.grad, slope)
    assert loss.weight.dtype == torch.float32


def test_float64_of_a_float32_network():
    model = cases.network().float()
    inputs, target = cases.samples("focal")
    loss = FocalLoss(2.0, weight=cases.WEIGHT.float())
    wide = cases.exact_hessian(model.double(), FocalLoss(2.0, weight=cases.WEIGHT), inputs.float().double(), target)
    data = [(inputs.float(), target)]
    found = hessian_top_eigenvalues(model.float(), loss, data, dtype=torch.float64)
    assert found.algebraic[0] == pytest.approx(np.linalg.eigvalsh(wide.numpy())[-1], rel=1e-9)
    narrow = hessian_top_eigenvalues(model, loss, data)
    assert narrow.algebraic[0] == pytest.approx(found.algebraic[0], rel=1e-4)
    assert narrow.tolerance == 1e-4


def test_a_loader_that_shuffles():
    inputs, target = cases.samples("focal")
    loader = DataLoader(TensorDataset(inputs, target), batch_size=4, shuffle=True)
    found = hessian_top_eigenvalues(cases.network(), FocalLoss(2.0), loader)
    values = np.linalg.eigvalsh(exact("focal", FocalLoss(2.0)).numpy())
    assert found.algebraic[0] == pytest.approx(values[-1], rel=1e-6)


def test_summary_as_plain_numbers(capsys):
    content = curvature_summary(cases.network(), FocalLoss(2.0), cases.batches("focal"), k=2, progress=True).as_dict()
    assert len(content["largest_eigenvalues"]) == 2
    assert content["trace_standard_error"] > 0
    assert "eigenvalues" in capsys.readouterr().err


def test_a_search_that_does_not_converge_says_so():
    with pytest.raises(NotConvergedError, match="did not reach 1e-06 in 7 products: raise tolerance or max_products"):
        hessian_top_eigenvalues(cases.network(), FocalLoss(2.0), cases.batches("focal"), max_products=7)


@pytest.mark.parametrize("measure", [hessian_top_eigenvalues, hessian_trace, gradient_norm])
def test_a_loss_that_is_not_finite_is_named(measure):
    inputs, target = cases.samples("focal")
    with pytest.raises(ArithmeticError, match="derivatives of the loss are not finite"):
        measure(cases.network(), FocalLoss(2.0), [(inputs * float("nan"), target)])


def test_one_parameter():
    model, loss = nn.Linear(1, 1, bias=False).double(), nn.BCEWithLogitsLoss()
    data = [(torch.randn(5, 1, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64))]
    second = cases.exact_hessian(model, loss, *data[0]).item()
    assert hessian_top_eigenvalues(model, loss, data).algebraic == pytest.approx([second])
    assert hessian_trace(model, loss, data) == pytest.approx((second, 0.0), abs=1e-12)
    with pytest.raises(ValueError, match="'xtrace' needs more than 2 parameters, got 1: use 'hutchinson'"):
        hessian_trace(model, loss, data, method="xtrace")


def test_few_digits_are_refused():
    inputs, target = cases.samples("focal")
    with pytest.raises(ValueError, match=r"must compute in float32 or float64, got torch.bfloat16: give dtype"):
        hessian_trace(cases.network().bfloat16(), FocalLoss(2.0), [(inputs, target)])
    hessian_trace(cases.network().bfloat16(), FocalLoss(2.0), [(inputs, target)], dtype=torch.float32, probes=2)
    partly = cases.network()
    partly[2].bfloat16()
    with pytest.raises(ValueError, match=r"got torch.bfloat16: give dtype"):
        hessian_top_eigenvalues(partly, FocalLoss(2.0), [(inputs, target)])
    with pytest.raises(ValueError, match=r"must compute in float32 or float64, got torch.complex64$"):
        hessian_trace(nn.Linear(4, 3, dtype=torch.complex64), FocalLoss(2.0), [(inputs, target)])


def test_what_was_set_about_tf32_and_attention_stays():
    backends = torch.backends.cudnn, torch.backends.cuda.matmul
    before = [backend.allow_tf32 for backend in backends]
    with full_precision():
        assert not any(backend.allow_tf32 for backend in backends)
    assert [backend.allow_tf32 for backend in backends] == before


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        (hessian_trace, {"probes": 1}, "probes must be at least 2, got 1"),
        (
            hessian_trace,
            {"method": "exact"},
            "method must be one of 'hutchinson', 'hutch\\+\\+', 'xtrace', got 'exact'",
        ),
        (hessian_trace, {"matrix": "fisher"}, "matrix must be one of 'hessian', 'ggn', got 'fisher'"),
        (hessian_trace, {"group": 0}, "group must be at least 1, got 0"),
        (hessian_trace, {"memory": 0}, "memory must be at least 1, got 0"),
        (
            hessian_trace,
            {"method": "xtrace", "probes": 4},
            "probes must be 8 to 200 for 'xtrace' and 51 parameters, got 4",
        ),
        (hessian_top_eigenvalues, {"k": 0}, "k must be at least 1, got 0"),
        (hessian_top_eigenvalues, {"k": 52}, "k must be 1 to 51, the number of parameters, got 52"),
        (hessian_top_eigenvalues, {"matrix": "fisher"}, "matrix must be one of"),
        (hessian_top_eigenvalues, {"tolerance": 0.0}, "tolerance must be positive and finite, got 0.0"),
        (hessian_top_eigenvalues, {"max_products": 0}, "max_products must be at least 1, got 0"),
        (hessian_top_eigenvalues, {"seed": -1}, "seed must be at least 0, got -1"),
        (hessian_trace, {"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_settings_refused(function, settings, message):
    with pytest.raises(ValueError, match=message):
        function(cases.network(), FocalLoss(2.0), cases.batches("focal"), **settings)


def test_types_refused():
    model, data = cases.network(), cases.batches("focal")
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got function"):
        hessian_trace(lambda inputs: inputs, FocalLoss(2.0), data)
    with pytest.raises(TypeError, match=r"dtype must be a torch\.dtype, such as torch\.float64, got 'float64'"):
        hessian_top_eigenvalues(model, FocalLoss(2.0), data, dtype="float64")


def test_data_refused():
    inputs, target = cases.samples("focal")
    model, loss = cases.network(), FocalLoss(2.0)
    with pytest.raises(ValueError, match="data must have a sample that counts"):
        hessian_trace(model, loss, [])
    with pytest.raises(ValueError, match="data must have a sample that counts"):
        hessian_trace(model, loss, [(inputs, torch.full_like(target, -100))])
    with pytest.raises(TypeError, match=r"data must yield pairs of tensors \(inputs, target\), got Tensor"):
        hessian_trace(model, loss, [inputs])
    with pytest.raises(TypeError, match=r"data must yield pairs of tensors \(inputs, target\), got dict"):
        hessian_trace(model, loss, [{"inputs": inputs, "target": target}])
    with pytest.raises(TypeError, match=r"data must yield pairs of tensors \(inputs, target\), got ndarray, Tensor"):
        hessian_trace(model, loss, [(inputs.numpy(), target)])
    with pytest.raises(ValueError, match=r"as many inputs as targets, got shapes \(17, 4\) and \(3,\)"):
        hessian_trace(model, loss, [(inputs, target[:3])])
    with pytest.raises(ValueError, match="loss must reduce to one number, by 'mean' or 'sum', got reduction='none'"):
        hessian_trace(model, FocalLoss(2.0, reduction="none"), [(inputs, target)])
    with pytest.raises(ValueError, match="model must have a parameter that requires a gradient, got none"):
        hessian_trace(model.requires_grad_(False), loss, [(inputs, target)])


def test_autocast_around_a_measure_changes_nothing():
    model, inputs, loss = cases.network().float(), cases.samples("focal")[0].float(), FocalLoss(2.0)
    data = [(inputs, cases.samples("focal")[1])]

    def measured():
        summary = curvature_summary(model, loss, data, probes=4).as_dict()
        return [summary["largest_eigenvalues"][0], summary["trace"], summary["gradient_norm"]]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = measured()
    assert under_autocast == measured()
