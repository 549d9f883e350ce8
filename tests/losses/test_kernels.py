"""Values and gradients of the fused kernels against the plain formulas, on rows and on images.

The tests of kernels run on a GPU if there is one, else in Triton's interpreter. The interpreter must be chosen before
Triton is imported: `make test` runs these files with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_cases import DEVICE, INTERPRETED, MARKS, PLAIN, SHAPES, batch, compare, images  # noqa: E402

from refocal.losses import FocalLoss  # noqa: E402
from refocal.losses.gpu import dispatch, plan  # noqa: E402
from refocal.losses.posterior_maps import FocalMap  # noqa: E402
from refocal.losses.spec import LossSpec  # noqa: E402
from refocal.maps.posterior import posterior_from_logits  # noqa: E402

pytestmark = MARKS


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_class_indices(shape, reduction, gamma):
    logits, target, _ = batch(*shape)
    compare(logits, target, LossSpec(gamma, -100), reduction)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    logits, target, soft = batch(9, 130, dtype=dtype)
    compare(logits, target, PLAIN, "mean", incoming=64.0)
    compare(logits, soft, PLAIN, "sum")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("soft_target", [False, True])
def test_everything_the_loss_may_have(smoothing, detached, by_class, soft_target):
    logits, target, soft = batch(11, 23)
    target[::3] = -100
    weight = torch.linspace(0.5, 2.0, 23, device=DEVICE)
    gamma = tuple(torch.linspace(0, 3, 23).tolist()) if by_class else 1.5
    spec = LossSpec(gamma, -100, smoothing, detached)
    for reduction in ("none", "mean", "sum"):
        compare(logits, soft if soft_target else target, spec, reduction, weight=weight, incoming=0.7)


def test_rows_longer_than_the_chip_holds(kernels, plan_anew, monkeypatch):
    monkeypatch.setattr(plan, "LONGEST_ROW_ON_CHIP", 64)
    logits, target, _ = batch(3, 20_000)
    target[1] = -100
    compare(logits, target, PLAIN, "mean")
    weight = torch.linspace(0.5, 2.0, 20_000, device=DEVICE)
    by_class = LossSpec(tuple(torch.linspace(0, 3, 20_000).tolist()), -100, detached=True)
    compare(logits, target, by_class, "sum", weight=weight)
    assert set(kernels) == {"aligned_rows"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 5] if INTERPRETED else [1, 300])
def test_rows_that_fill_the_chip(dtype, rows):
    logits, target, _ = batch(rows, 20_000, dtype=dtype)
    target[1::2] = -100
    compare(logits, target, PLAIN, "mean")


@pytest.mark.parametrize("classes", [100, 1000, 20_000, 70_000])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_confident_target(classes, gamma):
    logits, target, _ = batch(4, classes)
    logits[torch.arange(4), target] += torch.tensor([5.0, 10.0, 20.0, 40.0], device=DEVICE)
    compare(logits, target, LossSpec(gamma, -100), "none")


@pytest.mark.parametrize("offset", [100.0, 1e4, 1e7])
def test_an_offset_of_all_logits_changes_nothing(offset, kernels, plan_anew, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    for classes in (5, 1000):  # whole numbers, whose sums with the offset are exact
        near = torch.randint(-8, 9, (6, classes), generator=generator).to(DEVICE, torch.float32)
        target = torch.randint(classes, (6,), generator=generator).to(DEVICE)
        near[torch.arange(3), target[:3]] += 12.0
        for goal, smoothing in ((target, 0.0), (target, 0.1), (torch.softmax(near.flip(1), dim=1), 0.0)):
            compare(near + offset, goal, LossSpec(2.0, -100, smoothing), "none")
    monkeypatch.setattr(plan, "LONGEST_ROW_ON_CHIP", 64)
    plan.plan_focal_loss.cache_clear()
    compare(near + offset, target, PLAIN, "none")
    assert kernels[-1] == "aligned_rows"


@pytest.mark.skipif(INTERPRETED, reason="too long for the interpreter")
def test_a_large_vocabulary():
    logits, target, _ = batch(65, 128_256, dtype=torch.bfloat16)
    compare(logits, target, PLAIN, "mean")


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0, 10.0])
def test_extreme_logits(gamma):
    rows = [[100.0, -100, 0], [-100, 100, 0], [80, 80, -80], [1e4, 0, 0], [0, 0, 0], [5.0, -torch.inf, -torch.inf]]
    logits = torch.tensor(rows, device=DEVICE)
    target = torch.zeros(len(rows), dtype=torch.long, device=DEVICE)
    compare(logits[:5], target[:5], LossSpec(gamma, -100), "none")
    compare(logits[:5], target[:5], LossSpec(gamma, -100, 0.1), "none")
    leaf = logits.clone().requires_grad_()
    FocalLoss(gamma)(leaf, target).backward()
    assert torch.isfinite(leaf.grad).all()


def test_classes_apart_are_copied():
    logits, target, soft = batch(24, 6)
    wide = torch.stack([logits, logits], dim=2)[..., 0]
    assert wide.stride(1) != 1
    compare(wide, target, PLAIN, "mean", copied=True)
    compare(logits, soft.T.contiguous().T, PLAIN, "mean", copied=True)
    compare(logits.T.contiguous().T, target, PLAIN, "none", copied=True)


def test_one_shape_of_loss_for_rows_and_images():
    logits, target, _ = batch(24, 6)
    image, mask = logits.reshape(2, 3, 4, 6).movedim(-1, 1), target.reshape(2, 3, 4)
    for pixels in (image, image.contiguous()):
        torch.testing.assert_close(FocalLoss(2.0)(pixels, mask), FocalLoss(2.0)(logits, target))
        by_pixel = FocalLoss(2.0, reduction="none")(pixels, mask)
        torch.testing.assert_close(by_pixel, FocalLoss(2.0, reduction="none")(logits, target).reshape(2, 3, 4))


@pytest.mark.parametrize("shape", [(1, 2), (3, 7), (2, 33), (2, 1, 5), (1, 4, 16), (2, 9, 17), (2, 2, 3, 5)])
@pytest.mark.parametrize("classes", [2, 21, 150])
def test_images(shape, classes):
    logits, target, soft = images(shape, classes)
    target.view(-1)[::4] = -100
    for reduction in ("none", "mean", "sum"):
        compare(logits, target, PLAIN, reduction, incoming=0.7)
    compare(logits, soft, PLAIN, "mean")


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("soft_target", [False, True])
def test_everything_the_loss_of_images_may_have(smoothing, detached, by_class, soft_target):
    logits, target, soft = images((2, 3, 7), 19)
    target[:, 1] = -100
    gamma = tuple(torch.linspace(0, 3, 19).tolist()) if by_class else 1.5
    spec, weight = LossSpec(gamma, -100, smoothing, detached), torch.linspace(0.5, 2.0, 19, device=DEVICE)
    for reduction in ("none", "mean", "sum"):
        compare(logits, soft if soft_target else target, spec, reduction, weight=weight, incoming=0.7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_images_in_half_precision(dtype):
    logits, target, soft = images((2, 8, 9), 21, dtype=dtype)
    compare(logits, target, PLAIN, "mean", incoming=64.0)
    compare(logits, soft, PLAIN, "sum")


def test_images_as_they_lie():
    logits, target, soft = images((2, 4, 6), 5)
    wide = torch.cat([logits, logits], dim=1)[:, 3:8]  # a slice of more channels
    compare(wide, target, PLAIN, "mean")
    compare(wide, soft, PLAIN, "mean")
    compare(logits[:1].expand(2, -1, -1, -1), target, PLAIN, "mean")
    channels_last = logits.to(memory_format=torch.channels_last)
    compare(channels_last, target, PLAIN, "mean")
    compare(channels_last, soft.to(memory_format=torch.channels_last), PLAIN, "sum")
    for lying in (logits, channels_last):
        leaf = lying.detach().requires_grad_()
        FocalLoss(2.0)(leaf, target).backward()
        assert leaf.grad.stride() == leaf.stride()
    compare(logits, soft.to(memory_format=torch.channels_last), PLAIN, "mean", copied=True)
    compare(logits[..., ::2], target[..., ::2], PLAIN, "mean", copied=True)
    compare(logits[:, :, :3], target[:, :3], PLAIN, "none", copied=False)
    many, many_target, _ = images((1, 3), 600)  # more classes than a tile holds
    compare(many, many_target, PLAIN, "mean", copied=True)


def test_nan_propagates():
    logits, target, _ = batch(4, 5)
    logits[1, 2] = torch.nan
    leaf = logits.clone().requires_grad_()
    losses = FocalLoss(2.0, reduction="none")(leaf, target)
    assert losses.isnan().tolist() == [False, True, False, False]
    target[:] = -100
    assert FocalLoss(2.0)(logits, target).isnan()
    assert FocalLoss(2.0, reduction="sum")(torch.nan_to_num(logits), target) == 0


@pytest.mark.parametrize("classes", [5, 600, 70_000])
@pytest.mark.parametrize("wrong", [-1, 0, 7])
def test_a_class_that_does_not_exist_is_nan_and_harms_no_other_row(classes, wrong):
    logits, target, _ = batch(3, classes)
    target[0] = classes + wrong if wrong >= 0 else wrong
    spec, weight = LossSpec(2.0, -100), torch.ones(classes, device=DEVICE)
    for smoothing in (0.0,) if classes > 1000 else (0.0, 0.1):
        spec = spec._replace(label_smoothing=smoothing)
        leaf = logits.clone().requires_grad_()
        losses = dispatch.focal_loss(leaf, target, weight, spec)
        losses.sum().backward()
        assert losses.isnan().tolist() == [True, False, False]
        assert leaf.grad[0].isnan().any()
        others = logits[1:].clone().requires_grad_()
        dispatch.focal_loss(others, target[1:], weight, spec).sum().backward()
        torch.testing.assert_close(leaf.grad[1:], others.grad)


@pytest.mark.parametrize("classes", [3, 600])
def test_masked_logits(classes):
    logits, _, _ = batch(3, classes)
    logits[0] = -torch.inf
    logits[1, 0] = -torch.inf
    target = torch.tensor([0, 0, 1], device=DEVICE)
    leaf, reference = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    losses = FocalLoss(2.0, reduction="none")(leaf, target)
    expected = torch.nn.functional.cross_entropy(reference, target, reduction="none")
    assert torch.equal(losses.isnan(), expected.isnan())
    assert torch.equal(losses.isinf(), expected.isinf())
    losses[1].backward()
    expected[1].backward()
    torch.testing.assert_close(leaf.grad[1], reference.grad[1])  # at p = 0 the factor is 1


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 50.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_posterior_map(gamma, shape):
    logits, _, _ = batch(*shape, spread=6.0)
    logits[0, 0] += 100
    assert dispatch.supports_map(logits, gamma)
    exact = posterior_from_logits(logits.double(), gamma=gamma)
    torch.testing.assert_close(FocalMap(gamma)(logits).double(), exact, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("shape", [(2, 7), (2, 3, 5), (1, 4, 16)])
@pytest.mark.parametrize("classes", [2, 21, 600])
def test_posterior_map_of_images(shape, classes):
    logits, _, _ = images(shape, classes)
    exact = posterior_from_logits(logits.double().movedim(1, -1), gamma=2.0).movedim(-1, 1)
    for lying in (logits, logits.movedim(1, -1).contiguous().movedim(-1, 1), logits[..., ::2]):
        expected = exact[..., ::2] if lying.shape != logits.shape else exact
        assert dispatch.supports_map(lying, 2.0)
        torch.testing.assert_close(FocalMap(2.0)(lying).double(), expected, rtol=1e-4, atol=1e-9)
