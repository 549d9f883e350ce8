"""Batches, outputs and models that Hugging Face's Trainer rarely sees, and what refocal does with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="needs the extra transformers: `make test-integrations`")

from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from tiny_models import BERT, VOCABULARY, WIDTH, collate, make_examples, make_model
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    EvalPrediction,
    SwitchTransformersConfig,
    SwitchTransformersForConditionalGeneration,
)

from refocal.integrations.transformers import CalibrationMetrics, TrainerLoss, train_without_logits
from refocal.losses import FocalLoss

KINDS = ("softmax", "posterior")

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


def test_labels_may_be_short_integers():
    model, batch = make_model("llama"), collate(make_examples("llama"))
    loss = TrainerLoss(FocalLoss(gamma=2), shift_labels=True)
    outputs = model(input_ids=batch["input_ids"])
    torch.testing.assert_close(loss(outputs, batch["labels"].int()), loss(outputs, batch["labels"]))


# outputs


def test_no_loss_of_experts_is_dropped():
    sizes = {"d_model": WIDTH, "d_kv": 8, "d_ff": WIDTH, "num_heads": 2, "num_experts": 2}
    layers = {"num_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    config = SwitchTransformersConfig(
        vocab_size=VOCABULARY, decoder_start_token_id=0, pad_token_id=0, **sizes, **layers
    )
    model, batch = SwitchTransformersForConditionalGeneration(config).eval(), collate(make_examples("llama"))
    tokens, loss = {"input_ids": batch["input_ids"], "decoder_input_ids": batch["input_ids"]}, FocalLoss(gamma=2)
    with pytest.raises(ValueError, match=r"own encoder_z_loss, .*decoder_aux_loss, .*output_router_logits = False"):
        TrainerLoss(loss)(model(**tokens, output_router_logits=True), batch["labels"])
    assert TrainerLoss(loss)(model(**tokens, output_router_logits=False), batch["labels"]) > 0


def test_outputs_with_other_names_are_listed():
    model = BertForQuestionAnswering(BertConfig(**{**BERT, "num_labels": 2}))
    outputs = model(input_ids=torch.tensor([[3, 4, 5]]))
    message = r"outputs must hold logits, got the entries \['start_logits', 'end_logits'\]: write your own compute_loss"
    with pytest.raises(ValueError, match=message):
        TrainerLoss(FocalLoss(gamma=2))(outputs, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"got the entries \['list'\]"):
        TrainerLoss(FocalLoss(gamma=2))(([1.0],), torch.tensor([0]))


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


# metrics


def draw_prediction(count, *, seed=0):
    rng = np.random.default_rng(seed)
    return EvalPrediction(predictions=rng.normal(size=(count, 4)), label_ids=rng.integers(4, size=count))


def test_an_evaluation_that_fails_leaves_nothing_behind():
    measure = CalibrationMetrics(FocalLoss(gamma=2))
    expected = measure(draw_prediction(20))
    measure(draw_prediction(50, seed=1), compute_result=False)
    with pytest.raises(ValueError, match="labels must be class indices of shape"):
        measure(EvalPrediction(predictions=np.zeros((3, 4)), label_ids=np.zeros(4, dtype=int)), compute_result=False)
    assert measure(draw_prediction(20), compute_result=True) == expected


def test_a_reset_forgets_an_interrupted_evaluation():
    measure = CalibrationMetrics(FocalLoss(gamma=2))
    expected = measure(draw_prediction(20))
    measure(draw_prediction(50, seed=1), compute_result=False)
    measure.reset()
    assert measure(draw_prediction(20), compute_result=True) == expected


def test_a_single_label_has_no_limits_of_means():
    logits, labels = np.log([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]), np.array([1, -100])
    found = CalibrationMetrics(FocalLoss(gamma=2))(EvalPrediction(predictions=logits, label_ids=labels))
    assert found["nll_softmax"] == pytest.approx(np.log(4))
    assert found["brier_softmax"] == pytest.approx(0.25 + 0.5625 + 0.0625)
    limits = [f"{name}_{kind}_{end}" for name in ("nll", "brier") for kind in KINDS for end in ("low", "high")]
    assert all(np.isnan(found[name]) for name in limits)
    assert [found[f"ece_{kind}_{end}"] for kind in KINDS for end in ("low", "high")] == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_labels_of_metrics_may_be_short_integers(dtype):
    measure, prediction = CalibrationMetrics(FocalLoss(gamma=2)), draw_prediction(20)
    short = EvalPrediction(predictions=prediction.predictions, label_ids=prediction.label_ids.astype(dtype))
    assert measure(short) == measure(prediction)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0, 3]), "label_ids must be from 0 to 2, the classes, or -100, got 3"),
        (np.array([0, -1]), "label_ids must be from 0 to 2, the classes, or -100, got -1"),
        (None, "label_ids must be one array of class indices, got None: check label_names"),
        ((np.array([0, 1]), np.array([0, 1])), "label_ids must be one array of class indices, got 2 arrays"),
    ],
)
def test_wrong_labels_of_metrics_are_rejected(labels, message):
    with pytest.raises(ValueError, match=message):
        CalibrationMetrics(FocalLoss(gamma=2))(EvalPrediction(predictions=np.zeros((2, 3)), label_ids=labels))
