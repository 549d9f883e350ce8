"""The callback: it collects validation rows, fits and measures a calibrator, and saves it with the best weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override  # torch requires it

from refocal import _check
from refocal.calibrators import Calibrator, FocalTemperatureScaling, TemperatureScaling
from refocal.integrations.lightning.checkpoint_files import CheckpointFiles, calibrator_path
from refocal.integrations.lightning.held_out_measures import fit_and_measure, measure
from refocal.integrations.lightning.row_sample import Rows, RowSample, choose

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from refocal.losses.base import AbstractLoss

Collect = Callable[[Any, Any], tuple[Tensor, Tensor]]

_PREFIX = "calibration/"
_RETURN = "validation_step must return {'logits': ..., 'labels': ...} or (logits, labels); or pass collect="


class CalibrationCallback(Callback):
    """Measure calibration at every validation, and leave a calibrator beside the best checkpoint.

    Choose it to get calibrated probabilities from a Lightning training without a second program.

    After each validation epoch a calibrator is fitted to the validation logits, so it always belongs to the weights
    that were validated. NLL and ECE are logged as `calibration/nll_before`, `calibration/nll_after`,
    `calibration/ece_before` and `calibration/ece_after`; "before" is the softmax. The values after calibration are
    measured by cross-fitting in 5 folds: each row by a fit to other rows. All can be monitored by `ModelCheckpoint` or
    `EarlyStopping`.

    If the weights that were validated are saved as the best checkpoint of the first `ModelCheckpoint`, the calibrator
    is written beside it, at `calibrator_path(checkpoint)`. It is removed when its checkpoint is removed. After
    `trainer.validate(model, ckpt_path=...)` it is written beside that checkpoint.

    A calibrator that ends at a bound, because the network got all validation rows right, is not written, and there is
    a warning.

    Memory: during a validation epoch each process keeps rows on the CPU in float32, `max_rows` at most and up to 25%
    more while rows arrive. If there are more rows, a uniform random sample is kept.

    Args:
        calibrator: An unfitted calibrator of `refocal.calibrators`; it is copied. None for
            `FocalTemperatureScaling()`.
        collect: Function of what `validation_step` returned and of the batch, which returns logits (N, K) and class
            indices (N,). Log-odds (N,) or (N, 1) are for two classes. None if `validation_step` returns these two, as a
            tuple or as a dictionary with the keys "logits" and "labels".
        criterion: The loss of `refocal.losses` that trains the network. If given, `calibration/nll_posterior` and
            `calibration/ece_posterior` are logged too, of `criterion.posterior(logits)`.
        dataloader: The number of the validation dataloader to use. None if there is only one.
        max_rows: The largest number of validation rows to fit to. All processes together send no more than these.
        seed: Seed of the sample and of the folds.

    Attributes:
        calibrator_: The calibrator of the weights that were validated last; None before that.
        path_: The file of the calibrator beside the best checkpoint or, after `trainer.validate`, beside the validated
            one. None if there is none, and in all processes but the first.

    Example:
        >>> from refocal.calibrators import TemperatureScaling
        >>> callback = CalibrationCallback(TemperatureScaling(), max_rows=10_000)
        >>> callback.calibrator_ is None
        True
    """

    def __init__(
        self,
        calibrator: Calibrator | None = None,
        *,
        collect: Collect | None = None,
        criterion: AbstractLoss | None = None,
        dataloader: int | None = None,
        max_rows: int = 20_000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.calibrator = FocalTemperatureScaling() if calibrator is None else _check_calibrator(calibrator)
        self.collect = _take_returned if collect is None else _check_collect(collect)
        self.criterion = None if criterion is None else _check_criterion(criterion, self.calibrator)
        self.dataloader = None if dataloader is None else _check.count(dataloader, "dataloader", least=0)
        self.max_rows = _check.count(max_rows, "max_rows", least=2)
        self.seed = _check.seed(seed, "seed")
        self.calibrator_: Calibrator | None = None
        self.path_: Path | None = None
        self._sample: RowSample | None = None
        self._validated_step: int | None = None
        self._steps_at_bound: set[int] = set()  # whose rows did not determine a calibrator
        self._files: CheckpointFiles | None = None

    # --- collecting

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that there will be validation, and that checkpoints are local files, written at once."""
        _check_alone(trainer)
        if not trainer.enable_validation:
            msg = (
                "CalibrationCallback needs validation data: pass val_dataloaders to fit, define validation_step, and "
                f"leave limit_val_batches above 0, got limit_val_batches={trainer.limit_val_batches}"
            )
            raise ValueError(msg)
        folder = getattr(trainer.checkpoint_callback, "dirpath", None)
        if "://" in str(folder):
            msg = f"CalibrationCallback writes beside local checkpoints only, got ModelCheckpoint(dirpath={folder!r})"
            raise ValueError(msg)
        if isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            needed = "checkpoints that are complete before training continues"
            msg = f"CalibrationCallback needs {needed}, got AsyncCheckpointIO"
            raise ValueError(msg)
        self._validated_step = self.path_ = None
        self._steps_at_bound = set()
        self._files = CheckpointFiles(trainer) if trainer.is_global_zero else None

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check the choice of a dataloader and, outside `fit`, of a checkpoint; then begin a new sample."""
        if trainer.state.fn == "validate":
            _check_alone(trainer)
            if "://" in str(trainer.ckpt_path):
                msg = f"CalibrationCallback writes beside local checkpoints only, got ckpt_path={trainer.ckpt_path!r}"
                raise ValueError(msg)
        self._look_for_checkpoint(trainer)
        loaders = len(trainer.num_val_batches)
        if (self.dataloader or 0) >= loaders or (self.dataloader is None and loaders > 1):
            msg = f"dataloader must be one of the {loaders} validation dataloaders, from 0, got {self.dataloader}"
            raise ValueError(msg)
        self._sample = RowSample(self.max_rows, seed=[self.seed, trainer.global_rank])

    @override
    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the rows of a batch. Those of the sanity check are only checked."""
        if dataloader_idx != (self.dataloader or 0) or self._sample is None:
            return
        logits, labels = _read_rows(self.collect(outputs, batch))
        if not trainer.sanity_checking:
            self._sample.add(logits, labels)

    # --- fitting

    @override
    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Fit the calibrator to the rows of all processes, and log its measures."""
        if trainer.sanity_checking or self._sample is None:
            return
        rows = _gather(self._sample.collect(), limit=self.max_rows, device=pl_module.device, world=trainer.world_size)
        self._sample = None
        # One process computes. All learn of its error, so that none waits for it.
        found: Any = self._try_to_fit(rows) if trainer.is_global_zero else None
        found = trainer.strategy.broadcast(found)
        if isinstance(found, Exception):
            raise found
        self.calibrator_, measures = found
        if _is_at_bound(self.calibrator_):
            self._steps_at_bound.add(trainer.global_step)
            rank_zero_warn(
                f"the calibrator ended at a bound, T = {self.calibrator_.temperature_:.3g}: the validation rows do not "
                "determine it, so it is not written"
            )
        self._validated_step = trainer.global_step if trainer.state.fn == "fit" else None
        values = {_PREFIX + name: value for name, value in measures.items()}
        pl_module.log_dict(values, on_step=False, on_epoch=True, batch_size=1, sync_dist=trainer.world_size > 1)
        self._write_beside_best()  # a checkpoint that was saved just before this validation

    def _try_to_fit(self, rows: Rows) -> tuple[Calibrator, dict[str, float]] | Exception:
        try:
            if len(rows.labels) < 2:
                msg = f"CalibrationCallback needs at least 2 validation rows, got {len(rows.labels)}"
                raise ValueError(msg)
            fitted, measures = fit_and_measure(self.calibrator, rows.scores, rows.labels, seed=self.seed)
            if self.criterion is not None:  # whose gamma may have changed since the last validation
                probs = self.criterion.posterior(torch.from_numpy(rows.scores).double()).numpy()
                probs = np.hstack([1 - probs, probs]) if probs.shape[1] == 1 else probs
                measures |= measure(probs, rows.labels, "posterior", input="probs")
        except Exception as error:
            return error
        return fitted, measures

    # --- checkpoints

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """After `trainer.validate(model, ckpt_path=...)`, write the calibrator beside that checkpoint."""
        checkpoint = trainer.ckpt_path if trainer.state.fn == "validate" else None
        if checkpoint is None or self.calibrator_ is None or not trainer.is_global_zero:
            return
        if _is_at_bound(self.calibrator_):
            self.path_ = None
        else:
            self.path_ = calibrator_path(checkpoint)
            self.calibrator_.save(self.path_, overwrite=True)

    @override
    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Note that a checkpoint is being saved."""
        if self._files is not None:
            self._files.expect()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Before the weights change, see whether they were saved as the best."""
        self._look_for_checkpoint(trainer)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """See whether the last weights were saved as the best."""
        self._look_for_checkpoint(trainer)

    @override
    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warn if the weights that users will take were never validated: the best ones, or those in memory."""
        if not trainer.is_global_zero:
            return
        best = getattr(trainer.checkpoint_callback, "best_model_path", "")
        if best:
            path = calibrator_path(best)
            self.path_ = path if path.exists() else None
            what, argument = f"the best checkpoint, {best}, has", f", ckpt_path={best!r}"
        else:
            what, argument = "training ended with", ""
        if self.path_ is not None or (not best and self._validated_step == trainer.global_step):
            return
        if best and self._files is not None and self._files.best_step in self._steps_at_bound:
            return  # there was a warning
        rank_zero_warn(
            f"no calibrator: {what} weights that were not validated. "
            f"Run trainer.validate(model{argument}), with CalibrationCallback, to get one"
        )

    def _look_for_checkpoint(self, trainer: Trainer) -> None:
        if self._files is not None and self._files.look(trainer):
            self._write_beside_best()

    def _write_beside_best(self) -> None:
        if _is_at_bound(self.calibrator_):
            return
        if self._files is not None and self.calibrator_ is not None and self._validated_step is not None:
            self.path_ = self._files.write(self.calibrator_, self._validated_step) or self.path_


def _is_at_bound(calibrator: Calibrator | None) -> TypeGuard[TemperatureScaling | FocalTemperatureScaling]:
    """Return whether a fit ended at a bound: the rows did not determine it."""
    return isinstance(calibrator, (TemperatureScaling, FocalTemperatureScaling)) and calibrator.at_bound_


def _check_alone(trainer: Any) -> None:
    """Reject a second callback, which would log the same names and write the same file."""
    count = sum(isinstance(each, CalibrationCallback) for each in trainer.callbacks)
    if count > 1:
        msg = f"a trainer takes one CalibrationCallback: two log the same names and write the same file, got {count}"
        raise ValueError(msg)


def _check_calibrator(value: Any) -> Calibrator:
    if not isinstance(value, Calibrator):
        msg = f"calibrator must be a calibrator of refocal.calibrators, got {value!r}"
        raise TypeError(msg)
    return value


def _check_collect(value: Any) -> Collect:
    if not callable(value):
        msg = f"collect must be a function of outputs and batch, got {value!r}"
        raise TypeError(msg)
    return cast("Collect", value)


def _check_criterion(value: Any, calibrator: Calibrator) -> AbstractLoss:
    """Check that a loss has a posterior map, in closed form, and that there are logits to map."""
    if not hasattr(value, "posterior_map"):  # raises NoPosteriorError if it is not in closed form
        msg = f"criterion must be a loss of refocal.losses, got {value!r}"
        raise TypeError(msg)
    if calibrator.input_ != "logits":
        msg = f"criterion maps logits to probabilities, but the calibrator has input={calibrator.input_!r}"
        raise ValueError(msg)
    return cast("AbstractLoss", value)


def _take_returned(outputs: Any, batch: Any) -> Any:  # noqa: ARG001
    """Take logits and labels from what `validation_step` returned."""
    if isinstance(outputs, Mapping):
        if not {"logits", "labels"} <= outputs.keys():
            msg = f"{_RETURN}; got the keys {sorted(outputs)}"
            raise ValueError(msg)
        return outputs["logits"], outputs["labels"]
    if not isinstance(outputs, tuple):
        msg = f"{_RETURN}; got {type(outputs).__name__}"
        raise TypeError(msg)
    return outputs


def _read_rows(pair: Any) -> tuple[np.ndarray, np.ndarray]:
    """Check logits and labels of a batch; return scores (N, K) in float32 and class indices (N,)."""
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(each, Tensor) for each in pair):
        msg = f"logits and labels must be a tuple of two tensors, got {type(pair).__name__}"
        raise TypeError(msg)
    logits, labels = pair
    if logits.ndim not in (1, 2) or labels.shape not in (logits.shape[:1], (len(logits), 1)):
        shapes = f"{tuple(logits.shape)} and {tuple(labels.shape)}"
        msg = f"logits must have shape (N, K), or (N,) for two classes, and labels (N,), got {shapes}"
        raise ValueError(msg)
    scores = logits.detach().to("cpu", torch.float32, copy=True)
    indices = labels.detach().to("cpu", torch.int64).flatten()
    if not torch.equal(indices, labels.detach().cpu().flatten()):
        msg = f"labels must be class indices, got {labels.dtype} with fractions"
        raise ValueError(msg)
    scores = scores.reshape(len(indices), *(logits.shape[1:] or (1,)))
    _check_values(scores, indices)
    return scores.numpy(), indices.numpy()


def _check_values(scores: Tensor, labels: Tensor) -> None:
    """Reject what would stop the fit only after a validation epoch."""
    classes = max(2, scores.shape[1])
    outside = labels[(labels < 0) | (labels >= classes)]
    if len(outside):
        msg = f"labels must lie in [0, {classes}), got {int(outside[0])}: leave such rows out with collect="
        raise ValueError(msg)
    bad = scores[~(scores < torch.inf)]  # NaN, too
    if len(bad):
        msg = f"logits must be finite, or -inf for masked classes, got {float(bad[0])}"
        raise ValueError(msg)


def _gather(rows: Rows, *, limit: int, device: torch.device, world: int) -> Rows:
    """Join the rows of all processes, `limit` at most. Numbers travel first, so that no more rows than that have to."""
    if world == 1:
        return rows
    from torchmetrics.utilities.distributed import gather_all_tensors  # Lightning requires torchmetrics

    def join(values: np.ndarray) -> np.ndarray:
        parts = [part.cpu().numpy() for part in gather_all_tensors(torch.from_numpy(values).to(device))]
        return np.concatenate([part for part in parts if len(part)] or parts[:1])

    kept = rows.take(choose(rows.numbers, join(rows.numbers), limit=limit))
    return Rows(*(join(values) for values in kept))
