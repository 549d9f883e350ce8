"""Losses against slow references, PyTorch's own, and each other."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from refocal import losses as L  # noqa: E402
from refocal.losses import FocalLoss, NoPosteriorError  # noqa: E402
from refocal.losses.posterior_maps import FocalMap  # noqa: E402


def batch(*shape, classes=5, seed=0, dtype=torch.double):
    """Logits (N, K, ...), class indices (N, ...) and class probabilities."""
    generator = torch.Generator().manual_seed(seed)
    full = (shape[0], classes, *shape[1:])
    logits = 3 * torch.randn(full, generator=generator, dtype=torch.double)
    target = torch.randint(classes, shape, generator=generator)
    soft = torch.softmax(torch.randn(full, generator=generator, dtype=torch.double), dim=1)
    return logits.to(dtype), target, soft.to(dtype)


def probabilities(row):
    scores = [math.exp(float(z) - float(max(row))) for z in row]
    return [score / sum(scores) for score in scores]


WEIGHT = torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0], dtype=torch.double)


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


def test_transformations():
    logits, target, _ = batch(4, dtype=torch.float32)
    criterion = FocalLoss(2.0, reduction="none")
    expected = criterion(logits, target)
    torch.testing.assert_close(torch.compile(criterion, backend="aot_eager", fullgraph=True)(logits, target), expected)
    per_sample = torch.func.vmap(lambda z, y: L.focal_loss(z[None], y[None], gamma=2.0)[0])(logits, target)
    torch.testing.assert_close(per_sample, expected)
    for other in (FocalLoss(2.0, label_smoothing=0.1), L.BrierLoss()):
        slope = torch.func.grad(lambda z, y, other=other: other(z[None], y[None]))
        expected_slopes = torch.stack([slope(z, y) for z, y in zip(logits, target, strict=True)])
        torch.testing.assert_close(torch.func.vmap(slope)(logits, target), expected_slopes)
    gradient = torch.func.grad(lambda z: FocalLoss(2.0)(z, target))(logits)
    leaf = logits.clone().requires_grad_()
    FocalLoss(2.0)(leaf, target).backward()
    torch.testing.assert_close(gradient, leaf.grad)
    exported = torch.export.export(criterion, (logits, target)).module()
    torch.testing.assert_close(exported(logits, target), expected)
    for module in (FocalLoss(3.0, weight=torch.arange(1.0, 6)), L.SigmoidFocalLoss(2.0), L.InverseFocalLoss(0.5)):
        head = torch.export.export(module.posterior_map, (logits,)).module()
        torch.testing.assert_close(head(logits), module.posterior(logits))
        assert not module.posterior_map.state_dict()


def test_the_proper_part_under_vmap():
    logits, target, _ = batch(6)
    for gamma in (2.0, [0.0, 0.5, 1.0, 2.0, 3.0]):
        leaf = logits.clone().requires_grad_()
        losses = L.proper_focal_loss(leaf, target, gamma=gamma)
        losses.sum().backward()

        def one(z, y, gamma=gamma):
            return L.proper_focal_loss(z[None], y[None], gamma=gamma)[0]

        torch.testing.assert_close(torch.func.vmap(one)(logits, target), losses.detach())
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(one))(logits, target), leaf.grad)


def test_the_proper_part_under_vmap_without_values():
    one = torch.func.vmap(lambda z, y: L.proper_focal_loss(z[None], y[None], gamma=2.0)[0])
    with FakeTensorMode():  # as in tracing
        assert one(*batch(6)[:2]).shape == (6,)


@pytest.mark.parametrize("criterion", [FocalLoss(2.0), L.DualFocalLoss(2.0), L.BrierLoss(), L.MMCELoss(2.0)])
def test_shapes_alone(criterion):
    logits, target, _ = batch(4)
    loss = criterion(logits.to("meta"), target.to("meta"))
    assert (loss.shape, loss.dtype, loss.is_meta) == ((), logits.dtype, True)


@pytest.mark.parametrize("gamma", [2.0, [0.0, 0.5, 1.0, 2.0, 3.0]])
def test_the_proper_part_is_compiled_and_exported_whole(gamma):
    logits, target, _ = batch(6)
    criterion, leaves = L.ProperFocalLoss(gamma), [logits.clone().requires_grad_() for _ in range(2)]
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    expected, found = criterion(leaves[0], target), compiled(leaves[1], target)
    torch.testing.assert_close(found, expected)
    expected.backward()
    found.backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    exported = torch.export.export(criterion, (logits, target)).module()
    torch.testing.assert_close(exported(logits, target), expected)


def test_losses_with_several_gammas_are_compiled_in_one_process():
    logits, target, _ = batch(4, dtype=torch.float32)
    for kind in (FocalLoss, L.DualFocalLoss, L.InverseFocalLoss, lambda gamma: FocalLoss(gamma).posterior_map):
        for gamma in (2.0, 0.5, 0.75):
            module = kind(gamma)
            inputs = (logits,) if isinstance(module, FocalMap) else (logits, target)
            compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(*inputs), module(*inputs))


def test_an_exported_map_takes_batches_of_any_size():
    few, many = torch.randn(4, 3), torch.randn(20_000, 3)
    rows = {0: torch.export.Dim("rows")}
    for module in (FocalLoss(3.0), FocalLoss([0.0, 1.0, 3.0], label_smoothing=0.1), L.SigmoidFocalLoss()):
        head = torch.export.export(module.posterior_map, (few,), dynamic_shapes=(rows,)).module()
        torch.testing.assert_close(head(many), module.posterior(many))


def test_deterministic_mode():
    logits, target, _ = batch(4, dtype=torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        FocalLoss(2.0)(logits.clone().requires_grad_(), target).backward()
    finally:
        torch.use_deterministic_algorithms(False)


def errors_of(criterion, logits, target):
    with pytest.raises(Exception) as caught:
        criterion(logits, target)
    return type(caught.value), str(caught.value)


def test_brier_score_of_class_probabilities_refuses_an_index_to_ignore():
    given = torch.zeros(4, 3), torch.full((4, 3), 1 / 3)
    expected = errors_of(torch.nn.CrossEntropyLoss(ignore_index=1), *given)
    assert errors_of(L.BrierLoss(ignore_index=1), *given) == expected


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize(
    ("options", "target"),
    [
        ({}, torch.tensor([0, 1, 4])),
        ({}, torch.tensor([0, 1, -5])),
        ({"label_smoothing": 0.1}, torch.tensor([0, 1, 4])),
        ({"label_smoothing": 0.1}, torch.tensor([0, 1, -5])),
        ({"ignore_index": 1}, torch.full((3, 4), 0.25)),
    ],
)
def test_wrong_targets_are_refused_as_by_cross_entropy(gamma, options, target):
    expected = errors_of(torch.nn.CrossEntropyLoss(**options), torch.zeros(3, 4), target)
    assert errors_of(FocalLoss(gamma, **options), torch.zeros(3, 4), target) == expected


def test_targets_out_of_bounds_are_refused_by_every_loss():
    for criterion in (
        L.BrierLoss(),
        L.InverseFocalLoss(1.0),
        L.DualFocalLoss(1.0),
        L.ProperFocalLoss(1.0),
        L.mmce_loss,
    ):
        for index in (4, -5):
            with pytest.raises(IndexError, match=f"Target {index} is out of bounds"):
                criterion(torch.zeros(2, 4), torch.tensor([0, index]))


def test_one_sample_with_its_target_in_a_vector():
    logits, target = torch.randn(4), torch.tensor([1])
    expected = F.cross_entropy(logits, target)
    for gamma in (0, 1e-13):
        torch.testing.assert_close(FocalLoss(gamma)(logits, target), expected)


def test_smoothing_all_of_the_labels_away():
    logits, target, soft = batch(4)
    for aim in (target, soft):
        expected = F.cross_entropy(logits, aim, label_smoothing=1.0)
        for gamma in (0, 1e-13):
            torch.testing.assert_close(FocalLoss(gamma, label_smoothing=1.0)(logits, aim), expected)
    with pytest.raises(NoPosteriorError, match="no label counts"):
        FocalLoss(2.0, label_smoothing=1.0).posterior(logits)
    with pytest.raises(ValueError, match=r"label_smoothing must lie in \[0, 1\], got 1.5"):
        FocalLoss(2.0, label_smoothing=1.5)


def test_empty_ignored_and_nan_batches_as_cross_entropy():
    empty = torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)
    ignored = torch.zeros(2, 3), torch.full((2,), -100)
    for logits, target in (empty, ignored):
        assert FocalLoss(2.0)(logits, target).isnan()
        assert FocalLoss(2.0, reduction="sum")(logits, target) == 0
        assert FocalLoss(2.0, reduction="none")(logits, target).shape == target.shape
    rows = torch.tensor([[0.0, math.nan], [0.0, 1.0]])
    losses = [FocalLoss(2.0), L.InverseFocalLoss(1.0), L.DualFocalLoss(2.0), L.BrierLoss(), L.ProperFocalLoss(2.0)]
    for criterion in losses:
        criterion.reduction = "none"
        leaf = rows.clone().requires_grad_()
        each = criterion(leaf, torch.tensor([0, 1]))
        each.sum().backward()
        assert each.isnan().tolist() == [True, False]
        assert leaf.grad.isnan().all(dim=1).tolist() == [True, False]


@pytest.mark.parametrize("gamma", [0.5, 2.0, [0.5, 1.0, 2.0], L.FLSD53], ids=str)
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_infinite_logits_as_cross_entropy(gamma, reduction):
    inf = torch.inf
    rows = [[-inf, 0.0, 1.0], [1.0, -inf, 0.0], [-inf, 0.0, -inf], [inf, 0.0, 0.0], [0.0, inf, 0.0], [-inf] * 3]
    for row, index in itertools.product(rows, (0, 1, -100)):
        results = []
        for criterion in (FocalLoss(gamma, reduction=reduction), torch.nn.CrossEntropyLoss(reduction=reduction)):
            leaf = torch.tensor([[0.0, 1.0, 2.0], row], dtype=torch.double, requires_grad=True)
            losses = criterion(leaf, torch.tensor([0, index]))
            losses.sum().backward()
            results.append((losses, leaf.grad))
        (losses, slope), (expected, expected_slope) = results
        assert losses.isnan().tolist() == expected.isnan().tolist(), (row, index)
        assert losses.isinf().tolist() == expected.isinf().tolist(), (row, index)
        assert slope[0].isfinite().all()
        if expected_slope[1].isfinite().all():
            p = torch.softmax(torch.tensor(row, dtype=torch.double), dim=0)[max(index, 0)].item()
            exponent = gamma(torch.tensor(p)).item() if gamma is L.FLSD53 else np.broadcast_to(gamma, 3)[max(index, 0)]
            factor = L.gradient_factor(torch.tensor(p, dtype=torch.double), gamma=float(exponent))
            torch.testing.assert_close(slope[1], factor * expected_slope[1], msg=f"{row}, {index}")


def test_masked_rows_that_do_not_count():
    for criterion in (
        FocalLoss(2.0, label_smoothing=0.1),
        L.InverseFocalLoss(1.0),
        L.DualFocalLoss(2.0),
        L.BrierLoss(),
    ):
        leaf = torch.tensor([[-torch.inf, 0.0, 1.0], [2.0, 1.0, 0.0]], requires_grad=True)
        criterion(leaf, torch.tensor([-100, 0])).backward()
        assert leaf.grad[0].tolist() == [0, 0, 0]
        assert leaf.grad[1].isfinite().all()


def test_bad_settings():
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum', got 'avg'"):
        FocalLoss(2.0, reduction="avg")
    with pytest.raises(ValueError, match="gamma must be at least 0"):
        FocalLoss(-1.0)
    with pytest.raises(ValueError, match="gamma must be at least 0"):
        L.ProperFocalLoss([1.0, -1.0])
    with pytest.raises(ValueError, match="one value for each of 3 classes, got 2 values"):
        FocalLoss([1.0, 2.0])(torch.zeros(1, 3), torch.tensor([0]))
    with pytest.raises(TypeError, match="target must hold class indices for this loss, got class probabilities"):
        L.dual_focal_loss(torch.zeros(1, 3), torch.zeros(1, 3), gamma=1.0)
    with pytest.raises(ValueError, match="MMCE is a property of a batch"):
        L.MMCELoss(1.0, reduction="none")
    with pytest.raises(ValueError, match="logits and target must have the same shape"):
        L.sigmoid_focal_loss(torch.zeros(3), torch.zeros(2))


@pytest.mark.parametrize("number", [torch.tensor(0.5), np.array(0.5), np.float32(0.5)], ids=lambda n: type(n).__name__)
def test_numbers_of_any_library(number):
    assert FocalLoss(number).gamma == L.ProperFocalLoss(number).gamma == 0.5
    module = L.SigmoidFocalLoss(number, alpha=number)
    assert (module.gamma, module.alpha) == (0.5, 0.5)


@pytest.mark.parametrize("index", [1.5, True, None])
def test_the_ignored_index_is_a_whole_number(index):
    refused = pytest.raises(TypeError, match=f"ignore_index must be a whole number, got {index}")
    for module in (L.FocalLoss, L.DualFocalLoss, L.ProperFocalLoss, L.MMCELoss, L.SigmoidFocalLoss):
        with refused:
            module(1.0, ignore_index=index)
    logits, target, _ = batch(4)
    for loss in (L.focal_loss, L.inverse_focal_loss, L.dual_focal_loss, L.proper_focal_loss):
        with refused:
            loss(logits, target, gamma=1.0, ignore_index=index)
    for loss in (L.brier_loss, L.mmce_loss):
        with refused:
            loss(logits, target, ignore_index=index)
    with refused:
        L.sigmoid_focal_loss(logits[:, 0], target, ignore_index=index)


@pytest.mark.parametrize(
    "module",
    [FocalLoss(L.FLSD53), FocalLoss(L.AdaFocal()), L.DualFocalLoss(2.0), L.InverseFocalLoss(1.5)],
    ids=lambda module: type(module).__name__,
)
def test_losses_without_a_closed_form_say_so(module):
    with pytest.raises(NoPosteriorError, match=r"no closed-form posterior.*FocalTemperatureScaling"):
        module.posterior(torch.zeros(1, 3))


def test_representations_show_the_settings():
    assert "gamma=2.0" in repr(FocalLoss(2.0))
    assert "edges=(0.2,), gammas=(5.0, 3.0)" in repr(FocalLoss(L.FLSD53))
    assert "factor=2" in repr(L.MMCELoss(2))
    assert "alpha=0.25" in repr(L.SigmoidFocalLoss())


def test_readme_example_runs(capsys):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    block = readme.split("## Losses")[1].split("```python\n", 1)[1].split("```", 1)[0]
    exec(block, {})
    assert "0.92" in capsys.readouterr().out


@pytest.mark.parametrize("gamma", [0.5, 2.0, [0.0, 0.5, 1.0, 2.0, 3.0], L.FLSD53], ids=str)
def test_masked_classes_without_a_share_in_a_soft_target(gamma):
    logits, _, soft = batch(3)
    kept = [0, 1, 2, 4]
    logits[:, 3], soft[:, 3] = -torch.inf, 0.0
    leaf = logits.requires_grad_()
    loss = FocalLoss(gamma)(leaf, soft)
    (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
    (curvature,) = torch.autograd.grad(slope[:, kept].square().sum(), leaf)
    fewer = logits[:, kept].detach().requires_grad_()
    some = [gamma[k] for k in kept] if isinstance(gamma, list) else gamma
    expected = FocalLoss(some)(fewer, soft[:, kept])
    (slope_of_fewer,) = torch.autograd.grad(expected, fewer, create_graph=True)
    (curvature_of_fewer,) = torch.autograd.grad(slope_of_fewer.square().sum(), fewer)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(slope[:, kept], slope_of_fewer)
    torch.testing.assert_close(curvature[:, kept], curvature_of_fewer)
    assert slope[:, 3].abs().max() == 0


def test_a_soft_target_that_is_nan_or_learned():
    logits, _, soft = batch(3)
    soft[0, 1] = math.nan
    assert FocalLoss(2.0, reduction="none")(logits, soft).isnan().tolist() == [True, False, False]
    learned = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.double, requires_grad=True)
    (slope,) = torch.autograd.grad(FocalLoss(2.0)(logits[:1], learned), learned)
    each = L.focal_loss(logits[:1].expand(5, -1), torch.arange(5), gamma=2.0)
    torch.testing.assert_close(slope[0], each)
