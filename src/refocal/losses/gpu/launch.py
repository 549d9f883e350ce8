"""One kernel with its grid and constants, looked up once and then launched with little host time."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from refocal.losses import internals

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = HAS_TRITON and os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it once, when it is imported
ALIGNMENT = 16  # bytes; Triton compiles a faster kernel for addresses that are multiples of it
_HERE = contextlib.nullcontext()
# The interpreter has no streams. Every launch asks, so no function of ours stands in between.
current_stream: Callable[[int], int] = (lambda _: 0) if INTERPRETED else internals.current_stream
is_capturing: Callable[[], bool] = (lambda: False) if INTERPRETED else internals.is_capturing


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
        self._launcher: Callable[[int], Callable[..., None]] | None = None
        self.starts: dict[int, Callable[..., None]] = {}
        self.tail: tuple[Any, ...] = ()

    def variant(self, *tensors: Tensor | None) -> tuple[object, ...]:
        """What Triton compiles this kernel for, given some of its tensors: calls of one variant share a binary."""
        types = tuple(None if each is None else (each.dtype, each.data_ptr() % ALIGNMENT == 0) for each in tensors)
        sizes = tuple((each == 1, each % 16 == 0) for each in self._numbers if isinstance(each, int))
        return id(self._kernel), self._warps, *self._constants.items(), *types, *sizes

    def __call__(self, first: Tensor, *others: Tensor | None) -> None:
        """Launch on the current stream of the current device, which must be that of the tensors.

        A tensor that the kernel does not use may be None.
        """
        addresses, bits = [], 0
        for tensor in (first, *others):
            address = 0 if tensor is None else tensor.data_ptr()
            addresses.append(address)
            bits |= address
        aligned = bits % ALIGNMENT == 0
        if aligned and self._launcher is not None:
            stream = current_stream(first.get_device())
            if stream not in self.starts:
                self.starts[stream] = self._launcher(stream)
            self.starts[stream](*addresses, *self.tail)
            return
        tensors = [first, *(first if tensor is None else tensor for tensor in others)]
        numbers, constants = self._numbers, self._constants
        compiled = self._kernel[(self._programs,)](*tensors, *numbers, num_warps=self._warps, **constants)
        if aligned and not INTERPRETED:
            names = internals.argument_names(self._kernel)[len(tensors) + len(numbers) :]
            self.tail = (*numbers, *(constants[name] for name in names))
            self._launcher = internals.find_launcher(compiled, self._programs)


def on_device_of(tensor: Tensor) -> Any:
    """A context in which the tensor's device is the current one, on which kernels are launched."""
    here = not tensor.is_cuda or tensor.get_device() == internals.current_device()
    return _HERE if here else torch.cuda.device(tensor.device)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; 2 in place of it if the device is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
