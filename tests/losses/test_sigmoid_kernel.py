"""The kernel of sigmoid focal loss against the plain formula."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_cases import DEVICE, MARKS, TOLERANCE  # noqa: E402

from refocal.losses import SigmoidFocalLoss, sigmoid_focal_loss  # noqa: E402
from refocal.losses.formulas import sigmoid_focal  # noqa: E402
from refocal.losses.gpu import dispatch  # noqa: E402
from refocal.losses.spec import LossSpec  # noqa: E402

pytestmark = MARKS


@pytest.mark.parametrize("alpha", [None, 0.25])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(7,), (3, 1000), (9, 999)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_sigmoid(alpha, dtype, size, reduction):
    generator = torch.Generator().manual_seed(1)
    logits = (5 * torch.randn(size, generator=generator)).to(DEVICE, dtype)
    target = torch.rand(size, generator=generator).round().to(DEVICE)
    target.view(-1)[::5] = -100
    target.view(-1)[1::5] = 0.3
    leaf = logits.clone().requires_grad_()
    value = SigmoidFocalLoss(1.5, alpha=alpha, reduction=reduction)(leaf, target)
    (0.5 * value.sum()).backward()
    exact = logits.double().requires_grad_()
    plain = sigmoid_focal(exact, target.double(), LossSpec(1.5, -100, alpha=alpha))
    expected = {"none": plain, "sum": plain.sum(), "mean": plain.sum() / (target != -100).sum()}[reduction]
    (0.5 * expected.sum()).backward()
    rtol, atol = TOLERANCE[dtype]
    torch.testing.assert_close(value.double(), expected, rtol=2 * rtol, atol=1e-6)
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=rtol, atol=atol)
    assert torch.isfinite(
        sigmoid_focal_loss(torch.tensor([-1e4, 1e4], device=DEVICE), torch.ones(2, device=DEVICE))
    ).all()


@pytest.mark.parametrize("ignored", [-1, 7])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_sigmoid_ignores_the_index_it_is_told(ignored, reduction):
    logits, target = torch.linspace(-3, 3, 7, device=DEVICE), torch.tensor([0, 1, 1, 0, 1, 0, 0], device=DEVICE)
    spec = LossSpec(2.0, ignored, reduction=reduction, alpha=0.25)
    counts = torch.arange(7, device=DEVICE) % 3 > 0
    leaf = logits.clone().requires_grad_()
    loss = dispatch.sigmoid_focal_loss(leaf, torch.where(counts, target, ignored), spec)
    loss.sum().backward()
    kept = logits[counts].requires_grad_()
    expected = sigmoid_focal(kept, target[counts], spec)
    expected.sum().backward()
    torch.testing.assert_close(loss[counts] if reduction == "none" else loss, expected)
    torch.testing.assert_close(leaf.grad[counts], kept.grad)
    assert (leaf.grad[~counts] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16])
def test_sigmoid_with_targets_of_any_type(dtype):
    logits, target = torch.linspace(-3, 3, 7, device=DEVICE), torch.tensor([0, 1, 1, 0, 1, 0, 0], device=DEVICE)
    exact = sigmoid_focal(logits.double(), target.double(), LossSpec(2.0, -100, alpha=0.25))
    for reduction in ("sum", "mean"):
        value = SigmoidFocalLoss(2.0, reduction=reduction)(logits, target.to(dtype)).item()
        assert value == pytest.approx(getattr(exact, reduction)().item(), rel=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_sigmoid_of_easy_scores_keeps_its_digits(gamma):
    logits = torch.tensor([-30.0, -15.1, -8.0, 8.0, 15.1, 30.0], device=DEVICE)
    target = (logits > 0).float()
    leaf = logits.clone().requires_grad_()
    losses = dispatch.sigmoid_focal_loss(leaf, target, LossSpec(gamma, -100))
    losses.sum().backward()
    exact = logits.double().requires_grad_()
    expected = sigmoid_focal(exact, target.double(), LossSpec(gamma, -100))
    expected.sum().backward()
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=1e-5, atol=0)


def test_sigmoid_with_every_score_ignored():
    leaf = torch.zeros(5, device=DEVICE, requires_grad=True)
    loss = SigmoidFocalLoss(2.0, reduction="mean")(leaf, torch.full((5,), -100.0, device=DEVICE))
    loss.backward()
    assert loss.isnan()
    assert (leaf.grad == 0).all()
