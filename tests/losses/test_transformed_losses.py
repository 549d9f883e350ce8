"""Losses under vmap, fake tensors, compilation, export and deterministic mode."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from loss_cases import batch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from refocal import losses as L  # noqa: E402
from refocal.losses import FocalLoss  # noqa: E402
from refocal.losses.posterior_maps import FocalMap  # noqa: E402


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


@pytest.mark.thorough
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
