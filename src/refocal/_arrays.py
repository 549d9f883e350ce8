"""Differences between array libraries: namespaces, tracing, precision, gradients, blocks of rows.

This module imports no array library except NumPy: if an array of another library is passed in, that library is already
imported.
"""

from __future__ import annotations

import functools
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeGuard, TypeVar

import array_api_compat
import numpy as np


class Array(Protocol):  # noqa: PLW1641  (arrays compare by element and have no hash)
    """An array of NumPy, PyTorch, JAX or another library that follows the array API standard.

    The protocol lists the members that they share. Operators return `Any`, because each library returns its own type.
    Use `ArrayT` if a function returns the same type of array as it takes.
    """

    @property
    def shape(self) -> tuple[Any, ...]: ...

    @property
    def ndim(self) -> int: ...

    @property
    def dtype(self) -> Any: ...

    @property
    def device(self) -> Any: ...

    def __neg__(self) -> Any: ...

    def __add__(self, other: Any, /) -> Any: ...

    def __radd__(self, other: Any, /) -> Any: ...

    def __sub__(self, other: Any, /) -> Any: ...

    def __rsub__(self, other: Any, /) -> Any: ...

    def __mul__(self, other: Any, /) -> Any: ...

    def __rmul__(self, other: Any, /) -> Any: ...

    def __truediv__(self, other: Any, /) -> Any: ...

    def __rtruediv__(self, other: Any, /) -> Any: ...

    def __pow__(self, other: Any, /) -> Any: ...

    def __eq__(self, other: Any, /) -> Any: ...

    def __lt__(self, other: Any, /) -> Any: ...

    def __le__(self, other: Any, /) -> Any: ...

    def __gt__(self, other: Any, /) -> Any: ...

    def __ge__(self, other: Any, /) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=Array)
PerClass = float | Sequence[float] | Array  # a hyper-parameter: one number, or one number per class
ClassWeights = Sequence[float] | Array | None
Namespace = Any  # the functions of an array library, by the names of the array API standard

# Rows are processed in blocks of this many elements, so that the dozen temporaries of a block fit into the cache of a
# core. A larger block costs memory traffic; a smaller one costs Python overhead.
_BLOCK_ELEMENTS = 1 << 15

# Private calls of PyTorch stand here too, because this file must not import `refocal.losses.internals` and so PyTorch.
# No public call tells whether a tensor is inside a `torch.func` transformation or a dispatch mode.


def namespace(array: object) -> Namespace:
    """Return the array API namespace of an array; raise TypeError for anything else."""
    if is_torch(array):  # imported directly: torch.compile warns about the cache in `array_namespace`
        from array_api_compat import torch as torch_namespace

        return torch_namespace
    return array_api_compat.array_namespace(array)


def device(array: Array) -> Any:
    """Return the device of an array."""
    return array.device if is_torch(array) else array_api_compat.device(array)


def is_torch(array: object) -> TypeGuard[Any]:
    """Return whether this is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_jax(array: object) -> TypeGuard[Any]:
    """Return whether this is a JAX array, possibly a traced one."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def is_traced(array: object) -> bool:
    """Return whether JAX traces what is computed from this array; then a loop cannot depend on values."""
    if not is_jax(array):
        return False
    jax = sys.modules["jax"]
    # inside `jit`, results are traced even if the array itself is a constant
    return isinstance(array, jax.core.Tracer) or isinstance(jax.numpy.asarray(0), jax.core.Tracer)


def is_transformed(array: object) -> bool:
    """Return whether a `torch.func` transformation is running; then a loop can depend only on `unwrap` of values."""
    return is_torch(array) and bool(sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor(array))


def unwrap(array: ArrayT) -> ArrayT:
    """Return the values inside `torch.func` transformations, for all vectors of a `vmap` at once."""
    while is_transformed(array):
        array = sys.modules["torch"]._C._functorch.get_unwrapped(array)
    return array


def can_steer(array: Array) -> bool:
    """Return whether a Python loop can depend on `unwrap` of an array.

    Inside a `torch.func` transformation, that needs values in main memory, neither traced nor fake.
    """
    if is_transformed(array):
        return array.device.type == "cpu" and not sys.modules["torch"]._C._len_torch_dispatch_stack()
    return not is_traced(array)


def can_read_values(array: Array) -> bool:
    """Return whether values can be read without waiting for a device or breaking a trace."""
    if is_torch(array):
        return array.device.type == "cpu" and not _is_traced_by_torch(array)
    if is_jax(array):
        return not is_traced(array) and {d.platform for d in array.devices()} == {"cpu"}
    return True


def _is_traced_by_torch(tensor: Any) -> bool:
    """Return whether PyTorch records, transforms or fakes the values of a tensor."""
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling():  # first, because the code below cannot be compiled
        return True
    recorded = torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0
    fake = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return recorded or fake or is_transformed(tensor)


def pick(array: ArrayT, index: Array, *, xp: Namespace) -> ArrayT:
    """Select the entries at `index` (..., 1) along the last axis."""
    if is_torch(array):  # `take_along_dim` would fix the batch size of an exported program
        return array.gather(-1, index)
    return xp.take_along_axis(array, index, axis=-1)


def replace_at(array: ArrayT, index: Array, value: float, *, xp: Namespace) -> ArrayT:
    """Return a copy with `value` at `index` (..., 1) along the last axis."""
    if is_torch(array):
        return array.scatter(-1, index, value)
    return xp.where(xp.arange(array.shape[-1], device=device(array)) == index, value, array)


def move_axis(array: ArrayT, source: int, target: int, *, xp: Namespace) -> ArrayT:
    """Move an axis to another place; both are counted from the first, which TorchScript's ONNX exporter needs."""
    return array if source == target else xp.moveaxis(array, source, target)


def widen(array: ArrayT, *, xp: Namespace) -> ArrayT:
    """Convert an array to the precision of computation: 16-bit input to float32, other input unchanged."""
    return xp.astype(array, xp.float32) if xp.finfo(array.dtype).bits < 32 else array


def constant(value: float | tuple[float, ...] | None, *, like: Array, xp: Namespace) -> Any:
    """Convert a hyper-parameter: a tuple becomes an array with the dtype and device of `like`, a number stays."""
    if isinstance(value, tuple):
        return xp.asarray(value, dtype=like.dtype, device=device(like))
    return value


def recording(tensor: Any) -> AbstractContextManager[Any]:
    """A context for tracing: constants are fake if the tensor is, and TorchScript does not warn about shape checks."""
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling():
        return nullcontext()
    if torch._C._get_tracing_state() is not None:
        return warnings.catch_warnings(action="ignore", category=torch.jit.TracerWarning)
    mode: AbstractContextManager[Any] = getattr(tensor, "fake_mode", nullcontext())
    return mode


def bounded_exp(x: ArrayT, *, xp: Namespace) -> ArrayT:
    """Compute exp(x), bounded to avoid overflow: a factor of values that are 0 and carry a derivative."""
    return xp.exp(xp.minimum(x, xp.full_like(x, 80.0)))


def expm1(x: ArrayT, *, xp: Namespace) -> ArrayT:
    """Compute e^x - 1; while TorchScript traces, with functions that exist in ONNX and are equally exact."""
    if is_torch(x) and sys.modules["torch"].jit.is_tracing():
        return xp.tanh(x / 2) * (xp.exp(x) + 1)
    return xp.expm1(x)


def stop_gradient(array: ArrayT) -> ArrayT:
    """Return the same values as a constant for automatic differentiation."""
    if is_torch(array):
        return array.detach()
    if is_jax(array):
        return sys.modules["jax"].lax.stop_gradient(array)
    return array


def where_any(mask: Array, compute: Callable[[], Any], otherwise: ArrayT, *, xp: Namespace) -> ArrayT:
    """Return `xp.where(mask, compute(), otherwise)`, without computing if it can be known that the mask is empty."""

    def choose() -> Any:
        return xp.where(mask, compute(), otherwise)

    if is_traced(mask):
        return sys.modules["jax"].lax.cond(xp.any(mask), choose, lambda: otherwise)
    return choose() if not can_steer(mask) or bool(xp.any(unwrap(mask))) else otherwise


@functools.cache
def compile_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of a JAX array and of constants once for each shape and constants, also outside of `jit`."""
    return sys.modules["jax"].jit(function, static_argnums=(1, 2))


def loop_while(unfinished: Callable[[Any], Any], advance: Callable[[Any], Any], state: Any) -> Any:
    """Advance a state inside a JAX transformation until it is finished; reverse mode cannot pass through the loop."""
    return sys.modules["jax"].lax.while_loop(unfinished, advance, state)


def map_row_blocks(function: Callable[[ArrayT], ArrayT], array: ArrayT) -> ArrayT:
    """Apply a row-wise function, block by block if results can be written in place.

    That is possible for NumPy arrays, and for PyTorch tensors in main memory without gradients or tracing.
    """
    classes = array.shape[-1]
    if not _is_writable_in_blocks(array) or math.prod(array.shape) <= _BLOCK_ELEMENTS:  # a size can be symbolic
        return function(array)
    rows: Any = array
    rows = rows.reshape(-1, classes)
    result: Any = np.empty_like(rows) if isinstance(rows, np.ndarray) else sys.modules["torch"].empty_like(rows)
    step = max(1, _BLOCK_ELEMENTS // classes)
    for start in range(0, rows.shape[0], step):
        result[start : start + step] = function(rows[start : start + step])
    return result.reshape(array.shape)


def _is_writable_in_blocks(array: Array) -> bool:
    if is_torch(array):
        needs_gradient = array.requires_grad and sys.modules["torch"].is_grad_enabled()
        return can_read_values(array) and not needs_gradient
    return isinstance(array, np.ndarray)
