"""Export of a fitted calibrator to a PyTorch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from array_api_compat import torch as xp
from torch import Tensor, nn

from refocal import _check
from refocal._arrays import move_axis, recording
from refocal.maps.posterior import MapSettings

if TYPE_CHECKING:
    from refocal.calibrators.base import Calibrator


class CalibratedHead(nn.Module):
    """A module that computes what a fitted calibrator predicts: probabilities of the shape and dtype of the scores.

    For prediction sets it computes booleans instead.

    One column of scores becomes two columns of probabilities, unless each column is a task of its own. The fitted
    values are buffers of dtype float64, among them `temperature`, `gamma` and `log_weight` of the maps that have them.
    So they move between devices with the module, and `load_state_dict` changes them; there is nothing to train. A
    gamma of 0 is no buffer: the map is then temperature scaling.
    """

    def __init__(self, calibrator: Calibrator, *, axis: int) -> None:
        super().__init__()
        self.axis = _check.whole(axis, "axis")
        head, _ = calibrator._export_head()
        self.head = head._replace(arrays={})
        self.probs = calibrator.input_ == "probs"
        self.names = tuple(head.arrays)
        for name, value in {**head.arrays, **_list_numbers(head.settings)}.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))
        self.description = type(calibrator).__name__

    def forward(self, scores: Tensor) -> Tensor:
        """Compute calibrated probabilities, with the classes on the axis of the scores' classes."""
        place, last = _check.axis(self.axis, scores, "scores"), scores.ndim - 1
        scores = move_axis(scores, place, last, xp=xp)
        dtype = torch.float64 if self.head.wide else torch.promote_types(scores.dtype, torch.float32)
        arrays = {name: getattr(self, name).to(dtype) for name in self.names}
        head = self.head._replace(settings=_insert_numbers(self.head.settings, self, dtype))
        limits = torch.finfo(scores.dtype)
        with recording(scores):
            result: Tensor = head.compute(scores.to(dtype), arrays, probs=self.probs, limits=limits, log=False, xp=xp)
        return move_axis(result if head.sets else result.to(scores.dtype), last, place, xp=xp)

    def extra_repr(self) -> str:
        """The name of the calibrator and the axis of the classes, for `repr`."""
        return self.description if self.axis == -1 else f"{self.description}, axis={self.axis}"


def to_torch(calibrator: Calibrator, *, axis: int = -1) -> CalibratedHead:
    """Convert a fitted calibrator to a module."""
    return CalibratedHead(calibrator, axis=axis).eval()


def _list_numbers(settings: Mapping[str, Any], suffix: str = "") -> dict[str, Any]:
    """List the fitted numbers among the settings of a head; those of column k have the suffix "_k"."""
    numbers = {}
    for name, value in settings.items():
        if isinstance(value, float):
            numbers[name + suffix] = value
        elif isinstance(value, MapSettings):
            numbers |= {f"{field}{suffix}": getattr(value, field) for field in _list_fields(value)}
        elif name == "parts":
            for k, (_, _, own, _) in enumerate(value):
                numbers |= _list_numbers(own, f"_{k}{suffix}")
    return numbers


def _insert_numbers(settings: Mapping[str, Any], module: nn.Module, dtype: torch.dtype, suffix: str = "") -> Any:
    """Replace the numbers that `_list_numbers` lists by the buffers of a module."""

    def insert(name: str, value: Any) -> Any:
        if isinstance(value, float):
            return getattr(module, name + suffix).to(dtype)
        if isinstance(value, MapSettings):
            found = {field: getattr(module, field + suffix) for field in _list_fields(value)}
            if "gamma" in found:  # in float64: in float32 a gamma near -1 would lose its digits
                found["gamma_plus_one"] = found["gamma"] + 1
            return value._replace(**{field: number.to(dtype) for field, number in found.items()})
        if name == "parts":
            return tuple(
                (function, names, _insert_numbers(own, module, dtype, f"_{k}{suffix}"), last)
                for k, (function, names, own, last) in enumerate(value)
            )
        return value

    return {name: insert(name, value) for name, value in settings.items()}


def _list_fields(settings: MapSettings) -> list[str]:
    """List the settings of a loss that a module keeps in its state."""
    given = {"gamma": settings.gamma != 0.0, "log_weight": settings.log_weight is not None}
    return [name for name, is_given in given.items() if is_given]
