"""Linear focal loss in PyTorch's machinery: differentiation, autocast, compilation, training, and memory."""

import itertools
import subprocess
import sys
from typing import Any

import pytest
import torch
from linear_cases import FEW_BYTES, MARKS, assert_equals, draw, exact, here
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from refocal.losses import FocalLoss, LinearFocalLoss, Scheduled, spec
from refocal.losses.gpu.launch import INTERPRETED
from refocal.losses.linear import chunks, operator

pytestmark = MARKS


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


def test_ignored_rows_enter_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, head, _, target = draw(30, 5, 21)
    target[::3] = -100
    rows, compute = [], operator.compute_logits

    def counted(hidden: Tensor, *others: Any, **out: Tensor) -> Tensor:
        rows.append(len(hidden))
        return compute(hidden, *others, **out)

    monkeypatch.setattr(operator, "compute_logits", counted)
    LinearFocalLoss(2.0, chunk_bytes=FEW_BYTES)(hidden, head, target)
    assert sum(rows) == 20


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


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_many_incoming_gradients_at_once(reduction: str) -> None:
    hidden, head, bias, target = draw(12, 5, 21)
    loss = LinearFocalLoss(2.0, reduction=reduction)(hidden, head, target, bias)  # type: ignore[arg-type]
    incoming = torch.randn(4, *loss.shape)
    inputs = [hidden, head, bias]
    together = torch.autograd.grad(loss, inputs, incoming, is_grads_batched=True, retain_graph=True)
    one_by_one = [torch.autograd.grad(loss, inputs, each, retain_graph=True) for each in incoming]
    for found, expected in zip(together, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(found, torch.stack(expected))


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
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_autocast_multiplies_in_its_type_and_keeps_float32_gradients(
    dtype: torch.dtype, tolerance: float, reduction: str
) -> None:
    hidden, head, bias, target = draw(40, 6, 33)
    criterion = LinearFocalLoss(2.0, reduction=reduction, chunk_bytes=FEW_BYTES)  # type: ignore[arg-type]
    with torch.autocast(here().type, dtype):
        loss = criterion(hidden, head, target, bias)
    found = [loss, *torch.autograd.grad(loss.sum(), [hidden, head, bias])]
    assert all(each.dtype == torch.float32 for each in found)
    rounded = tuple(each.detach().to(dtype).float().requires_grad_() for each in (hidden, head, bias))
    assert_equals(found, exact(criterion, rounded, target, torch.ones_like(loss)), tolerance)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_autocast_takes_16_bit_hidden_states_and_a_float32_layer(reduction: str) -> None:
    """Autocast gives such hidden states. The gradient of each tensor has its type."""
    hidden, head, bias, target = draw(40, 6, 33)
    hidden = hidden.detach().bfloat16().requires_grad_()
    criterion = LinearFocalLoss(2.0, reduction=reduction, chunk_bytes=FEW_BYTES)  # type: ignore[arg-type]
    with torch.autocast(here().type, torch.bfloat16):
        loss = criterion(hidden, head, target, bias)
    found = [loss, *torch.autograd.grad(loss.sum(), [hidden, head, bias])]
    assert [each.dtype for each in found] == [torch.float32, torch.bfloat16, torch.float32, torch.float32]
    rounded = tuple(each.detach().bfloat16().float().requires_grad_() for each in (hidden, head, bias))
    assert_equals(found, exact(criterion, rounded, target, torch.ones_like(loss)), 2e-2)


def test_loss_scaling_in_float16() -> None:
    """Gradients of well classified rows would underflow before the scale enlarges them."""
    inputs = tuple((factor * torch.eye(3)).half().requires_grad_() for factor in (4, 1))
    target, scale, criterion = torch.arange(3), torch.tensor(2.0**15), LinearFocalLoss(5.0)
    loss = criterion(*inputs, target)
    found = [loss, *torch.autograd.grad(loss, inputs, scale)]
    assert_equals(found, exact(criterion, inputs, target, scale), 3e-3)


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


@pytest.mark.skipif(INTERPRETED, reason="torch.compile runs no interpreted kernels")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
@pytest.mark.parametrize(
    "settings",
    [
        {"gamma": torch.linspace(0, 4, 21).tolist(), "weight": torch.linspace(0.5, 2, 21)},
        {"gamma": 1.5, "label_smoothing": 0.1, "softcap": 5.0},
    ],
    ids=["gamma by class", "smoothing"],
)
def test_compiles_with_every_setting_for_any_number_of_rows(settings: dict[str, Any]) -> None:
    torch.compiler.reset()
    criterion = LinearFocalLoss(**settings).to(here())
    compilations = CompileCounterWithBackend("aot_eager")
    compiled, counts = torch.compile(criterion, backend=compilations, fullgraph=True, dynamic=True), []
    for rows in (30, 17):
        hidden, head, bias, target = draw(rows, 5, 21)
        results = []
        for function in (compiled, criterion):
            loss = function(hidden, head, target, bias)
            results.append([loss, *torch.autograd.grad(loss, [hidden, head, bias])])
        torch.testing.assert_close(*results)
        counts.append(compilations.frame_count)
    assert counts[0] == counts[1]


@pytest.mark.skipif(INTERPRETED, reason="torch.compile runs no interpreted kernels")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated")
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_a_schedule_is_compiled_once_for_all_epochs(reduction: str) -> None:
    torch.compiler.reset()
    hidden, head, _, target = draw(30, 5, 21)
    criterion = LinearFocalLoss(Scheduled((1,), (5.0, 2.0)), reduction=reduction).to(here())  # type: ignore[arg-type]
    compilations = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(criterion, backend=compilations, fullgraph=True)
    values = []
    for _ in range(2):
        results = []
        for function in (compiled, criterion):
            losses = function(hidden, head, target)
            results.append([losses.detach(), *torch.autograd.grad(losses.sum(), [hidden, head])])
        torch.testing.assert_close(*results)
        values.append(results[0][0].sum())
        criterion.focal.gamma.step_epoch()
    assert values[0] < values[1]
    assert compilations.frame_count == 1


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_gradients_of_fake_and_traced_tensors(reduction: str) -> None:
    """No kernel of ours runs outside of the operator."""
    criterion = LinearFocalLoss(2.0, reduction=reduction)  # type: ignore[arg-type]

    def step(hidden: Tensor, head: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(3 * criterion(hidden, head, target).sum(), [hidden, head])

    hidden, head, _, target = draw(30, 5, 21)
    expected = step(hidden, head, target)
    other = torch.zeros_like(hidden, requires_grad=True)
    for mode in ("real", "fake"):
        traced = make_fx(step, tracing_mode=mode)(other, head, target)
        torch.testing.assert_close(traced(hidden, head, target), expected)
    with FakeTensorMode() as fake:  # tensors without values
        found = step(*(fake.from_tensor(each) for each in (hidden, head, target)))
    assert [each.shape for each in found] == [hidden.shape, head.shape]


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("gamma", [2.0, [0.0, 1.0, 2.0]])
def test_shapes_alone(gamma: Any, reduction: str) -> None:
    criterion = LinearFocalLoss(gamma, reduction=reduction)  # type: ignore[arg-type]
    with torch.device("meta"):
        hidden, head = torch.empty(6, 5, requires_grad=True), torch.empty(3, 5, requires_grad=True)
        loss = criterion(hidden, head, torch.zeros(6).long())
    loss.sum().backward()
    assert (loss.shape, loss.dtype, loss.is_meta) == ((6,) if reduction == "none" else (), torch.float32, True)
    assert (hidden.grad.shape, head.grad.shape) == (hidden.shape, head.shape)  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", [torch.inference_mode, FakeTensorMode])
def test_gammas_by_class_outlive_the_mode_in_which_they_were_first_used(mode: Any) -> None:
    """A validation before the training may run in inference mode. Copies of the gammas are kept."""
    spec._copy_gammas.cache_clear()
    hidden, head, _, target = draw(12, 5, 21)
    gammas = torch.linspace(0, 3, 21).tolist()
    criterion = LinearFocalLoss(gammas)
    with mode() as fake:
        inputs = [hidden, head, target] if fake is None else [fake.from_tensor(each) for each in (hidden, head, target)]
        criterion(*inputs)
    found = torch.autograd.grad(criterion(hidden, head, target), [hidden, head])
    expected = torch.autograd.grad(FocalLoss(gammas)(hidden @ head.t(), target), [hidden, head])
    torch.testing.assert_close(found, expected)


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
            False,
            3.0,
            4_000,
            dtype,
            dtype,
            wanted,
        )
        torch.library.opcheck(operator.linear_focal, arguments)


def test_second_derivatives_raise() -> None:
    hidden, head, _, target = draw(6, 5, 21)
    (gradient,) = torch.autograd.grad(LinearFocalLoss(2.0)(hidden, head, target), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives: use focal_loss\(hidden @ head\.T"):
        gradient.sum().backward()
    bias = torch.zeros(21, requires_grad=True)
    loss = LinearFocalLoss(2.0)(hidden.detach(), head.detach(), target, bias)
    (gradient,) = torch.autograd.grad(loss, bias, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        (gradient.square().sum() + bias.square().sum()).backward()


@pytest.mark.parametrize(
    "transform",
    [
        lambda function, x: torch.func.grad(function)(x),
        lambda function, x: torch.func.vmap(function)(x[None]),
        lambda function, x: torch.func.jvp(function, (x,), (x,)),
        lambda function, x: torch.func.jacrev(function)(x),
    ],
    ids=["grad", "vmap", "jvp", "jacrev"],
)
@pytest.mark.parametrize("method", ["forward", "log_posterior"])
def test_transformations_raise(transform: Any, method: str) -> None:
    hidden, head, _, target = draw(6, 5, 21)
    function = getattr(LinearFocalLoss(2.0), method)
    with pytest.raises(RuntimeError, match=r"torch\.func.*focal_loss\(hidden @ head\.T"):
        transform(lambda x: function(x, head, target), hidden.detach())


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_derivatives_of_a_gradient_in_learned_sample_weights_raise(reduction: str) -> None:
    """The gradient depends on what the losses are multiplied by, even if nothing else is differentiated."""
    hidden, head, _, target = draw(6, 5, 21)
    losses = LinearFocalLoss(2.0, reduction=reduction)(hidden, head.detach(), target)  # type: ignore[arg-type]
    factor = torch.full_like(losses, 2.0, requires_grad=True)
    (gradient,) = torch.autograd.grad((factor * losses).sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match=r"no second derivatives: use focal_loss\(hidden @ head\.T"):
        torch.autograd.grad(gradient.square().sum() + factor.square().sum(), factor, allow_unused=True)
    (apart,) = torch.autograd.grad(factor.square().sum(), factor)  # this does not pass through the gradient
    assert torch.equal(apart, 2 * factor)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_derivatives_in_forward_mode_raise(place: int) -> None:
    *inputs, target = draw(6, 5, 21)
    with forward_ad.dual_level():
        inputs[place] = forward_ad.make_dual(inputs[place], torch.ones_like(inputs[place]))
        with pytest.raises(RuntimeError, match=r"no derivatives in forward mode: use focal_loss\(hidden @ head\.T"):
            LinearFocalLoss(2.0)(*inputs[:2], target, inputs[2])


def test_chunks_keep_to_their_memory() -> None:
    for rows, classes, limit in itertools.product((1, 300, 8_192), (2, 50_257, 256_000), (1, 1 << 20, 1 << 29)):
        step = chunks.rows_per_chunk(rows, classes, torch.bfloat16, limit)
        assert 1 <= step <= max(rows, 256)
        assert step == 1 or step >= rows or step * chunks.row_stride(classes) * 2 <= limit
    assert chunks.rows_per_chunk(8_192, 31_000, torch.bfloat16, 65_700_000) == 1_024


@pytest.mark.parametrize("classes", [1, 33, 40])
def test_what_pads_the_logits_is_zero(classes: int) -> None:
    """Some matrix units read one element of it, and NaN times 0 is NaN."""
    torch.use_deterministic_algorithms(True)  # fills what is not initialized with NaN
    try:
        logits = chunks.allocate_logits(5, classes, torch.bfloat16, here())
    finally:
        torch.use_deterministic_algorithms(False)
    assert logits.shape == (5, classes) and logits.isnan().all()
    assert not logits.as_strided((5, logits.stride(0)), logits.stride())[:, classes:].any()


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
@pytest.mark.thorough
def test_logits_are_never_all_in_memory() -> None:
    if here().type == "cuda":
        pytest.skip("measures main memory")
    launcher = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", launcher, MEMORY], check=True, capture_output=True, text=True, encoding="utf-8"
    )
    assert int(done.stdout) < 60e6  # the logits would take 200 MB


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
