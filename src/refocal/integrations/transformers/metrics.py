"""Calibration measures as the `compute_metrics` of Trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from refocal.integrations.transformers.labels import IGNORED, align, check_criterion
from refocal.losses.base import AbstractSoftmaxLoss
from refocal.metrics import ece, interval
from refocal.metrics.defaults import LEVEL
from refocal.metrics.mean_intervals import mean_interval
from refocal.metrics.measure_record import Interval
from refocal.stats.proper_scores import brier_scores, log_scores

_BLOCK_ELEMENTS = 1 << 22  # logits that are in memory as probabilities at a time


class CalibrationMetrics:
    """Measure softmax and posterior at every evaluation: `Trainer(compute_metrics=CalibrationMetrics(criterion), ...)`.

    The softmax of a model trained with focal loss is not p(y|x), and its loss does not measure probabilities. The
    result has NLL, Brier score and ECE of the softmax and of the criterion's posterior, each with the limits of its 95%
    confidence interval. Trainer logs them as `eval_nll_posterior`, `eval_nll_posterior_low`, `eval_nll_posterior_high`,
    and so on for `nll`, `brier` and `ece`, `softmax` and `posterior`. To choose a checkpoint, set
    `metric_for_best_model="nll_posterior"` and `greater_is_better=False`.

    ECE is that of the top label, debiased, in 15 bins; see `refocal.metrics.ece` and `refocal.metrics.interval`. It may
    be negative, and below its interval. Labels of -100 do not count. The intervals treat labels as independent, which
    tokens of one text are not. If only one label counts, the limits of NLL and Brier score are NaN.

    Without `batch_eval_metrics=True` in its arguments, Trainer keeps the logits of the whole evaluation set, which for
    language models do not fit into memory. With it, a few numbers per label are kept. If you interrupt such an
    evaluation, call `reset()` before the next one.

    Args:
        criterion: The loss that the model is trained with, such as `refocal.losses.FocalLoss(gamma=2)`. It must have a
            posterior.
        shift_labels: As for `TrainerLoss`: True for causal language models.

    Example:
        >>> import numpy as np
        >>> from transformers import EvalPrediction
        >>> from refocal.losses import FocalLoss
        >>> metrics = CalibrationMetrics(FocalLoss(gamma=3))
        >>> logits = np.array([[0.6065, 0.0]] * 1000)  # a softmax of 0.65
        >>> labels = (np.arange(1000) % 10 == 0).astype(int)  # the first class is right in 90% of the rows
        >>> found = metrics(EvalPrediction(predictions=logits, label_ids=labels))
        >>> [round(found[name], 2) for name in ("ece_softmax", "ece_softmax_low", "ece_softmax_high")]
        [0.25, 0.23, 0.27]
        >>> [round(found[name], 2) for name in ("ece_posterior", "ece_posterior_low", "ece_posterior_high")]
        [-0.01, 0.0, 0.03]
    """

    def __init__(self, criterion: AbstractSoftmaxLoss, *, shift_labels: bool = False) -> None:
        check_criterion(criterion)
        _ = criterion.posterior_map  # an error now, not after the first epoch, if there is none
        self.criterion = criterion
        self.shift_labels = shift_labels
        self._scores: list[dict[str, np.ndarray]]
        self.reset()

    def __call__(self, prediction: Any, compute_result: bool = True) -> dict[str, float]:
        """The measures of all rows since the last result, by name.

        Args:
            prediction: An `EvalPrediction` whose predictions are logits (..., K), or begin with them, and whose
                `label_ids` are class indices (...).
            compute_result: Whether the evaluation ends here. Trainer says so with `batch_eval_metrics=True`.

        Returns:
            The measures; nothing if the evaluation goes on.
        """
        several = isinstance(prediction.label_ids, list)  # with eval_do_concat_batches=False
        batches = (prediction.predictions, prediction.label_ids)
        try:
            for logits, labels in zip(*batches, strict=True) if several else [batches]:
                self._scores += self._score(logits[0] if isinstance(logits, tuple) else logits, labels)
        except BaseException:  # also an interrupt: the evaluation ends here
            self.reset()
            raise
        if not compute_result:
            return {}
        blocks = self._scores
        self.reset()
        if not sum(len(block["nll_softmax"]) for block in blocks):
            msg = f"label_ids must have a label that counts, got only {IGNORED}"
            raise ValueError(msg)
        return _measure({name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]})

    def reset(self) -> None:
        """Forget the rows since the last result, after an evaluation that did not end."""
        self._scores = []

    @torch.no_grad()
    def _score(self, logits: Any, labels: Any) -> list[dict[str, np.ndarray]]:
        """What the measures need of each row, in blocks."""
        if labels is None or isinstance(labels, tuple):
            got = "None" if labels is None else f"{len(labels)} arrays"
            msg = f"label_ids must be one array of class indices, got {got}: check label_names of TrainingArguments"
            raise ValueError(msg)
        rows, target = align(torch.as_tensor(logits), torch.as_tensor(labels), shift_labels=self.shift_labels)
        rows, target = rows[target != IGNORED], target[target != IGNORED]
        classes = rows.shape[1]
        wrong = target[(target < 0) | (target >= classes)]
        if len(wrong):
            msg = f"label_ids must be from 0 to {classes - 1}, the classes, or {IGNORED}, got {int(wrong[0])}"
            raise ValueError(msg)
        if rows.device.type == "mps":  # which has no float64
            rows = rows.cpu()
        criterion = self.criterion.to(rows.device)
        step = max(1, _BLOCK_ELEMENTS // classes)
        scores = []
        for start in range(0, max(1, len(rows)), step):
            wide, truth = rows[start : start + step].double(), target[start : start + step].cpu().numpy()
            softmax, posterior = torch.softmax(wide, dim=1), criterion.posterior(wide)
            scores.append(_score_probs("softmax", softmax, truth) | _score_probs("posterior", posterior, truth))
        return scores


def _score_probs(kind: str, probs: Tensor, labels: np.ndarray) -> dict[str, np.ndarray]:
    """The scores of rows of probabilities (N, K), their top probability, and whether their top class is right."""
    array = probs.cpu().numpy()
    return {
        f"nll_{kind}": log_scores(array, labels),
        f"brier_{kind}": brier_scores(array, labels),
        f"confidence_{kind}": array.max(axis=1),
        f"correct_{kind}": (array.argmax(axis=1) == labels).astype(np.int64),
    }


def _measure(scores: dict[str, np.ndarray]) -> dict[str, float]:
    found: dict[str, Interval] = {}
    for kind in ("softmax", "posterior"):
        for name in (f"nll_{kind}", f"brier_{kind}"):
            found[name] = _bound_mean(scores[name])
        # The top label's calibration is that of the event that the top class is right.
        confidence, correct = scores[f"confidence_{kind}"], scores[f"correct_{kind}"]
        found[f"ece_{kind}"] = interval(ece, confidence, correct, task="binary", debias=True, level=LEVEL)
    flat = {name: value.value for name, value in found.items()}
    for name, value in found.items():
        flat |= {f"{name}_low": value.low, f"{name}_high": value.high}
    return flat


def _bound_mean(values: np.ndarray) -> Interval:
    """The mean of values (N,) with its limits, NaN if there is only one value."""
    return mean_interval(values, None, level=LEVEL) if len(values) > 1 else Interval(float(values[0]), np.nan, np.nan)
