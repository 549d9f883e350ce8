"""Losses against slow references, PyTorch's own, and each other."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from loss_cases import WEIGHT, batch, probabilities  # noqa: E402

from refocal import losses as L  # noqa: E402
from refocal.losses import FocalLoss  # noqa: E402


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("kind", ["index", "ignored", "soft"])
def test_gamma_zero_is_cross_entropy_in_every_combination(reduction, weight, smoothing, shape, kind):
    logits, target, soft = batch(*shape)
    if kind == "ignored":
        target.view(-1)[::2] = -7
    chosen = soft if kind == "soft" else target
    options = {"weight": weight, "ignore_index": -7, "reduction": reduction, "label_smoothing": smoothing}
    expected = torch.nn.CrossEntropyLoss(**options)(logits, chosen)
    torch.testing.assert_close(FocalLoss(0, **options)(logits, chosen), expected, rtol=0, atol=0)
    # A tiny gamma takes the focal formulas, which must then agree with cross-entropy too.
    nearly = FocalLoss(1e-13, **options)(logits, chosen)
    torch.testing.assert_close(nearly, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 2.0, [0.0, 0.5, 1.0, 2.0, 3.0]])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft_target", [False, True])
def test_focal_loss_against_a_loop(gamma, weight, smoothing, soft_target):
    logits, target, soft = batch(6)
    gammas = np.broadcast_to(gamma, 5)
    losses = L.focal_loss(
        logits, soft if soft_target else target, gamma=gamma, weight=weight, label_smoothing=smoothing
    )
    for index, row in enumerate(logits):
        expected = 0.0
        for c, p in enumerate(probabilities(row)):
            t = float(soft[index, c]) if soft_target else float(target[index] == c)
            t = (1 - smoothing) * t + smoothing / 5
            expected -= t * (1.0 if weight is None else float(weight[c])) * (1 - p) ** gammas[c] * math.log(p)
        assert float(losses[index]) == pytest.approx(expected, rel=1e-12)


def test_trailing_dimensions_are_rows():
    logits, target, soft = batch(2, 3, 4)
    losses = L.focal_loss(logits, target, gamma=2.0)
    assert losses.shape == target.shape
    rows = logits.movedim(1, -1).reshape(-1, 5)
    torch.testing.assert_close(losses.reshape(-1), L.focal_loss(rows, target.reshape(-1), gamma=2.0))
    assert L.focal_loss(logits, soft, gamma=2.0).shape == target.shape
    one = L.focal_loss(logits[0, :, 0, 0], target[0, 0, 0], gamma=2.0)
    torch.testing.assert_close(one, losses[0, 0, 0])


def test_gradients_and_second_derivatives():
    logits, target, soft = batch(3, classes=4)
    for gamma, detached in itertools.product([0.5, 2.0, L.FLSD53], [False]):
        for chosen in (target, soft):
            leaf = logits.clone().requires_grad_()

            def function(x, gamma=gamma, chosen=chosen, detached=detached):
                return L.focal_loss(x, chosen, gamma=gamma, detached=detached)

            assert torch.autograd.gradcheck(function, (leaf,))
            assert torch.autograd.gradgradcheck(function, (leaf,))


def test_detached_gradient_is_the_factor_times_that_of_cross_entropy():
    logits, target, _ = batch(5)
    leaf = logits.clone().requires_grad_()
    L.focal_loss(leaf, target, gamma=2.0, detached=True).sum().backward()
    other = logits.clone().requires_grad_()
    p = torch.softmax(logits, dim=1).gather(1, target[:, None])[:, 0]
    ((1 - p) ** 2 * F.cross_entropy(other, target, reduction="none")).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad, rtol=1e-12, atol=1e-14)


def test_gradient_factor_is_the_ratio_of_gradients():
    logits, target, _ = batch(5)
    gradients = []
    for gamma in (0, 3.0):
        leaf = logits.clone().requires_grad_()
        L.focal_loss(leaf, target, gamma=gamma).sum().backward()
        gradients.append(leaf.grad)
    p = torch.softmax(logits, dim=1).gather(1, target[:, None])
    torch.testing.assert_close(gradients[1], gradients[0] * L.gradient_factor(p, gamma=3.0), rtol=1e-10, atol=1e-14)


def test_last_layer_gradient_norms():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(6, 3, generator=generator)
    layer = torch.nn.Linear(3, 4)
    target = torch.randint(4, (6,), generator=generator)
    norms = L.last_layer_gradient_norms(lambda z, y: L.focal_loss(z, y, gamma=2.0), features, layer(features), target)
    for index in range(6):
        layer.zero_grad()
        L.focal_loss(layer(features[index : index + 1]), target[index : index + 1], gamma=2.0).sum().backward()
        norm = torch.sqrt(layer.weight.grad.square().sum() + layer.bias.grad.square().sum())
        torch.testing.assert_close(norms[index], norm)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("alpha", [None, 0.25])
def test_sigmoid_focal_loss_against_its_formula(gamma, alpha):
    x = torch.linspace(-6, 6, 13, dtype=torch.double)
    balance = (1.0, 1.0) if alpha is None else (alpha, 1 - alpha)
    for t in (0.0, 1.0, 0.3):
        losses = L.sigmoid_focal_loss(x, torch.full_like(x, t), gamma=gamma, alpha=alpha)
        p = torch.sigmoid(x)
        positive, negative = -((1 - p) ** gamma) * torch.log(p), -(p**gamma) * torch.log(1 - p)
        torch.testing.assert_close(losses, balance[0] * t * positive + balance[1] * (1 - t) * negative)
    if gamma == 2.0 and alpha == 0.25:  # torchvision's form by p_t, for hard targets
        target = (torch.arange(13) % 2).double()
        p_t = p * target + (1 - p) * (1 - target)
        cross_entropy = F.binary_cross_entropy_with_logits(x, target, reduction="none")
        expected = (0.25 * target + 0.75 * (1 - target)) * cross_entropy * (1 - p_t) ** 2
        torch.testing.assert_close(L.sigmoid_focal_loss(x, target), expected)


def test_sigmoid_reductions_and_ignored_scores():
    x = torch.linspace(-2, 2, 6).reshape(2, 3)
    target = torch.tensor([[1, 0, -100], [0, 1, 1]])
    losses = L.SigmoidFocalLoss(2.0, alpha=[0.1, 0.5, 0.9], reduction="none")(x, target)
    assert losses[0, 2] == 0
    mean = L.SigmoidFocalLoss(2.0, alpha=[0.1, 0.5, 0.9])(x, target)
    torch.testing.assert_close(mean, losses.sum() / 5)
    torch.testing.assert_close(L.SigmoidFocalLoss(2.0, alpha=[0.1, 0.5, 0.9], reduction="sum")(x, target), losses.sum())


def test_ignored_scores_may_be_infinite():
    leaf = torch.tensor([math.inf, -math.inf, math.nan, 1.0], requires_grad=True)
    loss = L.SigmoidFocalLoss(alpha=[0.1, 0.2, 0.3, 0.4])(leaf, torch.tensor([-100.0, -100.0, -100.0, 1.0]))
    (slope,) = torch.autograd.grad(loss, leaf)
    assert loss.isfinite()
    assert slope[:3].tolist() == [0, 0, 0]
    assert slope[3] < 0


def test_other_losses_against_loops():
    logits, target, soft = batch(6)
    dual, inverse = L.dual_focal_loss(logits, target, gamma=2.0), L.inverse_focal_loss(logits, target, gamma=0.7)
    brier, brier_soft = L.brier_loss(logits, target), L.brier_loss(logits, soft)
    for index, row in enumerate(logits):
        p = probabilities(row)
        p_y = p[int(target[index])]
        below = max((value for value in p if value < p_y), default=0.0)
        assert float(dual[index]) == pytest.approx(-((1 - p_y + below) ** 2) * math.log(p_y), rel=1e-12)
        assert float(inverse[index]) == pytest.approx(-((1 + p_y) ** 0.7) * math.log(p_y), rel=1e-12)
        hard = sum((value - (c == int(target[index]))) ** 2 for c, value in enumerate(p))
        assert float(brier[index]) == pytest.approx(hard, rel=1e-12)
        assert float(brier_soft[index]) == pytest.approx(
            sum((v - float(t)) ** 2 for v, t in zip(p, soft[index], strict=True))
        )


@pytest.mark.parametrize("weighted", [False, True])
def test_mmce_against_a_double_loop(weighted):
    logits, target, _ = batch(12)
    target[:6] = logits[:6].argmax(dim=1)
    target[3] = -100
    value = L.mmce_loss(logits, target, weighted=weighted)
    samples = []
    for row, label in zip(logits, target, strict=True):
        if label != -100:
            p = probabilities(row)
            samples.append((max(p), float(p.index(max(p)) == int(label))))
    hits = sum(c for _, c in samples)
    total = 0.0
    for (r, c), (s, d) in itertools.product(samples, samples):
        kernel = math.exp(-abs(r - s) / 0.4)
        share = [1 / hits if c else 1 / (len(samples) - hits), 1 / hits if d else 1 / (len(samples) - hits)]
        scale = share[0] * share[1] if weighted else 1 / len(samples) ** 2
        total += (c - r) * (d - s) * kernel * scale
    assert float(value) == pytest.approx(math.sqrt(total), rel=1e-10)
    leaf = torch.zeros(4, 2, requires_grad=True)
    combined = L.MMCELoss(2.0)(leaf, torch.tensor([0, 0, 0, 1]))
    expected = F.cross_entropy(leaf, torch.tensor([0, 0, 0, 1])) + 2 * L.mmce_loss(leaf, torch.tensor([0, 0, 0, 1]))
    torch.testing.assert_close(combined, expected)


def test_mmce_of_a_perfect_batch_has_a_finite_gradient():
    leaf = torch.tensor([[200.0, 0.0]], requires_grad=True)
    L.mmce_loss(leaf, torch.tensor([0])).backward()
    assert torch.isfinite(leaf.grad).all()


def test_mmce_of_nothing_and_of_nan():
    leaf = torch.randn(3, 2, requires_grad=True)
    loss = L.MMCELoss(2.0, reduction="sum")(leaf, torch.full((3,), -100))
    loss.backward()
    assert loss == 0
    assert leaf.grad.abs().max() == 0
    assert L.mmce_loss(torch.tensor([[0.0, math.nan], [0.0, 1.0]]), torch.tensor([0, 1])).isnan()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 10.0])
def test_half_precision_under_autocast(dtype, gamma):
    logits = torch.tensor([[100.0, -100, 0], [-100, 100, 0], [0, 0, 0]], dtype=dtype, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = FocalLoss(gamma)(logits, torch.tensor([0, 0, 0]))
        loss = loss + L.SigmoidFocalLoss(gamma)(logits, torch.tensor([[1.0, 0, 1]] * 3))
        others = [kind(gamma)(logits, torch.tensor([0, 0, 0])) for kind in (L.DualFocalLoss, L.ProperFocalLoss)]
        others += [
            L.BrierLoss()(logits, torch.tensor([0, 0, 0])),
            L.InverseFocalLoss(gamma)(logits, torch.zeros(3).long()),
        ]
    for each in (loss, *others):
        assert each.dtype == torch.float32
        (slope,) = torch.autograd.grad(each, logits)
        assert torch.isfinite(each)
        assert torch.isfinite(slope).all()


def test_means_of_more_losses_than_float16_can_add_up():
    logits, target, soft = batch(70_000, classes=3, dtype=torch.float16)
    weight = torch.tensor([2.0, 1.0, 3.0])
    several = [
        (FocalLoss(2.0), target),
        (FocalLoss(2.0, weight=weight.half()), target),
        (FocalLoss([0.0, 1.0, 2.0], label_smoothing=0.1), target),
        (FocalLoss(2.0), soft),
        (L.BrierLoss(), target),
        (L.SigmoidFocalLoss(alpha=None), soft),
    ]
    for criterion, aim in several:
        leaves = logits.clone().requires_grad_(), logits.float().requires_grad_()
        losses = [criterion.to(leaf.dtype)(leaf, aim) for leaf in leaves]
        slopes = [torch.autograd.grad(512 * loss, leaf)[0] for loss, leaf in zip(losses, leaves, strict=True)]
        assert losses[0].dtype == slopes[0].dtype == torch.float16
        torch.testing.assert_close(losses[0].float(), losses[1], rtol=1e-3, atol=0)
        torch.testing.assert_close(slopes[0].float(), slopes[1], rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_proper_focal_loss_at_saturated_logits(dtype, gamma):
    for gap in (50.0, 92.0, 200.0, 720.0):
        logits = torch.tensor([[gap, 0.0, 0.5]] * 3, dtype=dtype, requires_grad=True)
        loss = L.proper_focal_loss(logits, torch.tensor([0, 1, 2]), gamma=gamma)
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert torch.isfinite(loss).all()
        assert torch.isfinite(gradient).all()
        step = torch.zeros_like(logits, dtype=torch.double)
        step[:, 1] = 1e-4
        exact = logits.detach().double()
        ends = [L.proper_focal_loss(exact + d, torch.tensor([0, 1, 2]), gamma=gamma) for d in (-step, step)]
        slopes = (ends[1] - ends[0]) / 2e-4
        torch.testing.assert_close(gradient[:, 1].double(), slopes, rtol=2e-3, atol=1e-6)
