"""Shapes and types of every kind: the losses accept and reject the same arguments as cross-entropy.

With TRITON_INTERPRET=1 the fused kernels take the same tests. The interpreter is slow, so it gets fewer types.
"""

from __future__ import annotations

import functools
import itertools

import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

from refocal import losses as L  # noqa: E402
from refocal.losses.gpu.launch import INTERPRETED  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # as in kernel_cases.py
FLOATING = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
LOGITS = (torch.float16, torch.float32, torch.float64)
INDICES = (torch.int64, torch.int32, torch.uint8)
SHAPES = [(3,), (4, 3), (2, 3, 2, 2)]
EMPTY = [(0, 3), (2, 3, 0), (4, 0), (0, 0), (2, 0, 2)]
WEIGHTS = (torch.float32, torch.float64) if INTERPRETED else (*FLOATING, torch.int64)
REDUCED = [("none", 0.0), ("mean", 0.1)] if INTERPRETED else [("none", 0.0), ("mean", 0.0), ("mean", 0.1), ("sum", 0.1)]


def sample(shape, dtype, target_dtype):
    """Logits of a shape, and class probabilities or indices that fit it."""
    generator = torch.Generator().manual_seed(0)
    logits, class_dim = torch.randn(shape, generator=generator).to(dtype), min(1, len(shape) - 1)
    if target_dtype.is_floating_point:
        return logits, torch.softmax(torch.randn(shape, generator=generator), dim=class_dim).to(target_dtype)
    positions = shape[:class_dim] + shape[class_dim + 1 :]
    return logits, torch.randint(max(1, shape[class_dim]), positions, generator=generator).to(target_dtype)


def outcome(criterion, logits, target, *, autocast=False):
    """The error of a loss; or its type and shape, whether it is NaN, and the type of its gradient."""
    leaf = logits.clone().requires_grad_(logits.is_floating_point())
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = criterion(leaf, target)
    except Exception as error:
        return type(error), str(error)
    found = loss.dtype, loss.shape, loss.isnan().tolist()
    if not loss.requires_grad:
        return *found, None
    try:
        loss.sum().backward()
    except RuntimeError:
        return *found, "none to be had"
    return *found, leaf.grad.dtype


def assert_same(criterion, logits, target, *, autocast=False, **options):
    """Check for the same outcome as cross-entropy, or for a gradient if cross-entropy has none.

    32-bit indices are always rejected. Older versions of PyTorch overlook them in the mean or sum of an empty batch,
    which then has no gradient. The message is the one for losses without reduction.
    """
    if target.dtype == torch.int32 and not logits.numel():
        options["reduction"] = "none"
    expected = outcome(torch.nn.CrossEntropyLoss(**options), logits, target, autocast=autocast)
    found = outcome(criterion, logits, target, autocast=autocast)
    if expected[-1] == "none to be had":
        expected = *expected[:-1], logits.dtype
    assert found == expected, (criterion, logits.shape, logits.dtype, target.shape, target.dtype, autocast, options)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [*LOGITS, torch.int64], ids=str)
@pytest.mark.parametrize("shapes", [SHAPES, EMPTY], ids=["samples", "nothing"])
def test_types(dtype, shapes, autocast):
    for shape, target_dtype in itertools.product(shapes, (*INDICES, *LOGITS)):
        logits, target = sample(shape, dtype, target_dtype)
        ones = torch.ones(shape[min(1, len(shape) - 1)])
        for weight in (None, *(ones.to(each) for each in WEIGHTS)):
            for reduction, smoothing in REDUCED:
                options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
                assert_same(L.FocalLoss(2.0, **options), logits, target, autocast=autocast, **options)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", LOGITS, ids=str)
def test_types_of_the_other_losses(dtype, autocast):
    for shape, target_dtype in itertools.product([(4, 3), (2, 3, 2, 2), (0, 3)], INDICES):
        logits, target = sample(shape, dtype, target_dtype)
        for weight in (None, *(torch.ones(3, dtype=each) for each in LOGITS)):
            for kind in (L.DualFocalLoss, L.InverseFocalLoss, L.ProperFocalLoss, L.MMCELoss):
                assert_same(kind(2.0, weight=weight), logits, target, autocast=autocast, weight=weight)
    for shape, target_dtype, reduction in itertools.product(SHAPES, (*INDICES, *LOGITS), ("none", "mean")):
        pair = sample(shape, dtype, target_dtype)
        assert_same(L.BrierLoss(reduction=reduction), *pair, autocast=autocast, reduction=reduction)


@pytest.mark.parametrize("function", [L.focal_loss, L.dual_focal_loss, L.inverse_focal_loss, L.proper_focal_loss])
def test_types_of_the_functions(function):
    target_dtypes = (*INDICES, *LOGITS) if function is L.focal_loss else INDICES
    for dtype, target_dtype, shape in itertools.product(LOGITS, target_dtypes, [(4, 3), (2, 3, 2, 2)]):
        logits, target = sample(shape, dtype, target_dtype)
        for weight in (None, torch.ones(3), torch.ones(3).half()):
            per_sample = functools.partial(function, gamma=2.0, weight=weight)
            assert_same(per_sample, logits, target, weight=weight, reduction="none")


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 3), (1, 3), (2, 3, 2), (2, 3, 0)], ids=str)
def test_shapes(shape):
    target_shapes = [(), (1,), (2,), (3,), (4,), (4, 3), (1, 3), (2, 2), (2, 0), (2, 3, 2), (2, 3, 0)]
    weights = [None, *(torch.ones(each) for each in [(), (1,), (2,), (3,), (1, 3), (3, 1)])]
    for target_shape, dtype, weight in itertools.product(target_shapes, (torch.int64, torch.float32), weights):
        target = torch.zeros(target_shape, dtype=dtype)
        for reduction, smoothing in (("none", 0.0), ("mean", 0.1)):
            options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
            assert_same(L.FocalLoss(2.0, **options), torch.zeros(shape), target, **options)


@pytest.mark.parametrize(
    "function",
    [
        *(L.FocalLoss(gamma) for gamma in (0.0, 2.0, L.FLSD53)),
        *(L.BrierLoss(), L.DualFocalLoss(2.0), L.InverseFocalLoss(1.0), L.MMCELoss(1.0), L.ProperFocalLoss(2.0)),
        functools.partial(L.focal_loss, gamma=2.0),
    ],
    ids=lambda function: type(function).__name__,
)
def test_what_is_no_tensor(function):
    logits, target = sample((4, 3), torch.float32, torch.int64)
    for scores, classes in [
        (logits.tolist(), target),
        (logits.numpy(), target),
        (None, target),
        (logits, None),
        (logits, [0, 1, 2, 0]),
    ]:
        with pytest.raises(TypeError) as expected:
            F.cross_entropy(scores, classes)
        with pytest.raises(TypeError) as found:
            function(scores, classes)
        assert str(found.value) == str(expected.value)


def test_a_type_that_has_no_softmax():
    logits, target = sample((4, 3), torch.float32, torch.int64)
    for dtype in (torch.float8_e4m3fn, torch.complex64):
        with pytest.raises(NotImplementedError) as expected:
            F.cross_entropy(logits.to(dtype), target)
        with pytest.raises(NotImplementedError) as found:
            L.FocalLoss(2.0)(logits.to(dtype), target)
        assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_wider_type_is_that_of_the_sums(smoothing):
    logits, soft = sample((4, 3), torch.float32, torch.float64)
    weight = torch.tensor([0.1, 1.0, 3.0], dtype=torch.double)
    criterion = L.FocalLoss(2.0, weight=weight, label_smoothing=smoothing)
    for target, given in ((soft, weight), (soft.float(), weight), (soft, weight.float())):
        criterion.weight = given
        expected = L.FocalLoss(2.0, weight=given.double(), label_smoothing=smoothing)(logits.double(), target.double())
        torch.testing.assert_close(criterion(logits, target), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2, 2)])
def test_types_that_autocast_brings_together(dtype, shape):
    logits, target = sample(shape, dtype, torch.int64)
    weight = torch.tensor([0.5, 1.0, 2.0])
    expected = L.FocalLoss(2.0, weight=weight.double())(logits.double(), target).float()
    pairs = [(target, weight), (target, weight.half()), (target, weight.bfloat16())]
    pairs.append((target.byte(), weight) if len(shape) == 2 else (target, weight[None]))
    for goal, given in pairs:
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(L.FocalLoss(2.0, weight=given)(logits, goal), expected)


@pytest.mark.parametrize("target_dtype", [torch.uint8, torch.float64], ids=str)
def test_unusual_types_are_compiled_exported_and_mapped(target_dtype):
    logits, target = sample((4, 3), torch.float32, target_dtype)
    criterion = L.FocalLoss(2.0, weight=torch.tensor([0.5, 1.0, 2.0]), reduction="none")
    expected = criterion(logits, target)
    torch.testing.assert_close(torch.compile(criterion, backend="aot_eager", fullgraph=True)(logits, target), expected)
    torch.testing.assert_close(torch.export.export(criterion, (logits, target)).module()(logits, target), expected)
    torch.testing.assert_close(torch.func.vmap(criterion)(logits[:, None], target[:, None])[:, 0], expected)


def test_weights_of_images_in_another_shape_are_those_of_classes():
    logits, target = sample((2, 3, 2, 2), torch.float32, torch.int64)
    weight = torch.tensor([0.5, 1.0, 2.0])
    for kind in (L.FocalLoss, L.DualFocalLoss, L.InverseFocalLoss, L.ProperFocalLoss):
        flat, other = (kind(1.0, weight=given) for given in (weight, weight[None]))
        torch.testing.assert_close(other(logits, target), flat(logits, target))
        if kind is not L.DualFocalLoss:  # it has no posterior
            torch.testing.assert_close(other.posterior(logits), flat.posterior(logits))
