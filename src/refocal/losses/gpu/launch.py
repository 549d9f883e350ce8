"""One kernel with its grid and constants, looked up once and then launched with little host time."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import operator
import os
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it once, when it is imported
ALIGNMENT = 16  # bytes; Triton compiles a faster kernel for addresses that are multiples of it
_HERE = contextlib.nullcontext()
# The current stream of a device as CUDA knows it, and whether it is being captured into a graph. Every launch asks, so
# no function of ours stands in between.
_STREAMS = hasattr(torch._C, "_cuda_getCurrentRawStream") and not INTERPRETED
current_stream: Callable[[int], int] = torch._C._cuda_getCurrentRawStream if _STREAMS else lambda _: 0
is_capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing if _STREAMS else lambda: False


class Launch:
    """A kernel with its grid, numbers and constants. Its tensors are given later; device and types must not change.

    At each launch Triton looks up the compiled kernel, and the driver looks up each address. Both take as long as the
    launch itself. This object remembers the kernel for aligned addresses. A caller that knows that its addresses are
    aligned can skip the check here: it calls `starts[stream]`, if present, with the addresses (0 for a tensor that the
    kernel does not use) and `tail`.
    """

    def __init__(self, kernel: Any, programs: int, numbers: tuple[float, ...], *, warps: int, **constants: Any) -> None:
        self._kernel, self._programs, self._numbers, self._warps = kernel, programs, numbers, warps
        self._constants: dict[str, Any] = constants
        self._compiled: Any = None
        self.starts: dict[int, Callable[..., None]] = {}
        self.tail: tuple[Any, ...] = ()

    def __call__(self, first: Tensor, *others: Tensor | None) -> None:
        """Launch on the current stream of the current device, which must be that of the tensors.

        A tensor that the kernel does not use may be None.
        """
        addresses = [first.data_ptr(), *(0 if tensor is None else tensor.data_ptr() for tensor in others)]
        aligned = functools.reduce(operator.or_, addresses) % ALIGNMENT == 0
        if aligned and self._compiled is not None:
            self._start(current_stream(first.get_device()))(*addresses, *self.tail)
            return
        tensors = [first, *(first if tensor is None else tensor for tensor in others)]
        numbers, constants = self._numbers, self._constants
        compiled = self._kernel[(self._programs,)](*tensors, *numbers, num_warps=self._warps, **constants)
        if aligned and not INTERPRETED and _triton_version() >= (3, 6):  # takes constants as arguments too
            names = self._kernel.arg_names[len(tensors) + len(numbers) :]
            self.tail = (*numbers, *(constants[name] for name in names))
            self._compiled = compiled

    def _start(self, stream: int) -> Callable[..., None]:
        """The function that launches on a stream; it takes addresses and `tail`."""
        if stream not in self.starts:
            run, function, metadata = self._compiled.run, self._compiled.function, self._compiled.packed_metadata
            options: tuple[Any, ...] = ()
            if _triton_version() == (3, 6) and not run.global_scratch_size and not run.profile_scratch_size:
                # `run` itself would look for scratch memory to allocate.
                run, options = run.launch, (run.launch_cooperative_grid, run.launch_pdl, None, None)
            place = (self._programs, 1, 1, stream, function)
            self.starts[stream] = functools.partial(run, *place, *options, metadata, None, None, None)
        return self.starts[stream]


@functools.cache
def _triton_version() -> tuple[int, int]:
    import triton

    version = re.match(r"(\d+)\.(\d+)", triton.__version__)
    return (int(version[1]), int(version[2])) if version else (0, 0)


def on_device_of(tensor: Tensor) -> Any:
    """A context in which the tensor's device is the current one, on which kernels are launched."""
    here = not tensor.is_cuda or tensor.get_device() == torch._C._cuda_getDevice()
    return _HERE if here else torch.cuda.device(tensor.device)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; 2 in place of it if the device is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
