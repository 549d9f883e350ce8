"""The part of a loss that post-hoc calibration removes, and the part that remains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone
from sklearn.model_selection import KFold

from refocal import _check
from refocal._check import Input
from refocal.calibrators.base import Calibrator
from refocal.calibrators.binary import PlattScaling
from refocal.calibrators.focal_posterior import FocalPosterior
from refocal.calibrators.nonparametric import IsotonicCalibration
from refocal.calibrators.temperature import TemperatureScaling

Score = Literal["nll", "brier"]


@dataclass(frozen=True)
class Refinement:
    """A loss split in two: total = refinement + calibration.

    Attributes:
        score: "nll" or "brier".
        total: The mean loss of the scores as given.
        refinement: The mean loss after the best recalibration, on samples that it was not fitted to. It tells how much
            the scores say about the labels.
        calibration: What the recalibration removes, at least 0.
        total_error: Standard error of `total`.
        refinement_error: Standard error of `refinement`.
        calibration_error: Standard error of `calibration`, from differences sample by sample.
        method: The name of the best calibrator's class; "none" if no calibrator lowers the loss.
    """

    score: Score
    total: float
    refinement: float
    calibration: float
    total_error: float
    refinement_error: float
    calibration_error: float
    method: str


def refinement(
    scores: ArrayLike,
    labels: ArrayLike,
    *,
    score: Score = "nll",
    calibrators: Sequence[Calibrator] | None = None,
    cv: int = 5,
    random_state: int = 0,
    input: Input | None = None,
    sample_weight: ArrayLike | None = None,
) -> Refinement:
    """Split log loss or the Brier score into what calibration removes and what remains, the refinement.

    Use it to stop training or to choose between networks that will be calibrated afterwards: the loss itself, and focal
    loss even more, mixes how well a network separates the classes with how well its confidence is scaled. Call it with
    the validation logits of each epoch, and keep the epoch with the lowest refinement.

    Each calibrator is fitted to all folds but one and scored on that one. The refinement is the lowest mean loss of
    these, or that of the scores as given if no calibrator lowers it. The lowest of several means is slightly too low,
    because it was chosen by the same rows. This matters for few samples of two classes, where three calibrators are
    tried.

    Args:
        scores: Logits or probabilities (N, K), or one column for two classes; see `Calibrator`.
        labels: Labels (N,).
        score: "nll", or "brier" for the squared error summed over the classes.
        calibrators: Unfitted calibrators to try. None for temperature scaling and, for two classes, Platt scaling and
            isotonic calibration as well.
        cv: Number of folds, at least 2. The samples are shuffled first.
        random_state: Seed of the shuffle. With the same seed, values of several epochs are comparable.
        input: "logits" or "probs"; None for logits that do not look like probabilities.
        sample_weight: Weights (N,), or None.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> logits = 2 * rng.standard_normal((2000, 3))
        >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
        >>> right, loud = refinement(logits, labels), refinement(3 * logits, labels)  # the second is overconfident
        >>> round(right.total, 2), round(loud.total, 2)
        (0.58, 0.9)
        >>> round(right.refinement, 2), round(loud.refinement, 2)
        (0.58, 0.58)

    Reference: Berta, Holzmüller, Jordan and Bach: Rethinking early stopping: refine, then calibrate. 2025.
    """
    kind: Score = _check.one_of(score, "score", get_args(Score))
    (parts,) = split_losses(
        scores,
        labels,
        (kind,),
        calibrators=calibrators,
        cv=cv,
        random_state=random_state,
        input=input,
        sample_weight=sample_weight,
    )
    return parts


def split_losses(
    scores: ArrayLike,
    labels: ArrayLike,
    kinds: Sequence[Score],
    *,
    calibrators: Sequence[Calibrator] | None = None,
    cv: int = 5,
    random_state: int = 0,
    input: Input | None = None,
    sample_weight: ArrayLike | None = None,
) -> list[Refinement]:
    """Split several losses by the same fits; arguments are those of `refinement`."""
    identity = FocalPosterior(gamma=0.0, input=input)
    logits, indices, weights = identity._prepare(scores, labels, sample_weight)
    logits = logits.astype(np.float64, copy=False)
    rows, classes = logits.shape
    folds = _check.count(cv, "cv", least=2)
    if folds > rows:
        msg = f"cv must be at most {rows}, the number of samples with a positive weight, got {folds}"
        raise ValueError(msg)
    if calibrators is None:
        calibrators = [TemperatureScaling()]
        if classes == 2:
            calibrators = [*calibrators, PlattScaling(), IsotonicCalibration()]
    shares = np.full(rows, 1 / rows) if weights is None else weights / weights.sum()
    # Calibrators of probabilities learn a floor, which logarithms do not tell.
    told = np.exp(logits) if identity.input_ == "probs" else logits
    splits = list(KFold(folds, shuffle=True, random_state=random_state).split(logits))
    names = ["none"]
    losses = [_score(FocalPosterior(gamma=0.0, input="logits").predict_log_proba(logits), indices, kinds)]
    for calibrator in calibrators:
        values = np.empty((len(kinds), rows))
        for train, test in splits:
            fitted = clone(calibrator).set_params(input=identity.input_, classes=classes)
            fitted.fit(told[train], indices[train], None if weights is None else weights[train])
            values[:, test] = _score(fitted.predict_log_proba(told[test]), indices[test], kinds)
        names.append(type(calibrator).__name__)
        losses.append(values)
    found = []
    for kind, tried in zip(kinds, np.stack(losses, axis=1), strict=True):
        best = int(np.argmin(tried @ shares))
        parts = (_mean_and_error(values, shares) for values in (tried[0], tried[best], tried[0] - tried[best]))
        (total, total_error), (after, after_error), (removed, removed_error) = parts
        found.append(Refinement(kind, total, after, removed, total_error, after_error, removed_error, names[best]))
    return found


def _score(log_probs: np.ndarray, labels: np.ndarray, kinds: Sequence[Score]) -> np.ndarray:
    """Compute the losses of each sample, (len(kinds), N)."""
    rows = np.arange(len(labels))
    values = np.empty((len(kinds), len(labels)))
    for place, kind in enumerate(kinds):
        if kind == "nll":
            values[place] = -log_probs[rows, labels]
        else:
            errors = np.exp(log_probs)
            errors[rows, labels] -= 1
            values[place] = np.einsum("ij,ij->i", errors, errors)
    return values


def _mean_and_error(values: np.ndarray, shares: np.ndarray) -> tuple[float, float]:
    mean = float(shares @ values)
    return mean, float(shares**2 @ (values - mean) ** 2) ** 0.5
