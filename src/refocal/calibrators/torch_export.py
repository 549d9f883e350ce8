"""Export of a fitted calibrator to a PyTorch module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from array_api_compat import torch as xp
from torch import Tensor, nn

if TYPE_CHECKING:
    from refocal.calibrators.base import Calibrator


class CalibratedHead(nn.Module):
    """A module that computes what a fitted calibrator predicts: probabilities of the shape and dtype of the scores.

    For prediction sets it computes booleans instead.

    One column of scores becomes two columns of probabilities, unless each column is a task of its own. The fitted
    values are buffers, so they move between devices with the module; there is nothing to train.
    """

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        columns = calibrator._count_columns()
        head = calibrator._head(max(2, columns))
        self.head = head._replace(arrays={})
        self.probs = calibrator.input_ == "probs"
        self.names = tuple(head.arrays)
        for name, array in head.arrays.items():
            self.register_buffer(name, torch.as_tensor(array.copy(), dtype=torch.float64))
        self.description = type(calibrator).__name__

    def forward(self, scores: Tensor) -> Tensor:
        """Compute calibrated probabilities (..., K)."""
        dtype = torch.float64 if self.head.wide else torch.promote_types(scores.dtype, torch.float32)
        arrays = {name: getattr(self, name).to(dtype) for name in self.names}
        limits = torch.finfo(scores.dtype)
        result: Tensor = self.head.compute(scores.to(dtype), arrays, probs=self.probs, limits=limits, log=False, xp=xp)
        return result if self.head.sets else result.to(scores.dtype)

    def extra_repr(self) -> str:
        """The name of the calibrator, for `repr`."""
        return self.description


def to_torch(calibrator: Calibrator) -> CalibratedHead:
    """Convert a fitted calibrator to a module."""
    return CalibratedHead(calibrator).eval()
