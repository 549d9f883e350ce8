"""Ignored rows never count. Their index is -100 by default in every loss, as in cross-entropy."""

from __future__ import annotations

import pytest
import torch

from refocal import losses

LOSSES = {
    "focal": lambda **options: losses.FocalLoss(2.0, **options),
    "focal-classes": lambda **options: losses.FocalLoss([0.5, 1.0, 2.0], **options),
    "flsd": lambda **options: losses.FocalLoss(losses.FLSD53, **options),
    "inverse": lambda **options: losses.InverseFocalLoss(1.0, **options),
    "dual": lambda **options: losses.DualFocalLoss(2.0, **options),
    "proper": lambda **options: losses.ProperFocalLoss(2.0, **options),
    "brier": losses.BrierLoss,
    "mmce": lambda **options: losses.MMCELoss(2.0, **options),
    "mmce-weighted": lambda **options: losses.MMCELoss(2.0, weight=torch.tensor([0.5, 1.0, 3.0]), **options),
}
FUNCTIONS = {
    "focal": lambda x, y, **options: losses.focal_loss(x, y, gamma=2.0, **options),
    "inverse": lambda x, y, **options: losses.inverse_focal_loss(x, y, gamma=1.0, **options),
    "dual": lambda x, y, **options: losses.dual_focal_loss(x, y, gamma=2.0, **options),
    "proper": lambda x, y, **options: losses.proper_focal_loss(x, y, gamma=2.0, **options),
    "brier": losses.brier_loss,
}


def batch(ignored):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, 3, generator=generator)
    target = torch.randint(0, 3, (12,), generator=generator)
    return logits, torch.where(torch.arange(12) % 3 == 1, ignored, target)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [-100, 7])
def test_a_reduced_loss_is_that_of_the_other_rows(name, reduction, ignored):
    logits, target = batch(ignored)
    kept = target != ignored
    options = {} if ignored == -100 else {"ignore_index": ignored}
    leaf, alone = logits.clone().requires_grad_(), logits[kept].clone().requires_grad_()
    found = LOSSES[name](reduction=reduction, **options)(leaf, target)
    expected = LOSSES[name](reduction=reduction)(alone, target[kept])
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    torch.testing.assert_close(leaf.grad[kept], alone.grad)
    assert not leaf.grad[~kept].any()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("ignored", [-100, 7])
def test_a_row_to_be_ignored_has_loss_0(name, ignored):
    logits, target = batch(ignored)
    found = FUNCTIONS[name](logits, target, **({} if ignored == -100 else {"ignore_index": ignored}))
    kept = target != ignored
    torch.testing.assert_close(found[kept], FUNCTIONS[name](logits[kept], target[kept]))
    assert not found[~kept].any()


@pytest.mark.parametrize("ignored", [-100, 7])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_scores_of_a_sigmoid(ignored, reduction):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 3, generator=generator)
    target = (torch.rand(8, 3, generator=generator) < 0.5).float()
    target[::2, 1] = ignored
    kept = target != ignored
    options = {} if ignored == -100 else {"ignore_index": ignored}
    found = losses.SigmoidFocalLoss(reduction=reduction, **options)(logits, target)
    expected = losses.SigmoidFocalLoss(reduction=reduction)(logits[kept], target[kept])
    torch.testing.assert_close(found[kept] if reduction == "none" else found, expected)
    each = losses.sigmoid_focal_loss(logits, target, **options)
    torch.testing.assert_close(each[kept], losses.sigmoid_focal_loss(logits[kept], target[kept]))
    assert not each[~kept].any()


@pytest.mark.parametrize("name", ["focal", "inverse", "dual", "proper"])
def test_a_row_that_is_ignored_may_hold_anything(name):
    logits, target = batch(-100)
    logits[target == -100] = torch.tensor([float("-inf"), 0.0, 3.0])
    leaf = logits.clone().requires_grad_()
    found = LOSSES[name]()(leaf, target)
    torch.testing.assert_close(found, LOSSES[name]()(logits[target != -100], target[target != -100]))
    found.backward()
    assert torch.isfinite(leaf.grad).all()
