"""The trace of the Hessian as a term of the training loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from refocal import _check
from refocal.curvature.problem import Loss, find_leaves
from refocal.curvature.quadratic_forms import Signs


class HessianTracePenalty(nn.Module):
    """A penalty on the curvature of a loss: tau Tr(H), with respect to a network's parameters.

    Choose it to train toward flat minima explicitly. The trace is estimated by tau v'Hv with random signs v, which can
    be differentiated once more. The estimate is unbiased at every call, for any number of probes. It belongs to the
    loss as reduced: for a sum over N samples it is N times that of the mean. If gradients are accumulated, scale loss
    and penalty alike. Processes of `torch.distributed` draw different probes. Averaging gradients over them, as
    `DistributedDataParallel` does, therefore averages the estimates too.

    Args:
        tau: Strength, >= 0.
        probes: Random vectors per call.
        every: Compute the penalty at every `every`-th call only, `every` times as strong; it is 0 at the others.
        seed: Seed of the probes. They depend on it and on the number of calls, which is part of `state_dict`.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model, penalty = nn.Linear(3, 2), HessianTracePenalty(1e-2)
        >>> loss = nn.functional.cross_entropy(model(torch.randn(8, 3)), torch.randint(2, (8,)))
        >>> (loss + penalty(loss, model.parameters())).backward()

    Reference: Kimura and Naganuma (2024), Eq. 33.
    """

    def __init__(self, tau: float, *, probes: int = 1, every: int = 1, seed: int = 0) -> None:
        super().__init__()
        self.tau = 0.0 if tau == 0 else _check.positive(tau, "tau")
        self.probes = _check.count(probes, "probes")
        self.every = _check.count(every, "every")
        self.seed = _check.seed(seed, "seed")
        self.calls = 0

    def forward(self, loss: Tensor, parameters: Iterable[Tensor]) -> Tensor:
        """The penalty.

        Args:
            loss: One number, computed with a graph.
            parameters: The tensors to differentiate with respect to: all that `loss` depends on, or some of them.

        Returns:
            One number, with a graph.
        """
        call, self.calls = self.calls, self.calls + 1
        if not self.tau or call % self.every:
            return torch.zeros_like(loss)
        if torch.is_autocast_enabled(loss.device.type):
            msg = (
                "the trace penalty differentiates three times, which needs full precision: compute the loss and the "
                "penalty outside of torch.autocast, or under torch.autocast(..., enabled=False)"
            )
            raise RuntimeError(msg)
        inside = [values for values in _check_parameters(parameters) if values.requires_grad]
        if loss.ndim or not loss.requires_grad or not inside:
            graph = "with" if loss.requires_grad else "without"
            msg = (
                "the trace penalty needs one number with a graph, and parameters that require a gradient, got a loss "
                f"of shape {tuple(loss.shape)} {graph} one, and {len(inside)} parameters"
            )
            raise ValueError(msg)
        return self.tau * self.every * self._trace(loss, inside, self._generator(call, loss.device))

    def get_extra_state(self) -> dict[str, int]:
        """The number of calls, for `state_dict`."""
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        """Continue from a `state_dict`."""
        self.calls = int(state["calls"])

    def extra_repr(self) -> str:
        """The settings."""
        return f"tau={self.tau}, probes={self.probes}, every={self.every}, seed={self.seed}"

    def _trace(self, loss: Tensor, parameters: list[Tensor], generator: torch.Generator) -> Tensor:
        slopes = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
        signs = Signs(self.probes, {str(i): values for i, values in enumerate(parameters)}, generator)
        total = torch.zeros_like(loss)
        for probe in zip(*signs.draw(self.probes).values(), strict=True):
            slope_along = torch.stack([(a * b).sum() for a, b in zip(slopes, probe, strict=True)]).sum()
            if not slope_along.requires_grad:  # the loss is linear in all parameters
                continue
            product = _differentiate_again(slope_along, parameters)
            total = total + torch.stack([(a * b).sum() for a, b in zip(product, probe, strict=True)]).sum()
        return total / self.probes

    def _generator(self, call: int, device: torch.device) -> torch.Generator:
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if distributed else 0
        mixed = np.random.SeedSequence((self.seed, call, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1)
        return torch.Generator(device).manual_seed(int(mixed))


class CurvatureRegularized(nn.Module):
    """A loss with the trace of its Hessian added: L + tau Tr(H); a drop-in for the loss.

    The parameters are found from the scores: all that they were computed from, unless `parameters` names others. If no
    gradient is recorded, and in evaluation mode, the result is the loss alone.

    Args:
        loss: A loss of (scores, target) that returns one number.
        tau: Strength, >= 0.
        probes: Random vectors per call.
        every: Add the penalty at every `every`-th call only, `every` times as strong.
        parameters: Differentiate with respect to these only.
        seed: Seed of the probes.

    Example:
        >>> from refocal.losses import FocalLoss
        >>> model = nn.Linear(3, 2)
        >>> criterion = CurvatureRegularized(FocalLoss(gamma=2), 1e-2)
        >>> criterion(model(torch.randn(8, 3)), torch.randint(2, (8,))).backward()

    Reference: Kimura and Naganuma (2024), Eq. 33.
    """

    def __init__(
        self,
        loss: Loss,
        tau: float,
        *,
        probes: int = 1,
        every: int = 1,
        parameters: Iterable[Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.loss = loss
        self.penalty = HessianTracePenalty(tau, probes=probes, every=every, seed=seed)
        self._subset = None if parameters is None else _check_parameters(parameters)

    def forward(self, scores: Tensor, target: Tensor) -> Tensor:
        """The loss, and in training the penalty."""
        value = self.loss(scores, target)
        if not (self.training and value.requires_grad):
            return value
        parameters = find_parameters(scores) if self._subset is None else self._subset
        penalized: Tensor = value + self.penalty(value, parameters)
        return penalized


def _check_parameters(parameters: Iterable[Tensor]) -> tuple[Tensor, ...]:
    # The rows of a single tensor are tensors too, but the loss does not depend on them.
    single = isinstance(parameters, (Tensor, nn.Module))
    given: tuple[Any, ...] = (parameters,) if single else tuple(parameters)
    for each in given:
        if single or not isinstance(each, Tensor):
            msg = f"parameters must be a list of tensors, such as model.parameters(), got {type(each).__name__}"
            raise TypeError(msg)
    return given


def _differentiate_again(slope_along: Tensor, parameters: list[Tensor]) -> tuple[Tensor, ...]:
    try:
        return torch.autograd.grad(slope_along, parameters, create_graph=True, materialize_grads=True)
    except RuntimeError as error:
        if "scaled_dot_product" not in str(error):
            raise
        msg = "fused attention has no second derivative: compute the scores under curvature.twice_differentiable()"
        raise RuntimeError(msg) from error


def find_parameters(output: Tensor) -> list[nn.Parameter]:
    """The parameters that a tensor was computed from."""
    return [leaf for leaf in find_leaves(output) if isinstance(leaf, nn.Parameter)]
