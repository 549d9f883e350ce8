"""Losses and gradients keep their precision for logits far from 0 and for settings at the end of their range."""

from __future__ import annotations

import functools

import pytest

torch = pytest.importorskip("torch")

from refocal import losses as L  # noqa: E402

LOSSES = {
    "focal": functools.partial(L.focal_loss, gamma=2.0),
    "one gamma per class": functools.partial(L.focal_loss, gamma=[0.0, 0.5, 1.0, 2.0, 3.0]),
    "FLSD-53": functools.partial(L.focal_loss, gamma=L.FLSD53),
    "smoothed": functools.partial(L.focal_loss, gamma=2.0, label_smoothing=0.1),
    "inverse": functools.partial(L.inverse_focal_loss, gamma=1.0),
    "dual": functools.partial(L.dual_focal_loss, gamma=2.0),
    "proper": functools.partial(L.proper_focal_loss, gamma=2.0),
    "Brier": L.brier_loss,
}


def loss_and_slope(function, logits, target):
    leaf = logits.clone().requires_grad_()
    losses = function(leaf, target)
    return losses.detach().double(), torch.autograd.grad(losses.sum(), leaf)[0].double()


def far_off(offset, rows=64, classes=5):
    """Logits in float64, and the same logits plus exactly `offset` in float32."""
    generator = torch.Generator().manual_seed(0)
    near = torch.randint(-8, 9, (rows, classes), generator=generator).float()  # whole numbers, whose sums are exact
    near[: rows // 4, 0] += 12
    return near + offset, near.double(), torch.randint(classes, (rows,), generator=generator)


@pytest.mark.parametrize("offset", [0.0, 1e2, 1e4, 1e7, -1e7])
@pytest.mark.parametrize("name", LOSSES)
def test_an_offset_of_all_logits_changes_nothing(name, offset):
    logits, near, target = far_off(offset)
    for found, exact in zip(
        loss_and_slope(LOSSES[name], logits, target), loss_and_slope(LOSSES[name], near, target), strict=True
    ):
        torch.testing.assert_close(found, exact, rtol=3e-6, atol=3e-7)


@pytest.mark.parametrize("offset", [1e4, 1e7])
def test_an_offset_of_all_logits_changes_no_soft_target(offset):
    logits, near, _ = far_off(offset)
    soft = torch.softmax(near.flip(1) / 4, dim=1)
    for function in (LOSSES["focal"], LOSSES["FLSD-53"], LOSSES["smoothed"], LOSSES["Brier"]):
        expected = loss_and_slope(function, near, soft)
        for found, exact in zip(loss_and_slope(function, logits, soft.float()), expected, strict=True):
            torch.testing.assert_close(found, exact, rtol=3e-6, atol=3e-7)


def test_equal_scores_are_equal_however_large():
    for scale in (1.0, 1e7, 3e38):
        loss = L.focal_loss(torch.full((1, 3), scale), torch.tensor([0]), gamma=2.0)
        assert loss.item() == pytest.approx(0.48827, abs=1e-5)


@pytest.mark.parametrize("smoothing", [0.99999999, 1 - 2**-53])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("edge", ["soft", "exact"])
def test_a_smoothing_that_leaves_almost_nothing_of_the_labels(smoothing, dtype, edge):
    criterion = L.FocalLoss(2.0, label_smoothing=smoothing, smoothing_edge=edge)
    rows = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.1, 0.2, 0.3], [5.0, -2.0, 5.0]], dtype=dtype)
    leaf = rows.clone().requires_grad_()
    loss = criterion(leaf, torch.tensor([0, 1, 2, 0]))
    loss.backward()
    assert loss.isfinite()
    assert leaf.grad.isfinite().all()
    probs = criterion.posterior(leaf)
    assert (probs >= 0).all()
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(4, dtype=dtype))
    torch.testing.assert_close(probs[3], torch.tensor([0.5, 0.0, 0.5], dtype=dtype))
    (slope,) = torch.autograd.grad(probs[:, 0].sum(), leaf)
    assert slope.isfinite().all()


def test_undoing_almost_all_of_the_smoothing_keeps_what_is_left():
    criterion = L.FocalLoss(0.0, label_smoothing=1 - 1e-8, smoothing_edge="exact")
    eta = torch.tensor([[0.2, 0.3, 0.5], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.double)
    mixed = 1e-8 * eta + (1 - 1e-8) / 3
    torch.testing.assert_close(criterion.posterior(mixed.log()), eta, rtol=0, atol=1e-7)
