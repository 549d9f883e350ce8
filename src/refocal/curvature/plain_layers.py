"""Layers and losses whose fused kernels lack a derivative, computed by plain operations instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only


class PlainLayers(TorchFunctionMode):
    """Inside a `with`, recurrent layers, their cells, weight normalization and losses have all derivatives.

    PyTorch's recurrent kernels lack some derivative on a CPU or on a GPU. Its kernel of weight normalization has a
    wrong second derivative on a CPU: the result is not symmetric. Three of its losses have no forward mode over reverse
    mode.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replace these operations."""
        kwargs = kwargs or {}
        if func is torch._weight_norm:
            direction, length, dim = args
            return direction * (length / torch.norm_except_dim(direction, 2, dim))
        if func in _LOSSES and len(args) == 2 and all(kwargs.get(name) is None for name in _RARE):
            reduction = _REDUCTIONS.index(kwargs.get("reduction", "mean"))
            return _LOSSES[func](*args, reduction, *[kwargs[name] for name in ("delta",) if name in kwargs])
        if kwargs or func not in _RECURRENT:  # PyTorch's modules pass no keyword arguments
            return func(*args, **kwargs)
        if func in _LAYER_OF_CELL:
            return _cell(_LAYER_OF_CELL[func], *args)
        return _layer(func, *args)


# The other cells consist of plain operations.
_LAYER_OF_CELL: dict[Any, Callable[..., Any]] = {torch.lstm_cell: torch.lstm, torch.gru_cell: torch.gru}
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, *_LAYER_OF_CELL}
_LOSSES: dict[Any, Callable[..., Tensor]] = {
    F.mse_loss: decomposition_table[torch.ops.aten.mse_loss.default],
    F.huber_loss: decomposition_table[torch.ops.aten.huber_loss.default],
    F.soft_margin_loss: decomposition_table[torch.ops.aten.soft_margin_loss.default],
}
_REDUCTIONS = ("none", "mean", "sum")  # as the plain losses number them
_RARE = ("size_average", "reduce", "weight")  # keywords that the plain losses do not have


def _layer(func: Callable[..., Any], *args: Any) -> tuple[Tensor, ...]:
    overloads = getattr(torch.ops.aten, func.__name__)
    packed = not isinstance(args[3], bool)  # a packed sequence passes its batch sizes before the states
    fast = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # the decomposed LSTM would use it too
    try:
        output, *states = decomposition_table[overloads.data if packed else overloads.input](*args)
    finally:
        torch._C._set_mkldnn_enabled(fast)
    before = args[2] if packed else args[1]
    before = before if isinstance(before, (tuple, list)) else [before]
    # PyTorch 2.11's decomposed LSTM returns states with one dimension too many.
    return output, *(after.reshape(state.shape) for after, state in zip(states, before, strict=True))


def _cell(func: Callable[..., Any], inputs: Tensor, state: Any, *weights: Tensor | None) -> Any:
    """A cell, computed as a layer over a sequence of length one."""
    given = [each for each in weights if each is not None]
    states = tree_map_only(Tensor, lambda each: each[None], state)
    _, *after = _layer(func, inputs[None], states, given, len(given) > 2, 1, 0.0, False, False, False)
    after = [each[0] for each in after]
    return tuple(after) if len(after) > 1 else after[0]
