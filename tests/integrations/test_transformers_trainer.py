"""Focal loss in Hugging Face's Trainer: the loss, training from hidden states, and the calibration metrics."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("transformers", reason="needs the extra transformers: `make test-integrations`")

from tiny_models import CAUSAL, CLASSES, VOCABULARY, collate, make_examples, make_model, make_trainer, train
from transformers import EvalPrediction, TrainerCallback
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput, TokenClassifierOutput

from refocal import metrics, minimizer
from refocal.integrations.transformers import CalibrationMetrics, TrainerLoss, train_without_logits
from refocal.losses import (
    FLSD53,
    BrierLoss,
    FocalLoss,
    LinearFocalLoss,
    MMCELoss,
    NoPosteriorError,
    Scheduled,
    SigmoidFocalLoss,
    focal_loss,
)

TASKS = ["sequence", "token", "llama"]
WITHOUT_LOGITS = ["llama", "gpt2", "gemma2"]


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """Trainer collects garbage when it starts; without the modules of large packages, that takes no time."""
    gc.freeze()
    yield
    gc.unfreeze()


def loss_for(kind, criterion):
    return TrainerLoss(criterion, shift_labels=kind in CAUSAL)


def find_rows(kind, logits, labels):
    """Pairs of logits (K,) and label, one by one, as the definition of each task says."""
    if kind == "sequence":
        return list(zip(logits, labels, strict=True))
    offset = 1 if kind in CAUSAL else 0
    return [
        (logits[i, t], labels[i, t + offset])
        for i in range(len(labels))
        for t in range(labels.shape[1] - offset)
        if labels[i, t + offset] != -100
    ]


def assert_same_weights(first, second, **tolerance):
    assert first.keys() == second.keys()
    for name in first:
        torch.testing.assert_close(first[name], second[name], **tolerance)


# the loss of logits


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_is_the_sum_of_focal_losses_over_the_count(kind, weighted):
    model, batch = make_model(kind), collate(make_examples(kind))
    outputs = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    weight = torch.linspace(0.5, 2.0, outputs.logits.shape[-1]) if weighted else None
    settings = {"gamma": 2.5, "weight": weight}
    rows = find_rows(kind, outputs.logits, batch["labels"])
    total = sum(focal_loss(logits, label, **settings) for logits, label in rows)
    loss = loss_for(kind, FocalLoss(**settings))
    torch.testing.assert_close(loss(outputs, batch["labels"], num_items_in_batch=torch.tensor(91)), total / 91)
    torch.testing.assert_close(loss(outputs, batch["labels"], num_items_in_batch=91), total / 91)
    torch.testing.assert_close(loss(outputs, batch["labels"]), total / len(rows))
    torch.testing.assert_close(loss((outputs.logits,), batch["labels"]), total / len(rows))


def test_devices_of_data_parallel_count_once():
    """Trainer repeats the count per device, multiplies the loss by the number of devices, and takes the mean."""
    logits, labels = torch.randn(6, CLASSES), torch.arange(6) % CLASSES
    loss = TrainerLoss(FocalLoss(gamma=2))
    repeated = loss({"logits": logits}, labels, num_items_in_batch=torch.tensor(6).unsqueeze(0).expand(3, -1))
    torch.testing.assert_close((repeated * 3).mean(), loss({"logits": logits}, labels))


@pytest.mark.parametrize("kind", TASKS)
def test_gamma_zero_trains_as_the_models_own_loss(kind, tmp_path):
    own_losses, own = train(make_model(kind), tmp_path, kind)
    losses, weights = train(make_model(kind), tmp_path, kind, compute_loss_func=loss_for(kind, FocalLoss(gamma=0)))
    assert losses == pytest.approx(own_losses, rel=1e-6)
    assert_same_weights(weights, own, rtol=1e-5, atol=1e-6)
    other_losses, _ = train(make_model(kind), tmp_path, kind, compute_loss_func=loss_for(kind, FocalLoss(gamma=2)))
    assert losses != pytest.approx(other_losses, rel=0.01)


@pytest.mark.parametrize("kind", TASKS)
def test_accumulating_gradients_changes_nothing(kind, tmp_path):
    """Batches are ragged, so that a mean of the batches' means would be another loss."""
    loss = loss_for(kind, FocalLoss(gamma=2))
    losses, weights = train(make_model(kind), tmp_path, kind, batch=8, compute_loss_func=loss)
    found, found_weights = train(make_model(kind), tmp_path, kind, batch=2, accumulate=4, compute_loss_func=loss)
    assert found == pytest.approx(losses, rel=1e-5)
    assert_same_weights(found_weights, weights, rtol=1e-4, atol=1e-6)


def test_accumulating_means_would_change_the_weights(tmp_path):
    """The test above can fail: this loss does not know the count of the whole step."""
    found = []
    for accumulate in (1, 4):

        def mean_loss(outputs, labels, num_items_in_batch, steps=accumulate):
            assert num_items_in_batch is not None
            return TrainerLoss(FocalLoss(gamma=2))(outputs, labels) / steps

        settings = {"batch": 8 // accumulate, "accumulate": accumulate, "compute_loss_func": mean_loss}
        found.append(train(make_model("token"), tmp_path, "token", **settings)[1])
    assert max(float((found[0][name] - found[1][name]).abs().max()) for name in found[0]) > 1e-3


def test_sixteen_bit_logits_are_widened():
    logits, labels = torch.randn(500, CLASSES).bfloat16(), torch.arange(500) % CLASSES
    loss = TrainerLoss(FocalLoss(gamma=2))({"logits": logits}, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, TrainerLoss(FocalLoss(gamma=2))({"logits": logits.float()}, labels))


def test_posterior_has_classes_last():
    logits = torch.randn(2, 3, 5)
    loss = TrainerLoss(FocalLoss(gamma=3, weight=torch.rand(5) + 0.5))
    expected = torch.stack([loss.criterion.posterior(row) for row in logits])
    torch.testing.assert_close(loss.posterior(logits), expected)
    torch.testing.assert_close(loss.posterior(logits[0, 0]), expected[0, 0])


def test_other_losses_of_refocal_fit():
    logits, labels = torch.randn(6, CLASSES), torch.arange(6) % CLASSES
    for criterion in (BrierLoss(), FocalLoss(FLSD53)):
        torch.testing.assert_close(TrainerLoss(criterion)({"logits": logits}, labels), criterion(logits, labels))


def test_a_schedule_follows_the_epochs_by_a_callback(tmp_path):
    """As docs/how-to/hugging-face.md shows it."""

    def losses_of(gamma, resumed=None):
        criterion = FocalLoss(gamma)

        class StepGamma(TrainerCallback):
            def on_train_begin(self, _args, state, *_, **__):
                criterion.gamma.resume(int(state.epoch or 0))

            def on_epoch_end(self, *_, **__):
                criterion.gamma.step_epoch()

        callbacks = [StepGamma()] if isinstance(gamma, Scheduled) else []
        settings = {"batch": 16, "steps": 3, "options": {"learning_rate": 0.0, "save_strategy": "epoch"}}
        loss = TrainerLoss(criterion)
        model = make_model("sequence")
        trainer = make_trainer(model, tmp_path, "sequence", compute_loss_func=loss, callbacks=callbacks, **settings)
        trainer.train(resume_from_checkpoint=resumed)
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    fixed = [losses_of(gamma)[0] for gamma in (5.0, 2.0, 0.0)]  # the weights do not change
    assert fixed[0] < fixed[1] < fixed[2]
    losses = losses_of(Scheduled((1, 2), (5.0, 2.0, 0.0)))
    assert losses == pytest.approx(fixed)
    for epochs in (1, 2):
        resumed = losses_of(Scheduled((1, 2), (5.0, 2.0, 0.0)), str(tmp_path / f"checkpoint-{epochs}"))
        assert resumed == pytest.approx(fixed)


# training from hidden states


@pytest.mark.parametrize("kind", WITHOUT_LOGITS)
@pytest.mark.parametrize("weighted", [False, True])
def test_without_logits_the_training_is_the_same(kind, weighted, tmp_path):
    weight = torch.linspace(0.5, 2.0, VOCABULARY) if weighted else None
    criterion = FocalLoss(gamma=2, weight=weight)
    model = make_model(kind)
    train_without_logits(model, criterion)
    settings = {"batch": 2, "accumulate": 4}
    losses, weights = train(model, tmp_path, kind, **settings)
    loss = TrainerLoss(criterion, shift_labels=True)
    expected, expected_weights = train(make_model(kind), tmp_path, kind, compute_loss_func=loss, **settings)
    assert losses == pytest.approx(expected, rel=1e-5)
    assert_same_weights(weights, expected_weights, rtol=1e-4, atol=1e-6)


def test_without_logits_autocast_works(tmp_path):
    runs = []
    for kind_of_loss in ("hidden", "logits"):
        model, settings = make_model("llama"), {"options": {"bf16": True}}
        if kind_of_loss == "hidden":
            train_without_logits(model, FocalLoss(gamma=2))
        else:
            settings["compute_loss_func"] = TrainerLoss(FocalLoss(gamma=2), shift_labels=True)
        runs.append(train(model, tmp_path, "llama", **settings)[0])
    assert runs[0] == pytest.approx(runs[1], rel=0.02)


@pytest.mark.parametrize("kind", WITHOUT_LOGITS)
def test_evaluation_has_logits_and_the_same_metrics(kind, tmp_path):
    criterion, found = FocalLoss(gamma=2), []
    for without_logits in (True, False):
        model, settings = make_model(kind), {}
        if without_logits:
            train_without_logits(model, criterion)
        else:
            settings["compute_loss_func"] = TrainerLoss(criterion, shift_labels=True)
        settings["compute_metrics"] = CalibrationMetrics(criterion, shift_labels=True)
        trainer = make_trainer(model, tmp_path, kind, **settings)
        found.append(trainer.evaluate(make_examples(kind, seed=1)))
        assert len(trainer.predict(make_examples(kind, seed=1)).predictions) == 16
    for name in found[1]:
        if name.startswith(("eval_loss", "eval_nll", "eval_brier", "eval_ece")):
            assert found[0][name] == pytest.approx(found[1][name], rel=0.01 if "ece" in name else 1e-5, abs=1e-6), name


def test_in_training_there_are_no_logits():
    model, batch = make_model("llama"), collate(make_examples("llama"))
    linear = train_without_logits(model, FocalLoss(gamma=2), chunk_bytes=1000)
    assert isinstance(linear, LinearFocalLoss)
    assert linear.layer_settings.chunk_bytes == 1000
    model.train()
    assert model(**batch).logits is None
    model.eval()
    logits = model(**batch).logits
    torch.testing.assert_close(logits, make_model("llama")(**batch).logits)
    assert model(**batch, skip_logits=True).logits is None
    assert model.train()(**batch, skip_logits=False).logits.shape == logits.shape


def test_a_head_may_have_a_bias():
    model, batch = make_model("llama"), collate(make_examples("llama"))
    model.lm_head = torch.nn.Linear(model.config.hidden_size, VOCABULARY)
    expected = model(**batch).loss
    train_without_logits(model, FocalLoss(gamma=0))
    torch.testing.assert_close(model(**batch).loss, expected)


def test_shifted_labels_are_taken_as_they_are():
    model, batch = make_model("llama"), collate(make_examples("llama"))
    train_without_logits(model, FocalLoss(gamma=2))
    shifted = F.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    torch.testing.assert_close(model(**inputs, shift_labels=shifted).loss, model(**batch).loss)


def test_the_model_stays_what_it_was_otherwise(tmp_path):
    model, batch = make_model("gpt2"), collate(make_examples("gpt2"))
    model.transformer.drop.train()  # one module in another mode than the rest
    plain, loss = copy.deepcopy(model), FocalLoss(gamma=2)
    train_without_logits(model, loss)
    assert model.transformer.drop.training
    assert not model.transformer.training
    assert inspect.signature(model.forward) == inspect.signature(plain.forward)  # Trainer drops other columns
    # without labels, in generation, saved and loaded
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    torch.testing.assert_close(model(**inputs).logits, plain(**inputs).logits)
    settings = {"max_new_tokens": 3, "do_sample": False}
    assert torch.equal(model.generate(**inputs, **settings), plain.generate(**inputs, **settings))
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    torch.testing.assert_close(loaded(**batch).loss, plain(**batch).loss)
    # a copy computes its own loss
    twin = copy.deepcopy(model)
    torch.nn.init.normal_(twin.transformer.wte.weight)
    expected = TrainerLoss(loss, shift_labels=True)(twin(**inputs), batch["labels"])
    torch.testing.assert_close(twin(**batch).loss, expected)
    assert abs(model(**batch).loss - expected) > 0.1


def test_a_second_call_sets_another_gamma():
    model, batch = make_model("llama"), collate(make_examples("llama"))
    train_without_logits(model, FocalLoss(gamma=2))
    train_without_logits(model, FocalLoss(gamma=0))
    torch.testing.assert_close(model(**batch).loss, make_model("llama")(**batch).loss)


def test_the_posterior_without_logits_is_that_of_the_logits():
    model, batch = make_model("gemma2"), collate(make_examples("gemma2"))
    criterion = FocalLoss(gamma=2)
    linear = train_without_logits(model, criterion)
    with torch.no_grad():
        hidden = model.base_model(batch["input_ids"]).last_hidden_state
        probs = TrainerLoss(criterion, shift_labels=True).posterior(model(batch["input_ids"]).logits)
    found = linear.posterior(hidden, model.lm_head.weight, top=3)
    torch.testing.assert_close(found.probs, probs.topk(3).values)


def test_two_processes_train_as_one(tmp_path, launch):
    """Each process has half of every batch, with another number of labels."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    surroundings = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    command = [sys.executable, str(Path(__file__).with_name("parallel_training.py")), str(tmp_path)]
    processes = [
        launch(
            command,
            env={**surroundings, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        for rank in "01"
    ]
    for process in processes:
        _, said = process.communicate()
        assert process.returncode == 0, said
    loss = TrainerLoss(FocalLoss(gamma=2), shift_labels=True)
    _, expected = train(make_model("llama"), tmp_path, "llama", batch=4, accumulate=2, compute_loss_func=loss)
    for door in ("logits", "hidden states"):
        assert_same_weights(torch.load(tmp_path / door), expected, rtol=1e-4, atol=1e-6)


# the metrics


def oracle(criterion, kind, logits, labels):
    """The measures of full matrices of probabilities."""
    rows = find_rows(kind, torch.as_tensor(logits), torch.as_tensor(labels))
    scores, truth = torch.stack([row for row, _ in rows]).double(), np.array([int(label) for _, label in rows])
    found = {}
    for name, probs in (("softmax", torch.softmax(scores, 1)), ("posterior", criterion.posterior(scores))):
        for measure in (metrics.nll, metrics.brier, metrics.ece):
            settings = {"debias": True} if measure is metrics.ece else {}
            value, low, high = metrics.interval(measure, probs.numpy(), truth, **settings)
            key = f"{measure.__name__}_{name}"
            found |= {key: value, f"{key}_low": low, f"{key}_high": high}
    return found


@pytest.mark.parametrize("kind", TASKS)
def test_trainer_logs_the_measures_of_softmax_and_posterior(kind, tmp_path):
    criterion = FocalLoss(gamma=2)
    shift = kind in CAUSAL
    found = []
    for options in ({}, {"batch_eval_metrics": True}, {"eval_do_concat_batches": False}):
        trainer = make_trainer(
            make_model(kind),
            tmp_path,
            kind,
            options={"per_device_eval_batch_size": 5, **options},
            compute_loss_func=TrainerLoss(criterion, shift_labels=shift),
            compute_metrics=CalibrationMetrics(criterion, shift_labels=shift),
        )
        trainer.evaluate(make_examples(kind, count=40, seed=1))
        found.append(trainer.state.log_history[-1])
    batch = collate(make_examples(kind, count=40, seed=1))
    with torch.no_grad():
        logits = make_model(kind)(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    expected = oracle(criterion, kind, logits, batch["labels"])
    assert len(expected) == 18
    for logged in found:
        values = {name: logged[f"eval_{name}"] for name in expected}
        assert values == {
            # the limits of ECE are simulated: on some processors, rounding moves them by a few simulated values
            name: pytest.approx(value, rel=0.02 if "ece" in name and name.endswith(("low", "high")) else 1e-5, abs=1e-6)
            for name, value in expected.items()
        }
        assert all(type(value) is float for value in values.values())


def test_measures_of_the_truth():
    """Scores of a network that has minimized the expected focal loss: the posterior is right and the softmax is not."""
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(3), size=20_000)
    labels = (rng.random((len(truth), 1)) > truth.cumsum(axis=1)).sum(axis=1)
    logits = np.log(minimizer(truth, gamma=3.0)).astype(np.float32)
    found = CalibrationMetrics(FocalLoss(gamma=3))(EvalPrediction(predictions=logits, label_ids=labels))
    assert found["ece_posterior_low"] == 0.0
    assert found["ece_posterior_high"] < 0.02
    assert found["ece_softmax_low"] > 0.1
    assert found["nll_posterior_high"] < found["nll_softmax_low"]
    assert found["brier_posterior_high"] < found["brier_softmax_low"]


def test_a_second_evaluation_starts_anew():
    measure = CalibrationMetrics(FocalLoss(gamma=2))
    rng = np.random.default_rng(0)
    data = [
        EvalPrediction(predictions=rng.normal(size=(50, 3)).astype(np.float32), label_ids=rng.integers(3, size=50))
        for _ in range(2)
    ]
    alone = measure(data[1])
    assert measure(data[0], compute_result=False) == {}
    assert measure(data[1], compute_result=True) != alone
    assert measure(data[1]) == alone


def test_predictions_may_begin_with_the_logits():
    logits, labels = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 3
    measure = CalibrationMetrics(FocalLoss(gamma=2))
    expected = measure(EvalPrediction(predictions=logits, label_ids=labels))
    assert measure(EvalPrediction(predictions=(logits, np.zeros((50, 7))), label_ids=labels)) == expected


def test_blocks_of_rows_change_nothing(monkeypatch):
    logits, labels = np.random.default_rng(0).normal(size=(50, 3)), np.arange(50) % 3
    measure = CalibrationMetrics(FocalLoss(gamma=2))
    expected = measure(EvalPrediction(predictions=logits, label_ids=labels))
    monkeypatch.setattr("refocal.integrations.transformers.metrics._BLOCK_ELEMENTS", 7)
    assert measure(EvalPrediction(predictions=logits, label_ids=labels)) == pytest.approx(expected, rel=1e-12)


def test_impossible_truths_have_infinite_nll():
    logits = np.array([[0.0, -np.inf], [1.0, 0.0], [0.0, 1.0]])
    found = CalibrationMetrics(FocalLoss(gamma=2))(EvalPrediction(predictions=logits, label_ids=np.array([1, 0, 1])))
    assert found["nll_softmax"] == found["nll_posterior"] == math.inf
    assert math.isfinite(found["brier_posterior"])


# wrong use


@pytest.mark.parametrize("owner", [TrainerLoss, CalibrationMetrics])
def test_unsuitable_criteria_are_rejected(owner):
    for wrong in (SigmoidFocalLoss(gamma=2), MMCELoss(2.0), torch.nn.CrossEntropyLoss(), 2.0):
        with pytest.raises(TypeError, match=rf"criterion must be a loss .* got {type(wrong).__name__}"):
            owner(wrong)
    with pytest.raises(ValueError, match="criterion must have ignore_index=-100, which Trainer does not count, got 0"):
        owner(FocalLoss(gamma=2, ignore_index=0))


def test_metrics_need_a_posterior():
    with pytest.raises(NoPosteriorError, match=r"fit refocal\.calibrators\.FocalTemperatureScaling"):
        CalibrationMetrics(FocalLoss(FLSD53))


def test_outputs_without_logits_are_rejected():
    outputs = CausalLMOutputWithPast(loss=torch.tensor(1.0), logits=None)
    with pytest.raises(ValueError, match=r"must hold logits, got the entries \['loss'\]: .* use_liger_kernel=True"):
        TrainerLoss(FocalLoss(gamma=2), shift_labels=True)(outputs, torch.zeros(1, 3, dtype=torch.long))


def test_labels_must_be_there():
    with pytest.raises(ValueError, match="labels must be a tensor, got None: the batch has no entry 'labels'"):
        TrainerLoss(FocalLoss(gamma=2))({"logits": torch.zeros(2, 3)}, None)


@pytest.mark.parametrize(
    ("logits", "labels", "shift", "message"),
    [
        (torch.zeros(2, 5, 3), torch.zeros(2).long(), False, r"labels must be class indices of shape \(2, 5\)"),
        (torch.zeros(2, 3), torch.zeros(2, 3), False, r"of shape \(2,\), .* got torch.float32 of shape \(2, 3\)"),
        (torch.zeros(2, 3), torch.zeros(2), False, r"labels must be class indices .* got torch.float32"),
        (torch.zeros(2, 1), torch.zeros(2).long(), False, r"two classes or more, got \(2, 1\)"),
        (torch.zeros(3), torch.tensor(0), False, r"logits must have the shape \(..., classes\) .* got \(3,\)"),
        (
            torch.zeros(2, 3),
            torch.zeros(2).long(),
            True,
            r"shift_labels=True needs logits \(batch, pos",
        ),
    ],
)
def test_wrong_shapes_are_rejected(logits, labels, shift, message):
    with pytest.raises(ValueError, match=message):
        TrainerLoss(FocalLoss(gamma=2), shift_labels=shift)({"logits": logits}, labels)
    with pytest.raises(ValueError, match=message):
        CalibrationMetrics(FocalLoss(gamma=2), shift_labels=shift)(
            EvalPrediction(predictions=logits.numpy(), label_ids=labels.numpy())
        )


def test_a_wrong_shift_is_noticed():
    labels, logits = torch.zeros(2, 4).long(), torch.zeros(2, 4, 3)
    with pytest.raises(ValueError, match=r"shift_labels must be True for .* CausalLMOutputWithPast"):
        TrainerLoss(FocalLoss(gamma=2))(CausalLMOutputWithPast(logits=logits), labels)
    for outputs in (TokenClassifierOutput(logits=logits), MaskedLMOutput(logits=logits)):
        with pytest.raises(ValueError, match=rf"shift_labels must be False for .* {type(outputs).__name__}"):
            TrainerLoss(FocalLoss(gamma=2), shift_labels=True)(outputs, labels)


def test_a_loss_of_experts_is_not_dropped():
    model, batch = make_model("mixtral"), collate(make_examples("mixtral"))
    with pytest.raises(ValueError, match=r"TrainerLoss does not add the model's own aux_loss, .*output_router_logits"):
        TrainerLoss(FocalLoss(gamma=2), shift_labels=True)(model(batch["input_ids"]), batch["labels"])
    with pytest.raises(ValueError, match=r"train_without_logits does not add the model's own aux_loss"):
        train_without_logits(model, FocalLoss(gamma=2))
    model.config.output_router_logits = False
    train_without_logits(model, FocalLoss(gamma=0))
    own = make_model("mixtral")
    own.config.output_router_logits = False
    torch.testing.assert_close(model(**batch).loss, own(**batch).loss)


def test_no_label_counts():
    measure = CalibrationMetrics(FocalLoss(gamma=2))
    with pytest.raises(ValueError, match="label_ids must have a label that counts, got only -100"):
        measure(EvalPrediction(predictions=np.zeros((2, 3)), label_ids=np.array([-100, -100])))


def test_models_that_change_their_logits_are_rejected():
    model = make_model("cohere")
    with pytest.raises(ValueError, match=r"logits of CohereForCausalLM are not the product .*: use TrainerLoss"):
        train_without_logits(model, FocalLoss(gamma=2))
    assert "forward" not in vars(model)


def test_other_models_and_losses_are_rejected_without_logits():
    with pytest.raises(TypeError, match="criterion must be a FocalLoss, got BrierLoss"):
        train_without_logits(make_model("llama"), BrierLoss())
    with pytest.raises(ValueError, match="criterion must have ignore_index=-100"):
        train_without_logits(make_model("llama"), FocalLoss(gamma=2, ignore_index=0))
    others = [make_model("token"), make_model("masked"), make_model("t5"), make_model("llama").model]
    for model in (*others, torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=rf"model must be a causal language model .* got {type(model).__name__}"):
            train_without_logits(model, FocalLoss(gamma=2))
    model = make_model("llama")
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(TypeError, match="must have a linear head, without an adapter on it, got Sequential"):
        train_without_logits(model, FocalLoss(gamma=2))


def test_an_adapter_on_the_head_is_noticed_later():
    model, batch = make_model("llama"), collate(make_examples("llama"))
    train_without_logits(model, FocalLoss(gamma=2))
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with pytest.raises(TypeError, match="without an adapter on it, got Sequential"):
        model(**batch)


def test_a_gamma_per_sample_needs_logits():
    with pytest.raises(TypeError, match=r"one gamma for all samples, got SampleWise.*: use TrainerLoss"):
        train_without_logits(make_model("llama"), FocalLoss(FLSD53))
    batch = collate(make_examples("llama"))
    model, schedule = make_model("llama"), FocalLoss(Scheduled((1,), (0.0, 5.0)))
    train_without_logits(model, schedule)
    torch.testing.assert_close(model(**batch).loss, make_model("llama")(**batch).loss)
    schedule.gamma.step_epoch()
    assert model(**batch).loss < make_model("llama")(**batch).loss


def test_without_transformers_the_error_names_the_extra():
    code = "import sys; sys.modules['transformers'] = None; import refocal.integrations.transformers"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 1
    message = "refocal.integrations.transformers needs transformers: pip install 'refocal[transformers]'"
    assert f"ModuleNotFoundError: {message}" in done.stderr
