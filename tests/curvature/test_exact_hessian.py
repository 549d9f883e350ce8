"""Products and quadratic forms against the exact matrices, entry by entry, for every loss."""

from __future__ import annotations

import copy
import math

import curvature_cases as cases
import pytest
import torch
import torch.nn.functional as F
from curvature_cases import DEFAULTS, diagonal, every_product
from torch import nn

from refocal.curvature import gradient_norm, hessian_trace, layers
from refocal.curvature.curvlinops_operator import CountedOperator
from refocal.curvature.memory import count_vectors
from refocal.curvature.modes import full_precision
from refocal.curvature.moving_weights import find_layer_weights
from refocal.curvature.problem import prepare
from refocal.losses import FocalLoss


def every_entry(model, loss, data, *, matrix="hessian", **settings):
    problem = prepare(model, loss, data, **{**DEFAULTS, **settings})
    operator = CountedOperator(problem, matrix=matrix, advance=lambda _: None)
    return operator @ torch.eye(problem.size, dtype=operator.dtype)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", cases.LOSSES)
@pytest.mark.thorough
def test_hessian_of_uneven_batches_is_that_of_all_samples(name, reduction):
    loss, model = cases.LOSSES[name](reduction=reduction), cases.network()
    exact = cases.exact_hessian(model, loss, *cases.samples(name))
    assert exact.isfinite().all()
    tolerance = 1e-12 * exact.abs().max().item()
    torch.testing.assert_close(every_entry(model, loss, cases.batches(name)), exact, rtol=0, atol=tolerance)
    if name != "proper focal" or reduction == "mean":  # its products take long
        found = every_product(model, loss, cases.batches(name))
        torch.testing.assert_close(found, exact, rtol=0, atol=tolerance)
    for group in (None, 3):
        found = diagonal(model, loss, cases.batches(name), group=group)
        torch.testing.assert_close(found, exact.diagonal(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", cases.LOSSES)
def test_gauss_newton_matrix(name):
    loss, model = cases.LOSSES[name](reduction="mean"), cases.network()
    exact = cases.exact_ggn(model, loss, *cases.samples(name))
    found = every_entry(model, loss, cases.batches(name), matrix="ggn")
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)
    if name != "proper focal":  # its products take long
        found = every_product(model, loss, cases.batches(name), matrix="ggn")
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)
    found = diagonal(model, loss, cases.batches(name), matrix="ggn", group=3)
    torch.testing.assert_close(found, exact.diagonal(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", cases.LOSSES)
def test_reverse_mode_twice_gives_the_same_products(name):
    loss, model = cases.LOSSES[name](reduction="mean"), cases.network()
    inputs, target = cases.samples(name)
    parameters = list(model.parameters())
    slopes = torch.autograd.grad(loss(model(inputs), target), parameters, create_graph=True)
    vector = torch.randn(sum(p.numel() for p in parameters), dtype=torch.float64)
    along = torch.cat([slope.flatten() for slope in slopes]) @ vector
    product = torch.cat([part.flatten() for part in torch.autograd.grad(along, parameters)])
    exact = cases.exact_hessian(model, loss, inputs, target) @ vector
    torch.testing.assert_close(product, exact, rtol=0, atol=1e-11)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("loss", [nn.MSELoss, lambda **more: nn.HuberLoss(delta=0.3, **more), nn.SoftMarginLoss])
def test_losses_of_regression_whose_kernels_lack_a_derivative(loss, reduction):
    loss, model = loss(reduction=reduction), cases.network()
    data = [(inputs, torch.randn(len(inputs), 3, dtype=torch.float64)) for inputs, _ in cases.batches("focal")]
    inputs, target = (torch.cat(each) for each in zip(*data, strict=True))
    names, values = zip(*((name, values.detach()) for name, values in model.named_parameters()), strict=True)

    def value(flat):
        parts = [
            part.reshape(each.shape) for part, each in zip(flat.split([v.numel() for v in values]), values, strict=True)
        ]
        return loss(torch.func.functional_call(model, dict(zip(names, parts, strict=True)), (inputs,)), target)

    exact = torch.autograd.functional.hessian(value, torch.cat([each.flatten() for each in values]))
    with full_precision():
        found = every_product(model, loss, data)
        on_diagonal = diagonal(model, loss, data, group=3)
    tolerance = 1e-12 * max(1, exact.abs().max().item())
    torch.testing.assert_close(found, exact, rtol=0, atol=tolerance)
    torch.testing.assert_close(on_diagonal, exact.diagonal(), rtol=0, atol=tolerance)


@pytest.mark.parametrize("shape", [(17, 1), (17, 3), (3,)])
def test_weights_of_binary_cross_entropy_keep_their_places(shape):
    loss, model = nn.BCEWithLogitsLoss(weight=torch.rand(shape, dtype=torch.float64)), cases.network()
    inputs, target = cases.samples("sigmoid focal")
    target = target.clamp(min=0)
    exact = cases.exact_hessian(model, loss, inputs, target).diagonal()
    for group in (1, 5, None):
        torch.testing.assert_close(diagonal(model, loss, [(inputs, target)], group=group), exact, rtol=0, atol=1e-12)


def test_logistic_regression_in_closed_form():
    """H = mean of (diag p - pp') x xx' for cross-entropy."""
    model = nn.Linear(3, 4, bias=False).double()
    inputs, target = torch.randn(50, 3, dtype=torch.float64), torch.randint(4, (50,))
    probs = torch.softmax(model(inputs), dim=1).detach()
    inner = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]
    exact = torch.einsum("nab,nc,nd->acbd", inner, inputs, inputs).reshape(12, 12) / 50
    for matrix in ("hessian", "ggn"):
        found = every_entry(model, nn.CrossEntropyLoss(), [(inputs, target)], matrix=matrix)
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-13)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_hessian_is_more_than_a_scaled_one(gamma):
    """d2 FL = F'(l) d2 l + F''(l) dl dl', l = -log p.

    Kimura and Naganuma (2024), Eq. 28, keep (1-p)^gamma of F' and drop F''.
    """
    model = cases.network()
    inputs, target = torch.randn(1, 4, dtype=torch.float64), torch.tensor([1])
    scores = model(inputs)
    log_p = F.log_softmax(scores, dim=1)[0, 1]
    slopes = torch.autograd.grad(-log_p, list(model.parameters()))
    slope = torch.cat([part.flatten() for part in slopes])
    p = log_p.exp().item()
    q, log_p = 1 - p, log_p.item()
    first = q**gamma - gamma * p * q ** (gamma - 1) * log_p
    second = gamma * p * q ** (gamma - 2) * (2 * q + (1 - gamma * p) * log_p)
    plain = cases.exact_hessian(model, nn.CrossEntropyLoss(), inputs, target)
    found = every_entry(model, FocalLoss(gamma), [(inputs, target)])
    torch.testing.assert_close(found, first * plain + second * torch.outer(slope, slope), rtol=0, atol=1e-12)
    assert (found - q**gamma * plain).abs().max() > 0.05 * found.abs().max()
    # The paper's formula results from differentiating twice with the factor cut from the graph.
    cut = every_entry(model, FocalLoss(gamma, detached=True), [(inputs, target)])
    torch.testing.assert_close(cut, q**gamma * plain, rtol=0, atol=1e-12)


def test_a_subset_of_parameters_is_a_block():
    loss, model = FocalLoss(2.0), cases.network()
    inputs, target = cases.samples("focal")
    assert layers(model) == ["0", "2"]
    whole = cases.exact_hessian(model, loss, inputs, target)
    block = every_entry(model, loss, [(inputs, target)], parameters=["0"])
    torch.testing.assert_close(block, whole[:30, :30], rtol=0, atol=1e-13)
    bias = every_entry(model, loss, [(inputs, target)], parameters="2.bias")
    torch.testing.assert_close(bias, whole[-3:, -3:], rtol=0, atol=1e-13)
    with pytest.raises(ValueError, match=r"parameters must name .*0\.weight.*, got '1'"):
        hessian_trace(model, loss, [(inputs, target)], parameters=["1"])


class Standardized(nn.Module):
    """BatchNorm with batch statistics in plain operations: PyTorch's is not symmetric in `torch.func.hessian`."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.bias = norm.weight, norm.bias

    def forward(self, inputs):
        variance, mean = torch.var_mean(inputs, dim=0, correction=0)
        return (inputs - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


def test_batch_norm_in_evaluation_mode_and_with_batch_statistics():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)).double()
    inputs, target = torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,))
    model(inputs)
    loss, data = FocalLoss(2.0), [(inputs, target)]
    written_out = nn.Sequential(model[0], Standardized(model[1]), model[2], model[4])
    exact = {
        False: cases.exact_hessian(copy.deepcopy(model).eval(), loss, inputs, target),
        True: cases.exact_hessian(written_out, loss, inputs, target),
    }
    assert not torch.allclose(exact[False], exact[True])
    rows = torch.randn(6, len(exact[True]), dtype=torch.float64)
    for batch_statistics, whole in exact.items():
        found = every_product(model, loss, data, batch_statistics=batch_statistics)
        torch.testing.assert_close(found, whole, rtol=0, atol=1e-12)
        found = cases.forms(rows, model, loss, data, batch_statistics=batch_statistics, group=3)
        torch.testing.assert_close(found, torch.einsum("ci,ij,cj->c", rows, whole, rows), rtol=0, atol=1e-12)
        found = every_entry(model, loss, data, batch_statistics=batch_statistics)
        torch.testing.assert_close(found.diagonal(), whole.diagonal(), rtol=0, atol=1e-12)


def test_attention_is_differentiated_twice():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, activation="gelu").double()
    model = nn.Sequential(encoder, nn.Flatten(), nn.Linear(24, 3, dtype=torch.float64))
    data = [(torch.randn(5, 3, 8, dtype=torch.float64), torch.randint(3, (5,)))]
    names = ["0.self_attn.in_proj_bias", "2.bias"]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        exact = cases.exact_hessian(model.train(), FocalLoss(1.0), *data[0], names=names)
    trace = hessian_trace(model, FocalLoss(1.0), data, parameters=names, probes=400)
    assert abs(trace.value - exact.trace().item()) < 5 * trace.standard_error
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_gradient_in_some_parameters_has_no_graph_of_the_others():
    loss, model, data = FocalLoss(2.0), cases.network(), cases.batches("focal")
    for name in layers(model):
        problem = prepare(model, loss, data, **{**DEFAULTS, "parameters": [name]})
        with full_precision():
            slopes = torch.func.grad(problem.value)(problem.parameters, problem.batches[0])
        assert not any(slope.requires_grad for slope in slopes.values())
    parts = [gradient_norm(model, loss, data, parameters=[name]) for name in layers(model)]
    assert math.hypot(*parts) == pytest.approx(gradient_norm(model, loss, data), rel=1e-12)
    assert all(values.requires_grad for values in model.parameters())


def test_gradient_norm():
    loss, model = FocalLoss(2.0, weight=cases.WEIGHT), cases.network()
    inputs, target = cases.samples("focal")
    slopes = torch.autograd.grad(loss(model(inputs), target), list(model.parameters()))
    exact = torch.cat([slope.flatten() for slope in slopes]).norm().item()
    assert gradient_norm(model, loss, cases.batches("focal")) == pytest.approx(exact, rel=1e-12)


def test_a_function_without_reduction_is_a_mean_over_the_batch():
    model = cases.network()
    inputs, target = cases.samples("focal")
    target = target.clamp(min=0)
    exact = cases.exact_hessian(model, F.cross_entropy, inputs, target)
    parts = [(inputs[:4], target[:4]), (inputs[4:], target[4:])]
    torch.testing.assert_close(every_entry(model, F.cross_entropy, parts), exact, rtol=0, atol=1e-12)


def test_class_probabilities_as_targets():
    model = cases.network()
    inputs, target = cases.samples("focal")
    soft = torch.softmax(torch.randn(len(target), 3, dtype=torch.float64), dim=1)
    exact = cases.exact_hessian(model, FocalLoss(2.0), inputs, soft)
    parts = [(inputs[:4], soft[:4]), (inputs[4:], soft[4:])]
    torch.testing.assert_close(every_entry(model, FocalLoss(2.0), parts), exact, rtol=0, atol=1e-12)


def test_the_number_of_vectors_follows_the_memory():
    problem = prepare(cases.network(), FocalLoss(2.0), cases.batches("focal"), **DEFAULTS)
    few, many = (count_vectors(problem, memory) for memory in (1, 2**20))
    assert few == 1
    assert many > 10
    assert count_vectors(problem, 2**21) == pytest.approx(2 * many, abs=1)
    some = torch.randn(problem.size, 5, dtype=torch.float64)
    counts: list[int] = []
    split = CountedOperator(problem, matrix="hessian", advance=counts.append, at_once=2) @ some
    whole = CountedOperator(problem, matrix="hessian", advance=counts.append) @ some
    torch.testing.assert_close(split, whole)
    assert counts == [2, 2, 1, 5]


def test_products_without_memory_for_graphs():
    model, data = cases.network(), cases.batches("focal")
    kept, again = (every_product(model, FocalLoss(2.0), data, memory=memory) for memory in (2**27, 0))
    torch.testing.assert_close(kept, again, rtol=0, atol=1e-14)


class Tied(nn.Module):
    """One matrix that is used twice, and a parameter that is not used."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
        self.outer.weight = self.inner.weight
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, inputs):
        return self.outer(torch.tanh(self.inner(inputs)))


def test_shared_and_unused_parameters():
    torch.manual_seed(1)
    model, loss = Tied().double(), FocalLoss(2.0)
    inputs, target = torch.randn(8, 3, dtype=torch.float64), torch.randint(3, (8,))

    def value(flat):
        return loss(torch.tanh(inputs @ flat.reshape(3, 3).T) @ flat.reshape(3, 3).T, target)

    exact = torch.zeros(11, 11, dtype=torch.float64)
    names = [name for name, _ in model.named_parameters()]
    start = 0 if names[0] == "inner.weight" else 2
    block = slice(start, start + 9)
    exact[block, block] = torch.func.hessian(value)(model.inner.weight.detach().flatten())
    torch.testing.assert_close(every_product(model, loss, [(inputs, target)]), exact, rtol=0, atol=1e-13)
    torch.testing.assert_close(diagonal(model, loss, [(inputs, target)]), exact.diagonal(), rtol=0, atol=1e-13)


def test_class_probabilities_with_class_weights_over_uneven_batches():
    model, (inputs, target) = cases.network(), cases.samples("focal")
    soft = torch.softmax(torch.randn(len(target), 3, dtype=torch.float64), dim=1)
    parts = [(inputs[:4], soft[:4]), (inputs[4:], soft[4:])]
    for loss in (nn.CrossEntropyLoss(cases.WEIGHT), FocalLoss(2.0, weight=cases.WEIGHT)):
        exact = cases.exact_hessian(model, loss, inputs, soft)
        torch.testing.assert_close(every_product(model, loss, parts), exact, rtol=0, atol=1e-12)


def test_a_loss_linear_in_the_parameters_is_flat():
    model = nn.Linear(3, 2).double()
    data = [(torch.randn(4, 3, dtype=torch.float64), torch.zeros(4))]
    learned = torch.ones(2, dtype=torch.float64, requires_grad=True)
    for loss in (lambda scores, _: scores.mean(), lambda scores, _: (learned**2 * scores).mean()):
        for matrix in ("hessian", "ggn"):
            found = every_product(model, loss, data, matrix=matrix)
            assert torch.equal(found, torch.zeros(8, 8, dtype=torch.float64))


class Mixed(nn.Module):
    """A weight with a single use, one that is used elsewhere too, one given by keyword, and attention."""

    def __init__(self):
        super().__init__()
        self.alone, self.twice, self.named = (nn.Linear(4, 4) for _ in range(3))
        self.attention = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True, activation="gelu")
        self.last = nn.Linear(4, 3, bias=False)

    def forward(self, inputs):
        hidden = torch.tanh(self.alone(inputs)) @ self.twice.weight + self.twice(inputs)
        hidden = F.linear(hidden, weight=self.named.weight, bias=self.named.bias)
        hidden = self.attention(hidden[:, None])[:, 0]
        return self.last(hidden.to(self.last.weight.dtype))


def test_weights_of_layers_are_told_from_others():
    torch.manual_seed(0)
    model, loss = Mixed().double(), FocalLoss(2.0)
    data = [(torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,)))]
    problem = prepare(model, loss, data, **DEFAULTS)
    alone = {"alone.weight", "last.weight", "attention.linear1.weight", "attention.linear2.weight"}
    with full_precision():
        assert find_layer_weights(problem) == alone
        found, exact = diagonal(model, loss, data), every_product(model, loss, data).diagonal()
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)


class Convolutions(nn.Module):
    """Convolutions in one, two and three dimensions with all settings, between layers of other kinds."""

    def __init__(self):
        super().__init__()
        self.plain = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.strided = nn.Conv2d(4, 4, 3, stride=2, padding=(1, 2), groups=2, bias=False)
        self.same = nn.Conv2d(4, 2, 3, padding="same")
        self.reflected = nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")
        self.one = nn.Conv1d(2, 3, 3, dilation=2)
        self.three = nn.Conv3d(1, 2, (1, 2, 2))
        self.unbatched = nn.Conv1d(3, 3, 1)
        self.last = nn.Linear(6, 3)
        self.of_a_vector = nn.Linear(2, 3)

    def forward(self, images):
        hidden = torch.tanh(self.norm(self.plain(images)))
        hidden = torch.sigmoid(self.strided(hidden))
        hidden = torch.tanh(self.reflected(self.same(hidden)))
        lines = torch.tanh(self.one(hidden.flatten(2)))
        volume = self.three(lines[:, None, :, None, :].expand(-1, -1, -1, 2, -1))
        scores = self.last(torch.tanh(volume).mean(dim=(3, 4)).flatten(1))
        return self.unbatched(scores.T).T + self.of_a_vector(torch.tanh(self.plain.bias[:2]))


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)],
)
def test_convolutions_have_the_second_derivatives_of_plain_autograd(device):
    torch.manual_seed(0)
    model, loss = Convolutions().double(), FocalLoss(2.0)
    model.norm.running_mean.normal_()
    model.norm.running_var.uniform_(0.5, 2.0)
    model = model.to(device)
    data = [(torch.randn(5, 2, 6, 5, dtype=torch.float64).to(device), torch.randint(3, (5,)).to(device))]
    problem = prepare(model, loss, data, **DEFAULTS)
    layers = ("plain", "strided", "reflected", "one", "three", "last", "of_a_vector")
    with full_precision():
        assert find_layer_weights(problem) == {f"{layer}.weight" for layer in layers}
        found, exact = diagonal(model, loss, data), every_product(model, loss, data).diagonal()
    assert exact.abs().max() > 1e-3
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)


class OneOutput(nn.Module):
    """A linear layer whose weight is a vector."""

    def __init__(self):
        super().__init__()
        self.first, self.weight, self.last = nn.Linear(4, 2), nn.Parameter(torch.tensor([0.5, -1.0])), nn.Linear(1, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(F.linear(torch.tanh(self.first(inputs)), self.weight))[:, None])


class OtherwiseForOne(nn.Module):
    """A weight that batches of one sample use in another way."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs):
        scores = self.layer(inputs)
        return scores if len(inputs) > 1 else scores * self.layer.weight.square().sum()


class Autocast(nn.Module):
    """Layers that compute in bfloat16."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(6, 3))

    def forward(self, inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.layers(inputs[:, None]).float()


@pytest.mark.parametrize("kind", [OneOutput, OtherwiseForOne])
def test_unusual_uses_of_weights(kind):
    torch.manual_seed(0)
    model, loss = kind().double(), FocalLoss(2.0)
    inputs, target = torch.randn(5, 4, dtype=torch.float64), torch.randint(3, (5,))
    data = [(inputs[:4], target[:4]), (inputs[4:], target[4:])]
    exact = every_product(model, loss, data).diagonal()
    torch.testing.assert_close(diagonal(model, loss, data), exact, rtol=0, atol=1e-12)


def test_autocast_inside_of_a_network():
    torch.manual_seed(0)
    model, loss = Autocast(), FocalLoss(2.0)
    data = [(torch.randn(5, 4), torch.randint(3, (5,)))]
    found, exact = diagonal(model, loss, data), every_product(model, loss, data).diagonal()
    torch.testing.assert_close(found, exact, rtol=0.05, atol=0.02)


def test_bytes_as_class_indices():
    model, loss = cases.network(), FocalLoss(2.0, weight=cases.WEIGHT)
    inputs, target = cases.samples("focal")
    target = target.clamp(min=0)
    exact = cases.exact_hessian(model, loss, inputs, target)
    data = [(inputs[:4], target[:4].byte()), (inputs[4:], target[4:].byte())]
    torch.testing.assert_close(every_product(model, loss, data), exact, rtol=0, atol=1e-12)


class Stopped(nn.Module):
    """A layer whose gradient is stopped at one of its uses."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        with torch.no_grad():
            hidden = torch.tanh(self.first(inputs))
        return self.last(hidden + 0.1 * self.first(inputs))


def test_no_grad_inside_of_a_network_stops_derivatives_forward_too():
    torch.manual_seed(0)
    model, loss = Stopped().double(), FocalLoss(2.0)
    inputs, target = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    with torch.no_grad():
        hidden = torch.tanh(model.first(inputs))

    def scores(first, first_bias, last, last_bias):
        return F.linear(hidden + 0.1 * F.linear(inputs, first, first_bias), last, last_bias)

    parameters = tuple(values.detach() for values in model.parameters())
    jacobians = torch.func.jacrev(scores, argnums=(0, 1, 2, 3))(*parameters)
    rows = torch.cat([each.reshape(18, -1) for each in jacobians], dim=1)
    inner = torch.func.hessian(lambda flat: loss(flat.reshape(6, 3), target))(scores(*parameters).flatten())
    exact, data = rows.T @ inner @ rows, [(inputs, target)]
    torch.testing.assert_close(every_product(model, loss, data, matrix="ggn"), exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(diagonal(model, loss, data, matrix="ggn"), exact.diagonal(), rtol=0, atol=1e-12)
    hessian = every_product(model, loss, data)
    torch.testing.assert_close(diagonal(model, loss, data), hessian.diagonal(), rtol=0, atol=1e-12)


def test_batch_norm_without_running_statistics_keeps_batches_whole():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 3)).double()
    inputs, target = torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,))
    exact = every_product(model.eval(), FocalLoss(2.0), [(inputs, target)]).diagonal()
    found = diagonal(model, FocalLoss(2.0), [(inputs, target)], group=3)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)
