"""Unusual input: wrong targets and settings, empty batches, infinite and masked logits."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from loss_cases import batch  # noqa: E402

from refocal import losses as L  # noqa: E402
from refocal.losses import FocalLoss, NoPosteriorError  # noqa: E402


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
    for reduction in ("none", "mean", "sum"):
        criterion = L.SigmoidFocalLoss([2.0, 1.0], reduction=reduction)
        with pytest.raises(TypeError, match=r"logits must have a floating-point dtype, got torch\.int64"):
            criterion(torch.zeros(3, 2).long(), torch.zeros(3, 2))
        with pytest.raises(ValueError, match=r"the same shape, got \(3, 2\) and \(2,\)"):
            criterion(torch.zeros(3, 2), torch.zeros(2))
        with pytest.raises(ValueError, match="one value for each of 3 classes, got 2 values"):
            criterion(torch.zeros(2, 3), torch.zeros(2, 3))


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


def test_example_of_the_page_runs(capsys):
    page = (Path(__file__).parents[2] / "docs/how-to/losses.md").read_text(encoding="utf-8")
    block = page.split("## You are going to train")[1].split("```python\n", 1)[1].split("```", 1)[0]
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


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, [0.0, 0.5, 1.0, 2.0, 3.0], L.FLSD53], ids=str)
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_smoothing_over_a_masked_class(gamma, smoothing):
    """The loss is infinite, and its gradient the limit, which a score with p = 0 has already."""
    results = []
    for score in (-torch.inf, -1e4):
        logits, indices, _ = batch(3)
        logits[:, 3] = score
        leaf = logits.requires_grad_()
        loss = FocalLoss(gamma, label_smoothing=smoothing)(leaf, indices)
        results.append((loss, torch.autograd.grad(loss, leaf)[0]))
    (loss, slope), (_, limit) = results
    assert loss == torch.inf
    torch.testing.assert_close(slope, limit)


def test_a_soft_target_that_is_nan_or_learned():
    logits, _, soft = batch(3)
    soft[0, 1] = math.nan
    assert FocalLoss(2.0, reduction="none")(logits, soft).isnan().tolist() == [True, False, False]
    learned = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.double, requires_grad=True)
    (slope,) = torch.autograd.grad(FocalLoss(2.0)(logits[:1], learned), learned)
    each = L.focal_loss(logits[:1].expand(5, -1), torch.arange(5), gamma=2.0)
    torch.testing.assert_close(slope[0], each)
