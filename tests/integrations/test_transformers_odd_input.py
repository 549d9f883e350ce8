"""Batches, outputs and models that Hugging Face's Trainer rarely sees, and what refocal does with them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="needs the extra transformers: `make test-integrations`")

from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from tiny_models import VOCABULARY, WIDTH, collate, make_examples, make_model

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


# models that are trained from their hidden states


class ScaledLinear(torch.nn.Linear):
    """A head whose weights alone do not determine its output."""

    def forward(self, hidden):
        return 0.1 * super().forward(hidden)


def scale_by_hook(model):
    model.lm_head.register_forward_hook(lambda _module, _inputs, output: 0.1 * output)


def scale_by_class(model):
    model.lm_head = ScaledLinear(WIDTH, VOCABULARY, bias=False)


@pytest.mark.parametrize("scale", [scale_by_hook, scale_by_class])
def test_a_head_that_changes_its_product_is_rejected(scale):
    model = make_model("llama")
    scale(model)
    with pytest.raises(ValueError, match="logits of LlamaForCausalLM are not the product"):
        train_without_logits(model, FocalLoss(gamma=2))
    assert "forward" not in vars(model)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma2"])
def test_inputs_may_be_positional(kind):
    model, plain, batch = make_model(kind), make_model(kind), collate(make_examples(kind))
    tokens, mask = batch["input_ids"], batch["attention_mask"]
    inputs = (tokens, None, mask) if kind == "gpt2" else (tokens, mask)  # GPT-2 has past_key_values in between
    expected = plain(*inputs).logits
    train_without_logits(model, FocalLoss(gamma=2))
    train_without_logits(model, FocalLoss(gamma=0))
    torch.testing.assert_close(model(*inputs).logits, expected)
    torch.testing.assert_close(model(*inputs, labels=batch["labels"]).loss, plain(**batch).loss)
    with pytest.raises(TypeError, match="multiple values for keyword argument 'input_ids'"):
        model(tokens, input_ids=tokens)


def test_embeddings_may_be_the_inputs():
    model, batch = make_model("llama"), collate(make_examples("llama"))
    train_without_logits(model, FocalLoss(gamma=2))
    expected = model(**batch).loss
    batch["inputs_embeds"] = F.embedding(batch.pop("input_ids"), model.get_input_embeddings().weight)
    torch.testing.assert_close(model(**batch).loss, expected)


def test_inputs_on_another_device_are_those_of_data_parallel():
    """`nn.DataParallel` calls the original model with inputs on the devices of its replicas."""
    model, batch = make_model("llama"), collate(make_examples("llama"))
    train_without_logits(model, FocalLoss(gamma=2))
    model.to("meta")
    with pytest.raises(
        ValueError, match=r"inputs are on cpu and .* meta: .* not work with nn.DataParallel: .*torchrun"
    ):
        model(**batch)


def test_a_model_with_hooks_of_accelerate_is_rejected():
    model = add_hook_to_module(make_model("llama"), AlignDevicesHook(execution_device="cpu", io_same_device=True))
    with pytest.raises(TypeError, match=r"model\.forward is wrapped, for example by device_map: .* on one device"):
        train_without_logits(model, FocalLoss(gamma=2))


def test_the_error_for_an_adapter_names_the_model_inside():
    class PeftModelForCausalLM(torch.nn.Module):
        """As in PEFT: no PreTrainedModel itself."""

        def get_base_model(self):
            return make_model("llama")

    with pytest.raises(TypeError, match=r"got PeftModelForCausalLM: pass peft_model\.get_base_model\(\)"):
        train_without_logits(PeftModelForCausalLM(), FocalLoss(gamma=2))
