"""The inverse of the posterior map: the minimizer of the expected focal loss, and the proper part of the loss."""

from __future__ import annotations

from collections.abc import Sequence

from refocal import _check
from refocal._arrays import Array, ArrayT, ClassWeights, Namespace, PerClass, constant, widen
from refocal.maps.focal import focal_partial_unchecked
from refocal.maps.newton import solve
from refocal.maps.posterior import MapSettings


def minimizer(
    posterior: ArrayT,
    *,
    gamma: PerClass,
    weight: ClassWeights = None,
    label_smoothing: float = 0.0,
    detached: bool = False,
) -> ArrayT:
    """Compute the softmax output that minimizes the expected focal loss for a known true posterior.

    q = argmin_q sum_i eta_i w_i (-(1 - q_i)^gamma log q_i). This is the inverse of `refocal.posterior`, for any number
    of classes.

    Args:
        posterior: Class-posterior probabilities eta, classes last, shape (..., K) with K >= 2.
        gamma: Focusing parameter, >= 0: a number, or one value per class.
        weight: Class weights of the loss, shape (K,), positive.
        label_smoothing: Label smoothing epsilon of the loss, in [0, 1).
        detached: Whether the loss stops the gradient through (1 - q)^gamma. If so, return the point at which the
            remaining gradient vanishes.

    Returns:
        Array like `posterior`. Each row sums to 1.

    Raises:
        RuntimeError: If the solver did not converge for some row.

    Example:
        >>> import numpy as np
        >>> minimizer(np.array([0.55, 0.30, 0.10, 0.05]), gamma=3).round(4).tolist()
        [0.4206, 0.3272, 0.1642, 0.088]

    Reference: Charoenphakdee et al. (2021), Thm. 11; Komisarenko and Kull (2024), Prop. 4.
    """
    xp, posterior = _check.floating(posterior, "posterior")
    _check.classes_last(posterior, "posterior")
    _check.simplex(posterior, "posterior", xp=xp)
    settings = MapSettings.check(gamma, weight, label_smoothing, detached, classes=posterior.shape[-1], least=0.0)
    wide = widen(posterior, xp=xp)
    solution = solve(wide, settings, xp=xp)
    return xp.astype(solution.q, posterior.dtype, copy=False)


def proper_focal_partial(posterior: ArrayT, labels: Array | Sequence[int], *, gamma: PerClass) -> ArrayT:
    """Compute the proper part of focal loss: focal loss at the minimizer of the predicted posterior.

    L*(eta, y) = -(1 - q_y)^gamma log q_y with q = `minimizer(eta)`. Unlike focal loss itself, its expectation is
    minimized by the true posterior.

    Args:
        posterior: Predicted posterior probabilities, classes last, shape (..., K).
        labels: Class indices, shape (...).
        gamma: Focusing parameter, >= 0: a number, or one value per class.

    Returns:
        Array of shape (...).

    Example:
        >>> import numpy as np
        >>> float(proper_focal_partial(np.array([0.9, 0.1]), np.array(0), gamma=1).round(4))
        0.0577

    Reference: Komisarenko and Kull (2024), Props. 2 and 4.
    """
    xp, posterior = _check.floating(posterior, "posterior")
    _check.classes_last(posterior, "posterior")
    _check.simplex(posterior, "posterior", xp=xp)
    indices = _check.labels(labels, posterior, "labels", xp=xp)
    return proper_focal_partial_unchecked(posterior, indices, gamma=gamma, in_logs=False, xp=xp)


def proper_focal_partial_unchecked(
    posterior: ArrayT, labels: Array, *, gamma: PerClass, in_logs: bool, xp: Namespace
) -> ArrayT:
    """Compute `proper_focal_partial` without checking the data.

    With `in_logs`, `posterior` holds log-probabilities, which cannot underflow.
    """
    settings = MapSettings.check(gamma, None, 0.0, False, classes=posterior.shape[-1], least=0.0)
    wide = widen(posterior, xp=xp)
    solution = solve(wide, settings, in_logs=in_logs, xp=xp)
    losses = focal_partial_unchecked(
        solution.log_q, solution.log_complement, gamma=constant(settings.gamma, like=wide, xp=xp), xp=xp
    )
    loss = xp.take_along_axis(losses, xp.expand_dims(labels, axis=-1), axis=-1)[..., 0]
    return xp.astype(loss, posterior.dtype, copy=False)
