"""How curved the loss of a network is: eigenvalues and trace of its Hessian, and the trace as a regularizer."""

# ruff: noqa: E402
from refocal._extras import require

require("torch", extra="torch", user="refocal.curvature")

from refocal.curvature.eigenvalues import TopEigenvalues, hessian_top_eigenvalues
from refocal.curvature.lanczos import NotConvergedError
from refocal.curvature.modes import twice_differentiable
from refocal.curvature.penalty import CurvatureRegularized, HessianTracePenalty
from refocal.curvature.problem import layers
from refocal.curvature.summary import CurvatureSummary, curvature_summary, gradient_norm
from refocal.curvature.trace import TraceEstimate, hessian_trace

__all__ = [
    "CurvatureRegularized",
    "CurvatureSummary",
    "HessianTracePenalty",
    "NotConvergedError",
    "TopEigenvalues",
    "TraceEstimate",
    "curvature_summary",
    "gradient_norm",
    "hessian_top_eigenvalues",
    "hessian_trace",
    "layers",
    "twice_differentiable",
]
