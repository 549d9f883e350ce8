"""One network being trained: its epochs, checkpoints, measures and results."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refocal.losses import find_policy
from refocal_lab.train import checkpoint
from refocal_lab.train.batches import ArrayBatches, BatchSource, Evaluation, Order
from refocal_lab.train.data import DataSet
from refocal_lab.train.history import History, measure
from refocal_lab.train.models import build
from refocal_lab.train.models.layers import WordVectors, find_head
from refocal_lab.train.objective import build_loss
from refocal_lab.train.own_parts import is_own
from refocal_lab.train.process import ALONE, Process, combine, gather, share_buffers
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.results import write_results, write_training_logits
from refocal_lab.train.resume import check_same_settings
from refocal_lab.train.run_folder import RunFolder
from refocal_lab.train.step import Step
from refocal_lab.train.text_batches import TextBatches, select_scored

ReportEpoch = Callable[["Trial", dict[str, Any]], None]


class DivergedError(RuntimeError):
    """The loss of a step, or a logit after an epoch, is not a finite number."""


class Trial:
    """One network being trained in its own folder. A new trial in the same folder continues where the last one stopped.

    Args:
        recipe: What to train.
        data: The data set of the recipe.
        folder: Where checkpoint, measures and results go. It must exist.
        device: Where to train.
        compiled: Let `torch.compile` fuse the elementwise operations of the network (on a GPU).
        keep_logits: Epochs after which to store the logits of the training part.
        process: This process of a distributed training.
    """

    def __init__(
        self,
        recipe: TrainingRecipe,
        data: DataSet,
        folder: RunFolder,
        *,
        device: torch.device,
        compiled: bool,
        keep_logits: tuple[int, ...] = (),
        process: Process = ALONE,
    ) -> None:
        self.recipe, self.folder, self._data, self._device = recipe, folder, data, device
        self._keep_logits, self._process = keep_logits, process
        on_gpu = device.type == "cuda"
        # Not fast: a penalty takes three derivatives, which need all digits and new probes at each step; networks for
        # texts are small; your own network or loss may not work in bfloat16 or in a graph.
        own = is_own(recipe.model) or is_own(recipe.loss)
        fast = on_gpu and recipe.curvature_penalty is None and data.kind == "arrays" and not own
        self.network = _build_network(recipe, data).to(device)
        self._batches = _build_batches(recipe, data, device=device, half=fast, process=process)
        self.loss = build_loss(recipe).to(device)
        self._step = Step(
            *(self.network, self.loss, self._batches, recipe),
            classes=len(data.classes),
            half=fast,
            compiled=compiled and fast,
        )
        self._history = History(folder.history)
        self._kept_by = {"best-validation": "error", "best-refinement": "refinement"}.get(recipe.keep)
        self._held_out = {name: self._batches.evaluation(getattr(data, name)) for name in ("val", "test")}
        self._val_labels = torch.from_numpy(data.val.labels).to(device)
        self.epochs_done = self._resume()
        if fast:
            self._capture()
        if on_gpu:
            torch.cuda.synchronize(device)  # training runs on another stream

    def run(self, report: ReportEpoch, *, stop: threading.Event) -> None:
        """Train to the end, or until `stop` is set; then the present epoch is the last one."""
        with self._own_stream():
            while self.epochs_done < self.recipe.epochs and not stop.is_set():
                record = self._epoch()
                report(self, record)
            if self.epochs_done == self.recipe.epochs and self._process.leads:
                self._finish()

    def _epoch(self) -> dict[str, Any]:
        start, epoch = time.perf_counter(), self.epochs_done
        rate = self.recipe.rate(epoch)
        self._step.run_epoch(epoch, rate=rate)
        combine([self._step.losses], summed=self.recipe.sum_loss)
        self._check_losses(epoch)
        share_buffers(self.network)
        logits, labels = (gather(each) for each in (self._step.logits, self._batches.epoch_labels))
        train = measure(_to_numpy(logits.flatten(0, -2)), _to_numpy(labels.flatten()))
        held_out = {name: self._logits(part) for name, part in self._held_out.items()}
        self._check_logits(held_out, epochs=epoch + 1, dtype=torch.float32)
        self._adapt(held_out["val"])
        self.epochs_done += 1
        record: dict[str, Any] = {
            "epoch": self.epochs_done,
            "learning_rate": rate,
            "loss": float(self._step.losses.mean()),
            "train": train,  # measured on the augmented batches, each before its step
            **{name: measure(_to_numpy(logits), getattr(self._data, name).labels) for name, logits in held_out.items()},
            "head_norm": _measure_head(self.network),
            "seconds": time.perf_counter() - start,
        }
        if self._kept_by == "refinement":
            from refocal.calibrators import refinement  # needs scikit-learn, which takes a second to import

            parts = refinement(_to_numpy(held_out["val"]), self._data.val.labels, input="logits")
            record["val"]["refinement"] = parts.refinement
        if self._process.leads:
            if self.epochs_done in self._keep_logits:
                logits = self._logits(self._batches.evaluation(self._data.train))
                write_training_logits(self.folder, self.epochs_done, _to_numpy(logits), self._data.train.labels)
            self._history.append(record)
            if self._kept_by is not None and self._history.find_best(self._kept_by) == self.epochs_done:
                self._save(self.folder.best)
            self._save(self.folder.checkpoint)
        return record

    def _check_losses(self, epoch: int) -> None:
        bad = torch.nonzero(~torch.isfinite(self._step.losses)).flatten()
        if len(bad):
            step = int(bad[0])
            msg = (
                f"{self.recipe.name}: the loss is {float(self._step.losses[step])} at step {step + 1} of epoch "
                f"{epoch + 1} (learning rate {self.recipe.rate(epoch):g})"
                + (f"; the checkpoint of epoch {epoch} is kept" if epoch else "")
            )
            raise DivergedError(msg)

    def _check_logits(self, held_out: dict[str, Tensor], *, epochs: int, dtype: torch.dtype) -> None:
        """Find weights that the last step of an epoch spoiled: no loss is computed after it."""
        for name, logits in held_out.items():
            largest = float(logits.abs().max())
            if not largest <= torch.finfo(dtype).max:
                msg = (
                    f"{self.recipe.name}: logits of the {name} part reach {largest:g} after epoch {epochs} (learning "
                    f"rate {self.recipe.rate(epochs - 1):g}), beyond {str(dtype).removeprefix('torch.')}"
                )
                raise DivergedError(msg)

    def _adapt(self, logits: Tensor) -> None:
        policy = find_policy(self.loss)
        if policy is not None:
            policy.step_epoch(torch.softmax(logits, dim=1), self._val_labels)

    def _logits(self, part: Evaluation) -> Tensor:
        """Logits (N, K) of a part on the device, for the classes that samples have."""
        return select_scored(self._all_logits(part), self._data.scored)

    @torch.no_grad()
    def _all_logits(self, part: Evaluation) -> Tensor:
        """Logits (N, K) of a part on the device, for all classes."""
        self.network.eval()
        return torch.cat([logits.float() for logits in part.logits(self.network)])

    def _save(self, path: Path) -> None:
        settings = json.dumps(self.recipe.settings())
        state, processes = self._step.state(), self._process.count
        checkpoint.save(path, state, epochs=self.epochs_done, settings=settings, processes=processes)

    @contextlib.contextmanager
    def _own_stream(self) -> Iterator[None]:
        with torch.cuda.stream(self._step.stream) if self._step.stream else contextlib.nullcontext():
            yield

    def _capture(self) -> None:
        """Capture the step once for each gamma that the remaining epochs use."""
        policy = find_policy(self.loss)
        if policy is None:
            self._step.capture()
            return
        for epoch in range(self.epochs_done, self.recipe.epochs):
            policy.resume(epoch)
            self._step.capture()
        policy.resume(self.epochs_done)

    def _resume(self) -> int:
        if not self.folder.checkpoint.exists():
            if self._process.leads:
                self._history.keep(0)
            return 0
        tensors, epochs, settings = checkpoint.load(self.folder.checkpoint)
        check_same_settings(settings, self.recipe, self.folder)
        here, there = ({name: each.shape for name, each in state.items()} for state in (self._step.state(), tensors))
        if misfits := here.items() ^ there.items():
            msg = f"the checkpoint {self.folder.checkpoint} is of another network: {min(misfits)[0]} does not fit"
            raise checkpoint.CheckpointError(msg)
        self._step.restore(tensors)
        if self._process.leads:
            self._history.keep(epochs)
        policy = find_policy(self.loss)
        if policy is not None:
            policy.resume(epochs)
        return epochs

    def _finish(self) -> None:
        kept_epoch = self.recipe.epochs
        if self._kept_by is not None:
            tensors, kept_epoch, _ = checkpoint.load(self.folder.best)
            self._step.restore(tensors)
        logits = {name: self._all_logits(part) for name, part in self._held_out.items()}
        self._check_logits(logits, epochs=self.epochs_done, dtype=torch.float16)
        names = {f"{kind}.{name}": name for name in self.network.state_dict() for kind in ("parameter", "buffer")}
        weights = {names[key]: tensor for key, tensor in self._step.state().items() if key in names}
        write_results(
            self.folder,
            self.recipe,
            self._data,
            logits={name: _to_numpy(part) for name, part in logits.items()},
            weights=weights,
            parameters=sum(weight.numel() for weight in self.network.parameters()),
            epochs=self._history.read(),
            kept_epoch=kept_epoch,
            device=self._device,
            processes=self._process.count,
        )


def _measure_head(network: torch.nn.Module) -> float | None:
    """The norm of the last layer's weights; None if the network has no linear layer."""
    head = find_head(network)
    return None if head is None else float(torch.linalg.vector_norm(head.weight.detach()))


def _build_network(recipe: TrainingRecipe, data: DataSet) -> torch.nn.Module:
    """The network of a recipe before its first step."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = build(recipe.model, classes=len(data.classes), shape=data.shape)
    for module in network.modules():
        if isinstance(module, WordVectors) and data.vectors is not None:
            module.start_from(torch.from_numpy(data.vectors))
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _build_batches(
    recipe: TrainingRecipe, data: DataSet, *, device: torch.device, half: bool, process: Process
) -> BatchSource:
    """The batches of the training part."""
    part = data.train
    if not isinstance(part.inputs, np.ndarray):
        order = Order(len(part), batch_size=recipe.batch_size, seed=recipe.seed, process=process)
        return TextBatches(part, scored=data.scored, order=order, device=device)
    assert recipe.augmentation is not None
    return ArrayBatches(
        *(part.inputs, part.labels),
        mean=data.mean,
        std=data.std,
        augmentation=recipe.augmentation,
        batch_size=recipe.batch_size,
        seed=recipe.seed,
        device=device,
        dtype=torch.bfloat16 if half else torch.float32,
        process=process,
    )


def _to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.cpu().numpy()
