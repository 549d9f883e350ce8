"""MMCE against the matrix of all pairs, in 16 bits, with ignored rows, and its use of memory."""

from __future__ import annotations

import functools
import itertools
import math

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from refocal import losses as L  # noqa: E402
from refocal.losses.pair_sums import laplacian_form  # noqa: E402


def batch(count, *, classes=5, seed=0, dtype=torch.double):
    """Logits (N, K) with some equal rows, and class indices with some that do not count."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, classes, generator=generator, dtype=torch.double)
    logits[1::7] = logits[::7][: len(logits[1::7])]
    target = torch.where(torch.rand(count, generator=generator) < 0.6, logits.argmax(dim=1), 0)
    target[2::9] = -100
    return logits.to(dtype), target


def matrix_mmce(logits, target, *, weighted=False, kernel_width=0.4):
    """MMCE from the matrix of all pairs of rows that count."""
    keep = target != -100
    confidence, predicted = torch.softmax(logits[keep], dim=1).max(dim=1)
    correct = (predicted == target[keep]).to(confidence.dtype)
    share = 1 / len(correct)
    if weighted:
        share = torch.where(correct > 0, 1 / correct.sum(), 1 / (1 - correct).sum())
    residual = (correct - confidence) * share
    kernel = torch.exp(-(confidence[:, None] - confidence).abs() / kernel_width)
    return torch.sqrt(residual @ kernel @ residual)


@pytest.mark.parametrize("count", [40, 700])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kernel_width", [0.4, 0.05, 1e-4])
def test_values_and_gradients_are_those_of_the_matrix_of_pairs(count, weighted, kernel_width):
    logits, target = batch(count)
    leaves = [logits.clone().requires_grad_() for _ in range(2)]
    options = {"weighted": weighted, "kernel_width": kernel_width}
    found, expected = L.mmce_loss(leaves[0], target, **options), matrix_mmce(leaves[1], target, **options)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    found.backward()
    expected.backward()
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad, rtol=1e-8, atol=1e-12)
    module = L.MMCELoss(1.0, **options)(logits, target)
    torch.testing.assert_close(module, F.cross_entropy(logits, target) + expected.detach())


def test_the_width_of_the_kernel_by_hand():
    # Two wrong samples with confidences 0.6 and 0.9: a wider kernel brings them closer, and the error grows.
    logits = torch.tensor([[0.6, 0.4], [0.9, 0.1]], dtype=torch.double).log()
    target = torch.tensor([1, 1])
    for width in (0.1, 0.4, 10.0):
        expected = math.sqrt(0.6**2 + 0.9**2 + 2 * 0.6 * 0.9 * math.exp(-0.3 / width)) / 2
        assert float(L.mmce_loss(logits, target, kernel_width=width)) == pytest.approx(expected, rel=1e-12)
        module = L.MMCELoss(3.0, kernel_width=width)(logits, target) - F.cross_entropy(logits, target)
        assert float(module) == pytest.approx(3 * expected, rel=1e-12)


def test_a_sum_counts_the_error_once_per_counted_sample():
    logits, target = batch(40)
    counted = int((target != -100).sum())
    weight = torch.tensor([0.5, 1.0, 2.0, 0.1, 3.0], dtype=torch.double)
    error = matrix_mmce(logits, target)
    for given in (None, weight):
        expected = F.cross_entropy(logits, target, weight=given, reduction="sum") + 2 * counted * error
        torch.testing.assert_close(L.MMCELoss(2.0, weight=given, reduction="sum")(logits, target), expected)


@pytest.mark.parametrize("count", [100, 4096])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_takes_nothing_in_16_bits(count, dtype):
    logits, target = batch(count, dtype=torch.float32)
    expected = matrix_mmce(logits.double(), target)
    leaf = logits.requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        loss = L.mmce_loss(leaf, target)
        whole = L.MMCELoss(2.0)(leaf, target)
    assert (loss.dtype, whole.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(loss, expected.float(), rtol=1e-4, atol=0)
    (slope,) = torch.autograd.grad(65536 * loss, leaf)  # as a loss scaler does
    assert slope.isfinite().all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("count", [40, 700])
def test_an_ignored_row_does_not_count_whatever_it_holds(count, bad):
    logits, target = batch(count)
    keep = target != -100
    leaf = torch.where(keep[:, None], logits, bad).requires_grad_()
    for criterion, matrix in ((L.mmce_loss, matrix_mmce(logits, target)), (L.MMCELoss(2.0), None)):
        loss = criterion(leaf, target)
        (slope,) = torch.autograd.grad(loss, leaf)
        if matrix is not None:
            torch.testing.assert_close(loss, matrix)
        assert loss.isfinite()
        assert slope.isfinite().all()
        assert slope[~keep].abs().max() == 0
    rows = logits[keep].requires_grad_()
    (alone,) = torch.autograd.grad(L.MMCELoss(2.0)(rows, target[keep]), rows)
    torch.testing.assert_close(slope[keep], alone)


def test_memory_grows_with_the_rows_and_not_with_their_pairs():
    saved = []

    def pack(tensor):
        saved.append(tensor.numel())
        return tensor

    logits, target = batch(3000, classes=3)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        L.MMCELoss(2.0)(logits.requires_grad_(), target).backward()
    assert max(saved) <= logits.numel()
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        L.MMCELoss(2.0)(logits, target).backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert largest < 20 * logits.numel() * logits.element_size()


def test_second_derivatives_and_transformations(monkeypatch):
    logits, target = batch(9, classes=3)
    logits *= torch.linspace(0.9, 1, 9, dtype=torch.double)[:, None]  # no ties, at which no second derivative exists
    inside = functools.partial(L.mmce_loss, target=target)
    outside = functools.partial(matrix_mmce, target=target)
    several = [
        torch.func.grad,
        torch.func.hessian,
        lambda f: torch.func.jacrev(torch.func.jacrev(f)),
        lambda f: torch.func.jacfwd(torch.func.jacfwd(f)),
    ]
    for few in (256, 0):  # by the matrix of pairs, and in sorted order
        monkeypatch.setattr("refocal.losses.pair_sums._FEW", few)
        for transform in several:
            torch.testing.assert_close(transform(inside)(logits), transform(outside)(logits))
        double = logits.clone().requires_grad_()
        assert torch.autograd.gradcheck(inside, (double,))
        assert torch.autograd.gradgradcheck(inside, (double,))
        batches = torch.stack([logits, 2 * logits, logits.roll(1, dims=0)])
        mapped = torch.func.vmap(torch.func.grad(inside))(batches)
        torch.testing.assert_close(mapped, torch.stack([torch.func.grad(outside)(each) for each in batches]))


@pytest.mark.parametrize("count", [40, 700])
@pytest.mark.thorough
def test_compiled_and_exported(count):
    logits, target = batch(count)
    criterion, leaves = L.MMCELoss(2.0), [logits.clone().requires_grad_() for _ in range(2)]
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    losses = [criterion(leaves[0], target), compiled(leaves[1], target)]
    torch.testing.assert_close(losses[1], losses[0])
    slopes = [torch.autograd.grad(loss, leaf)[0] for loss, leaf in zip(losses, leaves, strict=True)]
    torch.testing.assert_close(slopes[1], slopes[0])
    exported = torch.export.export(criterion, (logits, target)).module()
    torch.testing.assert_close(exported(logits, target), losses[0].detach())


def test_ties_have_no_derivative_in_their_places(monkeypatch):
    places = torch.tensor([0.3, 0.7, 0.3, 0.7, 0.3], dtype=torch.double)
    values = torch.tensor([1.0, -2.0, 0.5, 3.0, -0.25], dtype=torch.double)
    slopes = []
    for few, again in itertools.product((256, 0), (False, True)):
        monkeypatch.setattr("refocal.losses.pair_sums._FEW", few)
        leaf = places.clone().requires_grad_()
        form = laplacian_form(leaf, values.clone().requires_grad_(), width=0.4)
        (slope,) = torch.autograd.grad(form, leaf, create_graph=again)
        slopes.append(slope.detach())
    group = torch.tensor([1.25, 1.0], dtype=torch.double)  # the sums of the values at 0.3 and 0.7
    pull = 2 / 0.4 * math.exp(-0.4 / 0.4)
    expected = pull * values * torch.tensor([group[1], -group[0], group[1], -group[0], group[1]])
    for slope in slopes:
        torch.testing.assert_close(slope, expected)


@pytest.mark.parametrize("width", [0.4, 1e-3])
def test_second_derivatives_at_ties_and_of_narrow_kernels(width):
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(20, (300,), generator=generator).double() / 20
    signs = torch.arange(300) % 2

    def form_of_pairs(x, v, *, width):
        return (v[:, None] * torch.exp(-(x[:, None] - x).abs() / width) * v).sum()

    def curvature(form):
        leaf = places.clone().requires_grad_()
        (slope,) = torch.autograd.grad(form(leaf, torch.cos(leaf) - signs, width=width), leaf, create_graph=True)
        return torch.autograd.grad(slope @ torch.sin(torch.arange(300.0).double()), leaf)[0]

    torch.testing.assert_close(curvature(laplacian_form), curvature(form_of_pairs))
