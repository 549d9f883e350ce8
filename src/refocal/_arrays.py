"""Small bridges between array libraries: their namespaces, precision, stopped gradients, blocks of rows.

No array library but NumPy is imported here: another one's arrays only come in after it was imported.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeGuard, TypeVar

import array_api_compat
import numpy as np


class Array(Protocol):  # noqa: PLW1641  (arrays compare by element and have no hash)
    """An array of any library that follows the array API standard: NumPy, PyTorch, JAX and others.

    The protocol lists what all of them share. Results are `Any`, because each library returns its own type. Use
    `ArrayT` for a function that returns the type of array that it was given.
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

# Rows are worked through in blocks of this many elements, so that the dozen temporaries of a block stay in
# a core's cache; a larger block costs memory traffic, a smaller one Python's overhead.
_BLOCK_ELEMENTS = 1 << 15


def namespace(array: object) -> Namespace:
    """The array-API namespace of an array; TypeError for anything else."""
    if is_torch(array):  # named directly: torch.compile warns of the cache inside `array_namespace`
        from array_api_compat import torch as torch_namespace

        return torch_namespace
    return array_api_compat.array_namespace(array)


def device(array: Array) -> Any:
    """Where an array lives."""
    return array.device if is_torch(array) else array_api_compat.device(array)


def is_torch(array: object) -> TypeGuard[Any]:
    """Whether this is a PyTorch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


def is_jax(array: object) -> TypeGuard[Any]:
    """Whether this is a JAX array, a traced one included."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def is_traced(array: object) -> bool:
    """Whether a JAX transformation runs, in which values cannot steer a loop."""
    return is_jax(array) and isinstance(array, sys.modules["jax"].core.Tracer)


def is_transformed(array: object) -> bool:
    """Whether a transformation of `torch.func` runs, in which values steer no loop unless they are `unwrap`."""
    return is_torch(array) and bool(sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor(array))


def unwrap(array: ArrayT) -> ArrayT:
    """The values inside of transformations of `torch.func`, those of all vectors that `vmap` takes at once."""
    while is_transformed(array):
        array = sys.modules["torch"]._C._functorch.get_unwrapped(array)
    return array


def has_values_within(array: Array) -> bool:
    """Whether an array that is transformed can be `unwrap` to values in main memory that nothing traces or fakes."""
    return array.device.type == "cpu" and not sys.modules["torch"]._C._len_torch_dispatch_stack()


def can_read_values(array: Array) -> bool:
    """Whether looking at values makes no device wait and breaks no tracing."""
    if is_torch(array):
        return array.device.type == "cpu" and not _is_traced_by_torch(array)
    if is_jax(array):
        return not is_traced(array) and {d.platform for d in array.devices()} == {"cpu"}
    return True


def _is_traced_by_torch(tensor: Any) -> bool:
    """Whether a tensor stands for values that PyTorch records, transforms or fakes."""
    torch = sys.modules["torch"]
    if torch.compiler.is_compiling():  # first: what follows cannot be compiled
        return True
    recorded = torch.jit.is_tracing() or torch._C._len_torch_dispatch_stack() > 0
    fake = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return recorded or fake or is_transformed(tensor)


def pick(array: ArrayT, index: Array, *, xp: Namespace) -> ArrayT:
    """The entries that `index` (..., 1) names along the last axis."""
    if is_torch(array):  # `take_along_dim` would fix the batch size of an exported program
        return array.gather(-1, index)
    return xp.take_along_axis(array, index, axis=-1)


def widen(array: ArrayT, *, xp: Namespace) -> ArrayT:
    """The array in the precision it is computed in: float32 for 16-bit input, else its own."""
    return xp.astype(array, xp.float32) if xp.finfo(array.dtype).bits < 32 else array


def constant(value: float | tuple[float, ...] | None, *, like: Array, xp: Namespace) -> Any:
    """A hyper-parameter next to `like`: a number stays one, a tuple becomes an array of its dtype and device."""
    if isinstance(value, tuple):
        return xp.asarray(value, dtype=like.dtype, device=device(like))
    return value


def bounded_exp(x: ArrayT, *, xp: Namespace) -> ArrayT:
    """exp(x), held below overflow: for factors of values that are 0 and carry a derivative."""
    return xp.exp(xp.minimum(x, xp.full_like(x, 80.0)))


def expm1(x: ArrayT, *, xp: Namespace) -> ArrayT:
    """e^x - 1; where TorchScript records it by functions that ONNX has, as exact."""
    if is_torch(x) and sys.modules["torch"].jit.is_tracing():
        return xp.tanh(x / 2) * (xp.exp(x) + 1)
    return xp.expm1(x)


def stop_gradient(array: ArrayT) -> ArrayT:
    """The same values, as a constant for automatic differentiation."""
    if is_torch(array):
        return array.detach()
    if is_jax(array):
        return sys.modules["jax"].lax.stop_gradient(array)
    return array


def call_on_host(function: Callable[..., Any], result_like: Array, *arrays: Array) -> Any:
    """Run a NumPy function on arrays under a JAX transformation; results have the shape of `result_like`."""
    jax = sys.modules["jax"]
    shape = jax.ShapeDtypeStruct(result_like.shape, result_like.dtype)
    return jax.pure_callback(function, shape, *arrays, vmap_method="expand_dims")


def map_row_blocks(function: Callable[[ArrayT], ArrayT], array: ArrayT) -> ArrayT:
    """Apply a row-wise function block by block where results may be written in place; elsewhere in one piece.

    That is so for NumPy arrays, and for PyTorch tensors in main memory that no gradient or tracing follows.
    """
    classes = array.shape[-1]
    if not _is_writable_in_blocks(array) or math.prod(array.shape) <= _BLOCK_ELEMENTS:  # a size may be a symbol
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
        follows = array.requires_grad and sys.modules["torch"].is_grad_enabled()
        return can_read_values(array) and not follows
    return isinstance(array, np.ndarray)
