"""Batches, outputs and models that Hugging Face's Trainer rarely sees, and what refocal does with them."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra transformers: `make test-integrations`")

from tiny_models import collate, make_examples, make_model

from refocal.integrations.transformers import TrainerLoss, train_without_logits
from refocal.losses import FocalLoss

# batches


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("count", [None, 0, torch.tensor(0), torch.tensor([[0], [0]])])
@pytest.mark.parametrize("from_hidden", [False, True])
def test_a_step_without_labels_has_no_gradient(gamma, count, from_hidden):
    model, batch = make_model("llama").train(), collate(make_examples("llama"))
    labels = torch.full_like(batch.pop("labels"), -100)
    if from_hidden:
        train_without_logits(model, FocalLoss(gamma=gamma))
        loss = model(**batch, labels=labels, num_items_in_batch=count).loss
    else:
        loss = TrainerLoss(FocalLoss(gamma=gamma), shift_labels=True)(model(**batch), labels, count)
    loss.backward()
    assert loss == 0
    assert all(not parameter.grad.any() for parameter in model.parameters())
