"""The kernels' place in PyTorch: launches, streams, memory, derivatives, autocast, and calls left to other formulas."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernel_cases import DEVICE, INTERPRETED, MARKS, PLAIN, batch, compare, is_supported  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

from refocal.curvature import HessianTracePenalty  # noqa: E402
from refocal.losses import FocalLoss, SigmoidFocalLoss, focal_loss, sigmoid_focal_loss  # noqa: E402
from refocal.losses.gpu import dispatch, execute, launch, plan  # noqa: E402
from refocal.losses.policies import FLSD53, fls531  # noqa: E402
from refocal.losses.posterior_maps import FocalMap  # noqa: E402
from refocal.losses.spec import LossSpec  # noqa: E402

pytestmark = MARKS


def test_a_call_describes_each_tensor(monkeypatch):
    """Its fields are positional, so their order must be that of `FocalCall`."""
    asked = []
    monkeypatch.setattr(dispatch, "plan_focal_loss", asked.append)
    logits, _, soft = batch(6, 5, dtype=torch.bfloat16)
    logits, soft, weight = logits.t().contiguous().t().requires_grad_(), soft[:4], torch.ones(3, device=DEVICE)
    spec = LossSpec(1.5, -7, 0.25, detached=True, reduction="sum")
    assert dispatch.focal_loss(logits, soft, weight, spec) is None
    (call,) = asked
    assert (call.spec, call.device, call.autocast, call.differentiable) == (spec, logits.device, False, True)
    assert (call.shape, call.strides, call.dtype) == ((6, 5), (1, 6), torch.bfloat16)
    assert (call.target_shape, call.target_strides, call.target_dtype) == ((4, 5), (5, 1), torch.float32)
    assert (call.weight_shape, call.weight_dtype) == ((3,), torch.float32)


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
def test_small_and_large_batches_agree(shape, weighted, monkeypatch):
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
    for small, large in zip(results[:half], results[half:], strict=True):
        torch.testing.assert_close(small, large, rtol=1e-5, atol=1e-8, equal_nan=True)


def test_losses_of_one_stream_follow_each_other():
    criterion, sizes = FocalLoss(2.0), (1, 7, 300, 2)
    for rows in sizes * 2:
        logits, target, _ = batch(rows, 5)
        exact = criterion(logits.double(), target).item()
        assert criterion(logits, target).item() == pytest.approx(exact, rel=1e-5)


@pytest.mark.usefixtures("plan_anew")
def test_captured_calls_do_not_share_a_buffer(monkeypatch):
    """The launches of two calls may interleave: those that compute the losses and those that add up."""
    monkeypatch.setattr(execute, "is_capturing", lambda: True)
    criterion, launched = FocalLoss(2.0), []
    (logits, target, _), (others, goal, _) = batch(7, 5), batch(7, 5, seed=1)
    expected = criterion(logits.double(), target).float()
    call = launch.Launch.__call__

    def interrupted(self, *tensors):
        call(self, *tensors)
        launched.append(self)
        if len(launched) == 1:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(criterion, others, goal).result()

    monkeypatch.setattr(launch.Launch, "__call__", interrupted)
    torch.testing.assert_close(criterion(logits, target), expected)
    assert len(launched) == 4


@pytest.mark.usefixtures("plan_anew")
def test_one_call_compiles_what_a_capture_launches(monkeypatch):
    """Nothing can be compiled during a capture, so users make a call before it, at the same addresses."""
    logits, target, _ = batch(7, 5)
    longer = torch.cat([target, target])
    launched, call = [], launch.Launch.__call__

    def noted(self, *tensors):
        launched.append(self.variant(*tensors))
        call(self, *tensors)

    monkeypatch.setattr(execute, "_prepared", set())
    monkeypatch.setattr(launch.Launch, "__call__", noted)
    before = []
    for given in (longer[1:8], target, target, longer[1:8]):  # the first and the last start at an odd address
        FocalLoss(2.0)(logits, given)
        compiled = launched.copy()
        launched.clear()
        with monkeypatch.context() as patch:
            patch.setattr(execute, "is_capturing", lambda: True)
            FocalLoss(2.0)(logits, given)
        assert len(launched) == 2
        assert set(launched) <= set(compiled) | set(before)
        before = [*before, *compiled]
        launched.clear()


@pytest.mark.usefixtures("plan_anew")
def test_what_is_compiled_is_not_launched_again_for_each_size(monkeypatch):
    launched, call = [], launch.Launch.__call__

    def noted(self, *tensors):
        launched.append(self)
        call(self, *tensors)

    monkeypatch.setattr(execute, "_prepared", set())
    monkeypatch.setattr(launch.Launch, "__call__", noted)
    for rows in (101, 102, 103):
        logits, target, _ = batch(rows, 5)
        FocalLoss(2.0)(logits, target)
    assert len(launched) == 2 + 3


@pytest.mark.parametrize("rows", [128, 130])  # one program per row; 128 of them are a group
def test_many_programs_add_up_to_one_loss(rows):
    logits, target, _ = batch(rows, 600)
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


def test_class_probabilities_with_an_index_to_ignore_are_refused():
    logits, _, soft = batch(3, 4)
    with pytest.raises(RuntimeError, match="ignore_index is not supported for floating point target"):
        FocalLoss(2.0, ignore_index=1)(logits, soft)


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
    assert is_supported(logits, target, PLAIN)
    assert not is_supported(logits, soft.clone().requires_grad_(), PLAIN)
    weight = torch.ones(5, device=DEVICE, requires_grad=True)
    assert not is_supported(logits, target, PLAIN, weight)
    long = torch.zeros(1, 40_000, device=DEVICE)
    assert is_supported(long, target[:1], PLAIN)
    assert not is_supported(long, target[:1], PLAIN._replace(label_smoothing=0.1))
    assert not dispatch.supports_map(logits, 200.0)
    losses = torch.func.vmap(lambda one: focal_loss(logits[:1], one, gamma=2.0), in_dims=0)(target[:, None])
    assert losses.shape == (4, 1)
    escaped = []
    torch.func.grad(lambda scores: (escaped.append(scores.detach()), scores.sum())[1])(logits)
    torch.testing.assert_close(FocalLoss(2.0)(escaped[0], target), FocalLoss(2.0)(logits, target))
    torch.testing.assert_close(FocalMap(2.0)(escaped[0]), FocalMap(2.0)(logits))
    torch.testing.assert_close(SigmoidFocalLoss()(escaped[0], soft), SigmoidFocalLoss()(logits, soft))
    slope = torch.func.grad(lambda scale: scale * focal_loss(logits, target, gamma=2.0).sum())(
        torch.ones((), device=DEVICE)
    )
    assert slope.item() == pytest.approx(focal_loss(logits, target, gamma=2.0).sum().item(), rel=1e-5)
    with FakeTensorMode():  # tensors without values
        scores, classes = torch.empty(4, 5, device=DEVICE), torch.empty(4, dtype=torch.long, device=DEVICE)
        assert focal_loss(scores, classes, gamma=2.0).shape == (4,)
    assert not is_supported(scores, target, PLAIN)
    assert not is_supported(logits, classes, PLAIN)
    own = logits.as_subclass(type("Own", (torch.Tensor,), {}))
    assert type(FocalLoss(2.0)(own, target)) is type(own)
    assert is_supported(logits, target.as_subclass(type(own)), PLAIN)
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


def test_without_derivatives_autograd_is_left_out(monkeypatch):
    logits, target, _ = batch(4, 5)
    leaf = logits.clone().requires_grad_()
    for criterion, goal in ((FocalLoss(2.0), target), (SigmoidFocalLoss(), (logits > 0).float())):
        expected = criterion(leaf, goal).detach()
        monkeypatch.setattr(dispatch, "_apply_focal_loss", None)
        monkeypatch.setattr(dispatch, "_apply_sigmoid_focal_loss", None)
        with torch.no_grad():
            torch.testing.assert_close(criterion(leaf, goal), expected)
        torch.testing.assert_close(criterion(logits, goal), expected)
        monkeypatch.undo()


def test_a_plan_is_found_without_reading_the_gammas():
    """One per class may be many. Others of the same number have a plan of their own."""
    logits, target, _ = batch(4, 5)

    class Gammas(tuple):
        __slots__ = ()
        __hash__ = None

    for gammas in ((0.5, 1.0, 1.5, 2.0, 2.5), (2.5, 2.0, 1.5, 1.0, 0.5)):
        for _ in range(2):
            compare(logits, target, PLAIN._replace(gamma=Gammas(gammas)), "mean")


@pytest.mark.parametrize(("capability", "supported"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_gpus_that_triton_does_not_support_compute_the_formulas(monkeypatch, capability, supported):
    with FakeTensorMode():
        logits = torch.empty(2, 3, device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(dispatch, "_compiles_for", dispatch._compiles_for.__wrapped__)
    assert dispatch.has_kernels(logits) is supported


def test_what_no_kernel_computes_is_not_copied(monkeypatch):
    entered, compute = [], dispatch.focal_loss
    monkeypatch.setattr(dispatch, "focal_loss", lambda *call: (entered.append(call), compute(*call))[1])
    logits, target, _ = batch(4, 40_000)
    for criterion, classes in ((FocalLoss(FLSD53), 6), (FocalLoss(2.0, label_smoothing=0.1), 40_000)):
        entered.clear()
        criterion(logits[:, :classes], target.clamp(max=classes - 1))
        assert len(entered) == 1  # with the tensors as they are


def test_a_schedule_enters_once_as_the_tensors_are_and_once_as_a_copy(monkeypatch):
    logits, target, _ = batch(4, 5)
    strided = torch.stack([logits, logits], dim=2)[..., 0]
    expected = FocalLoss(5.0)(logits, target)
    entered, compute = [], dispatch.focal_loss
    monkeypatch.setattr(dispatch, "focal_loss", lambda *call: (entered.append(call[3].gamma), compute(*call))[1])
    for lying, times in ((logits, 1), (strided, 2)):
        entered.clear()
        torch.testing.assert_close(FocalLoss(fls531())(lying, target), expected)
        assert entered == [5.0] * times
