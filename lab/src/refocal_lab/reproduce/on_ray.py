"""Reproduce figures on a Ray cluster, one task per figure or table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from refocal.scale.ray_engine import open_ray
from refocal_lab.reproduce import Context, Reproduction, read_specs
from refocal_lab.reproduce import reproduce as make
from refocal_lab.reproduce.spec import Scale
from refocal_lab.train.on_ray import run_tasks


def reproduce(
    ids: Sequence[str],
    experiments: Path,
    results: Path,
    *,
    scale: Scale,
    force: bool = False,
    data: Path | None = None,
    zoo: Path | None = None,
    address: str | None = None,
) -> Iterator[Reproduction | Exception]:
    """Yield each figure or table when it is finished, or the exception that it raised.

    Args:
        ids: Ids of specs.
        experiments: Folder of specs; all machines must share it.
        results: Folder of results; all machines must share it.
        scale: "smoke", "small" or "paper".
        force: Whether to run again even if a current result is stored.
        data: Folder of data sets, on every machine.
        zoo: Folder of the logits of trained networks, on every machine.
        address: Address of the cluster; None starts one on this machine.
    """
    folders = {"experiments": experiments.absolute(), "results": results.absolute()}
    given = {name: None if path is None else path.absolute() for name, path in (("data", data), ("zoo", zoo))}
    settings = {**folders, **given, "scale": scale, "force": force}
    with open_ray(address, lambda _: None):
        yield from run_tasks(_reproduce_one, ids, gpu_share=0, **settings)


def _reproduce_one(
    name: str, *, experiments: Path, results: Path, data: Path | None, zoo: Path | None, scale: Scale, force: bool
) -> Reproduction:
    context = Context(data, lambda _: None, zoo)
    return make(read_specs(experiments)[name], scale=scale, results=results, force=force, context=context)
