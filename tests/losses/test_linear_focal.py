"""Linear focal loss against focal loss of the logits in float64, and its errors."""

import types
from typing import Any

import pytest
import torch
from linear_cases import FEW_BYTES, MARKS, assert_equals, assert_exact, draw, exact, here
from torch import Tensor

from refocal.losses import FLSD53, FocalLoss, LinearFocalLoss, Scheduled, focal_loss, linear_focal_loss
from refocal.losses.gpu import dispatch
from refocal.losses.gpu.launch import INTERPRETED
from refocal.losses.linear import operator
from refocal.losses.spec import LossSpec

pytestmark = MARKS


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("rows", "classes"), [(1, 37), (13, 2), (50, 37)])
def test_equals_focal_loss_of_the_logits(gamma: float, reduction: str, rows: int, classes: int) -> None:
    *inputs, target = draw(rows, 5, classes)
    criterion = LinearFocalLoss(gamma, reduction=reduction, chunk_bytes=FEW_BYTES)  # type: ignore[arg-type]
    assert_exact(criterion, tuple(inputs), target)
    assert_exact(criterion, tuple(inputs[:2]), target)


@pytest.mark.parametrize("stride", [0, 2])
def test_incoming_gradients_of_any_sign_and_stride(stride: int) -> None:
    *inputs, target = draw(30, 5, 21)
    target[3] = -100
    criterion = LinearFocalLoss(2.0, reduction="none", chunk_bytes=FEW_BYTES)
    incoming = torch.linspace(-2, 2, 61)[::2] if stride else torch.tensor(-1.5).expand(31)
    incoming = incoming[:30]
    loss = criterion(*inputs[:2], target, inputs[2])
    found = [loss, *torch.autograd.grad(loss, inputs, incoming)]
    assert_equals(found, exact(criterion, tuple(inputs), target, incoming), 3e-6)


@pytest.mark.parametrize("gamma", [100.0, 200.0])
def test_large_gammas(gamma: float) -> None:
    *inputs, target = draw(50, 5, 37)
    assert_exact(LinearFocalLoss(gamma, reduction="none"), tuple(inputs), target, tolerance=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_other_types(dtype: torch.dtype, reduction: str) -> None:
    *inputs, target = draw(40, 6, 33, dtype)
    criterion = LinearFocalLoss(2.0, reduction=reduction, chunk_bytes=FEW_BYTES)  # type: ignore[arg-type]
    assert_exact(criterion, tuple(inputs), target)


@pytest.mark.parametrize("softcap", [1.0, 30.0, 1e5])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_softcap_bounds_the_logits(softcap: float, reduction: str) -> None:
    *inputs, target = draw(20, 5, 70)
    criterion = LinearFocalLoss(2.0, reduction=reduction, softcap=softcap, chunk_bytes=FEW_BYTES)  # type: ignore[arg-type]
    assert_exact(criterion, tuple(inputs), target)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("by_class", [False, True])
def test_settings_of_focal_loss(smoothing: float, detached: bool, by_class: bool) -> None:
    *inputs, target = draw(30, 5, 21)
    target[::4] = -100
    weight = torch.linspace(0.5, 2, 21)
    gamma = torch.linspace(0, 4, 21).tolist() if by_class else 1.5
    criterion = LinearFocalLoss(
        gamma, weight=weight, label_smoothing=smoothing, detached=detached, chunk_bytes=FEW_BYTES
    )
    assert_exact(criterion, tuple(inputs), target, tolerance=1e-5)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_weights_and_gammas_in_float64_and_with_strides(reduction: str) -> None:
    *inputs, target = draw(30, 5, 21, torch.float64)
    weight = torch.linspace(0.5, 2, 42, dtype=torch.float64)[::2]
    gammas = torch.linspace(0, 4, 21).tolist()
    criterion = LinearFocalLoss(gammas, weight=weight, reduction=reduction)  # type: ignore[arg-type]
    assert_exact(criterion, tuple(inputs), target)
    narrow = tuple(each.detach().float().requires_grad_() for each in inputs)
    for weight in (torch.rand(42)[::2], torch.tensor(2.0).expand(21)):
        assert_exact(LinearFocalLoss(2.0, weight=weight, reduction=reduction), narrow, target)  # type: ignore[arg-type]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_a_target_that_the_bias_excludes(gamma: float) -> None:
    hidden, head, bias, target = draw(6, 5, 21)
    with torch.no_grad():
        bias[4] = -torch.inf
    target[2] = 4
    losses = linear_focal_loss(hidden, head, target, gamma=gamma, bias=bias)
    assert losses[2] == torch.inf
    losses.sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in (hidden, head, bias))


@pytest.mark.parametrize(("gamma", "smoothing"), [(0.0, 0.1), (0.5, 0.1), (1.0, 1.0), (2.0, 0.1)])
@pytest.mark.parametrize("detached", [False, True])
def test_smoothing_over_a_class_that_the_bias_excludes(gamma: float, smoothing: float, detached: bool) -> None:
    """All losses are infinite, as those of the logits, and gradients are finite."""
    inputs, target = draw(6, 5, 21, torch.float64)[:3], torch.arange(6)
    with torch.no_grad():
        inputs[2][4] = -torch.inf
    criterion = LinearFocalLoss(gamma, label_smoothing=smoothing, detached=detached, reduction="sum")
    loss = criterion(*inputs[:2], target, inputs[2])
    expected = exact(criterion, inputs, target, torch.ones(()))
    assert loss == torch.inf == expected[0]
    assert_equals(list(torch.autograd.grad(loss, inputs)), expected[1:], 1e-12)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter truncates to 16 bits instead of rounding")
def test_incoming_gradients_keep_their_precision() -> None:
    hidden, head, _, target = draw(40, 6, 33, torch.bfloat16)
    criterion = LinearFocalLoss(2.0, reduction="sum")
    one, third = (torch.autograd.grad(factor * criterion(hidden, head, target), head)[0] for factor in (1, 1 / 3))
    ratio = torch.linalg.norm(third.double()) / torch.linalg.norm(one.double())
    assert ratio.item() == pytest.approx(1 / 3, rel=5e-4)


def test_a_schedule_gives_its_present_gamma() -> None:
    hidden, head, _, target = draw(9, 5, 21)
    policy = Scheduled((1,), (5.0, 3.0))
    found = LinearFocalLoss(policy)(hidden, head, target)
    torch.testing.assert_close(found, FocalLoss(5.0)(hidden @ head.t(), target))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ignored_rows_take_no_part(reduction: str) -> None:
    hidden, head, bias, target = draw(30, 5, 21)
    target[[0, 7, 8, 29]] = 11
    criterion = LinearFocalLoss(2.0, ignore_index=11, reduction=reduction, chunk_bytes=FEW_BYTES)  # type: ignore[arg-type]
    assert_exact(criterion, (hidden, head, bias), target)
    with torch.no_grad():
        hidden[7] = torch.nan
    loss = criterion(hidden, head, target, bias)
    loss.sum().backward()
    assert all(torch.isfinite(each.grad).all() for each in (hidden, head, bias))
    assert not hidden.grad[7].any()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])  # with a kernel, and without one
def test_ignored_rows_pass_through_a_captured_graph(
    smoothing: float, reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host cannot wait for their number. They may hold NaN, and their loss may be infinite."""
    hidden, head, bias, target = draw(30, 5, 21)
    target[target == 0] = 1
    target[[0, 7, 8, 29]] = -100
    with torch.no_grad():
        hidden[7] = torch.nan
        bias[0] = bias[0] if smoothing else -torch.inf  # the class that stands for an ignored one
    criterion = LinearFocalLoss(2.0, label_smoothing=smoothing, reduction=reduction, chunk_bytes=FEW_BYTES)  # type: ignore[arg-type]
    results = []
    for captured in (False, True):
        monkeypatch.setattr(operator, "_is_captured", lambda _, captured=captured: captured)
        losses = criterion(hidden, head, target, bias)
        results.append([losses.detach(), *torch.autograd.grad(losses.sum(), [hidden, head, bias])])
    assert all(torch.isfinite(each).all() for each in results[0])
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
def test_all_rows_ignored(gamma: float) -> None:
    hidden, head, bias, target = draw(4, 5, 21)
    target[:] = -100
    loss = LinearFocalLoss(gamma, reduction="sum")(hidden, head, target, bias)
    loss.backward()
    assert loss == 0
    assert not any(each.grad.any() for each in (hidden, head, bias))
    assert LinearFocalLoss(gamma)(hidden, head, target).isnan()  # as `nn.CrossEntropyLoss`


def test_no_rows() -> None:
    hidden, head, bias, target = draw(0, 5, 21)
    loss = LinearFocalLoss(2.0, reduction="sum")(hidden, head, target, bias)
    loss.backward()
    assert loss == 0
    assert not head.grad.any()
    assert hidden.grad.shape == (0, 5)


@pytest.mark.parametrize("gamma", [0.0, 1e-8, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("by_class", [False, True])
def test_saturated_logits(gamma: float, smoothing: float, by_class: bool) -> None:
    head = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    hidden = torch.tensor([[1e4], [-1e4], [60.0], [90.0], [200.0]], requires_grad=True)
    target = torch.tensor([0, 0, 0, 1, 2])
    gammas = (gamma, 0.5, 0.0) if by_class else gamma
    criterion = LinearFocalLoss(gammas, label_smoothing=smoothing, reduction="none")
    assert_exact(criterion, (hidden, head), target)


def test_any_shape_of_hidden_states() -> None:
    hidden, head, _, target = draw(24, 5, 21)
    losses = linear_focal_loss(hidden.reshape(2, 3, 4, 5), head, target.reshape(2, 3, 4).int(), gamma=2.0)
    torch.testing.assert_close(losses.reshape(-1), focal_loss(hidden @ head.t(), target, gamma=2.0))
    one = linear_focal_loss(hidden[0], head, target[0], gamma=2.0)
    torch.testing.assert_close(one, losses[0, 0, 0])


@pytest.mark.parametrize("classes", [8_192, 9_001])  # two blocks of a kernel, without and with a tail
@pytest.mark.parametrize(
    ("gamma", "reduction", "softcap"), [(2.0, "none", None), (0.5, "mean", 5.0), (2.0, "sum", None)]
)
def test_more_classes_than_a_block(gamma: float, reduction: str, softcap: float | None, classes: int) -> None:
    """Targets stand at both ends of each block, and every block has a share in each loss."""
    *inputs, target = draw(6, 3, classes)
    target[:] = torch.tensor([0, 4_095, 4_096, 8_191, 5_000, classes - 1])
    inputs = [(each / 2).detach().requires_grad_() for each in inputs]
    criterion = LinearFocalLoss(gamma, reduction=reduction, softcap=softcap)  # type: ignore[arg-type]
    assert_exact(criterion, tuple(inputs), target, tolerance=2e-5)  # products in float32 have errors of this size


@pytest.mark.kernels
@pytest.mark.parametrize("classes", [8_192, 9_001])
def test_a_kernel_clears_ignored_rows(classes: int) -> None:
    """A captured graph cannot leave them out. They may hold NaN."""
    logits, spec = torch.full((2, classes), torch.nan), LossSpec(2.0, -100)
    logits[1] = 0
    if not dispatch.supports_chunk(logits, spec):
        pytest.skip("main memory, on a machine with a GPU")
    target, scale = torch.tensor([-100, 7]), torch.ones(())
    losses = dispatch.consume_chunk(logits, target, None, None, scale, spec, gradient=True)
    assert losses[0] == 0
    assert not logits[0].any()
    assert logits[1].all()


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("classes", [40_003, 70_001])
def test_many_classes(classes: int, reduction: str) -> None:
    """On a GPU, the product with the head is divided. Above 65,536 classes, kernels read larger blocks."""
    if here().type == "cpu":
        pytest.skip("needs a GPU")
    *inputs, target = draw(300, 64, classes, torch.bfloat16)
    inputs = [(each / 8).detach().requires_grad_() for each in inputs]
    assert_exact(LinearFocalLoss(2.0, reduction=reduction), tuple(inputs), target)  # type: ignore[arg-type]


@pytest.mark.skipif(INTERPRETED, reason="too long for the interpreter")
def test_float32_sums_of_16_bit_gradients_are_more_accurate() -> None:
    *inputs, target = draw(600, 8, 33, torch.bfloat16)
    errors = []
    for sum_dtype in (None, torch.float32):
        criterion = LinearFocalLoss(2.0, reduction="sum", chunk_bytes=400, sum_dtype=sum_dtype)
        found = torch.autograd.grad(criterion(*inputs[:2], target), inputs[1])[0]
        _, _, right = exact(criterion, tuple(inputs[:2]), target, torch.ones(()))
        errors.append(torch.linalg.norm(found - right) / torch.linalg.norm(right))
    assert errors[1] < errors[0] / 2


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [  # made on the CPU
        ({"hidden": [[1.0]]}, TypeError, "hidden must be a PyTorch tensor, got list"),
        ({"hidden": torch.ones(6, 4)}, ValueError, r"hidden must have the shape \(\.\.\., 5\).*got \(6, 4\)"),
        ({"hidden": torch.ones(6, 5).long()}, TypeError, "hidden must have a floating-point type"),
        ({"head": torch.ones(21, 5).double()}, TypeError, "head must have the type of hidden.*autocast"),
        ({"head": torch.ones(5)}, ValueError, r"head must have the shape \(classes, width of hidden\)"),
        ({"target": torch.zeros(5).long()}, ValueError, r"one class per hidden state, shape \(6,\), got \(5,\)"),
        ({"target": torch.zeros(6)}, TypeError, "class indices, got the type torch.float32.*use FocalLoss"),
        ({"target": torch.full((6,), 21)}, IndexError, r"target must lie in \[0, 21\), got 21"),
        ({"bias": torch.ones(20)}, ValueError, r"bias must have one value per class, shape \(21,\), got \(20,\)"),
        ({"weight": torch.ones(20)}, ValueError, r"weight must be a tensor with one value per class"),
        ({"bias": [0.0]}, TypeError, "bias must be a PyTorch tensor, got list"),
        ({"weight": torch.ones(21, requires_grad=True)}, ValueError, "weight must not require a gradient.*detach"),
        ({"softcap": 0.0}, ValueError, "softcap must be positive and finite, got 0.0"),
        ({"chunk_bytes": 0}, ValueError, "chunk_bytes must be at least 1, got 0"),
        ({"sum_dtype": torch.float16}, ValueError, "sum_dtype must be one of torch.float32, got torch.float16"),
        ({"gamma": -1.0}, ValueError, "gamma must be.*got -1"),
    ],
)
def test_clear_errors(change: dict[str, object], error: type[Exception], message: str) -> None:
    hidden, head, _, target = draw(6, 5, 21)
    change = {
        name: each.detach().to(here()).requires_grad_(each.requires_grad) if isinstance(each, Tensor) else each
        for name, each in change.items()
    }
    arguments = {"hidden": hidden, "head": head, "target": target, "gamma": 2.0, **change}
    with pytest.raises(error, match=message):
        linear_focal_loss(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(("smoothing", "dtype"), [(0.1, torch.float32), (0.0, torch.float64)])
def test_classes_are_checked_also_where_no_kernel_runs(smoothing: float, dtype: torch.dtype) -> None:
    hidden, head, _, target = draw(6, 5, 21, dtype)
    target[:2] = torch.tensor([-100, 21])
    with pytest.raises(IndexError, match=r"target must lie in \[0, 21\), got 21"):
        linear_focal_loss(hidden, head, target, gamma=2.0, label_smoothing=smoothing)


@pytest.mark.kernels
def test_a_captured_graph_cannot_wait_for_a_check_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel gives NaN for a class that does not exist."""
    hidden, head, _, target = draw(6, 5, 21)
    if not dispatch.has_kernels(hidden):
        pytest.skip("main memory, on a machine with a GPU")
    target[1] = 21
    monkeypatch.setattr(operator, "_is_captured", lambda _: True)
    losses = linear_focal_loss(hidden, head, target, gamma=2.0)
    assert losses.isnan().tolist() == [False, True, False, False, False, False]


@pytest.mark.parametrize("capturing", [False, True])
def test_only_a_gpu_captures_graphs(capturing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "is_capturing", lambda: capturing)
    for is_cuda in (False, True):
        target: Any = types.SimpleNamespace(is_cuda=is_cuda)
        assert operator._is_captured(target) is (is_cuda and capturing)


def test_policies_by_sample_are_refused() -> None:
    hidden, head, _, target = draw(6, 5, 21)
    with pytest.raises(TypeError, match="changes with the sample: use FocalLoss on the logits"):
        LinearFocalLoss(FLSD53)(hidden, head, target)
