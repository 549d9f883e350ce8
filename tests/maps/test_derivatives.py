"""First and second derivatives of all maps: correct, and finite at saturation."""

from __future__ import annotations

import math

import numpy as np
import pytest

import refocal

torch = pytest.importorskip("torch")

GAMMAS = [-0.9, 0.0, 0.5, 1.0, 2.0, 50.0, [0.0, 0.5, 5.0]]
OPTIONS = [{}, {"detached": True}, {"weight": [0.5, 1.0, 3.0]}, {"label_smoothing": 0.01}]


def check(function, *rows):
    """Check first and second derivatives of a function of rows, with gradcheck and for every entry."""
    points = torch.tensor(rows, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(function, (points,), fast_mode=True)
    assert torch.autograd.gradgradcheck(function, (points,), fast_mode=True)
    with torch.no_grad():
        covector = torch.rand_like(function(points)) * 2 - 1

    def pull_back(x, covector):
        return torch.autograd.grad(function(x), x, covector, create_graph=True)[0]

    check_every_entry(function, points, outputs=covector.numel())
    check_every_entry(pull_back, points, covector, outputs=points.numel())


def check_every_entry(function, *inputs, outputs):
    """Compare the Jacobian with central differences, as gradcheck does, but with one call for all entries."""

    def copies(count):
        return [x.detach().expand(count, *x.shape).clone().requires_grad_() for x in inputs]

    per_output = copies(outputs)
    values = function(*per_output)
    analytical = torch.autograd.grad(values, per_output, torch.eye(outputs).reshape(values.shape).double())
    for place, x in enumerate(inputs):
        move = 1e-6 * torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape)
        per_end = copies(2 * x.numel())
        per_end[place].data += torch.cat([move, -move])
        ahead, behind = function(*per_end).detach().flatten(1).chunk(2)
        numerical = (ahead - behind).T / 2e-6
        assert torch.allclose(analytical[place].flatten(1), numerical, rtol=1e-3, atol=1e-5)


def check_finite(function, points):
    """Check that the gradient and the Hessian are finite; each copy of a row gives one row of the Hessian."""
    size = points.shape[-1]
    copies = points.expand(size, *points.shape).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(copies).sum(), copies, create_graph=True)
    assert torch.isfinite(gradient).all()
    chosen = torch.eye(size, dtype=points.dtype)[:, None, :].expand(copies.shape)
    (hessian,) = torch.autograd.grad(gradient, copies, chosen)
    assert torch.isfinite(hessian).all()


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("options", [*OPTIONS, {**OPTIONS[-1], "smoothing_edge": "exact"}, {"label_smoothing": 0.4}])
def test_posterior(gamma, options):
    rows = [[0.1, -0.4, 1.2], [0.0, 0.0, 0.0], [3.0, -2.0, 6.0]]
    if "smoothing_edge" in options:
        if gamma == 50.0:
            pytest.skip("all classes but one are clipped, which makes a kink")
        rows = rows[:2]
    check(lambda x: refocal.posterior_from_logits(x, gamma=gamma, **options), *rows)
    check(lambda x: refocal.posterior_from_logits(x, gamma=gamma, log=True, temperature=1.5, **options), *rows[:2])
    check(lambda x: refocal.posterior(torch.softmax(x, -1), gamma=gamma, **options), *rows[:2])


@pytest.mark.parametrize("gamma", [gamma for gamma in GAMMAS if not (isinstance(gamma, float) and gamma < 0)])
@pytest.mark.parametrize("options", OPTIONS)
def test_minimizer(gamma, options):
    check(lambda x: refocal.minimizer(torch.softmax(x, -1), gamma=gamma, **options), [0.1, -0.4, 1.2])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, [0.0, 0.5, 5.0]])
def test_proper_part(gamma):
    labels = torch.tensor([0, 2])

    def loss(x):
        return refocal.proper_focal_partial(torch.softmax(x, -1), labels.expand(x.shape[:-1]), gamma=gamma)

    check(loss, [0.1, -0.4, 1.2], [2.0, 0.0, -1.0])


@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.5, 2.0])
def test_sigmoid(gamma):
    check(lambda x: refocal.sigmoid_posterior(x, gamma=gamma, alpha=0.25), [-3.0, 0.0, 1.0, 5.0])
    check(lambda x: refocal.sigmoid_posterior(x, gamma=gamma, normalize=True), [-3.0, 0.0, 1.0, 5.0])
    if gamma >= 0:
        check(lambda x: refocal.sigmoid_minimizer(torch.sigmoid(x), gamma=gamma, alpha=0.25), [-3.0, 0.0, 1.0, 5.0])


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
def test_partial_loss_and_phi(gamma):
    check(lambda x: refocal.phi(torch.sigmoid(x), gamma=gamma), [-3.0, 0.0, 1.0, 5.0])

    def loss(x):
        return refocal.focal_partial(torch.nn.functional.logsigmoid(x), torch.nn.functional.logsigmoid(-x), gamma=gamma)

    check(loss, [-3.0, 0.0, 1.0, 5.0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("gamma", [-0.5, 0.3, 1.0, 2.0, 50.0])
@pytest.mark.parametrize(
    "row",
    [
        [1000.0, -1000.0, 0.0],
        [40.0, 0.0, 0.0],
        [20.0, 0.0, 0.0],
        [0.0, 0.0, 0.0],
        [1.0, -math.inf, 0.0],
        [5.0, -math.inf, -math.inf],
    ],
)
def test_derivatives_stay_finite_at_saturation(dtype, gamma, row):
    for log in (False, True):
        for index in [0] if log else range(3):
            check_finite(
                lambda x, log=log, index=index: refocal.posterior_from_logits(x, gamma=gamma, log=log)[..., index],
                torch.tensor([row], dtype=dtype),
            )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("gamma", [-0.5, 0.0, 0.3, 1.0, 2.0, 50.0])
def test_sigmoid_derivatives_stay_finite_at_saturation(dtype, gamma):
    points = torch.tensor([[value, 1.0] for value in (-1000.0, -50.0, 0.0, 50.0, 400.0, 1000.0)], dtype=dtype)
    for options in ({}, {"alpha": 0.25}, {"normalize": True}):
        check_finite(lambda x, options=options: refocal.sigmoid_posterior(x, gamma=gamma, **options)[..., 0], points)


def test_derivatives_at_one_hot_rows():
    row = torch.tensor([1.0, 0.0, 0.0], dtype=torch.double, requires_grad=True)

    def slope(output):  # toward the second class, inside the simplex
        (gradient,) = torch.autograd.grad(output, row)
        return float(gradient[1] - gradient[0])

    assert slope(refocal.posterior(row, gamma=0.0)[1]) == 1
    assert slope(refocal.posterior(row, gamma=2.0)[1]) == 0
    assert slope(refocal.minimizer(row, gamma=0.0)[1]) == 1
    assert slope(refocal.minimizer(row, gamma=0.0)[0]) == -1
    assert slope(refocal.minimizer(row, gamma=2.0)[1]) > 1e30  # the exact slope is infinite
    assert slope(refocal.proper_focal_partial(row, torch.tensor(0), gamma=0.0)) == 1


def test_saturated_gradient_is_correct_not_only_finite():
    gamma, gap = 0.5, 300.0
    point = torch.tensor([gap, 0.0], dtype=torch.double, requires_grad=True)
    refocal.posterior_from_logits(point, gamma=gamma, log=True)[1].backward()
    # log Psi_2 = -(1 + gamma) gap + log(1 + gamma) up to e^-gap
    np.testing.assert_allclose(point.grad.numpy(), [-1.5, 1.5], rtol=1e-13)


@pytest.mark.parametrize("function", [refocal.posterior, refocal.minimizer])
@pytest.mark.parametrize("gamma", [2.0, [0.5, 3.0, 1.0]])
@pytest.mark.parametrize("options", [{}, {"weight": [0.5, 3.0, 2.0]}, {"detached": True}])
def test_derivative_at_a_zero_is_the_one_sided_limit(function, gamma, options):
    """All classes change if mass moves from the first class to the last, which has none."""
    point, step = np.array([0.7, 0.3, 0.0]), 1e-8
    moved = np.array([0.7 - step, 0.3, step])
    rows = torch.autograd.functional.jacobian(lambda x: function(x, gamma=gamma, **options), torch.tensor(point))
    moved = function(np.array([0.7 - step, 0.3, step]), gamma=gamma, **options) - function(
        point, gamma=gamma, **options
    )
    np.testing.assert_allclose(rows[:, 2] - rows[:, 0], moved / step, rtol=1e-5)


def test_transforms_compile_and_export():
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))

    class Head(torch.nn.Module):
        def forward(self, x):
            return refocal.posterior_from_logits(x, gamma=2.0)

    expected = Head()(rows)
    torch.testing.assert_close(torch.func.vmap(Head())(rows), expected)
    torch.testing.assert_close(torch.compile(Head(), backend="aot_eager", fullgraph=True)(rows), expected)
    torch.testing.assert_close(torch.export.export(Head(), (rows,)).module()(rows), expected)
    gradient = torch.func.grad(lambda x: refocal.posterior_from_logits(x, gamma=2.0)[..., 0].sum())(rows)
    leaf = rows.clone().requires_grad_()
    Head()(leaf)[..., 0].sum().backward()
    torch.testing.assert_close(gradient, leaf.grad)
