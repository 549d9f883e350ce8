"""Linear focal loss against focal loss of the logits in float64, and its place in PyTorch's machinery."""

import copy
import itertools
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from refocal.losses import FLSD53, FocalLoss, LinearFocalLoss, Scheduled, focal_loss, linear_focal_loss
from refocal.losses.gpu.launch import INTERPRETED
from refocal.losses.linear import chunks, operator

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # from NumPy in Triton's interpreter


@pytest.fixture(autouse=True, params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def _device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make all tensors of a test on one device."""
    with torch.device(request.param):
        yield


TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
FEW_BYTES = 4_000  # a few rows per chunk


def draw(
    rows: int, width: int, classes: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator("cpu").manual_seed(rows + classes)
    options = {"generator": generator, "device": "cpu"}
    inputs = [torch.randn(shape, **options).mul_(2) for shape in ((rows, width), (classes, width), (classes,))]
    target = torch.randint(classes, (rows,), **options).to(here())
    return *(each.to(here(), dtype).requires_grad_() for each in inputs), target  # type: ignore[return-value]


def here() -> torch.device:
    return torch.get_default_device()


def exact(criterion: LinearFocalLoss, inputs: tuple[Tensor, ...], target: Tensor, incoming: Tensor) -> list[Tensor]:
    """Loss and gradients of the logits' focal loss in float64."""
    hidden, head, *bias = (each.detach().double().requires_grad_() for each in inputs)
    logits = hidden @ head.t() + (bias[0] if bias else 0)
    softcap = criterion.layer_settings.softcap
    logits = softcap * torch.tanh(logits / softcap) if softcap else logits
    loss = copy.deepcopy(criterion.focal).double()(logits, target)
    return [loss, *torch.autograd.grad(loss, [hidden, head, *bias], incoming.double())]


def assert_equals(found: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    for value, right in zip(found, expected, strict=True):
        assert value.shape == right.shape
        assert torch.linalg.norm(value.double() - right) <= tolerance * torch.linalg.norm(right) + 1e-14


def assert_exact(criterion: LinearFocalLoss, inputs: tuple[Tensor, ...], target: Tensor, **tolerance: float) -> None:
    loss = criterion(*inputs[:2], target, *inputs[2:])
    incoming = torch.linspace(0.7, 1.5, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    found = [loss, *torch.autograd.grad(loss, inputs, incoming)]
    assert [each.dtype for each in found[1:]] == [each.dtype for each in inputs]
    expected = exact(criterion, inputs, target, incoming)
    assert_equals(found, expected, tolerance.get("tolerance", TOLERANCE[inputs[0].dtype]))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize(("rows", "classes"), [(1, 37), (13, 2), (50, 37)])
def test_equals_focal_loss_of_the_logits(gamma: float, reduction: str, rows: int, classes: int) -> None:
    *inputs, target = draw(rows, 5, classes)
    criterion = LinearFocalLoss(gamma, reduction=reduction, chunk_bytes=FEW_BYTES)  # type: ignore[arg-type]
    assert_exact(criterion, tuple(inputs), target)
    assert_exact(criterion, tuple(inputs[:2]), target)


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


def test_all_rows_ignored() -> None:
    hidden, head, bias, target = draw(4, 5, 21)
    target[:] = -100
    loss = LinearFocalLoss(2.0, reduction="sum")(hidden, head, target, bias)
    loss.backward()
    assert loss == 0
    assert not any(each.grad.any() for each in (hidden, head, bias))
    assert LinearFocalLoss(2.0)(hidden, head, target).isnan()  # as `nn.CrossEntropyLoss`


def test_no_rows() -> None:
    hidden, head, bias, target = draw(0, 5, 21)
    loss = LinearFocalLoss(2.0, reduction="sum")(hidden, head, target, bias)
    loss.backward()
    assert loss == 0
    assert not head.grad.any()
    assert hidden.grad.shape == (0, 5)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_saturated_logits(gamma: float) -> None:
    head = torch.tensor([[1.0], [-1.0], [0.0]], requires_grad=True)
    hidden = torch.tensor([[1e4], [-1e4], [60.0], [90.0], [200.0]], requires_grad=True)
    target = torch.tensor([0, 0, 0, 1, 2])
    assert_exact(LinearFocalLoss(gamma, reduction="none"), (hidden, head), target)


def test_any_shape_of_hidden_states() -> None:
    hidden, head, _, target = draw(24, 5, 21)
    losses = linear_focal_loss(hidden.reshape(2, 3, 4, 5), head, target.reshape(2, 3, 4).int(), gamma=2.0)
    torch.testing.assert_close(losses.reshape(-1), focal_loss(hidden @ head.t(), target, gamma=2.0))
    one = linear_focal_loss(hidden[0], head, target[0], gamma=2.0)
    torch.testing.assert_close(one, losses[0, 0, 0])


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (2,), (0, 2), (1, 2)])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_only_wanted_gradients_are_computed(
    frozen: tuple[int, ...], reduction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    *inputs, target = draw(30, 5, 21)
    for index in frozen:
        inputs[index].requires_grad_(False)
    products = count_calls(monkeypatch)
    loss = LinearFocalLoss(2.0, reduction=reduction, chunk_bytes=1_000_000)(*inputs[:2], target, inputs[2])  # type: ignore[arg-type]
    loss.sum().backward()
    again = 1 + (reduction == "none")  # the backward pass computes the logits a second time
    assert products == {
        "compute_logits": again,
        "multiply_by_head": 0 not in frozen,
        "add_head_gradient": 1 not in frozen,
    }
    assert [each.grad is None for each in inputs] == [index in frozen for index in range(3)]


def count_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each matrix product is computed from now on."""
    counts = dict.fromkeys(("compute_logits", "multiply_by_head", "add_head_gradient"), 0)

    def counted(name: str) -> None:
        function = getattr(operator, name)

        def call(*args: object, **options: object) -> object:
            counts[name] += 1
            return function(*args, **options)

        monkeypatch.setattr(operator, name, call)

    for name in counts:
        counted(name)
    return counts


def test_evaluation_needs_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, head, bias, target = draw(30, 5, 21)
    products = count_calls(monkeypatch)
    with torch.no_grad():
        LinearFocalLoss(2.0)(hidden, head, target, bias)
    assert products == {"compute_logits": 1, "multiply_by_head": 0, "add_head_gradient": 0}


def test_gradients_add_up_and_may_be_taken_twice() -> None:
    hidden, head, _, target = draw(30, 5, 21)
    criterion = LinearFocalLoss(2.0)
    loss = criterion(hidden, head, target)
    first = torch.autograd.grad(3 * loss, [hidden, head], retain_graph=True)
    second = torch.autograd.grad(loss, [hidden, head])
    torch.testing.assert_close([each / 3 for each in first], list(second))
    for part in (slice(0, 10), slice(10, 30)):
        (criterion(hidden[part], head, target[part]) * len(target[part]) / 30).backward()
    torch.testing.assert_close(head.grad, second[1])


def test_tied_embeddings() -> None:
    _, head, _, target = draw(30, 5, 21)
    tokens = torch.arange(30) % 21
    LinearFocalLoss(2.0)(torch.nn.functional.embedding(tokens, head), head, target).backward()
    found, head.grad = head.grad, None
    FocalLoss(2.0)(torch.nn.functional.embedding(tokens, head) @ head.t(), target).backward()
    torch.testing.assert_close(found, head.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    hidden, head, _, target = draw(30, 5, 21)
    criterion = LinearFocalLoss(2.0)
    checkpoint(lambda: criterion(1 * hidden, head, target), use_reentrant=False).backward() if not reentrant else (
        checkpoint(criterion, hidden, head, target, use_reentrant=True).backward()
    )
    found, hidden.grad = hidden.grad, None
    criterion(hidden, head, target).backward()
    torch.testing.assert_close(found, hidden.grad)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_autocast_multiplies_in_its_type_and_keeps_float32_gradients(reduction: str) -> None:
    hidden, head, bias, target = draw(40, 6, 33)
    criterion = LinearFocalLoss(2.0, reduction=reduction, chunk_bytes=FEW_BYTES)  # type: ignore[arg-type]
    with torch.autocast(here().type, torch.bfloat16):
        loss = criterion(hidden, head, target, bias)
    found = [loss, *torch.autograd.grad(loss.sum(), [hidden, head, bias])]
    assert all(each.dtype == torch.float32 for each in found)
    rounded = tuple(each.detach().bfloat16().float().requires_grad_() for each in (hidden, head, bias))
    assert_equals(found, exact(criterion, rounded, target, torch.ones_like(loss)), 2e-2)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.skipif(INTERPRETED, reason="torch.compile runs no interpreted kernels")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")  # PyTorch's compiler does that itself
def test_compiles_without_a_break(reduction: str) -> None:
    hidden, head, bias, target = draw(30, 5, 21)
    target[3] = -100
    criterion = LinearFocalLoss(2.0, reduction=reduction)  # type: ignore[arg-type]

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(hidden: Tensor, head: Tensor, bias: Tensor, target: Tensor) -> Tensor:
        return criterion(torch.tanh(hidden), head, target, bias).sum()

    step(hidden, head, bias, target).backward()
    found = [each.grad for each in (hidden, head, bias)]
    for each in (hidden, head, bias):
        each.grad = None
    criterion(torch.tanh(hidden), head, target, bias).sum().backward()
    torch.testing.assert_close(found, [each.grad for each in (hidden, head, bias)])


def test_the_operator_is_registered_correctly() -> None:
    hidden, head, bias, target = (each.detach() for each in draw(30, 5, 21))
    scale, dtype = torch.tensor(0.5), torch.float32
    for wanted in ([True, True, True], [False, True, False]):
        arguments = (
            hidden,
            head,
            target,
            bias,
            None,
            None,
            scale,
            2.0,
            -100,
            0.0,
            0.0,
            False,
            4_000,
            dtype,
            dtype,
            wanted,
        )
        torch.library.opcheck(operator.linear_focal, arguments)


def test_second_derivatives_and_transformations_raise() -> None:
    hidden, head, _, target = draw(6, 5, 21)
    (gradient,) = torch.autograd.grad(LinearFocalLoss(2.0)(hidden, head, target), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives: use focal_loss\(hidden @ head\.T"):
        gradient.sum().backward()
    bias = torch.zeros(21, requires_grad=True)
    loss = LinearFocalLoss(2.0)(hidden.detach(), head.detach(), target, bias)
    (gradient,) = torch.autograd.grad(loss, bias, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        (gradient.square().sum() + bias.square().sum()).backward()
    with pytest.raises(RuntimeError, match=r"torch\.func.*focal_loss\(hidden @ head\.T"):
        torch.func.grad(lambda x: LinearFocalLoss(2.0)(x, head, target))(hidden)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_many_classes(reduction: str) -> None:
    """On a GPU, the product with the head is divided into parts."""
    if here().type == "cpu":
        pytest.skip("needs a GPU")
    *inputs, target = draw(300, 64, 40_003, torch.bfloat16)
    inputs = [(each / 8).detach().requires_grad_() for each in inputs]
    assert_exact(LinearFocalLoss(2.0, reduction=reduction), tuple(inputs), target)  # type: ignore[arg-type]


def test_chunks_keep_to_their_memory() -> None:
    for rows, classes, limit in itertools.product((1, 300, 8_192), (2, 50_257, 256_000), (1, 1 << 20, 1 << 29)):
        step = chunks.rows_per_chunk(rows, classes, torch.bfloat16, limit)
        assert 1 <= step <= max(rows, 256)
        assert step == 1 or step >= rows or step * chunks.row_stride(classes) * 2 <= limit
    assert chunks.rows_per_chunk(8_192, 31_000, torch.bfloat16, 65_700_000) == 1_024


MEMORY = """
import resource, sys, torch
from refocal.losses import LinearFocalLoss
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
hidden, head = torch.randn(1_000, 8, requires_grad=True), torch.randn(50_000, 8, requires_grad=True)
target = torch.randint(50_000, (1_000,))
criterion = LinearFocalLoss(2.0, chunk_bytes=8_000_000)
criterion(hidden[:3], head, target[:3]).backward()
before = peak()
criterion(hidden, head, target).backward()
criterion.posterior(hidden, head, top=3)
criterion.log_posterior(hidden, head, target)
print(peak() - before)
"""


@pytest.mark.skipif(INTERPRETED, reason="too long for the interpreter")
def test_logits_are_never_all_in_memory() -> None:
    if here().type == "cuda":
        pytest.skip("measures main memory")
    launcher = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    done = subprocess.run([sys.executable, "-S", "-c", launcher, MEMORY], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 60e6  # the logits would take 200 MB


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


class _TinyLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mix = nn.Embedding(31, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, 31)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.mix(self.embedding(tokens))[0]


@pytest.mark.skipif(INTERPRETED, reason="too long for the interpreter")
def test_a_language_model_learns_as_with_focal_loss_of_the_logits() -> None:
    torch.manual_seed(1)
    tokens = torch.randint(31, (8, 13))
    curves = []
    for criterion in (FocalLoss(2.0), LinearFocalLoss(2.0, chunk_bytes=FEW_BYTES)):
        torch.manual_seed(0)
        model = _TinyLanguageModel()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        curve = []
        for _ in range(30):
            hidden, target = model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
            if isinstance(criterion, FocalLoss):
                loss = criterion(model.head(hidden), target)
            else:
                loss = criterion(hidden, model.head.weight, target, model.head.bias)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(curve)
    assert curves[0][-1] < curves[0][0] / 2
    torch.testing.assert_close(*map(torch.tensor, curves), rtol=1e-4, atol=1e-6)


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
    if error is IndexError and hidden.is_cuda:
        pytest.skip("on a GPU the loss of a class that does not exist is NaN")
    with pytest.raises(error, match=message):
        linear_focal_loss(**arguments)  # type: ignore[arg-type]


def test_policies_by_sample_are_refused() -> None:
    hidden, head, _, target = draw(6, 5, 21)
    with pytest.raises(TypeError, match="changes with the sample: use FocalLoss on the logits"):
        LinearFocalLoss(FLSD53)(hidden, head, target)
