"""Training losses in PyTorch; each knows the posterior map of the networks trained with it."""

from refocal.losses.adafocal import AdaFocal
from refocal.losses.base import (
    BrierLoss,
    DualFocalLoss,
    FocalLoss,
    InverseFocalLoss,
    MMCELoss,
    NoPosteriorError,
    ProperFocalLoss,
    SigmoidFocalLoss,
)
from refocal.losses.focal import brier_loss, dual_focal_loss, focal_loss, inverse_focal_loss, proper_focal_loss
from refocal.losses.gradients import gradient_factor, last_layer_gradient_norms
from refocal.losses.mmce import mmce_loss
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
from refocal.losses.sigmoid_focal import sigmoid_focal_loss

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
    "mmce_loss",
    "proper_focal_loss",
    "sigmoid_focal_loss",
]
