"""Train networks on a Ray cluster, one task per network, which survives the death of its worker."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from refocal import _check
from refocal.scale.cluster import RETRIES, Watch
from refocal.scale.ray_engine import open_ray
from refocal.scale.tasks import end, first_done, original_errors

if TYPE_CHECKING:
    from refocal_lab.train.recipe import TrainingRecipe

R = TypeVar("R")
_MOST_AT_ONCE = 10_000  # Ray counts GPUs in ten thousandths


def train(
    recipes: Sequence[TrainingRecipe],
    out: str | os.PathLike[str],
    *,
    address: str | None = None,
    at_once: int = 4,
    data_folder: str | os.PathLike[str] | None = None,
    compiled: bool = True,
    keep_logits: tuple[int, ...] = (),
    finished: Callable[[str], None] = lambda _: None,
) -> None:
    """Train networks on a cluster, each in its own folder under `out`, which all machines share.

    Finished runs are skipped. If a worker dies, Ray starts its task again, and the network continues from its
    checkpoint. The entry `ran_on` of a card names the machine that finished the network.

    Args:
        recipes: What to train.
        out: Folder of the runs.
        address: Address of the cluster; None for a cluster on this machine.
        at_once: Number of networks that share a GPU, if the cluster has GPUs; the others wait.
        data_folder: Folder of the data files, on every machine; None for `$REFOCAL_DATA`.
        compiled: Let `torch.compile` fuse the elementwise operations of the networks (on a GPU).
        keep_logits: Epochs after which to store the logits of the training part.
        finished: Called with the name of each network when it is trained.
    """
    from refocal_lab.train.loop import check_epochs

    _check.count(at_once, "at_once", most=_MOST_AT_ONCE)
    check_epochs(keep_logits, recipes)
    folder = data_folder or os.environ.get("REFOCAL_DATA")
    settings = {
        "out": Path(out).absolute(),
        "data_folder": None if folder is None else Path(folder).absolute(),
        "working_folder": Path.cwd(),
        "compiled": compiled,
        "keep_logits": keep_logits,
    }
    failures: list[Exception] = []
    with open_ray(address, lambda _: None):
        for result in run_tasks(_train_one, recipes, gpu_share=1 / at_once, **settings):
            if isinstance(result, Exception):
                failures.append(result)
            else:
                finished(result)
    if failures:
        raise_all(failures)


def run_tasks(
    function: Callable[..., R], items: Sequence[Any], *, gpu_share: float, **settings: Any
) -> Iterator[R | Exception]:
    """Call a function on each item, one Ray task per item, and yield results or exceptions as the tasks end.

    A task gets one CPU and, on a cluster with GPUs, a share of a GPU, for which it waits. If a worker dies, Ray starts
    its task again, three times at most. Closing the iterator ends the remaining tasks.

    Args:
        function: Called with an item and the settings.
        items: One per task.
        gpu_share: The share of a GPU that a task gets.
        settings: Keyword arguments of all calls.
    """
    import ray

    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    share = gpu_share if resources.get("GPU") else 0
    task: Any = ray.remote(function).options(num_cpus=1, num_gpus=share, max_retries=RETRIES)
    tasks = [(item, task.remote(item, **settings)) for item in items]
    waiting = {reference.future(): (item, reference) for item, reference in tasks}
    watch = Watch()
    try:
        while waiting:
            for done in first_done(list(waiting), watch):
                item, _ = waiting.pop(done)
                try:
                    with original_errors(str(getattr(item, "name", item))):
                        result: R | Exception = done.result()
                except Exception as error:
                    result = error
                yield result
    finally:
        end([reference for _, reference in waiting.values()])


def raise_all(failures: Sequence[Exception]) -> None:
    """Raise a single exception as it is, or several as one that gives all reasons."""
    if len(failures) == 1:
        raise failures[0]
    reasons = dict.fromkeys(str(failure) for failure in failures)
    msg = f"{len(failures)} tasks failed: {'; '.join(reasons)}"
    raise RuntimeError(msg) from failures[0]


def _train_one(
    recipe: TrainingRecipe,
    *,
    out: Path,
    data_folder: Path | None,
    working_folder: Path,
    compiled: bool,
    keep_logits: tuple[int, ...],
) -> str:
    import ray
    import torch

    from refocal_lab.train import loop
    from refocal_lab.train.data import load
    from refocal_lab.train.own_parts import add_to_path, is_own
    from refocal_lab.train.run_folder import RunFolder

    folder = RunFolder(out / recipe.name)
    trained_before = folder.is_finished
    vectors = recipe.word_vectors
    if vectors not in (None, "glove", "learned"):  # a file
        vectors = str(working_folder / vectors)
    add_to_path(working_folder)
    data_folder = None if is_own(recipe.data) else data_folder
    data = load(recipe.data, folder=data_folder, split_seed=recipe.split_seed, word_vectors=vectors)
    # a task without a share still sees all GPUs of its machine
    on_gpu = bool(ray.get_gpu_ids()) and torch.cuda.is_available()
    loop.train(
        [recipe],
        data,
        out,
        device=torch.device("cuda" if on_gpu else "cpu"),
        report=lambda _trial, _record: None,
        compiled=compiled,
        keep_logits=tuple(epoch for epoch in keep_logits if epoch <= recipe.epochs),
    )
    if not trained_before:
        folder.update_card(ran_on={"engine": "ray", "machine": platform.node()})
    return recipe.name
