"""Losses that are computed on a CPU together with their gradient, against the plain formulas in float64."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

from refocal import losses as L  # noqa: E402
from refocal.losses import rows  # noqa: E402
from refocal.losses.cpu import one_pass  # noqa: E402
from refocal.losses.policies import GammaPolicy  # noqa: E402

GAMMAS = [0.3, 1.0, 2.0, 3.0, 7.5, 10.0, tuple(0.5 * k for k in range(7)), L.FLSD53]
CLASSES = 7


def batch(*, dtype=torch.float32):
    """Logits with some confident rows, and targets that are the top class, another class, or ignored."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(60, CLASSES, generator=generator)
    logits[:40, 3] += torch.linspace(0, 40, 40)
    target = torch.randint(CLASSES, (60,), generator=generator)
    target[:40:2], target[::7] = 3, -100
    soft = torch.softmax(3 * torch.randn(60, CLASSES, generator=generator), dim=1)
    soft[::5] = torch.nn.functional.one_hot(torch.arange(12) % CLASSES, CLASSES).float()
    return logits.to(dtype), target, soft.to(dtype)


def loss_and_slope(function, logits, target):
    leaf = logits.clone().requires_grad_()
    losses = function(leaf, target)
    return losses.detach().double(), torch.autograd.grad((losses * torch.arange(1, 61)).sum(), leaf)[0].double()


def assert_as_plain(function, logits, target, monkeypatch):
    """Compare one pass over small blocks with the plain formula, in float64 and in float32."""
    monkeypatch.setattr(rows, "_BLOCK_ELEMENTS", 11 * CLASSES)
    wide = target.double() if target.is_floating_point() else target
    found = loss_and_slope(function, logits, target), loss_and_slope(function, logits.double(), wide)
    monkeypatch.setattr(one_pass, "supports", lambda *_: False)
    expected = loss_and_slope(function, logits.double(), wide)
    monkeypatch.undo()
    torch.testing.assert_close(found[0], expected, rtol=5e-6, atol=2e-5)
    torch.testing.assert_close(found[1], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("gamma", GAMMAS, ids=str)
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_focal_loss(gamma, detached, weighted, monkeypatch):
    logits, target, soft = batch()
    for goal, smoothing in ((target, 0.0), (target, 0.1), (soft, 0.0), (soft, 0.1)):

        def function(scores, labels, smoothing=smoothing):
            weight = torch.linspace(0.5, 2, CLASSES).to(scores.dtype) if weighted else None
            return L.focal_loss(
                scores, labels, gamma=gamma, weight=weight, label_smoothing=smoothing, detached=detached
            )

        assert_as_plain(function, logits, goal, monkeypatch)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("kind", [L.dual_focal_loss, L.inverse_focal_loss])
@pytest.mark.parametrize("weighted", [False, True])
def test_other_losses(kind, gamma, weighted, monkeypatch):
    logits, target, _ = batch()
    logits[5] = 1.0  # no class is below another
    logits[6, 1] = logits[6, 2]

    def function(scores, labels):
        weight = torch.linspace(0.5, 2, CLASSES).to(scores.dtype) if weighted else None
        return kind(scores, labels, gamma=gamma, weight=weight)

    assert_as_plain(function, logits, target, monkeypatch)


def test_policies_with_negative_gammas(monkeypatch):
    policy = L.AdaFocal(bins=2)
    policy.edges.fill_(0.5)
    policy.gammas.copy_(torch.tensor([3.0, -1.5]))
    logits, target, _ = batch()
    for detached in (False, True):
        function = functools.partial(L.focal_loss, gamma=policy, detached=detached)
        assert_as_plain(function, logits, target, monkeypatch)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_small_losses_keep_their_digits(smoothing):
    logits = torch.tensor([[0.0, 20.0, 1.0], [0.0, 40.0, 3.0], [0.0, 80.0, 0.0]])
    for gamma in (0.5, 2.0):
        one_hot = torch.tensor([[0.0, 1.0, 0.0]]).expand(3, -1)
        for goal in (torch.ones(3, dtype=torch.long), one_hot):
            results = []
            for scores in (logits, logits.double()):
                leaf = scores.clone().requires_grad_()
                losses = L.focal_loss(
                    leaf, goal.to(leaf) if goal.ndim == 2 else goal, gamma=gamma, label_smoothing=smoothing
                )
                results.append([losses.detach().double(), torch.autograd.grad(losses.sum(), leaf)[0].double()])
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-38)


@pytest.mark.parametrize("kind", [L.FocalLoss, L.DualFocalLoss, L.InverseFocalLoss])
def test_a_backward_pass_needs_one_array_of_the_size_of_the_logits(kind):
    logits, target, soft = batch()
    cases = [(kind(2.0), target)]
    if kind is L.FocalLoss:
        cases += [(L.FocalLoss(2.0, label_smoothing=0.1), target), (L.FocalLoss(2.0), soft)]
    for criterion, goal in cases:
        leaf, saved = logits.clone().requires_grad_(), {}

        def note(tensor, saved=saved):
            saved[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            criterion(leaf, goal)
        for given in (leaf, goal):
            saved.pop(given.data_ptr(), None)
        assert sum(saved.values()) < 1.5 * leaf.nbytes


def test_many_gradients_at_once_and_a_second_pass():
    logits, target, _ = batch()
    leaf = logits.requires_grad_()
    losses = L.focal_loss(leaf, target, gamma=2.0)
    (all_at_once,) = torch.autograd.grad(losses, leaf, torch.eye(60), is_grads_batched=True, retain_graph=True)
    for index in (0, 1, 33):
        (one,) = torch.autograd.grad(losses[index], leaf, retain_graph=True)
        (again,) = torch.autograd.grad(losses[index], leaf, retain_graph=True)
        torch.testing.assert_close(all_at_once[index], one)
        assert torch.equal(one, again)


@pytest.mark.parametrize("label", [CLASSES, -3])
@pytest.mark.parametrize("gamma", [2.0, tuple(0.5 * k for k in range(7))], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_classes_out_of_bounds_are_refused_as_by_cross_entropy(label, gamma, weighted):
    logits, target, _ = batch()
    target[1] = label
    weight = torch.ones(CLASSES) if weighted else None
    for smoothing in (0.0, 0.1):
        with pytest.raises(IndexError, match=f"Target {label} is out of bounds"):
            L.FocalLoss(gamma, weight=weight, label_smoothing=smoothing)(logits, target)


@pytest.mark.parametrize("loss", [L.FocalLoss(2.0), L.DualFocalLoss(2.0), L.InverseFocalLoss(1.0)])
def test_second_derivatives_of_a_mean(loss):
    torch.manual_seed(0)
    logits, target = torch.randn(5, 3, dtype=torch.double, requires_grad=True), torch.tensor([0, 1, 2, 1, 0])
    assert torch.autograd.gradgradcheck(lambda x: loss(x, target), (logits,))


@pytest.mark.parametrize("loss", [L.FocalLoss(2.0), L.DualFocalLoss(2.0), L.InverseFocalLoss(1.0)])
def test_logits_far_apart_in_single_precision(loss):
    logits = torch.tensor([[300.0, 0.0, -300.0], [0.0, -200.0, 150.0]])
    for target in (torch.tensor([0, 2]), torch.tensor([1, 0])):
        leaf, wide = logits.clone().requires_grad_(), logits.double().requires_grad_()
        for x in (leaf, wide):
            loss(x, target).backward()
        torch.testing.assert_close(loss(logits, target).double(), loss(logits.double(), target))
        torch.testing.assert_close(leaf.grad.double(), wide.grad)


def criteria(**options):
    """One loss for each branch of the pass."""
    smoothed = L.FocalLoss(2.0, label_smoothing=0.1, **options)
    by_class = L.FocalLoss(tuple(0.5 * k for k in range(CLASSES)), **options)
    others = [L.FocalLoss(L.FLSD53, **options), L.DualFocalLoss(2.0, **options), L.InverseFocalLoss(1.0, **options)]
    return [L.FocalLoss(2.0, **options), smoothed, by_class, *others]


def test_a_batch_in_which_no_row_counts_has_the_gradient_0():
    logits, target, _ = batch()
    for criterion in (torch.nn.CrossEntropyLoss(), *criteria()):
        leaf = logits.clone().requires_grad_()
        loss = criterion(leaf, torch.full_like(target, -100))
        (slope,) = torch.autograd.grad(loss, leaf)
        assert loss.isnan()
        assert not slope.count_nonzero()


def test_losses_of_samples_can_be_changed_in_place():
    logits, target, _ = batch()
    for criterion in criteria(reduction="none"):
        leaves = [logits.clone().requires_grad_() for _ in range(2)]
        losses = criterion(leaves[0], target)
        losses[::2] = 0
        losses.mul_(3)
        losses.sum().backward()
        (3 * criterion(leaves[1], target)[1::2]).sum().backward()
        torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


def test_the_default_device_is_not_asked():
    logits, target, soft = batch()
    cases = [(criterion, target) for criterion in criteria()]
    cases += [(L.FocalLoss(L.AdaFocal()), target), (L.FocalLoss(2.0), soft), (L.ProperFocalLoss(2.0), target)]
    for criterion, goal in cases:
        leaf = logits.clone().requires_grad_()
        expected = criterion(leaf, goal)
        with torch.device("meta"):
            found = criterion(leaf, goal)
            found.backward()
        assert torch.equal(found, expected)


def test_a_policy_sees_one_probability_per_sample():
    class Flat(GammaPolicy):
        def forward(self, p):
            assert p.ndim == 1
            return torch.where(p < 0.2, 5.0, 3.0).flatten()

    class Constant(GammaPolicy):
        def forward(self, p):  # noqa: ARG002
            return 3.0

    logits, target, _ = batch()
    found, expected = (L.focal_loss(logits, target, gamma=policy) for policy in (Flat(), L.FLSD53))
    torch.testing.assert_close(found, expected)
    found, expected = (L.focal_loss(logits, target, gamma=gamma) for gamma in (Constant(), 3.0))
    torch.testing.assert_close(found, expected)


def test_a_row_of_nan_costs_other_rows_no_digits():
    logits = torch.tensor([[0.0, 20.0, 1.0], [float("nan"), 0.0, 0.0]])
    for goal in (torch.tensor([1, -100]), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])):
        smoothing = 1e-30 if goal.ndim == 1 else 0.0
        wide = goal.double() if goal.ndim == 2 else goal
        options = {"gamma": 2.0, "label_smoothing": smoothing}
        found, expected = L.focal_loss(logits, goal, **options), L.focal_loss(logits.double(), wide, **options)
        torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-5, atol=0)
