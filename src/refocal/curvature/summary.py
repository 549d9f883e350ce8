"""The curvature of a trained network in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from refocal.curvature.eigenvalues import TopEigenvalues, hessian_top_eigenvalues
from refocal.curvature.modes import full_precision
from refocal.curvature.problem import NOT_FINITE, Data, Loss, prepare
from refocal.curvature.quadratic_forms import Matrix
from refocal.curvature.trace import TraceEstimate, hessian_trace


class CurvatureSummary(NamedTuple):
    """The result of `curvature_summary`.

    Attributes:
        eigenvalues: The largest eigenvalues.
        trace: The trace with its standard error.
        gradient_norm: The norm of the gradient over all data.
    """

    eigenvalues: TopEigenvalues
    trace: TraceEstimate
    gradient_norm: float

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, for a JSON file."""
        return {
            "largest_eigenvalues": self.eigenvalues.algebraic.tolist(),
            "largest_eigenvalues_in_modulus": self.eigenvalues.modulus.tolist(),
            "eigenvalue_tolerance": self.eigenvalues.tolerance,
            "trace": self.trace.value,
            "trace_standard_error": self.trace.standard_error,
            "gradient_norm": self.gradient_norm,
        }


def curvature_summary(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    k: int = 1,
    probes: int = 100,
    matrix: Matrix = "hessian",
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
    batch_statistics: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> CurvatureSummary:
    """The largest eigenvalues, the trace and the gradient norm of a loss over data, in one call.

    Args:
        model: The network. A copy is measured, in evaluation mode.
        loss: A loss of (scores, target), as for `hessian_trace`.
        data: Batches (inputs, target), such as a data loader; read once.
        k: How many eigenvalues.
        probes: Random vectors for the trace.
        matrix: "hessian" or "ggn".
        parameters: Names of parameters or layers to restrict everything to; None for all.
        dtype: Compute in this type; None for the network's own.
        batch_statistics: Let BatchNorm use the statistics of each batch.
        seed: Seed of all random vectors.
        progress: Show progress bars.

    Returns:
        The measurements.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> data = [(torch.randn(100, 3), torch.randint(2, (100,)))]
        >>> summary = curvature_summary(nn.Linear(3, 2), nn.CrossEntropyLoss(), data, k=2)
        >>> summary.eigenvalues.algebraic.round(2).tolist(), round(summary.gradient_norm, 2)
        ([0.49, 0.42], 0.21)

    Reference: Kimura and Naganuma (2024), section 3.2.
    """
    batches = list(data)
    common: dict[str, Any] = {"parameters": parameters, "dtype": dtype, "batch_statistics": batch_statistics}
    random: dict[str, Any] = {"matrix": matrix, "seed": seed, "progress": progress}
    return CurvatureSummary(
        hessian_top_eigenvalues(model, loss, batches, k=k, **common, **random),
        hessian_trace(model, loss, batches, probes=probes, **common, **random),
        gradient_norm(model, loss, batches, **common),
    )


def gradient_norm(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    parameters: Sequence[str] | None = None,
    dtype: torch.dtype | None = None,
    batch_statistics: bool = False,
) -> float:
    """Euclidean norm of the gradient of a loss over data with respect to a network's parameters.

    Use it to see how close a network is to a minimum.

    Args:
        model: The network. A copy is measured, in evaluation mode.
        loss: A loss of (scores, target), as for `hessian_trace`.
        data: Batches (inputs, target), such as a data loader; read once.
        parameters: Names of parameters or layers to restrict the gradient to; None for all.
        dtype: Compute in this type; None for the network's own.
        batch_statistics: Let BatchNorm use the statistics of each batch.

    Returns:
        The norm.

    Example:
        >>> model = nn.Linear(1, 2)
        >>> _ = nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        >>> data = [(torch.tensor([[1.0]]), torch.tensor([0]))]  # the gradient in scores is (-1/2, 1/2)
        >>> gradient_norm(model, nn.CrossEntropyLoss(), data)
        1.0

    Reference: Kimura and Naganuma (2024), section 3.2.
    """
    problem = prepare(
        model, loss, data, parameters=parameters, group=None, dtype=dtype, batch_statistics=batch_statistics
    )
    total = {name: torch.zeros_like(values) for name, values in problem.parameters.items()}
    with full_precision():
        for batch in problem.batches:
            for name, slope in torch.func.grad(problem.value)(problem.parameters, batch).items():
                total[name] += slope
    flat: Tensor = torch.cat([values.flatten() for values in total.values()])
    if not flat.isfinite().all():
        raise ArithmeticError(NOT_FINITE)
    return float(torch.linalg.vector_norm(flat.double()))
