"""Kernels of their own for rows that lie at odd addresses, for long rows, and for label smoothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_cases import DEVICE, MARKS, PLAIN, batch, compare, images  # noqa: E402

from refocal.losses import FocalLoss  # noqa: E402
from refocal.losses.gpu import plan  # noqa: E402
from refocal.losses.spec import LossSpec  # noqa: E402

pytestmark = MARKS
REDUCTIONS = ["none", "mean", "sum"]


def spec_and_weight(classes, *, weighted, by_class, detached):
    weight = torch.linspace(0.5, 2.0, classes, device=DEVICE) if weighted else None
    gamma = tuple(torch.linspace(0, 3, classes).tolist()) if by_class else 1.5
    return LossSpec(gamma, -100, detached=detached), weight


@pytest.mark.parametrize("classes", [2, 3, 5, 7, 10, 13, 19, 21, 33, 39])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_channels_last(classes, reduction, kernels):
    logits, target, _ = images((2, 23, 29), classes)
    target.view(-1)[::5] = -100
    compare(logits.to(memory_format=torch.channels_last), target, PLAIN, reduction, incoming=0.7)
    assert set(kernels) == {"flat_rows"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("classes", [2, 9, 21, 36])
def test_channels_last_in_half_precision(classes, dtype, kernels):
    logits, target, _ = images((2, 11, 23), classes, dtype=dtype)
    compare(logits.to(memory_format=torch.channels_last), target, PLAIN, "mean", incoming=64.0)
    assert set(kernels) == {"flat_rows"}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("detached", [False, True])
def test_everything_that_short_rows_may_have(weighted, by_class, detached, kernels):
    logits, target, _ = batch(211, 21)  # two full tiles and a part of one
    target[::3] = -100
    spec, weight = spec_and_weight(21, weighted=weighted, by_class=by_class, detached=detached)
    for reduction in REDUCTIONS:
        compare(logits, target, spec, reduction, weight=weight, incoming=0.7)
    assert set(kernels) == {"flat_rows"}


@pytest.mark.parametrize("rows", [1, 95, 96, 97, 192])
def test_short_rows_around_a_full_tile(rows, kernels):
    logits, target, _ = batch(rows, 21)
    compare(logits, target, PLAIN, "mean")
    assert set(kernels) == {"flat_rows"}


def test_short_rows_with_gaps_or_with_alignment(kernels):
    logits, target, _ = batch(50, 24)
    compare(logits, target, PLAIN, "mean")
    compare(logits[:, :21], target.clamp(max=20), PLAIN, "mean")
    assert set(kernels) == {"tiles_of_rows"}


def test_short_rows_with_extreme_scores():
    logits, _, _ = batch(6, 5)
    logits[0] = -torch.inf
    logits[1, 0] = -torch.inf
    logits[2, 1] = torch.nan
    logits[3, 0] += 100.0
    logits[4] += 1e4
    logits[5] = torch.finfo(torch.float32).min
    target = torch.tensor([0, 0, 0, 0, 7, -100], device=DEVICE)
    leaf = logits.clone().requires_grad_()
    losses = FocalLoss(2.0, reduction="none")(leaf, target)
    assert losses.isnan().tolist() == [True, False, True, False, True, False]
    assert losses.isinf().tolist() == [False, True, False, False, False, False]
    losses[3].backward()
    assert torch.isfinite(leaf.grad[[3, 5]]).all()


@pytest.fixture
def small_chip(plan_anew, monkeypatch):
    """A chip that holds rows of up to 8,192 classes, so that the kernels of long rows take shorter ones."""
    monkeypatch.setattr(plan, "LONGEST_ROW_ON_CHIP", 8_192)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("paired", [True, False])
def test_long_rows_at_every_alignment(dtype, paired, kernels, small_chip, monkeypatch):
    monkeypatch.setattr(plan, "_MOST_BYTES_READ_AGAIN", 1 << 25 if paired else 0)
    classes = 16_397  # the starts of eight rows have all remainders
    logits, target, _ = batch(9, classes, dtype=dtype)
    target[:8] = torch.tensor([0, 1, 6, classes - 1, classes - 2, classes - 7, 8192, 16_384])
    compare(logits, target, PLAIN, "none")
    logits[torch.arange(9), target] += 20.0
    target[3] = -100
    compare(logits, target, PLAIN, "mean", incoming=0.7)
    assert set(kernels) == {"ragged_rows"}


@pytest.mark.parametrize("classes", [8193, 8199, 8206, 8207, 10_000, 16_384, 30_522])
def test_lengths_of_long_rows(classes, kernels, small_chip):
    logits, target, _ = batch(3, classes)
    target[:2] = torch.tensor([classes - 1, 0])
    compare(logits, target, PLAIN, "sum")
    assert set(kernels) == {"ragged_rows" if classes % 8 else "aligned_rows"}


@pytest.mark.parametrize("classes", [8193, 10_001, 20_002])
def test_ragged_rows_on_the_chip(classes, kernels):
    logits, target, _ = batch(3, classes, dtype=torch.bfloat16)
    compare(logits, target, PLAIN, "mean")
    assert set(kernels) == {"whole_rows"}


@pytest.mark.parametrize("width", [8208, 8211])
def test_long_rows_with_gaps(width, kernels, small_chip):
    logits, target, _ = batch(9, width)
    target = target.clamp(max=8200)
    target[0] = 8200
    compare(logits[:, :8201], target, PLAIN, "mean")
    compare(logits[:, 2:8202], target.clamp(max=8199), PLAIN, "none")
    assert "ragged_rows" in kernels


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("classes", [9000, 9001])
def test_everything_that_long_rows_may_have(classes, weighted, by_class, kernels, small_chip):
    logits, target, _ = batch(5, classes)
    target[1] = -100
    for detached in (False, True):
        spec, weight = spec_and_weight(classes, weighted=weighted, by_class=by_class, detached=detached)
        for reduction in REDUCTIONS:
            compare(logits, target, spec, reduction, weight=weight, incoming=0.7)
    assert set(kernels) == {"ragged_rows" if classes % 8 else "aligned_rows"}


@pytest.mark.parametrize("classes", [513, 1000, 1024, 2500])
@pytest.mark.parametrize("gamma", [0.5, 2.0, 3.0])
def test_label_smoothing(classes, gamma, kernels):
    logits, target, _ = batch(5, classes)
    logits[torch.arange(4), target[:4]] += torch.tensor([5.0, 10.0, 20.0, 40.0], device=DEVICE)
    for detached, reduction in ((False, "none"), (True, "none"), (False, "mean"), (False, "sum")):
        compare(logits, target, LossSpec(gamma, -100, 0.1, detached), reduction, incoming=0.7)
        target[0] = -100
    assert set(kernels) == {"smoothed_rows"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.01, 1.0])
def test_label_smoothing_in_half_precision(dtype, smoothing, kernels):
    logits, target, _ = batch(5, 700, dtype=dtype)
    compare(logits, target, LossSpec(2.0, -100, smoothing), "mean", incoming=64.0)
    compare(logits[:, 1:], target.clamp(max=698), LossSpec(2.0, -100, smoothing), "none")
    assert set(kernels) == {"smoothed_rows"}


def test_label_smoothing_with_extreme_scores(kernels):
    logits, _, _ = batch(6, 600)
    logits[0] = -torch.inf
    logits[1, 5] = -torch.inf
    logits[2, 1] = torch.nan
    logits[3, 0] += 200.0
    logits[5] = torch.finfo(torch.float32).min
    target = torch.tensor([0, 0, 0, 0, 600, -100], device=DEVICE)
    leaf = logits.clone().requires_grad_()
    losses = FocalLoss(2.0, label_smoothing=0.1, reduction="none")(leaf, target)
    reference = torch.nn.functional.cross_entropy(logits[:4], target[:4], label_smoothing=0.1, reduction="none")
    assert torch.equal(losses[:4].isnan(), reference.isnan())
    assert torch.equal(losses[:4].isinf(), reference.isinf())
    assert losses[4].isnan()
    assert losses[5] == 0
    losses[[1, 3, 5]].sum().backward()
    assert torch.isfinite(leaf.grad[[1, 3, 5]]).all()
    assert (leaf.grad[5] == 0).all()
    assert set(kernels) == {"smoothed_rows"}


def test_one_program_and_many_add_up_alike(plan_anew, monkeypatch):
    logits, target, soft = batch(70, 600)
    target[::3] = -100
    cases = [(target, "mean"), (target, "sum"), (soft, "mean")]
    alone = [FocalLoss(2.0, reduction=reduction)(logits, goal) for goal, reduction in cases]
    monkeypatch.setattr(plan, "_MOST_BYTES_CORRECTED", 0)
    monkeypatch.setattr(plan, "_takes_tickets", lambda losses: losses > 10)
    plan.plan_focal_loss.cache_clear()
    many = [FocalLoss(2.0, reduction=reduction)(logits, goal) for goal, reduction in cases]
    torch.testing.assert_close(many, alone, rtol=1e-6, atol=0.0)
