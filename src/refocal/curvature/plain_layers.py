"""Layers whose fused kernels lack a derivative, by plain operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only


class PlainLayers(TorchFunctionMode):
    """Recurrent layers, their cells and weight normalization by operations with all derivatives.

    PyTorch's kernels of the former lack one or another, on a CPU or on a GPU, and that of weight normalization on a CPU
    has a wrong second one: it is not symmetric.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Take over these."""
        if func is torch._weight_norm:
            direction, length, dim = args
            return direction * (length / torch.norm_except_dim(direction, 2, dim))
        if kwargs or func not in _RECURRENT:  # PyTorch's modules give none by name
            return func(*args, **(kwargs or {}))
        if func in _LAYER_OF_CELL:
            return _cell(_LAYER_OF_CELL[func], *args)
        return _layer(func, *args)


# other cells are plain operations
_LAYER_OF_CELL: dict[Any, Callable[..., Any]] = {torch.lstm_cell: torch.lstm, torch.gru_cell: torch.gru}
_RECURRENT = {torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu, *_LAYER_OF_CELL}


def _layer(func: Callable[..., Any], *args: Any) -> tuple[Tensor, ...]:
    overloads = getattr(torch.ops.aten, func.__name__)
    packed = not isinstance(args[3], bool)  # a packed sequence has its batch sizes before the states
    fast = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)  # which the written-out LSTM would use, too
    try:
        output, *states = decomposition_table[overloads.data if packed else overloads.input](*args)
    finally:
        torch._C._set_mkldnn_enabled(fast)
    before = args[2] if packed else args[1]
    before = before if isinstance(before, (tuple, list)) else [before]
    # PyTorch 2.11's written-out LSTM gives its states one dimension too many
    return output, *(after.reshape(state.shape) for after, state in zip(states, before, strict=True))


def _cell(func: Callable[..., Any], inputs: Tensor, state: Any, *weights: Tensor | None) -> Any:
    """A cell is a layer over a sequence of one."""
    given = [each for each in weights if each is not None]
    states = tree_map_only(Tensor, lambda each: each[None], state)
    _, *after = _layer(func, inputs[None], states, given, len(given) > 2, 1, 0.0, False, False, False)
    after = [each[0] for each in after]
    return tuple(after) if len(after) > 1 else after[0]
