"""The training loop: train several networks on one data set, one after another or side by side on a GPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import torch

from refocal import _check
from refocal_lab.train.data import DataSet
from refocal_lab.train.models import build, input_kind
from refocal_lab.train.process import ALONE, Process
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.resume import count_epochs_done
from refocal_lab.train.run_folder import RunFolder
from refocal_lab.train.trial import DivergedError, ReportEpoch, Trial


def train(
    recipes: list[TrainingRecipe],
    data: DataSet,
    out: Path,
    *,
    device: torch.device,
    report: ReportEpoch,
    at_once: int = 4,
    compiled: bool = True,
    keep_logits: tuple[int, ...] = (),
    process: Process = ALONE,
) -> None:
    """Train networks, each in a folder of its own under `out`; finished ones are left alone, others go on.

    Args:
        recipes: What to train; all on the same data.
        data: The data set.
        out: Folder of the runs; a run's folder is named after its recipe.
        device: Where to train.
        report: Called after each epoch of each network, from the thread that trains it.
        at_once: How many networks share a GPU; a CPU trains one after another.
        compiled: Let `torch.compile` fuse the networks' elementwise work (on a GPU).
        keep_logits: Epochs after which the logits of the training part are stored.
        process: Which of the processes of a distributed training this is, and how many there are.

    Raises:
        DivergedError: Some of the networks diverged; the others are trained to the end first.
    """
    _check.count(at_once, "at_once")
    check_epochs(keep_logits, recipes)
    for recipe in recipes:  # what can be refused is, before hours are spent on the others
        _check_fits(recipe, data)
        _check_started(recipe, RunFolder(out / recipe.name), keep_logits, processes=process.count)
    waiting = [recipe for recipe in recipes if not RunFolder(out / recipe.name).is_finished]
    together = at_once if device.type == "cuda" else 1
    diverged: list[str] = []
    for first in range(0, len(waiting), together):
        trials = []
        with contextlib.ExitStack() as folders:
            for recipe in waiting[first : first + together]:
                folder = RunFolder(out / recipe.name)
                folder.path.mkdir(parents=True, exist_ok=True)
                if process.leads:
                    folders.enter_context(folder.lock())
                trials.append(
                    Trial(
                        recipe,
                        data,
                        folder,
                        device=device,
                        compiled=compiled,
                        keep_logits=keep_logits,
                        process=process,
                    )
                )
            diverged += _run_together(trials, report)
    if diverged:
        raise DivergedError("; ".join(diverged))


def check_epochs(keep_logits: Sequence[int], recipes: Sequence[TrainingRecipe]) -> None:
    """Refuse epochs that no network comes to."""
    last = max(recipe.epochs for recipe in recipes)
    for epoch in keep_logits:
        _check.count(epoch, "keep_logits", most=last)


def _check_fits(recipe: TrainingRecipe, data: DataSet) -> None:
    """Refuse a network, or an augmentation, that does not take the samples of the data."""
    if input_kind(recipe.model) != data.kind:
        msg = f"model {recipe.model!r} takes {input_kind(recipe.model)}, {data.name!r} has {data.kind}"
        raise ValueError(msg)
    if recipe.augmentation != "none" and len(data.shape) != 3:
        msg = f"augmentation {recipe.augmentation!r} is for images, got inputs of shape {data.shape}: use 'none'"
        raise ValueError(msg)
    with torch.device("meta"):
        build(recipe.model, classes=len(data.classes), shape=data.shape)


def _check_started(recipe: TrainingRecipe, folder: RunFolder, keep_logits: Sequence[int], *, processes: int) -> None:
    """Refuse to go on with other settings or processes, or to keep logits of epochs that are past."""
    done = count_epochs_done(folder, recipe, processes=processes)
    for epoch in keep_logits:
        if epoch <= done and not folder.training_logits(epoch).exists():
            msg = (
                f"{folder} holds a run of {done} epochs that did not keep the logits of epoch {epoch}: "
                "choose another folder, or remove this one"
            )
            raise ValueError(msg)


def _run_together(trials: list[Trial], report: ReportEpoch) -> list[str]:
    """Run trials to the end, a thread each if there are several; says which have diverged when all have ended."""
    stop = threading.Event()
    if len(trials) == 1:
        return _run_alone(trials[0], report, stop)
    with ThreadPoolExecutor(len(trials)) as threads:
        running = [threads.submit(_run_alone, trial, report, stop) for trial in trials]
        try:
            wait(running)
        except KeyboardInterrupt:
            stop.set()  # each ends with its epoch, and its checkpoint
            raise
    return [reason for done in running for reason in done.result()]


def _run_alone(trial: Trial, report: ReportEpoch, stop: threading.Event) -> list[str]:
    try:
        trial.run(report, stop=stop)
    except DivergedError as error:
        return [str(error)]
    return []
