"""Making the papers' figures on a Ray cluster: a task a figure or table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from refocal.scale.ray_engine import open_ray
from refocal_lab.reproduce import Context, Reproduction, read_specs
from refocal_lab.reproduce import reproduce as make
from refocal_lab.train.on_ray import run_tasks


def reproduce(
    ids: Sequence[str],
    experiments: Path,
    results: Path,
    *,
    scale: str,
    force: bool = False,
    data: Path | None = None,
    zoo: Path | None = None,
    address: str | None = None,
) -> Iterator[Reproduction | Exception]:
    """What became of each figure or table, or what it raised, as they are finished.

    Args:
        ids: Names of specs.
        experiments: Folder of the specs, which all machines share.
        results: Folder of the results, which all machines share.
        scale: "smoke", "small" or "paper".
        force: Make again what is there.
        data: Folder of the data sets, on every machine.
        zoo: Folder of trained networks' logits, on every machine.
        address: Of the cluster; None for one on this machine.
    """
    folders = {"experiments": experiments.absolute(), "results": results.absolute()}
    given = {name: None if path is None else path.absolute() for name, path in (("data", data), ("zoo", zoo))}
    settings = {**folders, **given, "scale": scale, "force": force}
    with open_ray(address, lambda _: None):
        yield from run_tasks(_reproduce_one, ids, gpu_share=0, **settings)


def _reproduce_one(
    name: str, *, experiments: Path, results: Path, data: Path | None, zoo: Path | None, scale: str, force: bool
) -> Reproduction:
    context = Context(data, lambda _: None, zoo)
    return make(read_specs(experiments)[name], scale=scale, results=results, force=force, context=context)
