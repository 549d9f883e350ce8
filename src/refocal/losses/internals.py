"""Every private call of PyTorch and Triton that the losses make, except for those in `refocal._arrays`.

The rest of the losses uses public interfaces alone. These calls were tested with PyTorch 2.11 and Triton 3.6 on a GPU,
and with PyTorch 2.13 on a CPU. Each has a fallback for versions without it: a public call if there is one, else the
answer that leaves the work to the plain formulas, or Triton's own launch.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_KNOWN_TRITON = (3, 6)  # the version whose `compiled.run` was tested on a GPU; its arguments change between versions


def _private(name: str, fallback: Callable[..., Any]) -> Callable[..., Any]:
    return getattr(torch._C, name, fallback)


_is_traced: Callable[[], Any] = _private("_get_tracing_state", torch.jit.is_tracing)  # type: ignore[attr-defined]
_count_modes: Callable[[], int] = _private("_len_torch_dispatch_stack", lambda: 1)

KNOWS_TRANSFORMATIONS = hasattr(torch._C, "_are_functorch_transforms_active")
is_inside_transformation: Callable[[], bool] = _private("_are_functorch_transforms_active", lambda: True)
"""Whether a transformation of `torch.func` is running."""

# Small batches ask for these three at every launch, so no function of ours stands in between. A PyTorch without CUDA
# has neither the private calls nor a use for them.
current_device: Callable[[], int] = _private("_cuda_getDevice", torch.cuda.current_device)
"""The number of the current GPU."""

current_stream: Callable[[int], int] = _private(
    "_cuda_getCurrentRawStream", lambda device: torch.cuda.current_stream(device).cuda_stream
)
"""The current stream of a GPU as CUDA knows it."""

is_capturing: Callable[[], bool] = _private("_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing)
"""Whether the current stream is being captured into a graph."""


def is_in_forward_mode() -> bool:
    """Whether derivatives in forward mode are being computed. They do not see into an `autograd.Function`."""
    return getattr(forward_ad, "_current_level", 0) >= 0


def runs_at_once() -> bool:
    """Whether operations run when they are called: no compiling, tracing, modes, transformation or forward mode."""
    if torch.compiler.is_compiling():  # asked first, because `torch.compile` cannot trace the other questions
        return False
    return not (_is_traced() or is_inside_transformation() or _count_modes() or is_in_forward_mode())


def _reaches_storage(tensor: Tensor) -> bool:
    with contextlib.suppress(NotImplementedError, RuntimeError):
        return tensor.untyped_storage() is not None
    return False


has_storage: Callable[[Tensor], bool] = _private("_has_storage", _reaches_storage)
"""Whether a tensor has memory. A batch of gradients, as `is_grads_batched=True` makes it, has none."""


def apply_directly(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without its search for transformations of `torch.func`, for callers that exclude them."""
    found: Callable[..., Any] = getattr(super(torch.autograd.Function, function), "apply", function.apply)
    return found


HAS_WIDE_PRODUCTS = hasattr(torch.ops.aten.addmm, "dtype_out")
"""Whether PyTorch multiplies 16-bit matrices into float32 on a GPU: from 2.8 on."""


def add_wide_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product of 16-bit matrices to a float32 matrix without rounding it."""
    if HAS_WIDE_PRODUCTS and total.is_cuda:
        torch.ops.aten.addmm.dtype_out(total, left, right, torch.float32, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))


def argument_names(kernel: Any) -> list[str]:
    """The names of the arguments of a Triton kernel, in their order."""
    names = getattr(kernel, "arg_names", None)
    return list(inspect.signature(kernel.fn).parameters) if names is None else names


@functools.cache
def _triton_version() -> tuple[int, int]:
    import triton

    version = re.match(r"(\d+)\.(\d+)", triton.__version__)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def find_launcher(compiled: Any, programs: int) -> Callable[[int], Callable[..., None]] | None:
    """A function that takes a stream and returns the one that launches a compiled kernel on it.

    None for untested versions of Triton. The second function takes addresses, numbers, and the values of all constants.
    """
    if _triton_version() != _KNOWN_TRITON:
        return None
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    options: tuple[Any, ...] = ()
    if not run.global_scratch_size and not run.profile_scratch_size:
        # `run` itself would look for scratch memory to allocate.
        run, options = run.launch, (run.launch_cooperative_grid, run.launch_pdl, None, None)

    def on_stream(stream: int) -> Callable[..., None]:
        return functools.partial(run, programs, 1, 1, stream, function, *options, metadata, None, None, None)

    return on_stream
