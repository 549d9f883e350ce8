"""Export of a fitted calibrator to a PyTorch module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from array_api_compat import torch as xp
from torch import Tensor, nn

from refocal.maps.heads import probability_edges, to_logits

if TYPE_CHECKING:
    from refocal.calibrators.base import Calibrator


class CalibratedHead(nn.Module):
    """A module that computes what a fitted calibrator predicts: probabilities of the shape and dtype of the scores.

    One column of scores becomes two columns of probabilities. The fitted values are buffers, so they move between
    devices with the module; there is nothing to train.
    """

    def __init__(self, calibrator: Calibrator) -> None:
        super().__init__()
        columns = calibrator._count_columns()
        head = calibrator._head(max(2, columns))
        self.function, self.settings, self.wide = head.function, head.settings, head.wide
        self.probs = calibrator.input_ == "probs"
        self.names = tuple(head.arrays)
        for name, array in head.arrays.items():
            self.register_buffer(name, torch.as_tensor(array.copy(), dtype=torch.float64))
        self.description = type(calibrator).__name__

    def forward(self, scores: Tensor) -> Tensor:
        """Compute calibrated probabilities (..., K)."""
        least, gap = probability_edges(torch.finfo(scores.dtype))
        dtype = torch.float64 if self.wide else torch.promote_types(scores.dtype, torch.float32)
        work = scores.to(dtype)
        logits = to_logits(work, probs=self.probs, least=least, gap=gap, xp=xp)
        arrays = {name: getattr(self, name).to(dtype) for name in self.names}
        result: Tensor = self.function(logits, **arrays, **self.settings, log=False, xp=xp)
        return result.to(scores.dtype)

    def extra_repr(self) -> str:
        """The name of the calibrator, for `repr`."""
        return self.description


def to_torch(calibrator: Calibrator) -> CalibratedHead:
    """Convert a fitted calibrator to a module."""
    return CalibratedHead(calibrator).eval()
