"""A loss of refocal as the `compute_loss_func` of Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from refocal.integrations.transformers.labels import align, at_least_float32, check_criterion, divide
from refocal.losses.base import AbstractSoftmaxLoss

_UNSHIFTED_OUTPUTS = ("Classifier", "MaskedLM", "Seq2Seq")  # in the names of outputs whose labels are not shifted
_LOSSES_OF_EXPERTS = ("aux_loss", "z_loss")  # ends of the names of outputs


class TrainerLoss:
    """Train a Hugging Face classifier or language model with a loss of refocal.

    Write `Trainer(compute_loss_func=TrainerLoss(criterion), ...)`.

    The losses of all labels are added up and divided by the number of labels in the whole optimizer step, which Trainer
    counts over its accumulated batches. Accumulating gradients therefore changes nothing, however ragged the batches
    are. Labels of -100 do not count. At gamma = 0 the loss is that of the model itself.

    Class weights multiply losses and do not enter the count, so each label counts the same.

    Args:
        criterion: A loss with one value per label, such as `refocal.losses.FocalLoss(gamma=2)`. Its `reduction` is not
            used.
        shift_labels: True for causal language models, where the position before a token predicts it. False for one
            label per sequence or image, one label per token, masked and encoder-decoder language models.

    Example:
        >>> import torch
        >>> from refocal.losses import FocalLoss
        >>> loss = TrainerLoss(FocalLoss(gamma=2))
        >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> round(loss({"logits": logits}, torch.tensor([0, 1]), num_items_in_batch=4).item(), 4)
        0.0275
        >>> loss.posterior(logits).shape
        torch.Size([2, 3])
    """

    def __init__(self, criterion: AbstractSoftmaxLoss, *, shift_labels: bool = False) -> None:
        check_criterion(criterion)
        self.criterion = criterion
        self.shift_labels = shift_labels

    def __call__(
        self,
        outputs: Mapping[str, Any] | Sequence[Any],
        labels: Tensor | None,
        num_items_in_batch: Tensor | float | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            outputs: What the model returned for inputs without labels; its logits have the shape (..., K).
            labels: Class indices (...).
            num_items_in_batch: Number of labels in the optimizer step; None for those of this batch.
        """
        self._check_outputs(outputs)
        if labels is None:
            msg = "labels must be a tensor, got None: the batch has no entry 'labels'"
            raise ValueError(msg)
        rows, target = align(_read_logits(outputs), labels, shift_labels=self.shift_labels)
        rows = at_least_float32(rows)
        return divide(self.criterion.to(rows.device).per_sample(rows, target).sum(), target, num_items_in_batch)

    def posterior(self, logits: Tensor) -> Tensor:
        """p(y|x) from logits (..., K) of a trained model, with classes last as everywhere in transformers."""
        rows = at_least_float32(logits).reshape(-1, logits.shape[-1])
        return self.criterion.to(rows.device).posterior(rows).reshape(logits.shape)

    def _check_outputs(self, outputs: Any) -> None:
        """Reject outputs which show that `shift_labels` is wrong or that part of the loss would be lost."""
        name = type(outputs).__name__
        if "CausalLM" in name and not self.shift_labels:
            msg = f"shift_labels must be True for the outputs of a causal language model, {name}"
            raise ValueError(msg)
        if self.shift_labels and any(part in name for part in _UNSHIFTED_OUTPUTS):
            msg = f"shift_labels must be False for outputs whose labels are of the same position, {name}"
            raise ValueError(msg)
        entries = outputs.items() if isinstance(outputs, Mapping) else ()
        dropped = [key for key, value in entries if key.endswith(_LOSSES_OF_EXPERTS) and value is not None]
        if dropped:
            msg = (
                f"TrainerLoss does not add the model's own {', '.join(dropped)}, which balances its experts: "
                "set model.config.output_router_logits = False"
            )
            raise ValueError(msg)

    def __repr__(self) -> str:
        return f"TrainerLoss({self.criterion!r}, shift_labels={self.shift_labels})"


def _read_logits(outputs: Mapping[str, Any] | Sequence[Any]) -> Tensor:
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(logits, Tensor):
        entries = list(outputs) if isinstance(outputs, Mapping) else [type(entry).__name__ for entry in outputs]
        msg = (
            f"outputs must hold logits, got the entries {entries}: write your own compute_loss_func for a model with "
            "other outputs. A model patched to compute its loss from hidden states, as use_liger_kernel=True does, "
            "keeps no logits: leave the patch out, or use train_without_logits"
        )
        raise ValueError(msg)
    return logits
