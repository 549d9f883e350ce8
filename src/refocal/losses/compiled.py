"""A kernel, looked up once and then launched without delay."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from typing import Any

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton reads it once, when it is imported


class Launch:
    """A kernel with its grid and constants, for arguments of one kind: types, alignments and whole numbers.

    Triton looks for the compiled kernel at each launch, which takes as long as the launch; this remembers it.
    """

    def __init__(self, kernel: Any, programs: int, *, warps: int, **constants: Any) -> None:
        self._kernel, self._programs, self._warps, self._constants = kernel, programs, warps, constants
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> None:
        """Launch."""
        if self._compiled is not None:
            self._compiled(*arguments, *self._constants.values())
            return
        compiled = self._kernel[(self._programs,)](*arguments, num_warps=self._warps, **self._constants)
        if _remembers_kernels():
            self._constants = {name: self._constants[name] for name in self._kernel.arg_names[len(arguments) :]}
            self._compiled = compiled[(self._programs, 1, 1)]


@functools.cache
def _remembers_kernels() -> bool:
    """Whether a compiled kernel is called with all its arguments, constants included: so it is from Triton 3.6 on."""
    import triton

    version = re.match(r"(\d+)\.(\d+)", triton.__version__)
    return not INTERPRETED and version is not None and (int(version[1]), int(version[2])) >= (3, 6)


def kind_of(*tensors: Tensor | None) -> tuple[Any, ...]:
    """What Triton compiles for: type, and whether the address is a multiple of 16; and the device."""
    kinds = ((None, True) if tensor is None else (tensor.dtype, tensor.data_ptr() % 16 == 0) for tensor in tensors)
    return (torch.cuda.current_device() if torch.cuda.is_available() else None, *kinds)


def on_device_of(tensor: Tensor) -> Any:
    """Kernels are launched on the current device: make it the tensor's."""
    here = not tensor.is_cuda or tensor.get_device() == torch.cuda.current_device()
    return contextlib.nullcontext() if here else torch.cuda.device(tensor.device)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many there are; two stand in for them where there is no GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
