"""Focal loss in Hugging Face's `Trainer`, and whether the probabilities of the trained model are right.

| to | use |
|---|---|
| train a classifier or language model | `Trainer(compute_loss_func=TrainerLoss(criterion), ...)` |
| train a causal language model without keeping its logits | `train_without_logits(model, criterion)` |
| log how well softmax and posterior are calibrated | `Trainer(compute_metrics=CalibrationMetrics(criterion), ...)` |

All three take the same criterion, such as `refocal.losses.FocalLoss(gamma=2)`.
"""

from refocal._extras import require

require("transformers", extra="transformers", user="refocal.integrations.transformers")

from refocal.integrations.transformers.hidden_states import train_without_logits  # noqa: E402
from refocal.integrations.transformers.loss import TrainerLoss  # noqa: E402
from refocal.integrations.transformers.metrics import CalibrationMetrics  # noqa: E402

__all__ = ["CalibrationMetrics", "TrainerLoss", "train_without_logits"]
