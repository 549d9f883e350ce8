"""The trace of a Hessian by random probes, with its standard error."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import nn

from refocal import _check
from refocal.curvature.curvlinops_operator import CountedOperator, trace_estimators
from refocal.curvature.memory import choose_memory, count_vectors
from refocal.curvature.modes import full_precision
from refocal.curvature.moving_weights import find_layer_weights
from refocal.curvature.problem import NOT_FINITE, Data, Loss, Problem, prepare
from refocal.curvature.progress import progress_bar
from refocal.curvature.quadratic_forms import Matrix, Signs, quadratic_forms

_TOGETHER = 3200  # samples times probes; with fewer, overhead shows
_RUNS = 4  # independent runs of an estimator that does not give its own error


class TraceEstimate(NamedTuple):
    """An estimate of a trace.

    Attributes:
        value: The estimate, which is unbiased.
        standard_error: Its standard error, from the spread of the probes.
    """

    value: float
    standard_error: float


def hessian_trace(
    model: nn.Module,
    loss: Loss,
    data: Data,
    *,
    probes: int = 100,
    method: Literal["hutchinson", "hutch++", "xtrace"] = "hutchinson",
    matrix: Matrix = "hessian",
    parameters: Sequence[str] | None = None,
    group: int | None = None,
    memory: int | None = None,
    dtype: torch.dtype | None = None,
    batch_statistics: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> TraceEstimate:
    """Trace of the Hessian of a loss over data with respect to a network's parameters: a measure of total curvature.

    The estimate is the mean of v'Hv over vectors v of random signs. The Hessian is a sum over samples and the trace is
    linear, so each group of samples gets its own probes. That costs no more than shared probes, and the errors of the
    groups average out.

    Args:
        model: The network. A copy is measured, in evaluation mode.
        loss: A loss of (scores, target) that reduces by "mean" or "sum", as its `reduction` says; without one, it must
            be a mean over the batch. A mean over several batches weighs samples as `nn.CrossEntropyLoss` does.
        data: Batches (inputs, target), such as a data loader; read once.
        probes: Random vectors for each group, >= 2; for other methods, the number of products with the whole matrix.
        method: "hutchinson", or "hutch++" or "xtrace" (from curvlinops). The latter two find the large eigenvalues
            first, in four independent runs that share the products and give the error.
        matrix: "hessian", or "ggn" for the generalized Gauss-Newton matrix J'(d2 loss / d scores2)J.
        parameters: Names of parameters or layers (`layers`) to restrict the matrix to; None for all.
        group: How many samples of a batch share probes if the loss is a sum over samples; by default 3,200 / probes.
            Smaller groups give smaller errors, larger ones less overhead.
        memory: Bytes that probes may take at a time; at least one probe is taken. The default is 128 MiB, or half of
            what is free on a GPU.
        dtype: Compute in this type, such as torch.float64; None for the network's own.
        batch_statistics: Let BatchNorm use the statistics of each batch. Batches are then kept whole.
        seed: Seed of the probes.
        progress: Show a progress bar.

    Returns:
        The estimate and its standard error.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> inputs, target = torch.randn(100, 3), torch.randint(2, (100,))
        >>> trace = hessian_trace(nn.Linear(3, 2), nn.CrossEntropyLoss(), [(inputs, target)], probes=500)
        >>> f"{trace.value:.2f} +- {trace.standard_error:.2f}"
        '1.49 +- 0.01'

    Reference: Kimura and Naganuma (2024), sections 3.2 and 4.3; Hutchinson 1989, Commun. Stat. Simul. Comput. 18(3).
    """
    probes = _check.count(probes, "probes", least=2)
    method = _check.one_of(method, "method", ("hutchinson", "hutch++", "xtrace"))
    _check.one_of(matrix, "matrix", ("hessian", "ggn"))
    memory = None if memory is None else _check.count(memory, "memory", most=1 << 62)
    seed = _check.seed(seed, "seed")
    hutchinson = method == "hutchinson"
    group_size = max(1, _TOGETHER // probes) if group is None else _check.count(group, "group")
    problem = prepare(
        model,
        loss,
        data,
        parameters=parameters,
        group=group_size if hutchinson else None,
        dtype=dtype,
        batch_statistics=batch_statistics,
    )
    products = probes * len(problem.batches) if hutchinson else probes
    room = choose_memory(problem.device) if memory is None else memory
    with torch.no_grad(), full_precision(), progress_bar("trace", total=products, enabled=progress) as advance:
        if hutchinson:
            return _estimate_by_probes(problem, probes, matrix=matrix, memory=room, seed=seed, advance=advance)
        return _estimate_by_sketches(
            problem, probes, method=method, matrix=matrix, memory=room, seed=seed, advance=advance
        )


def _estimate_by_probes(
    problem: Problem, probes: int, *, matrix: Matrix, memory: int, seed: int, advance: Callable[[int], None]
) -> TraceEstimate:
    generator = torch.Generator(problem.device).manual_seed(seed)
    moving = find_layer_weights(problem)
    rounds = math.ceil(probes / count_vectors(problem, memory, moving=moving))
    at_once = math.ceil(probes / rounds)  # of one size except the last: a GPU's libraries look for kernels once
    signs = Signs(at_once, problem.parameters, generator)
    value = variance = 0.0
    for batch in problem.batches:
        forms_of = quadratic_forms(problem, batch, matrix=matrix, moving=moving)
        forms = []
        for start in range(0, probes, at_once):
            count = min(at_once, probes - start)
            forms.append(forms_of(signs.draw(count)).double())
            advance(count)
        joined = torch.cat(forms)
        if not joined.isfinite().all():
            raise ArithmeticError(NOT_FINITE)
        value += joined.mean().item()
        variance += joined.var().item() / probes
    return TraceEstimate(value, math.sqrt(variance))


def _estimate_by_sketches(
    problem: Problem,
    products: int,
    *,
    method: str,
    matrix: Matrix,
    memory: int,
    seed: int,
    advance: Callable[[int], None],
) -> TraceEstimate:
    estimator, unit = trace_estimators()[method]
    each = products // (_RUNS * unit) * unit
    if problem.size <= unit:
        msg = f"method {method!r} needs more than {unit} parameters, got {problem.size}: use 'hutchinson'"
        raise ValueError(msg)
    if each < unit or each >= problem.size:
        most = _RUNS * (problem.size - 1)
        msg = f"probes must be {_RUNS * unit} to {most} for {method!r} and {problem.size} parameters, got {products}"
        raise ValueError(msg)
    at_once = count_vectors(problem, memory)
    operator = CountedOperator(problem, matrix=matrix, advance=advance, at_once=at_once)
    device = problem.device
    with torch.random.fork_rng(devices=[] if device.type == "cpu" else [device], device_type=device.type):
        torch.manual_seed(seed)
        estimates = torch.stack([estimator(operator, each) for _ in range(_RUNS)]).double()
    return TraceEstimate(estimates.mean().item(), estimates.std().item() / math.sqrt(_RUNS))
