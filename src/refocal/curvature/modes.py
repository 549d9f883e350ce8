"""Contexts in which PyTorch's operations have all derivatives, and compute with full precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from refocal.curvature.convolution import SmoothConvolutions
from refocal.curvature.plain_layers import PlainLayers

_DATA = Tensor.data.__get__  # type: ignore[attr-defined]


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Give the operations inside a `with` second derivatives, and fast ones.

    Attention, recurrent layers and weight normalization are computed by plain operations, because PyTorch's fused forms
    have no second derivative, or a wrong one. Derivatives of convolutions use the kernels of training; PyTorch's own
    second derivatives are slower. The measures of this package do this themselves. With the trace penalty, a network
    with such layers must compute its scores inside this context, and a network with convolutions should.

    Example:
        >>> from torch import nn
        >>> with twice_differentiable():
        ...     scores = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)(torch.zeros(1, 3, 4))
    """
    with _plain_operations(), SmoothConvolutions():
        yield


@contextmanager
def full_precision() -> Iterator[None]:
    """Operations with all derivatives, in float32 without rounding to fewer bits, even on a GPU or under autocast.

    By default, a GPU's convolutions round their inputs to ten bits (TF32). The product would then no longer belong to a
    symmetric matrix, and a search for eigenvalues would not converge.

    Raises:
        RuntimeError: Python runs with -O, and an operation lacks a derivative because of that.
    """
    backends: tuple[Any, ...] = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    try:
        with _plain_operations(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    except NotImplementedError as error:
        if __debug__:
            raise
        msg = (
            "curvature needs derivatives that PyTorch leaves out under python -O: "
            "start Python without -O and without PYTHONOPTIMIZE"
        )
        raise RuntimeError(msg) from error
    finally:
        for backend, allowed in zip(backends, before, strict=True):
            backend.allow_tf32 = allowed


class StoppedGradients(TorchFunctionMode):
    """Inside a `with`, `torch.no_grad` and `.data` also stop forward-mode gradients, which PyTorch itself lets pass."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Detach the results of operations that stop gradients."""
        result = func(*args, **(kwargs or {}))
        stops = not torch.is_grad_enabled() or func == _DATA
        return tree_map_only(Tensor, torch.detach, result) if stops else result


@contextmanager
def _plain_operations() -> Iterator[None]:
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH), PlainLayers():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
