"""Training losses in PyTorch. Each knows the posterior map of the networks trained with it.

Each family has one file with its function, one value per sample, and its module, which reduces:

| to train with | choose |
|---|---|
| a drop-in for cross-entropy that focuses on hard samples | `FocalLoss` |
| the same for many classes, from hidden states, without keeping logits | `LinearFocalLoss` |
| the first, with gamma per sample or epoch, or learned | `FocalLoss` with a policy: `FLSD53`, `Scheduled`, `AdaFocal` |
| the focus of focal loss, with the softmax as posterior | `ProperFocalLoss` |
| focal loss for detection, multi-label or binary tasks | `SigmoidFocalLoss` |
| a bounded proper loss | `BrierLoss` |
| a direct penalty on miscalibration | `MMCELoss` |
| a margin to the runner-up class | `DualFocalLoss` |
| a more confident network, not a less confident one | `InverseFocalLoss` |
"""

# ruff: noqa: E402
from refocal._extras import require

require("torch", extra="torch", user="refocal.losses")

from refocal.losses.adafocal import AdaFocal
from refocal.losses.base import NoPosteriorError
from refocal.losses.brier import BrierLoss, brier_loss
from refocal.losses.dual_focal import DualFocalLoss, dual_focal_loss
from refocal.losses.focal import FocalLoss, focal_loss
from refocal.losses.gradients import gradient_factor, last_layer_gradient_norms
from refocal.losses.inverse_focal import InverseFocalLoss, inverse_focal_loss
from refocal.losses.linear.focal import LinearFocalLoss, linear_focal_loss
from refocal.losses.mmce import MMCELoss, mmce_loss
from refocal.losses.policies import (
    FLA53,
    FLA532,
    FLSD53,
    GammaPolicy,
    SampleWise,
    Scheduled,
    find_policy,
    fls531,
    fls532,
)
from refocal.losses.proper_focal import ProperFocalLoss, proper_focal_loss
from refocal.losses.sigmoid_focal import SigmoidFocalLoss, sigmoid_focal_loss

__all__ = [
    "FLA53",
    "FLA532",
    "FLSD53",
    "AdaFocal",
    "BrierLoss",
    "DualFocalLoss",
    "FocalLoss",
    "GammaPolicy",
    "InverseFocalLoss",
    "LinearFocalLoss",
    "MMCELoss",
    "NoPosteriorError",
    "ProperFocalLoss",
    "SampleWise",
    "Scheduled",
    "SigmoidFocalLoss",
    "brier_loss",
    "dual_focal_loss",
    "find_policy",
    "fls531",
    "fls532",
    "focal_loss",
    "gradient_factor",
    "inverse_focal_loss",
    "last_layer_gradient_norms",
    "linear_focal_loss",
    "mmce_loss",
    "proper_focal_loss",
    "sigmoid_focal_loss",
]
