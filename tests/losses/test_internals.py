"""Private calls of PyTorch and Triton: all in one file, and a fallback for each."""

from __future__ import annotations

import importlib.util
import re
import types
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

from refocal import _arrays  # noqa: E402
from refocal.losses import focal, internals  # noqa: E402

ROOM = Path(focal.__file__).parent
CALLS = (
    "_get_tracing_state",
    "_len_torch_dispatch_stack",
    "_are_functorch_transforms_active",
    "_cuda_getDevice",
    "_cuda_getCurrentRawStream",
    "_cuda_isCurrentStreamCapturing",
    "_has_storage",
)


@pytest.fixture
def bare(monkeypatch):
    """The module as a PyTorch without private calls would import it."""
    spec = importlib.util.spec_from_file_location("bare_internals", internals.__file__)
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.delattr(torch._C, name, raising=False)
        spec.loader.exec_module(module)
    return module


PRIVATE = re.compile(
    r"""torch\b["\]]*(\.\w+)*\._[a-zA-Z]  # a private name below torch, or below sys.modules["torch"]
    | \bforward_ad\._ | torch\.ops\.(?!refocal)  # operators are not part of the public interface
    | super\(torch\.autograd\.Function
    | \.(arg_names|packed_metadata|launch_pdl|cache_key|params)\b  # of Triton's kernels
    """,
    re.VERBOSE,
)


@pytest.mark.parametrize(
    "line",
    [
        "torch._C._functorch.get_unwrapped(array)",
        'sys.modules["torch"]._C._len_torch_dispatch_stack()',
        "torch.ops.aten.addmm.dtype_out(total, left, right)",
        "self._kernel.arg_names[3:]",
        "forward_ad._current_level",
        "torch.autograd.function._SingleLevelFunction",
    ],
)
def test_private_calls_are_recognized(line):
    assert PRIVATE.search(line)


def test_private_calls_stand_in_one_file():
    """And in one that must not import PyTorch."""
    paths = [*ROOM.rglob("*.py"), Path(_arrays.__file__)]
    found = {path.name for path in paths if PRIVATE.search(path.read_text("utf-8"))}
    assert found == {"internals.py", "_arrays.py"}


def test_wide_products_are_not_rounded():
    left, right, total = torch.randn(3, 4).bfloat16(), torch.randn(4, 2).bfloat16(), torch.ones(3, 2)
    internals.add_wide_product(total, left, right)
    torch.testing.assert_close(total, 1 + left.float() @ right.float())


def test_argument_names_of_a_kernel():
    def kernel(first, second): ...

    assert internals.argument_names(types.SimpleNamespace(arg_names=["first", "second"])) == ["first", "second"]
    assert internals.argument_names(types.SimpleNamespace(fn=kernel)) == ["first", "second"]


def test_unknown_modes_are_left_to_the_plain_formulas(bare, monkeypatch):
    assert not bare.runs_at_once()
    assert bare.is_inside_transformation()
    assert not bare.is_in_forward_mode()
    monkeypatch.delattr(forward_ad, "_current_level")
    assert bare.is_in_forward_mode()


def test_modes_that_are_known():
    assert internals.runs_at_once()
    with forward_ad.dual_level():
        assert internals.is_in_forward_mode()
        assert not internals.runs_at_once()
    seen = []
    torch.func.vmap(lambda x: (seen.append((internals.runs_at_once(), internals.is_inside_transformation())), x)[1])(
        torch.zeros(2)
    )
    assert seen == [(False, True)]


def test_storage_of_a_batch_of_gradients(bare):
    batched = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return 2 * x

        @staticmethod
        def backward(ctx, incoming):  # noqa: ARG004
            batched.extend((internals.has_storage(incoming), bare.has_storage(incoming)))
            return 2 * incoming

    leaf = torch.zeros(3, requires_grad=True)
    torch.autograd.grad(Double.apply(leaf), leaf, torch.eye(3), is_grads_batched=True)
    assert batched == [False, False]
    assert internals.has_storage(leaf)
    assert bare.has_storage(leaf)


def test_function_is_applied_directly():
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return x.clone()

    assert internals.apply_directly(Same)(torch.ones(2)).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("version", [(3, 5), (3, 7), (0, 0)])
def test_other_versions_of_triton_launch_by_themselves(version, monkeypatch):
    monkeypatch.setattr(internals, "_triton_version", lambda: version)
    assert internals.find_launcher(object(), 1) is None


@pytest.mark.parametrize("scratch", [0, 64])
def test_arguments_of_the_launch(scratch, monkeypatch):
    """A kernel without scratch memory skips the function that would allocate it."""
    calls = []

    class Run:
        global_scratch_size, profile_scratch_size = scratch, 0
        launch_cooperative_grid, launch_pdl = False, False

        def __call__(self, *arguments):
            calls.append(("run", arguments))

        def launch(self, *arguments):
            calls.append(("launch", arguments))

    compiled = types.SimpleNamespace(run=Run(), function="f", packed_metadata="m")
    monkeypatch.setattr(internals, "_triton_version", lambda: (3, 6))
    internals.find_launcher(compiled, 5)(7)(100, 2.0)
    options = () if scratch else (False, False, None, None)
    expected = (5, 1, 1, 7, "f", *options, "m", None, None, None, 100, 2.0)
    assert calls == [("run" if scratch else "launch", expected)]
