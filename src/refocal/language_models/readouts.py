"""Ways to read probabilities from logits, each measured exactly: the softmax, Psi, and given calibrators."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.losses import LinearFocalLoss
from refocal.losses.linear.posteriors import map_block
from refocal.losses.posterior_maps import FocalMap
from refocal.maps.posterior import posterior_from_logits

SOFTMAX, POSTERIOR = "softmax", "posterior"
LogProbs = partial[Tensor]  # a function from logits (n, V) to log-probabilities (n, V), with its settings
TokenCalibrator = TemperatureScaling | FocalTemperatureScaling


class ReadoutRows(NamedTuple):
    """The NLL of each token, the probability of its most probable class, and whether that is the token; (n,) each."""

    losses: Tensor
    confidences: Tensor
    hits: Tensor


def list_readouts(criterion: LinearFocalLoss, calibrators: Mapping[str, TokenCalibrator] | None) -> dict[str, LogProbs]:
    """List the readouts by name: the softmax, the posterior if it is another one, and the calibrators."""
    readouts: dict[str, LogProbs] = {SOFTMAX: partial(torch.log_softmax, dim=1)}
    psi = criterion.focal.posterior_map
    assert isinstance(psi, FocalMap)
    if psi.gamma != 0.0 or psi.weight is not None or psi.label_smoothing:
        readouts[POSTERIOR] = partial(_map_logits, psi=psi)
    for name, calibrator in (calibrators or {}).items():
        if name in (SOFTMAX, POSTERIOR):
            msg = f"calibrators must have names other than {SOFTMAX!r} and {POSTERIOR!r}, got {name!r}"
            raise ValueError(msg)
        readouts[name] = _read_calibrator(name, calibrator)
    return readouts


def _map_logits(logits: Tensor, *, psi: FocalMap) -> Tensor:
    return map_block(logits, 0.0, psi.check_settings(logits.shape[1]))


def _read_calibrator(name: str, calibrator: object) -> LogProbs:
    if not isinstance(calibrator, TemperatureScaling | FocalTemperatureScaling):
        found = type(calibrator).__name__
        msg = f"calibrators must be TemperatureScaling or FocalTemperatureScaling, got {found} for {name!r}"
        raise TypeError(msg)
    check_is_fitted(calibrator)
    if calibrator.input_ != "logits":
        msg = f'calibrators must take logits, got input="probs" for {name!r}'
        raise ValueError(msg)
    if isinstance(calibrator, FocalTemperatureScaling):
        gamma = calibrator.gamma_
    else:
        gamma = calibrator.gamma if calibrator.apply_posterior else 0.0
    return partial(posterior_from_logits, gamma=gamma, temperature=calibrator.temperature_, log=True)


def list_settings(log_probs: LogProbs) -> dict[str, Any]:
    """List the settings of a readout by name; values for each class as lists, which can be compared."""
    psi = log_probs.keywords.get("psi")
    if psi is None:
        return dict(log_probs.keywords)
    names = ("gamma", "weight", "label_smoothing", "smoothing_edge", "detached")
    return {name: np.asarray(getattr(psi, name)).tolist() for name in names}


def read_rows(log_probs: LogProbs, logits: Tensor, target: Tensor) -> ReadoutRows:
    """Read logits (n, V) with labels (n,)."""
    found = log_probs(logits)
    largest, classes = found.max(dim=1)
    return ReadoutRows(-found.gather(1, target[:, None])[:, 0], torch.exp(largest), classes == target)
