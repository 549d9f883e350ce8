"""The lab's experiments, computed from a made zoo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from refocal_lab import reproduce
from refocal_lab.reproduce import Context

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
SPECS = reproduce.read_specs(EXPERIMENTS)


def computed(name, folder, **changes):
    spec = SPECS[name]
    given = replace(spec.parameters["smoke"], **changes)
    return reproduce.KINDS[spec.kind].compute(given, Context(zoo=folder))
