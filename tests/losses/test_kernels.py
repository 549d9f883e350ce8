"""The fused kernels against the plain formulas: on a GPU if there is one, else in Triton's interpreter.

The interpreter must be chosen before Triton is imported: `make test` runs this file with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import math
import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from refocal.curvature import HessianTracePenalty  # noqa: E402
from refocal.losses import FocalLoss, SigmoidFocalLoss, focal_loss, sigmoid_focal_loss  # noqa: E402
from refocal.losses.focal import reduced_focal_loss  # noqa: E402
from refocal.losses.formulas import focal_rows, sigmoid_focal_elements  # noqa: E402
from refocal.losses.gpu import dispatch, execute, plan  # noqa: E402
from refocal.losses.posterior_maps import FocalMap  # noqa: E402
from refocal.losses.rows import parse_rows, reduce  # noqa: E402
from refocal.losses.settings import Settings  # noqa: E402
from refocal.maps.posterior import posterior_from_logits  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [
    pytest.mark.kernels,
    # The interpreter evaluates both branches of a `where` with NumPy, which warns about the branch not taken.
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]
DEVICE = "cpu" if INTERPRETED else "cuda"
SHAPES = [(1, 2), (5, 3), (7, 10), (33, 100), (4, 1000), (3, 1025), (2, 5000)]
PLAIN = Settings(2.0, None, -100, 0.0, False)
TOLERANCE = {torch.float32: (2e-5, 1e-7), torch.bfloat16: (2e-2, 1e-6), torch.float16: (4e-3, 1e-6)}


def batch(rows, classes, *, dtype=torch.float32, seed=0, spread=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(rows, classes, generator=generator)
    target = torch.randint(classes, (rows,), generator=generator)
    soft = torch.softmax(torch.randn(rows, classes, generator=generator), dim=1)
    return logits.to(DEVICE, dtype), target.to(DEVICE), soft.to(DEVICE)


def serves(logits, target, settings):
    return dispatch.focal_loss(logits, target, *settings, "mean") is not None


def compare(logits, target, settings, reduction, *, incoming=1.0, copied=False):
    """Loss and gradient of the kernel against the plain formula in float64 on the same logits."""
    leaf = logits.detach().requires_grad_()
    value = dispatch.focal_loss(leaf, target, *settings, reduction)
    assert (value is None) == copied  # no kernel takes logits that must be copied first
    if copied:
        value = reduced_focal_loss(leaf, target, settings, reduction)
    assert value.dtype == torch.result_type(logits, target)
    (incoming * value.sum()).backward()
    exact = logits.double().requires_grad_()
    weight = None if settings.weight is None else settings.weight.double()
    rows = parse_rows(exact, target, weight=weight)
    plain = focal_rows(rows, settings._replace(weight=weight)).reshape(rows.shape)
    expected = reduce(plain, rows, reduction, weight=weight, ignore_index=settings.ignore_index)
    (incoming * expected.sum()).backward()
    rtol, atol = TOLERANCE[logits.dtype]
    torch.testing.assert_close(value.double(), expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=rtol, atol=atol * max(1.0, abs(incoming)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_class_indices(shape, reduction, gamma):
    logits, target, _ = batch(*shape)
    compare(logits, target, Settings(gamma, None, -100, 0.0, False), reduction)


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
    settings = Settings(gamma, weight, -100, smoothing, detached)
    for reduction in ("none", "mean", "sum"):
        compare(logits, soft if soft_target else target, settings, reduction, incoming=0.7)


def test_rows_longer_than_the_chip_holds(monkeypatch):
    monkeypatch.setattr(plan, "LONGEST_ROW_ON_CHIP", 64)
    logits, target, _ = batch(3, 20_000)
    target[1] = -100
    compare(logits, target, PLAIN, "mean")
    weight = torch.linspace(0.5, 2.0, 20_000, device=DEVICE)
    compare(logits, target, Settings(tuple(torch.linspace(0, 3, 20_000).tolist()), weight, -100, 0.0, True), "sum")


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
    compare(logits, target, Settings(gamma, None, -100, 0.0, False), "none")


@pytest.mark.parametrize("offset", [100.0, 1e4, 1e7])
def test_an_offset_of_all_logits_changes_nothing(offset, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    for classes in (5, 1000):  # whole numbers, whose sums with the offset are exact
        near = torch.randint(-8, 9, (6, classes), generator=generator).to(DEVICE, torch.float32)
        target = torch.randint(classes, (6,), generator=generator).to(DEVICE)
        near[torch.arange(3), target[:3]] += 12.0
        for goal, smoothing in ((target, 0.0), (target, 0.1), (torch.softmax(near.flip(1), dim=1), 0.0)):
            compare(near + offset, goal, Settings(2.0, None, -100, smoothing, False), "none")
    monkeypatch.setattr(plan, "LONGEST_ROW_ON_CHIP", 64)
    plan.plan_focal_loss.cache_clear()
    compare(near + offset, target, PLAIN, "none")  # in chunks
    plan.plan_focal_loss.cache_clear()


@pytest.mark.skipif(INTERPRETED, reason="too long for the interpreter")
def test_a_large_vocabulary():
    logits, target, _ = batch(65, 128_256, dtype=torch.bfloat16)
    compare(logits, target, PLAIN, "mean")


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0, 10.0])
def test_extreme_logits(gamma):
    rows = [[100.0, -100, 0], [-100, 100, 0], [80, 80, -80], [1e4, 0, 0], [0, 0, 0], [5.0, -torch.inf, -torch.inf]]
    logits = torch.tensor(rows, device=DEVICE)
    target = torch.zeros(len(rows), dtype=torch.long, device=DEVICE)
    compare(logits[:5], target[:5], Settings(gamma, None, -100, 0.0, False), "none")
    compare(logits[:5], target[:5], Settings(gamma, None, -100, 0.1, False), "none")
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


def images(shape, classes, *, dtype=torch.float32):
    """Logits (N, K, ...), class indices (N, ...) and class probabilities (N, K, ...), classes not side by side."""
    rows = math.prod(shape)
    logits, target, soft = batch(rows, classes, dtype=dtype)
    return (
        logits.reshape(*shape, classes).movedim(-1, 1).contiguous(),
        target.reshape(shape),
        soft.reshape(*shape, classes).movedim(-1, 1).contiguous(),
    )


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
    settings = Settings(gamma, torch.linspace(0.5, 2.0, 19, device=DEVICE), -100, smoothing, detached)
    for reduction in ("none", "mean", "sum"):
        compare(logits, soft if soft_target else target, settings, reduction, incoming=0.7)


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


def test_what_cross_entropy_refuses_or_finds_empty():
    criterion, reference = FocalLoss(2.0), torch.nn.CrossEntropyLoss()
    logits, target, _ = batch(4, 5)
    wrong = [
        (logits, target[:3]),
        (logits, target.int()),
        (logits[0, 0], target[0]),
        (logits[:, :, None], target),
        (logits, logits[:, :4]),
    ]
    for scores, goal in wrong:
        with pytest.raises((RuntimeError, ValueError, IndexError)) as expected:
            reference(scores, goal)
        with pytest.raises(expected.type):
            criterion(scores, goal)
    with pytest.raises(ValueError, match="gamma"):
        FocalLoss((1.0, 2.0))(logits, target)
    assert criterion(logits[0], target[0]).item() == pytest.approx(criterion(logits[:1], target[:1]).item())
    for shape in ((0, 5), (2, 5, 0), (0, 5, 3)):
        empty = torch.empty(shape, device=DEVICE, requires_grad=True)
        loss = criterion(empty, torch.empty((shape[0], *shape[2:]), dtype=torch.long, device=DEVICE))
        loss.backward()
        assert loss.isnan()
        assert empty.grad.shape == shape


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(1, 3), (70, 3), (3, 600)])
def test_one_launch_and_three_agree(shape, weighted, monkeypatch):
    logits, target, soft = batch(*shape)
    weight = torch.linspace(0.5, 2.0, shape[1], device=DEVICE) if weighted else None
    some, none = target.clone(), torch.full_like(target, -100)
    some[1::2] = -100
    results = []
    for most_bytes in (1 << 25, 0):
        monkeypatch.setattr(plan, "_MOST_BYTES_CORRECTED", most_bytes)
        plan.plan_focal_loss.cache_clear()
        for goal, reduction in ((target, "mean"), (some, "mean"), (none, "mean"), (some, "sum"), (soft, "mean")):
            leaf = logits.clone().requires_grad_()
            loss = FocalLoss(2.0, weight=weight, reduction=reduction)(leaf, goal)
            (gradient,) = torch.autograd.grad(3 * loss, leaf, retain_graph=True)
            (again,) = torch.autograd.grad(3 * loss, leaf)
            torch.testing.assert_close(gradient, again, rtol=1e-5, atol=1e-8)
            results.append((loss.detach(), gradient))
    plan.plan_focal_loss.cache_clear()
    half = len(results) // 2
    for one, three in zip(results[:half], results[half:], strict=True):
        torch.testing.assert_close(one, three, rtol=1e-5, atol=1e-8, equal_nan=True)


def test_losses_of_one_stream_follow_each_other():
    criterion, sizes = FocalLoss(2.0), (1, 7, 300, 2)
    for rows in sizes * 2:
        logits, target, _ = batch(rows, 5)
        exact = criterion(logits.double(), target).item()
        assert criterion(logits, target).item() == pytest.approx(exact, rel=1e-5)


def test_programs_of_several_groups_add_up_to_one_loss():
    logits, target, _ = batch(130, 600)  # one program per row, 128 programs per group
    target[::3] = -100
    compare(logits, target, PLAIN, "mean")
    if not INTERPRETED:
        assert len({FocalLoss(2.0)(logits, target).item() for _ in range(5)}) == 1  # bit by bit


@pytest.mark.gpu
def test_graphs_and_streams_do_not_disturb_each_other():
    logits, target, _ = batch(4096, 100)
    criterion = FocalLoss(2.0)
    exact = criterion(logits.double(), target).float()
    criterion(logits, target)  # compiles the kernels before the capture
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    graphs = []
    for stream in streams[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = [criterion(logits, target) for _ in range(8)]
        graphs.append((graph, captured))
    losses = []
    for _ in range(20):
        for (graph, _), stream in zip(graphs, streams[2:], strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
        for stream in streams:
            with torch.cuda.stream(stream):
                losses.append(criterion(logits, target))
    torch.cuda.synchronize()
    for loss in (*losses, *graphs[0][1], *graphs[1][1]):
        torch.testing.assert_close(loss, exact)


@pytest.mark.gpu
@pytest.mark.parametrize("lies", ["rows", "images", "channels_last"])
def test_no_memory_but_for_the_gradient(lies):
    shape = (8, 21, 256, 256) if lies != "rows" else (524_288, 21)
    logits = torch.randn(shape, device="cuda")
    logits = logits.to(memory_format=torch.channels_last) if lies == "channels_last" else logits
    logits.requires_grad_()
    target = torch.randint(21, (shape[0], *shape[2:]), device="cuda")
    criterion = FocalLoss(2.0)
    torch.autograd.grad(criterion(logits, target), logits)  # allocates whatever is cached
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(criterion(logits, target), logits)
    assert torch.cuda.max_memory_allocated() - before < 1.1 * logits.nbytes


def test_nan_propagates():
    logits, target, _ = batch(4, 5)
    logits[1, 2] = torch.nan
    leaf = logits.clone().requires_grad_()
    losses = FocalLoss(2.0, reduction="none")(leaf, target)
    assert losses.isnan().tolist() == [False, True, False, False]
    target[:] = -100
    assert FocalLoss(2.0)(logits, target).isnan()
    assert FocalLoss(2.0, reduction="sum")(torch.nan_to_num(logits), target) == 0


def test_second_backward_and_second_derivative():
    logits, target, _ = batch(4, 5)
    leaf = logits.clone().requires_grad_()
    loss = 3 * FocalLoss(2.0)(leaf, target)
    (first,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    first = first.clone()
    (second,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    torch.testing.assert_close(second, first)
    (graph,) = torch.autograd.grad(loss, leaf, create_graph=True)
    torch.testing.assert_close(graph, first, rtol=1e-5, atol=1e-7)
    (curvature,) = torch.autograd.grad(graph.square().sum(), leaf)
    assert torch.isfinite(curvature).all()
    assert curvature.abs().sum() > 0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_trace_penalty_differentiates_three_times(reduction):
    logits, target, _ = batch(6, 4)
    results = []
    for served in (True, False):
        weight = torch.eye(4, device=logits.device, requires_grad=True)
        # No kernel supports float64: this is the plain formula.
        scores = logits @ weight if served else logits.double() @ weight.double()
        penalty = HessianTracePenalty(1.0, probes=3)(FocalLoss(2.0, reduction=reduction)(scores, target), [weight])
        results.append((penalty.detach().float(), *torch.autograd.grad(penalty, weight)))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-4)


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
    plain = sigmoid_focal_elements(exact, target.double(), 1.5, alpha, -100)
    expected = {"none": plain, "sum": plain.sum(), "mean": plain.sum() / (target != -100).sum()}[reduction]
    (0.5 * expected.sum()).backward()
    rtol, atol = TOLERANCE[dtype]
    torch.testing.assert_close(value.double(), expected, rtol=2 * rtol, atol=1e-6)
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=rtol, atol=atol)
    assert torch.isfinite(
        sigmoid_focal_loss(torch.tensor([-1e4, 1e4], device=DEVICE), torch.ones(2, device=DEVICE))
    ).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16])
def test_sigmoid_with_targets_of_any_type(dtype):
    logits, target = torch.linspace(-3, 3, 7, device=DEVICE), torch.tensor([0, 1, 1, 0, 1, 0, 0], device=DEVICE)
    exact = sigmoid_focal_elements(logits.double(), target.double(), 2.0, 0.25, -100)
    for reduction in ("sum", "mean"):
        value = SigmoidFocalLoss(2.0, reduction=reduction)(logits, target.to(dtype)).item()
        assert value == pytest.approx(getattr(exact, reduction)().item(), rel=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_sigmoid_of_easy_scores_keeps_its_digits(gamma):
    logits = torch.tensor([-30.0, -15.1, -8.0, 8.0, 15.1, 30.0], device=DEVICE)
    target = (logits > 0).float()
    leaf = logits.clone().requires_grad_()
    losses = dispatch.sigmoid_focal_loss(leaf, target, gamma, None, -100, reduction="none")
    losses.sum().backward()
    exact = logits.double().requires_grad_()
    expected = sigmoid_focal_elements(exact, target.double(), gamma, None, -100)
    expected.sum().backward()
    torch.testing.assert_close(losses.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=1e-5, atol=0)


def test_class_probabilities_with_an_index_to_ignore_are_refused():
    logits, _, soft = batch(3, 4)
    with pytest.raises(RuntimeError, match="ignore_index is not supported for floating point target"):
        FocalLoss(2.0, ignore_index=1)(logits, soft)


def test_sigmoid_with_every_score_ignored():
    leaf = torch.zeros(5, device=DEVICE, requires_grad=True)
    loss = SigmoidFocalLoss(2.0, reduction="mean")(leaf, torch.full((5,), -100.0, device=DEVICE))
    loss.backward()
    assert loss.isnan()
    assert (leaf.grad == 0).all()


@pytest.mark.parametrize("classes", [5, 600, 70_000])
@pytest.mark.parametrize("wrong", [-1, 0, 7])
def test_a_class_that_does_not_exist_is_nan_and_harms_no_other_row(classes, wrong):
    logits, target, _ = batch(3, classes)
    target[0] = classes + wrong if wrong >= 0 else wrong
    settings = Settings(2.0, torch.ones(classes, device=DEVICE), -100, 0.0, False)
    for smoothing in (0.0,) if classes > 1000 else (0.0, 0.1):
        settings = settings._replace(label_smoothing=smoothing)
        leaf = logits.clone().requires_grad_()
        losses = dispatch.focal_loss(leaf, target, *settings, "none")
        losses.sum().backward()
        assert losses.isnan().tolist() == [True, False, False]
        assert leaf.grad[0].isnan().any()
        others = logits[1:].clone().requires_grad_()
        dispatch.focal_loss(others, target[1:], *settings, "none").sum().backward()
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


def test_loss_scaling_in_float16():
    logits, target, soft = batch(256, 100, dtype=torch.float16)
    scaler = 32752.0
    for goal in (target, soft):
        leaf, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
        (FocalLoss(2.0)(leaf, goal).float() * scaler).backward()
        (FocalLoss(2.0)(exact, goal) * scaler).backward()
        assert (leaf.grad == 0).float().mean() < 0.01
        torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=4e-3, atol=1e-6)
    scores, labels = torch.linspace(-6, 6, 4096, device=DEVICE), torch.ones(4096, device=DEVICE)
    leaf, exact = scores.half().requires_grad_(), scores.half().double().requires_grad_()
    (SigmoidFocalLoss(2.0, reduction="mean")(leaf, labels).float() * scaler).backward()
    (SigmoidFocalLoss(2.0, reduction="mean")(exact, labels) * scaler).backward()
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=4e-3, atol=1e-6)


def test_losses_under_autocast_are_float32():
    logits, target, _ = batch(4, 5, dtype=torch.bfloat16)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert FocalLoss(2.0)(logits, target).dtype == torch.nn.CrossEntropyLoss()(logits, target).dtype
        assert focal_loss(logits, target, gamma=2.0).dtype == torch.float32
        assert sigmoid_focal_loss(logits, logits.sigmoid()).dtype == torch.float32
    assert FocalLoss(2.0)(logits, target).dtype == torch.bfloat16


def test_per_sample_losses_can_be_changed_in_place():
    logits, target, _ = batch(4, 5)
    losses = focal_loss(logits.requires_grad_(), target, gamma=2.0)
    losses[0] = 0.0
    losses.sum().backward()
    assert (logits.grad[0] == 0).all()


# Forward mode in PyTorch calls functions that PyTorch deprecates.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script. is deprecated:DeprecationWarning")
def test_what_the_kernels_leave_to_the_plain_formula():
    logits, target, soft = batch(4, 5)
    assert serves(logits, target, PLAIN)
    assert not serves(logits, soft.clone().requires_grad_(), PLAIN)
    weight = torch.ones(5, device=DEVICE, requires_grad=True)
    assert not serves(logits, target, PLAIN._replace(weight=weight))
    long = torch.zeros(1, 40_000, device=DEVICE)
    assert serves(long, target[:1], PLAIN)
    assert not serves(long, target[:1], PLAIN._replace(label_smoothing=0.1))
    assert not dispatch.supports_map(logits, 200.0)
    losses = torch.func.vmap(lambda one: focal_loss(logits[:1], one, gamma=2.0), in_dims=0)(target[:, None])
    assert losses.shape == (4, 1)
    escaped = []
    torch.func.grad(lambda scores: (escaped.append(scores.detach()), scores.sum())[1])(logits)
    torch.testing.assert_close(FocalLoss(2.0)(escaped[0], target), FocalLoss(2.0)(logits, target))
    torch.testing.assert_close(FocalMap(2.0)(escaped[0]), FocalMap(2.0)(logits))
    slope = torch.func.grad(lambda scale: scale * focal_loss(logits, target, gamma=2.0).sum())(
        torch.ones((), device=DEVICE)
    )
    assert slope.item() == pytest.approx(focal_loss(logits, target, gamma=2.0).sum().item(), rel=1e-5)
    with FakeTensorMode():  # tensors without values
        scores, classes = torch.empty(4, 5, device=DEVICE), torch.empty(4, dtype=torch.long, device=DEVICE)
        assert focal_loss(scores, classes, gamma=2.0).shape == (4,)
    assert not serves(scores, target, PLAIN)
    assert not serves(logits, classes, PLAIN)
    own = logits.as_subclass(type("Own", (torch.Tensor,), {}))
    assert type(FocalLoss(2.0)(own, target)) is type(own)
    assert serves(logits, target.as_subclass(type(own)), PLAIN)
    traced = make_fx(lambda scores: focal_loss(scores, target, gamma=2.0))(logits)
    torch.testing.assert_close(traced(logits + 1.0), focal_loss(logits + 1.0, target, gamma=2.0))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(logits, torch.ones_like(logits))
        assert focal_loss(dual, target, gamma=2.0).shape == (4,)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_kernels_give_way_to_compilation(reduction):
    logits, target, _ = batch(4, 5)
    criterion = FocalLoss(2.0, weight=torch.linspace(0.5, 2.0, 5, device=DEVICE), reduction=reduction)
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, target), criterion(logits, target))
    exported = torch.export.export(criterion, (logits, target)).module()
    torch.testing.assert_close(exported(logits, target), criterion(logits, target))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_many_incoming_gradients_at_once(reduction):
    logits, target, _ = batch(3, 5)
    leaf, labels = logits.requires_grad_(), (torch.rand(3, 5) < 0.5).float().to(DEVICE)
    for criterion, goal in (
        (FocalLoss(2.0, reduction=reduction), target),
        (SigmoidFocalLoss(2.0, reduction=reduction), labels),
    ):
        loss = criterion(leaf, goal)
        incoming = torch.randn(4, *loss.shape, device=DEVICE)
        (together,) = torch.autograd.grad(loss, leaf, incoming, is_grads_batched=True, retain_graph=True)
        one_by_one = [torch.autograd.grad(loss, leaf, each, retain_graph=True)[0] for each in incoming]
        torch.testing.assert_close(together, torch.stack(one_by_one), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("soft_target", [False, True])
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_kernels_that_are_remembered(weighted, by_class, soft_target, reduction):
    logits, target, soft = batch(6, 12)
    target[1], goal = -100, soft if soft_target else target
    weight = torch.linspace(0.5, 2.0, 12, device=DEVICE) if weighted else None
    gamma = torch.linspace(0.5, 3.0, 12).tolist() if by_class else 2.0
    criterion = FocalLoss(gamma, weight=weight, reduction=reduction)
    results = []
    for moved in (0, 0, 0, 0, 1):  # kernels are cached from the second launch on; an odd address needs another one
        buffer = torch.zeros(logits.numel() + moved, device=DEVICE)
        leaf = buffer[moved:].view_as(logits).copy_(logits).requires_grad_()
        loss = criterion(leaf, goal)
        loss.sum().mul(3.0).backward()
        results.append((loss.detach(), leaf.grad))
    for result in results[1:]:
        torch.testing.assert_close(result, results[0], rtol=2e-5, atol=1e-7)


def test_a_changed_weight_is_noticed():
    logits, target, _ = batch(3, 5)
    weight = torch.ones(5, device=DEVICE)
    losses = FocalLoss(2.0, weight=weight, reduction="none")(logits.requires_grad_(), target)
    weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        losses.sum().backward()


def test_no_gradient_is_computed_without_need(monkeypatch):
    logits, target, _ = batch(4, 5)
    asked = []
    compute = execute.run_focal_loss
    monkeypatch.setattr(execute, "run_focal_loss", lambda *call: (asked.append(call[0].gradient), compute(*call))[1])
    leaf = logits.clone().requires_grad_()
    with torch.no_grad():
        FocalLoss(2.0)(leaf, target)
    FocalLoss(2.0)(logits, target)
    FocalLoss(2.0)(leaf, target)
    assert asked == [False, False, True]


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
