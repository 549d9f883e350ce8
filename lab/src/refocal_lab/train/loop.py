"""The training loop: train networks on one data set, one after another or side by side on a GPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import torch

from refocal import _check
from refocal_lab.train.data import DataSet
from refocal_lab.train.process import ALONE, Process
from refocal_lab.train.recipe import TrainingRecipe
from refocal_lab.train.resume import count_epochs_done
from refocal_lab.train.run_folder import RunFolder
from refocal_lab.train.suitability import check_suitable
from refocal_lab.train.trial import DivergedError, ReportEpoch, Trial


def train(
    recipes: list[TrainingRecipe],
    data: DataSet,
    out: Path,
    *,
    device: torch.device,
    report: ReportEpoch = lambda _trial, _record: None,
    at_once: int = 4,
    compiled: bool = True,
    keep_logits: tuple[int, ...] = (),
    process: Process = ALONE,
) -> None:
    """Train networks, each in its own folder under `out`. Finished runs are skipped, stopped ones continue.

    Args:
        recipes: What to train, all on the same data.
        data: The data set.
        out: Folder of the runs. The folder of a run is named after its recipe.
        device: Where to train.
        report: Called after each epoch of each network with the trial and its measures, in the thread that trains it.
        at_once: Number of networks that share a GPU. A CPU trains one network at a time.
        compiled: Let `torch.compile` fuse the elementwise operations of the networks (on a GPU).
        keep_logits: Epochs after which to store the logits of the training part.
        process: This process of a distributed training.

    Raises:
        DivergedError: Some networks diverged. The others are trained to the end first.
        ValueError: A recipe does not fit the data, or its folder holds a run with other settings. All recipes are
            checked before the first one is trained.
    """
    _check.count(at_once, "at_once")
    check_epochs(keep_logits, recipes)
    for recipe in recipes:  # before hours are spent on the first ones
        check_suitable(recipe, data)
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
    """Reject epochs that no network reaches."""
    last = max(recipe.epochs for recipe in recipes)
    for epoch in keep_logits:
        _check.count(epoch, "keep_logits", most=last)


def _check_started(recipe: TrainingRecipe, folder: RunFolder, keep_logits: Sequence[int], *, processes: int) -> None:
    """Reject a run that was started with other settings or processes, and logits of epochs that are over."""
    done = count_epochs_done(folder, recipe, processes=processes)
    for epoch in keep_logits:
        if epoch <= done and not folder.training_logits(epoch).exists():
            msg = (
                f"{folder} holds a run of {done} epochs that did not keep the logits of epoch {epoch}: "
                "choose another folder, or remove this one"
            )
            raise ValueError(msg)


def _run_together(trials: list[Trial], report: ReportEpoch) -> list[str]:
    """Run trials to the end, each in its own thread if there are several. Returns why some diverged."""
    stop = threading.Event()
    if len(trials) == 1:
        return _run_alone(trials[0], report, stop)
    with ThreadPoolExecutor(len(trials)) as threads:
        running = [threads.submit(_run_alone, trial, report, stop) for trial in trials]
        try:
            wait(running)
        except KeyboardInterrupt:
            stop.set()  # each one ends after its epoch, with a checkpoint
            raise
    return [reason for done in running for reason in done.result()]


def _run_alone(trial: Trial, report: ReportEpoch, stop: threading.Event) -> list[str]:
    try:
        trial.run(report, stop=stop)
    except DivergedError as error:
        return [str(error)]
    return []
