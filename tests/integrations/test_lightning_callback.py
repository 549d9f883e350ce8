"""The Lightning callback in real trainings: its calibrator belongs to the weights of the checkpoint beside it."""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch

pytest.importorskip("lightning", reason="needs the extra lightning: `make test-integrations`")

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning_modules import TRAIN, VALID, Batches, Network, Worsening, draw, make_trainer
from sklearn.model_selection import KFold
from torch.multiprocessing import ProcessRaisedException
from typing_extensions import override

from refocal import metrics
from refocal.calibrators import FocalTemperatureScaling, HistogramBinning, TemperatureScaling, load
from refocal.integrations.lightning import CalibrationCallback, calibrator_path
from refocal.integrations.lightning.row_sample import RowSample
from refocal.losses import DualFocalLoss, FocalLoss, Scheduled, SigmoidFocalLoss

OTHER = draw(40, seed=2)
BEFORE_AND_AFTER = {f"calibration/{name}_{when}" for name in ("nll", "ece") for when in ("before", "after")}


def fit(trainer, model, valid=VALID, **settings):
    trainer.fit(model, Batches(TRAIN), None if valid is None else Batches(valid), **settings)


def compute_logits(checkpoint, data=VALID):
    """The logits of the weights in a checkpoint, computed without Lightning."""
    weights = torch.load(checkpoint, weights_only=False)["state_dict"]
    return (data[0] @ weights["layer.weight"].T + weights["layer.bias"]).numpy()


def assert_belongs(checkpoint, data=VALID, *, calibrator=None):
    """The calibrator beside a checkpoint is the one fitted to the logits of its weights."""
    expected = (calibrator or FocalTemperatureScaling(classes=3)).fit(compute_logits(checkpoint, data), data[1].numpy())
    found = load(calibrator_path(checkpoint))
    np.testing.assert_allclose(
        found.predict_proba(compute_logits(checkpoint)),
        expected.predict_proba(compute_logits(checkpoint)),
        atol=1e-4,
    )
    other = type(expected)(classes=3).fit(3 * compute_logits(checkpoint, data), data[1].numpy())
    assert np.abs(found.predict_proba([[1, 0, 0]]) - other.predict_proba([[1, 0, 0]])).max() > 0.01  # it can fail


# --- which weights


@pytest.mark.parametrize(
    ("saving", "training"),
    [
        ({"monitor": "val_loss"}, {}),
        ({"monitor": "val_loss", "filename": "best"}, {}),
        ({"monitor": "val_loss", "save_top_k": 2, "save_last": True}, {"inference_mode": False}),
        ({"monitor": "val_loss", "save_on_train_epoch_end": True}, {}),
        ({"monitor": "val_loss", "mode": "max"}, {}),
        ({"monitor": "calibration/nll_after"}, {"val_check_interval": 0.5}),
        ({}, {}),  # saves the last epoch
        ({"filename": "same"}, {"check_val_every_n_epoch": 2, "epochs": 4}),
        ({"every_n_train_steps": 6}, {}),  # saves before validation, after the same step
    ],
    ids=str,
)
@pytest.mark.parametrize("network", [Network, Worsening])
def test_the_calibrator_belongs_to_the_best_checkpoint(tmp_path, network, saving, training):
    checkpoint, callback = ModelCheckpoint(dirpath=tmp_path, **saving), CalibrationCallback()
    fit(make_trainer(tmp_path, callback, checkpoint=checkpoint, **training), network())
    assert callback.path_ == calibrator_path(checkpoint.best_model_path)
    assert_belongs(checkpoint.best_model_path)
    left = {calibrator_path(path) for path in tmp_path.glob("*.ckpt")}
    assert set(tmp_path.glob("*.json")) <= left  # none whose checkpoint was removed


def test_the_first_epoch_stays_the_best_if_training_makes_it_worse(tmp_path):
    """What the test above needs to tell the last weights from the best ones."""
    checkpoint = ModelCheckpoint(dirpath=tmp_path, monitor="val_loss")
    fit(make_trainer(tmp_path, checkpoint=checkpoint), Worsening())
    assert "epoch=0" in checkpoint.best_model_path


def test_a_best_checkpoint_that_was_not_validated_has_no_calibrator_until_it_is(tmp_path):
    checkpoint = ModelCheckpoint(dirpath=tmp_path, filename="same", every_n_train_steps=5)  # an epoch has six
    callback, model = CalibrationCallback(), Network()
    trainer = make_trainer(tmp_path, callback, checkpoint=checkpoint, epochs=2)
    with pytest.warns(UserWarning, match=r"no calibrator: the best checkpoint, .*same.ckpt, has weights that were not"):
        fit(trainer, model)
    assert callback.path_ is None
    assert list(tmp_path.glob("*.json")) == []
    trainer.validate(model, Batches(VALID), ckpt_path=checkpoint.best_model_path, verbose=False)
    assert callback.path_ == tmp_path / "same.calibrator.json"
    assert_belongs(checkpoint.best_model_path)


def test_an_overwritten_checkpoint_does_not_keep_the_calibrator_of_its_earlier_weights(tmp_path):
    checkpoint = ModelCheckpoint(dirpath=tmp_path, filename="same", every_n_train_steps=6)
    trainer = make_trainer(tmp_path, CalibrationCallback(), checkpoint=checkpoint, check_val_every_n_epoch=2, epochs=3)
    with pytest.warns(UserWarning, match="no calibrator"):
        fit(trainer, Network())  # saved after every epoch, validated after the second only
    assert list(tmp_path.glob("*.json")) == []


def test_validation_of_another_checkpoint_leaves_the_best_one_alone(tmp_path):
    checkpoint = ModelCheckpoint(dirpath=tmp_path, save_top_k=-1)
    callback, model = CalibrationCallback(), Network(rate=2.0)
    trainer = make_trainer(tmp_path, callback, checkpoint=checkpoint, epochs=2)
    fit(trainer, model)
    first, second = sorted(tmp_path.glob("*.ckpt"))
    calibrator_path(first).unlink()
    trainer.validate(model, Batches(VALID), ckpt_path=first, verbose=False)
    assert callback.path_ == calibrator_path(first)
    assert_belongs(first)
    assert_belongs(second)


def test_the_first_of_two_model_checkpoints_says_which_is_best(tmp_path):
    best = ModelCheckpoint(dirpath=tmp_path / "best", monitor="val_loss")
    every = ModelCheckpoint(dirpath=tmp_path / "every", every_n_train_steps=4, save_top_k=-1)
    fit(make_trainer(tmp_path, CalibrationCallback(), best, checkpoint=every), Worsening())
    assert_belongs(best.best_model_path)
    assert list((tmp_path / "every").glob("*.json")) == []


def test_without_checkpoints_the_calibrator_is_that_of_the_last_weights(tmp_path):
    callback, model = CalibrationCallback(), Network()
    fit(make_trainer(tmp_path, callback, checkpoint=False), model)
    with torch.no_grad():
        logits = model(VALID[0]).numpy()
    expected = FocalTemperatureScaling().fit(logits, VALID[1].numpy())
    assert callback.calibrator_.temperature_ == pytest.approx(expected.temperature_, rel=1e-3)
    assert callback.path_ is None
    assert list(tmp_path.rglob("*.json")) == []
    late = make_trainer(tmp_path, CalibrationCallback(), checkpoint=False, check_val_every_n_epoch=2)
    with pytest.warns(UserWarning, match=r"training ended with weights .* Run trainer.validate\(model\)"):
        fit(late, Network())
    fit(make_trainer(tmp_path, CalibrationCallback(), checkpoint=False, fast_dev_run=True), Network())


@pytest.mark.parametrize("network", [Network, Worsening])
def test_a_resumed_training_keeps_or_replaces_the_calibrator(tmp_path, network):
    saving = {"dirpath": tmp_path / "run", "monitor": "val_loss", "save_last": True}
    first = ModelCheckpoint(**saving)
    fit(make_trainer(tmp_path, CalibrationCallback(), checkpoint=first, epochs=1), network())
    before = calibrator_path(first.best_model_path)
    assert before.exists()
    again, callback = ModelCheckpoint(**saving), CalibrationCallback()
    with pytest.warns(UserWarning, match="exists and is not empty"):
        fit(
            make_trainer(tmp_path, callback, checkpoint=again, epochs=3),
            network(),
            ckpt_path=first.last_model_path,
            weights_only=False,
        )
    assert callback.path_ == calibrator_path(again.best_model_path)
    assert_belongs(again.best_model_path)
    assert before.exists() == (network is Worsening)  # the better checkpoint replaced it otherwise
    assert len(list((tmp_path / "run").glob("*.json"))) == 1


# --- what is logged


def cross_fit(calibrator, logits, labels):
    """Log-probabilities by fits to other folds."""
    found = np.empty(logits.shape)
    for others, held_out in KFold(5, shuffle=True, random_state=0).split(logits):
        found[held_out] = calibrator.fit(logits[others], labels[others]).predict_log_proba(logits[held_out])
    return found


def read_log(logger):
    """The rows of the log that have measures of calibration."""
    with open(f"{logger.log_dir}/metrics.csv", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["calibration/nll_after"]]


def test_measures_are_logged_at_each_validation(tmp_path):
    criterion, checkpoint = FocalLoss(gamma=2.0), ModelCheckpoint(dirpath=tmp_path / "run")
    callback = CalibrationCallback(HistogramBinning(), criterion=criterion)
    logger = CSVLogger(tmp_path)
    trainer = make_trainer(tmp_path, callback, checkpoint=checkpoint, logger=logger)
    fit(trainer, Network())
    logits, labels = compute_logits(checkpoint.best_model_path), VALID[1].numpy()
    after = cross_fit(HistogramBinning(classes=3), logits, labels)
    posterior = criterion.posterior(torch.tensor(logits))
    expected = {
        "nll_before": torch.nn.functional.cross_entropy(torch.tensor(logits), VALID[1]).item(),
        "ece_before": metrics.ece(logits, labels, input="logits"),
        "nll_after": -after[np.arange(60), labels].mean(),
        "ece_after": metrics.ece(np.exp(after), labels),
        "nll_posterior": -posterior[torch.arange(60), VALID[1]].log().mean().item(),
        "ece_posterior": metrics.ece(posterior, labels),
    }
    found = {name: trainer.callback_metrics[f"calibration/{name}"].item() for name in expected}
    assert found == pytest.approx(expected, rel=1e-4)
    assert found["nll_posterior"] != pytest.approx(found["nll_before"], rel=1e-2)
    rows = read_log(logger)
    assert len(rows) == 3  # one per validation
    assert float(rows[-1]["calibration/ece_posterior"]) == pytest.approx(expected["ece_posterior"], rel=1e-4)


class Focusing(Network):
    """Trained with focal loss whose gamma is 0 after the first epoch."""

    def __init__(self):
        super().__init__()
        self.criterion = FocalLoss(Scheduled((1,), (3.0, 0.0)))

    def on_train_epoch_end(self):
        self.criterion.gamma.step_epoch()


def test_the_posterior_is_that_of_the_present_gamma(tmp_path):
    model, logger = Focusing(), CSVLogger(tmp_path)
    checkpoint = ModelCheckpoint(dirpath=tmp_path / "run")
    trainer = make_trainer(
        tmp_path, CalibrationCallback(criterion=model.criterion), checkpoint=checkpoint, logger=logger
    )
    fit(trainer, model)
    first, *_, last = read_log(logger)
    assert float(first["calibration/nll_posterior"]) != pytest.approx(float(first["calibration/nll_before"]), rel=1e-2)
    assert float(last["calibration/nll_posterior"]) == pytest.approx(float(last["calibration/nll_before"]), rel=1e-5)


def test_in_sample_numbers_would_be_better():
    """A calibrator with many parameters looks better on the rows that it was fitted to: hence the cross-fitting."""
    logits, labels = 0.1 * np.random.default_rng(0).standard_normal((60, 3)), VALID[1].numpy()
    after = cross_fit(HistogramBinning(classes=3), logits, labels)
    own = HistogramBinning(classes=3).fit(logits, labels).predict_proba(logits)
    assert metrics.nll(own, labels) < metrics.nll(np.exp(after), labels) - 0.05


def test_no_posterior_is_logged_without_a_criterion(tmp_path):
    trainer = make_trainer(tmp_path, CalibrationCallback())
    fit(trainer, Network())
    assert {name for name in trainer.callback_metrics if name.startswith("calibration/")} == BEFORE_AND_AFTER


AT_BOUND = "the calibrator ended at a bound, T = .*: the validation rows do not determine it, so it is not written"


@pytest.mark.parametrize("calibrator", [TemperatureScaling(), FocalTemperatureScaling()], ids=str)
def test_rows_that_do_not_determine_a_calibrator_leave_no_file(tmp_path, calibrator):
    easy = TRAIN[0], TRAIN[0][:, :3].argmax(dim=1)
    right = easy[0][::8] + 3 * torch.eye(4)[easy[1][::8]], easy[1][::8]  # far from all boundaries
    callback, model, checkpoint = CalibrationCallback(calibrator), Network(), ModelCheckpoint(dirpath=tmp_path)
    trainer = make_trainer(tmp_path, callback, checkpoint=checkpoint, epochs=2)
    with pytest.warns(UserWarning, match=AT_BOUND) as found:
        trainer.fit(model, Batches(easy), Batches(right))
    assert not [each for each in found if "no calibrator" in str(each.message)]  # one warning is enough
    assert callback.calibrator_.at_bound_
    assert callback.path_ is None
    with pytest.warns(UserWarning, match=AT_BOUND):
        trainer.validate(model, Batches(right), ckpt_path=checkpoint.best_model_path, verbose=False)
    assert callback.path_ is None
    assert list(tmp_path.glob("*.json")) == []
    trainer.validate(model, Batches(VALID), ckpt_path=checkpoint.best_model_path, verbose=False)
    assert callback.path_ == calibrator_path(checkpoint.best_model_path)


# --- what is collected


@pytest.mark.parametrize(
    ("returns", "collect"),
    [
        ("tuple", None),
        ("other", lambda outputs, batch: (outputs["preds"], batch[1])),
        ("other", lambda outputs, batch: (outputs["preds"].double(), batch[1][:, None].float())),
    ],
)
def test_ways_to_give_logits_and_labels(tmp_path, returns, collect):
    checkpoint = ModelCheckpoint(dirpath=tmp_path)
    fit(make_trainer(tmp_path, CalibrationCallback(collect=collect), checkpoint=checkpoint), Network(returns))
    assert_belongs(checkpoint.best_model_path)


@pytest.mark.parametrize(
    ("returns", "collect", "message"),
    [
        ("nothing", None, "validation_step must return .*; or pass collect=; got NoneType"),
        ("loss", None, "or pass collect=; got Tensor"),
        ("other", None, r"got the keys \['preds'\]"),
        ("tuple", lambda outputs, _: outputs[0], "logits and labels must be a tuple of two tensors, got Tensor"),
        ("tuple", lambda outputs, _: (outputs[0].numpy(), outputs[1]), "a tuple of two tensors, got tuple"),
        ("tuple", lambda outputs, _: outputs[::-1], r"labels \(N,\), got \(16,\) and \(16, 3\)"),
        ("tuple", lambda outputs, _: (outputs[0][:, :, None], outputs[1]), r"got \(16, 3, 1\) and \(16,\)"),
        (
            "tuple",
            lambda outputs, _: (outputs[0], outputs[1] + 1),
            r"labels must lie in \[0, 3\), got 3: leave",
        ),
        ("tuple", lambda outputs, _: (outputs[0], outputs[1] - 102), r"lie in \[0, 3\), got -10\d: leave .* collect="),
        ("tuple", lambda outputs, _: (outputs[0][:, 0], outputs[1] + 1), r"labels must lie in \[0, 2\), got [23]"),
        ("tuple", lambda outputs, _: (torch.nan * outputs[0], outputs[1]), "logits must be finite, or -inf .* got nan"),
        ("tuple", lambda outputs, _: (outputs[0].abs() / 0, outputs[1]), "logits must be finite, or -inf .* got inf"),
        ("tuple", lambda outputs, _: (outputs[0], outputs[1] + 0.5), "class indices, got torch.float32 with fractions"),
    ],
)
def test_wrong_outputs_are_rejected_before_training(tmp_path, returns, collect, message):
    trainer = make_trainer(tmp_path, CalibrationCallback(collect=collect))
    with pytest.raises((TypeError, ValueError), match=message):
        fit(trainer, Network(returns))
    assert trainer.global_step == 0


@pytest.mark.parametrize(
    ("collect", "message"),
    [
        (lambda outputs, _: (outputs["logits"].softmax(1), outputs["labels"]), "scores look like probabilities"),
        (lambda outputs, _: (outputs["logits"][:0], outputs["labels"][:0]), "at least 2 validation rows, got 0"),
        (
            lambda outputs, _: (outputs["logits"][:, : len(outputs["labels"]) // 5], outputs["labels"].clamp(max=1)),
            "all batches must have 3 classes, got 2",  # the last batch has 12 rows
        ),
    ],
)
def test_wrong_values_are_rejected_at_the_first_validation(tmp_path, collect, message):
    with pytest.raises(ValueError, match=message):
        fit(make_trainer(tmp_path, CalibrationCallback(collect=collect)), Network())


def test_probabilities_if_the_calibrator_takes_them(tmp_path):
    callback = CalibrationCallback(
        TemperatureScaling(input="probs"), collect=lambda outputs, _: (outputs["logits"].softmax(1), outputs["labels"])
    )
    checkpoint = ModelCheckpoint(dirpath=tmp_path)
    trainer = make_trainer(tmp_path, callback, checkpoint=checkpoint)
    fit(trainer, Network())
    logits = compute_logits(checkpoint.best_model_path)
    expected = TemperatureScaling().fit(logits, VALID[1].numpy())
    assert callback.calibrator_.temperature_ == pytest.approx(expected.temperature_, rel=1e-4)
    before = metrics.nll(logits, VALID[1], input="logits")
    assert trainer.callback_metrics["calibration/nll_before"].item() == pytest.approx(before, rel=1e-4)


class Detector(Network):
    """One log-odds per row; labels are those of class 1."""

    def __init__(self):
        super().__init__("tuple", outputs=1)
        self.criterion = SigmoidFocalLoss(gamma=2.0, alpha=0.25)

    def training_step(self, batch):
        return self.criterion(self(batch[0])[:, 0], (batch[1] == 1).float())


@pytest.mark.parametrize("squeeze", [True, False])
def test_one_column_is_the_log_odds_of_two_classes(tmp_path, squeeze):
    def collect(outputs, _):
        logits, labels = outputs
        return (logits[:, 0] if squeeze else logits), (labels == 1).float()

    model = Detector()
    callback = CalibrationCallback(TemperatureScaling(), collect=collect, criterion=model.criterion)
    checkpoint = ModelCheckpoint(dirpath=tmp_path)
    trainer = make_trainer(tmp_path, callback, checkpoint=checkpoint)
    fit(trainer, model)
    log_odds, labels = compute_logits(checkpoint.best_model_path)[:, 0], (VALID[1] == 1).numpy().astype(int)
    expected = TemperatureScaling().fit(log_odds, labels)
    assert callback.calibrator_.temperature_ == pytest.approx(expected.temperature_, rel=1e-4)
    before = metrics.nll(log_odds, labels, input="logits", task="binary")
    posterior = model.criterion.posterior(torch.tensor(log_odds))
    after = metrics.nll(posterior, labels, task="binary")
    found = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert found["calibration/nll_before"] == pytest.approx(before, rel=1e-4)
    assert found["calibration/nll_posterior"] == pytest.approx(after, rel=1e-4)


def test_a_missing_class_is_still_a_column(tmp_path):
    two = tuple(values[VALID[1] < 2] for values in VALID)
    checkpoint = ModelCheckpoint(dirpath=tmp_path)
    fit(make_trainer(tmp_path, CalibrationCallback(), checkpoint=checkpoint), Network(), two)
    assert_belongs(checkpoint.best_model_path, two)


def test_one_dataloader_of_several_is_chosen(tmp_path):
    loaders = [Batches(VALID), Batches(OTHER)]
    for dataloader, message in ((None, "one of the 2 validation dataloaders, from 0, got None"), (2, "from 0, got 2")):
        trainer = make_trainer(tmp_path, CalibrationCallback(dataloader=dataloader))
        with pytest.raises(ValueError, match=message):
            trainer.fit(Network(), Batches(TRAIN), loaders)
        assert trainer.global_step == 0
    checkpoint = ModelCheckpoint(dirpath=tmp_path)
    trainer = make_trainer(tmp_path, CalibrationCallback(dataloader=1), checkpoint=checkpoint)
    trainer.fit(Network(), Batches(TRAIN), CombinedLoader({"valid": loaders[0], "other": loaders[1]}, "sequential"))
    assert_belongs(checkpoint.best_model_path, OTHER)


def test_of_many_rows_a_sample_is_kept(tmp_path):
    checkpoint = ModelCheckpoint(dirpath=tmp_path)
    callback = CalibrationCallback(TemperatureScaling(), max_rows=30, seed=5)
    fit(make_trainer(tmp_path, callback, checkpoint=checkpoint), Network())
    logits, labels = compute_logits(checkpoint.best_model_path), VALID[1].numpy()
    sample = RowSample(30, seed=[5, 0])
    sample.add(logits, labels)
    rows = sample.collect()
    assert len(rows.labels) == 30
    expected = TemperatureScaling(classes=3).fit(rows.scores, rows.labels)
    assert callback.calibrator_.temperature_ == pytest.approx(expected.temperature_, rel=1e-4)
    assert expected.temperature_ != pytest.approx(TemperatureScaling().fit(logits, labels).temperature_, rel=1e-2)


def test_trainings_without_validation_or_local_checkpoints_are_rejected(tmp_path):
    needed = "CalibrationCallback needs validation data"
    no_batches = make_trainer(tmp_path, CalibrationCallback(), checkpoint=False, limit_val_batches=0)
    with pytest.raises(ValueError, match=needed):
        fit(no_batches, Network())
    no_loader = make_trainer(tmp_path, CalibrationCallback(), checkpoint=False)
    with pytest.raises(ValueError, match=needed), pytest.warns(UserWarning, match="have no `val_dataloader`"):
        fit(no_loader, Network(), None)
    remote = make_trainer(tmp_path, CalibrationCallback(), checkpoint=ModelCheckpoint(dirpath="memory://runs"))
    with pytest.raises(ValueError, match=r"local checkpoints only, got ModelCheckpoint\(dirpath='memory://runs'\)"):
        fit(remote, Network())
    late = make_trainer(tmp_path, CalibrationCallback(), plugins=[AsyncCheckpointIO()])
    with pytest.raises(ValueError, match="complete before training continues, got AsyncCheckpointIO"):
        fit(late, Network())


def test_checkpoints_at_an_address_are_rejected_by_validation(tmp_path):
    checkpoint, model = ModelCheckpoint(dirpath=tmp_path), Network()
    trainer = make_trainer(tmp_path, CalibrationCallback(), checkpoint=checkpoint, epochs=1)
    fit(trainer, model)
    with pytest.raises(ValueError, match=r"local checkpoints only, got ckpt_path='file://"):
        trainer.validate(model, Batches(VALID), ckpt_path=f"file://{checkpoint.best_model_path}", verbose=False)


def test_a_second_callback_is_rejected(tmp_path):
    trainer = make_trainer(tmp_path, CalibrationCallback(), CalibrationCallback(TemperatureScaling()))
    with pytest.raises(ValueError, match=r"a trainer takes one CalibrationCallback: .* got 2"):
        fit(trainer, Network())
    with pytest.raises(ValueError, match=r"a trainer takes one CalibrationCallback: .* got 2"):
        trainer.validate(Network(), Batches(VALID), verbose=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"calibrator": "temperature"}, "calibrator must be a calibrator of refocal.calibrators, got 'temperature'"),
        ({"collect": 1}, "collect must be a function of outputs and batch, got 1"),
        (
            {"criterion": torch.nn.CrossEntropyLoss()},
            r"criterion must be a loss of refocal.losses, got CrossEntropyLoss",
        ),
        ({"criterion": DualFocalLoss(gamma=2.0)}, "posterior"),
        (
            {"criterion": FocalLoss(2.0), "calibrator": TemperatureScaling(input="probs")},
            "calibrator has input='probs'",
        ),
        ({"dataloader": -1}, "dataloader must be at least 0, got -1"),
        ({"max_rows": 1}, "max_rows must be at least 2, got 1"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_wrong_settings_are_rejected(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        CalibrationCallback(**settings)


# --- several processes


class Shares(Network):
    """Each process has a share of the rows, of different sizes; in the second epoch the logits are probabilities."""

    def _share(self, data, sizes):
        start = sum(sizes[: self.global_rank])
        return Batches(tuple(values[start : start + sizes[self.global_rank]] for values in data))

    def train_dataloader(self):
        return self._share(TRAIN, (48, 48))

    def val_dataloader(self):
        return self._share(VALID, (44, 16))

    @override
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        outputs = super().validation_step(batch, batch_idx)
        return outputs | {"logits": outputs["logits"].softmax(1)} if self.current_epoch else outputs


def test_two_processes_share_their_rows_and_their_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # PyTorch leaves files of errors
    logger, checkpoint = CSVLogger(tmp_path, version=0, flush_logs_every_n_steps=1), ModelCheckpoint(dirpath=tmp_path)
    several = {"devices": 2, "strategy": "ddp_spawn", "num_sanity_val_steps": 0, "logger": logger}
    trainer = make_trainer(tmp_path, CalibrationCallback(), checkpoint=checkpoint, **several)
    with pytest.raises(ProcessRaisedException, match="scores look like probabilities"):
        trainer.fit(Shares())
    (saved,) = tmp_path.glob("*.ckpt")
    assert_belongs(saved)  # to the rows of both processes
    expected = metrics.nll(compute_logits(saved), VALID[1], input="logits")
    assert [float(row["calibration/nll_before"]) for row in read_log(logger)] == pytest.approx([expected], rel=1e-4)


# --- the package


def test_without_lightning_the_error_names_the_extra():
    code = "import sys; sys.modules['lightning'] = None; import refocal.integrations.lightning"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, encoding="utf-8")
    message = "refocal.integrations.lightning needs lightning: pip install 'refocal[lightning]'"
    assert done.returncode == 1
    assert f"ModuleNotFoundError: {message}" in done.stderr
