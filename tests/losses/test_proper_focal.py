"""The proper part of focal loss: one operator with its gradient, against the plain formula."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from refocal import losses as L  # noqa: E402
from refocal.losses import proper_solver  # noqa: E402

GAMMAS = [0.0, 0.1, 2.0, 50.0, [0.0, 0.5, 1.0, 2.0, 3.0]]


def batch(rows=24, classes=5, *, spread=3.0, dtype=torch.double):
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn(rows, classes, generator=generator, dtype=torch.double)
    target = torch.randint(classes, (rows,), generator=generator)
    target[::3] = logits[::3].argmax(dim=1)
    return logits.to(dtype), target


def loss_and_slope(function, logits, target, gamma):
    leaf = logits.clone().requires_grad_()
    losses = function(leaf, target, gamma=gamma)
    return losses.detach(), torch.autograd.grad(losses.sum(), leaf)[0]


@pytest.mark.parametrize("gamma", GAMMAS, ids=str)
@pytest.mark.parametrize("spread", [1.0, 10.0, 1e3, 1e6])
def test_the_operator_and_the_plain_formula_agree(gamma, spread):
    logits, target = batch(spread=spread)
    found = loss_and_slope(L.proper_focal_loss, logits, target, gamma)
    expected = loss_and_slope(proper_solver.proper_focal_rows_plain, logits, target, gamma)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("gamma", "row"),
    [
        (0.1, [-4757.77734375, 11199.314453125]),
        (0.1, [-7068.359375, 5868.89990234375, -12451.4921875]),
        (0.01, [13020.158203125, -20612.392578125, -3502.07958984375]),
        ([0.1, 0.1], [-4757.77734375, 11199.314453125]),
        (50.0, [77119.1171875, 57054.7265625, -23633.40625, 38735.2421875]),
        (2.0, [1e20, -1e20, 0.0]),
    ],
)
def test_a_row_far_off_does_not_fail_its_batch(gamma, row):
    logits, target = batch(classes=len(row), dtype=torch.float32)
    logits[0] = torch.tensor(row)
    found = loss_and_slope(L.proper_focal_loss, logits, target, gamma)
    exact = loss_and_slope(L.proper_focal_loss, logits.double(), target, gamma)
    torch.testing.assert_close([each.double() for each in found], list(exact), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("gamma", GAMMAS, ids=str)
def test_rows_that_do_not_converge_are_searched(gamma, monkeypatch):
    logits, target = batch()
    expected = loss_and_slope(L.proper_focal_loss, logits, target, gamma)
    monkeypatch.setattr(proper_solver, "_MOST_STEPS", 2)
    found = loss_and_slope(L.proper_focal_loss, logits, target, gamma)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("gamma", [0.0, 2.0, [0.0, 0.5, 2.0]], ids=str)
def test_masked_and_broken_rows(gamma):
    inf, nan = torch.inf, torch.nan
    rows = [[-inf, 0.0, 1.0], [5.0, -inf, -inf], [0.0, -inf, 1.0], [0.0, nan, 1.0], [inf, 0.0, 0.0], [0.0, 1.0, 2.0]]
    target = torch.tensor([2, 0, 1, 0, 0, 1])
    losses, slope = loss_and_slope(L.proper_focal_loss, torch.tensor(rows), target, gamma)
    assert losses.isnan().tolist() == [False, False, False, True, True, False]
    assert slope.isnan().all(dim=1).tolist() == losses.isnan().tolist()
    assert losses[[1, 2]].tolist() == [0.0, math.inf]
    assert slope[[0, 1], [0, 1]].tolist() == [0.0, 0.0]
    alone = L.proper_focal_loss(torch.tensor([[0.0, 1.0]]), torch.tensor([1]), gamma=2.0)
    if gamma == 2.0:
        torch.testing.assert_close(losses[:1], alone)
    single = loss_and_slope(L.proper_focal_loss, torch.zeros(2, 1), torch.zeros(2, dtype=torch.long), 2.0)
    assert [each.abs().max().item() for each in single] == [0.0, 0.0]


@pytest.mark.parametrize("gamma", [0.5, [0.0, 0.5, 1.0, 2.0, 3.0]], ids=str)
def test_derivatives(gamma):
    logits, target = batch(3)
    leaf = logits.requires_grad_()

    def function(scores):
        return L.proper_focal_loss(scores, target, gamma=gamma)

    assert torch.autograd.gradcheck(function, (leaf,))
    assert torch.autograd.gradgradcheck(function, (leaf,))
    (slope,) = torch.autograd.grad(function(leaf).sum(), leaf)
    direction = torch.ones_like(logits).cumsum(dim=1)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(logits.detach(), direction))).tangent
    torch.testing.assert_close(tangent.sum(), (slope * direction).sum())


@pytest.mark.parametrize("gamma", [2.0, [0.0, 0.5, 1.0, 2.0, 3.0]], ids=str)
def test_tensors_without_values(gamma):
    logits, target = batch(6, dtype=torch.float32)
    criterion = L.ProperFocalLoss(gamma)
    loss = criterion(logits.to("meta").requires_grad_(), target.to("meta"))
    assert (loss.shape, loss.dtype, loss.is_meta) == ((), torch.float32, True)
    with FakeTensorMode() as mode:
        leaf = mode.from_tensor(logits).requires_grad_()
        (slope,) = torch.autograd.grad(criterion(leaf, mode.from_tensor(target)), leaf)
    assert slope.shape == logits.shape

    def step(scores, labels):
        return torch.autograd.grad(criterion(scores, labels), scores)[0]

    leaf, other = logits.clone().requires_grad_(), 2 * logits.flip(0)
    for mode in ("real", "fake", "symbolic"):
        traced = make_fx(step, tracing_mode=mode)(leaf, target)
        other_leaf = other.clone().requires_grad_()
        torch.testing.assert_close(traced(other_leaf, target), step(other_leaf, target))


def test_batches_of_many_sizes_are_compiled_twice_at_most():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    criterion = L.ProperFocalLoss(2.0)
    compiled = torch.compile(criterion, backend=counter, fullgraph=True)
    for rows in (4, 5, 7, 9, 12, 13):
        logits, target = batch(rows)
        leaf = logits.requires_grad_()
        loss = compiled(leaf, target)
        torch.testing.assert_close(loss, criterion(logits, target))
        (slope,) = torch.autograd.grad(loss, leaf)
        torch.testing.assert_close(slope, torch.autograd.grad(criterion(leaf, target), leaf)[0])
    assert counter.frame_count <= 2  # one frame for the first size and one for all others


def test_a_backward_pass_needs_one_array_of_the_size_of_the_logits():
    logits, target = batch(64, 50, dtype=torch.float32)
    leaf, saved = logits.requires_grad_(), {}

    def note(tensor):
        saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        L.ProperFocalLoss(2.0)(leaf, target)
    saved.pop(leaf.data_ptr(), None)
    assert sum(saved.values()) < 1.2 * leaf.nbytes
