"""A kernel, looked up once and then launched without delay."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it once, when it is imported
_ALIGNMENT = 16  # bytes: what Triton compiles for depends on whether addresses are multiples of it


class Launch:
    """A kernel with its grid and constants, for tensors of one device and fixed types, and numbers of fixed kinds.

    Triton looks for the compiled kernel at each launch, and the driver looks up each address, which takes as long as
    the launch; this remembers the kernel for aligned addresses.
    """

    def __init__(self, kernel: Any, programs: int, *, warps: int, **constants: Any) -> None:
        self._kernel, self._programs, self._warps, self._constants = kernel, programs, warps, constants
        self._start: Any = None
        self._values: tuple[Any, ...] = ()

    def __call__(self, tensors: Sequence[Tensor], *numbers: float) -> None:
        """Launch on the current stream of the current device, which is that of the tensors."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        aligned = functools.reduce(operator.or_, addresses) % _ALIGNMENT == 0
        if aligned and self._start is not None:
            self._start(raw_stream(tensors[0]), addresses, numbers)
            return
        compiled = self._kernel[(self._programs,)](*tensors, *numbers, num_warps=self._warps, **self._constants)
        if aligned and _remembers_kernels():
            names = self._kernel.arg_names[len(tensors) + len(numbers) :]
            self._start = self._starter(compiled, [self._constants[name] for name in names])

    def _starter(self, compiled: Any, constants: list[Any]) -> Any:
        run, function, metadata, programs = compiled.run, compiled.function, compiled.packed_metadata, self._programs

        def start(stream: int, addresses: list[int], numbers: tuple[float, ...]) -> None:
            run(programs, 1, 1, stream, function, metadata, None, None, None, *addresses, *numbers, *constants)

        return start


@functools.cache
def _remembers_kernels() -> bool:
    """Whether a compiled kernel is called with all its arguments, constants included: so it is from Triton 3.6 on."""
    import triton

    version = re.match(r"(\d+)\.(\d+)", triton.__version__)
    return not INTERPRETED and version is not None and (int(version[1]), int(version[2])) >= (3, 6)


def raw_stream(tensor: Tensor) -> int:
    """The current stream of the tensor's device, as CUDA knows it; 0 where there is no GPU."""
    return int(torch._C._cuda_getCurrentRawStream(tensor.get_device())) if tensor.is_cuda else 0


def on_device_of(tensor: Tensor) -> Any:
    """Kernels are launched on the current device: make it the tensor's."""
    here = not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device()
    return contextlib.nullcontext() if here else torch.cuda.device(tensor.device)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many there are; two stand in for them where there is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
