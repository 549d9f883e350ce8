"""Layers whose fused kernels lack a derivative, by plain operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table
from torch.overrides import TorchFunctionMode


class PlainLayers(TorchFunctionMode):
    """Recurrent layers, their cells and weight normalisation by operations with all derivatives.

    PyTorch's kernels of the former lack one or another, on a CPU or on a GPU, and that of weight normalisation on a CPU
    has a wrong second one: it is not symmetric.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Take over these."""
        if func is torch._weight_norm:
            direction, length, dim = args
            return direction * (length / torch.norm_except_dim(direction, 2, dim))
        if kwargs:  # not from PyTorch's modules
            return func(*args, **kwargs)
        if func in _CELLS:
            return _CELLS[func](*args)
        if func not in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
            return func(*args)
        overloads = getattr(torch.ops.aten, func.__name__)
        overload = overloads.input if isinstance(args[3], bool) else overloads.data  # of packed sequences
        fast = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)  # which the written-out LSTM would use, too
        try:
            return decomposition_table[overload](*args)
        finally:
            torch._C._set_mkldnn_enabled(fast)


def _lstm_cell(inputs: Tensor, state: Sequence[Tensor], *weights: Tensor | None) -> tuple[Tensor, Tensor]:
    hidden, memory = state
    of_input, of_hidden = _from_both(inputs, hidden, weights)
    admit, keep, new, show = (of_input + of_hidden).chunk(4, dim=-1)
    memory = torch.sigmoid(keep) * memory + torch.sigmoid(admit) * torch.tanh(new)
    return torch.sigmoid(show) * torch.tanh(memory), memory


def _gru_cell(inputs: Tensor, hidden: Tensor, *weights: Tensor | None) -> Tensor:
    of_input, of_hidden = _from_both(inputs, hidden, weights)
    size = hidden.shape[-1]
    reset, keep = torch.sigmoid((of_input + of_hidden)[..., : 2 * size]).chunk(2, dim=-1)
    new = torch.tanh(of_input[..., 2 * size :] + reset * of_hidden[..., 2 * size :])
    return new + keep * (hidden - new)


def _from_both(inputs: Tensor, hidden: Tensor, weights: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """What the gates of a cell have from its input and from its state; biases may be missing."""
    input_weight, hidden_weight, input_bias, hidden_bias = (*weights, None, None)[:4]
    return F.linear(inputs, input_weight, input_bias), F.linear(hidden, hidden_weight, hidden_bias)


_CELLS: dict[Callable[..., Any], Callable[..., Any]] = {torch.lstm_cell: _lstm_cell, torch.gru_cell: _gru_cell}
