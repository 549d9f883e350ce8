"""Ways in which a network uses its weights: v'Hv against differentiating twice in reverse mode."""

from __future__ import annotations

import curvature_cases as cases
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from refocal.curvature import HessianTracePenalty, hessian_trace, twice_differentiable
from refocal.curvature.modes import full_precision
from refocal.curvature.moving_weights import find_layer_weights
from refocal.curvature.plain_layers import PlainLayers
from refocal.curvature.problem import prepare
from refocal.losses import FocalLoss


class Product(torch.autograd.Function):
    """A user-defined linear layer."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs, weight):
        return F.linear(inputs, weight)

    @staticmethod
    def setup_context(ctx, inputs, output):  # noqa: ARG004
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, slope):
        inputs, weight = ctx.saved_tensors
        return slope @ weight, slope.T @ inputs

    @staticmethod
    def jvp(ctx, inputs_change, weight_change):
        inputs, weight = ctx.saved_tensors
        return inputs_change @ weight.T + inputs @ weight_change.T


class Stop(torch.autograd.Function):
    """A function that returns None as its gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values):
        return values.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):  # noqa: ARG004
        return None

    @staticmethod
    def jvp(ctx, change):  # noqa: ARG004
        return torch.zeros_like(change)


USES = {
    "twice": lambda net, x: net.first(torch.tanh(net.first(x))),
    "a parameter goes in": lambda net, x: net.first(torch.tanh(net.last.bias.sum() * x)),
    "its own weight goes in": lambda net, x: torch.tanh(net.first(net.first.weight)).sum(dim=0) + x,
    "part of the weight": lambda net, x: net.first(x) + F.linear(x[:, :2], net.first.weight[:, :2]),
    "a function of one's own": lambda net, x: Product.apply(torch.tanh(net.second(x)), net.first.weight),
    "a function and a layer": lambda net, x: net.first(x) + Product.apply(torch.tanh(net.second(x)), net.first.weight),
    "a bias for each sample": lambda net, x: F.linear(torch.tanh(net.second(x)), net.first.weight, x * x),
    "no gradient comes back": lambda net, x: net.first(x) + Stop.apply(net.second(torch.tanh(net.first(x)))),
    "data": lambda net, x: net.first(x) * torch.sigmoid(net.second(x)).data,
    "data of the weight": lambda net, x: net.first(x) + F.linear(torch.tanh(net.second(x)), net.first.weight.data),
    "detached": lambda net, x: net.first(x) * torch.sigmoid(net.first(x)).detach(),
}


class Network(nn.Module):
    """Three layers; the first two are used in one of many ways."""

    def __init__(self, use):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.use = use

    def forward(self, inputs):
        return self.last(torch.tanh(self.use(self, inputs)))


@pytest.mark.parametrize("name", USES)
def test_every_use_counts(name):
    torch.manual_seed(0)
    model, loss = Network(USES[name]).double(), FocalLoss(2.0)
    data = [(torch.randn(5, 4, dtype=torch.float64), torch.randint(3, (5,)))]
    whole = cases.every_product(model, loss, data)
    assert whole[:16, :16].abs().max() > 1e-4
    rows = torch.randn(5, len(whole), dtype=torch.float64)
    exact = torch.einsum("ci,ij,cj->c", rows, whole, rows)
    torch.testing.assert_close(cases.forms(rows, model, loss, data), exact, rtol=0, atol=1e-12)
    assert "last.weight" in find_layer_weights(prepare(model, loss, data, **cases.DEFAULTS))


class TwoHeads(nn.Module):
    """Scores in a tuple, as the loss takes them. A weight enters again through the second entry."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        hidden = torch.tanh(self.first(inputs))
        return self.last(hidden), hidden @ self.first.weight


def test_outputs_in_a_tuple():
    torch.manual_seed(0)
    model, data = TwoHeads().double(), [(torch.randn(5, 4, dtype=torch.float64), torch.randint(3, (5,)))]

    def loss(outputs, target):
        return F.cross_entropy(outputs[0], target) + outputs[1].square().mean()

    exact = cases.every_product(model, loss, data).diagonal()
    torch.testing.assert_close(cases.diagonal(model, loss, data), exact, rtol=0, atol=1e-12)


class Normalized(nn.Module):
    """Weight normalization in plain operations."""

    def __init__(self, layer):
        super().__init__()
        weight = layer.parametrizations.weight
        self.length, self.direction = nn.Parameter(weight.original0.detach()), nn.Parameter(weight.original1.detach())

    def forward(self, inputs):
        return F.linear(inputs, self.length * F.normalize(self.direction, dim=1))


def test_weight_normalization():
    """PyTorch's own second derivative is not symmetric, and it has no forward mode."""
    torch.manual_seed(0)
    layer, last = weight_norm(nn.Linear(4, 4, bias=False)), nn.Linear(4, 3)
    model = nn.Sequential(layer, nn.Tanh(), last).double()
    written_out, loss = nn.Sequential(Normalized(layer), nn.Tanh(), last).double(), FocalLoss(2.0)
    inputs, target = torch.randn(5, 4, dtype=torch.float64), torch.randint(3, (5,))
    exact = cases.exact_hessian(written_out, loss, inputs, target)
    rows = torch.randn(5, len(exact), dtype=torch.float64)
    with full_precision():
        found = cases.every_product(model, loss, [(inputs, target)])
        found_forms = cases.forms(rows, model, loss, [(inputs, target)])
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)
    torch.testing.assert_close(found_forms, torch.einsum("ci,ij,cj->c", rows, exact, rows), rtol=0, atol=1e-12)
    with twice_differentiable():
        penalties = [
            HessianTracePenalty(1.0)(loss(each(inputs), target), each.parameters()) for each in (model, written_out)
        ]
    torch.testing.assert_close(*penalties, rtol=0, atol=1e-12)


class Recurrent(nn.Module):
    """A recurrent layer and a head that reads its last output, or its last state if sequences are packed."""

    def __init__(self, kind, *, lengths=None, **settings):
        super().__init__()
        self.recurrent, self.lengths = kind(2, 2, batch_first=True, **settings), lengths
        self.last = nn.LazyLinear(3)

    def forward(self, inputs):
        if self.lengths is None:
            return self.last(self.recurrent(inputs)[0][:, -1])
        packed = nn.utils.rnn.pack_padded_sequence(inputs, self.lengths, batch_first=True)
        state = self.recurrent(packed)[1]
        return self.last((state[0] if isinstance(state, tuple) else state).sum(dim=0))


class Stepped(nn.Module):
    """A cell, applied step by step, in place of a recurrent layer."""

    def __init__(self, *sizes, of, batch_first, **settings):
        super().__init__()
        self.cell, self.steps_on = of(*sizes, **settings), 1 if batch_first else 0

    def forward(self, inputs):
        state, outputs = None, []
        for step in inputs.unbind(dim=self.steps_on):
            state = self.cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, dim=self.steps_on), state


def _by_two_backward_passes(loss, parameters):
    """The Hessian, row by row; `torch.func` does not accept packed sequences."""
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    rows = [
        torch.autograd.grad(slope, parameters, retain_graph=True, materialize_grads=True)
        for slope in torch.cat([gradient.flatten() for gradient in gradients])
    ]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


RECURRENT = {
    "LSTM": (nn.LSTM, {}),
    "LSTM, projected, both ways": (nn.LSTM, {"proj_size": 1, "bidirectional": True}),
    "LSTM, packed": (nn.LSTM, {"lengths": [3, 3, 2, 1]}),
    "GRU, two layers": (nn.GRU, {"num_layers": 2, "bias": False}),
    "GRU, packed, both ways": (nn.GRU, {"lengths": [3, 3, 2, 1], "bidirectional": True}),
    "RNN": (nn.RNN, {}),
    "RNN, relu": (nn.RNN, {"nonlinearity": "relu"}),
    "LSTM cell": (Stepped, {"of": nn.LSTMCell}),
    "GRU cell": (Stepped, {"of": nn.GRUCell}),
    "GRU cell, no bias": (Stepped, {"of": nn.GRUCell, "bias": False}),
    "RNN cell": (Stepped, {"of": nn.RNNCell}),
}


@pytest.mark.parametrize(
    "settings",
    [{"size_average": False}, {"reduce": False}, {"reduction": "none"}, {"weight": torch.ones(4, 3) / 2}],
    ids=lambda settings: next(iter(settings)),
)
@pytest.mark.filterwarnings("ignore:.*size_average and reduce args will be deprecated")
def test_losses_keep_their_keywords(settings):
    scores, target = torch.randn(4, 3), torch.randn(4, 3)
    expected = F.mse_loss(scores, target, **settings)
    with PlainLayers():
        torch.testing.assert_close(F.mse_loss(scores, target, **settings), expected)


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_recurrent_layers_have_their_outputs_and_states(name):
    torch.manual_seed(0)
    kind, settings = RECURRENT[name]
    model, inputs = Recurrent(kind, **settings), torch.randn(4, 3, 2)
    if model.lengths is not None:
        inputs = nn.utils.rnn.pack_padded_sequence(inputs, model.lengths, batch_first=True)
    expected = model.recurrent(inputs)
    with PlainLayers():
        torch.testing.assert_close(model.recurrent(inputs), expected)


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)],
)
@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_recurrent_layers(name, device):
    torch.manual_seed(0)
    kind, settings = RECURRENT[name]
    inputs, target = torch.randn(4, 3, 2), torch.randint(3, (4,))
    model, loss = Recurrent(kind, **settings), FocalLoss(2.0)
    expected = model(inputs)  # by PyTorch's own kernels
    exact = _by_two_backward_passes(loss(model.double()(inputs.double()), target), list(model.parameters()))
    model, data = model.float().to(device), [(inputs.to(device), target.to(device))]
    rows = torch.randn(4, len(exact))
    with full_precision():
        scores = model(data[0][0])
        found = cases.every_product(model, loss, data)
        found_forms = cases.forms(rows, model, loss, data)
    torch.testing.assert_close(scores.cpu(), expected)
    torch.testing.assert_close(found.cpu().double(), exact, rtol=0, atol=1e-5)
    exact_forms = torch.einsum("ci,ij,cj->c", rows.double(), exact, rows.double())
    torch.testing.assert_close(found_forms.cpu().double(), exact_forms, rtol=1e-4, atol=1e-4)
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("matrix", ["hessian", "ggn"])
def test_lstm_in_single_precision(matrix):
    torch.manual_seed(0)
    data = [(torch.randn(6, 5, 2), torch.randint(3, (6,)))]
    model, loss = Recurrent(nn.LSTM), FocalLoss(2.0)
    model(data[0][0])
    narrow, wide = (
        hessian_trace(model, loss, data, probes=4, matrix=matrix, dtype=dtype).value for dtype in (None, torch.float64)
    )
    assert narrow == pytest.approx(wide, rel=1e-4)
