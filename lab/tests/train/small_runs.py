"""Train small networks on digits on a CPU, and read the files of their runs."""

import functools
import json

import torch
from safetensors.numpy import load_file

from refocal_lab.train.data import load
from refocal_lab.train.loop import train

CPU = torch.device("cpu")
SMALL = ("--data", "digits", "--model", "mlp")
DIGITS = {"data": "digits", "model": "mlp", "epochs": 4, "batch_size": 64}


@functools.cache
def digits():
    """The data set, read once."""
    return load("digits")


def run(recipe, out, *, data=None, **settings):
    records = []
    data = digits() if data is None else data
    train([recipe], data, out, device=CPU, report=lambda _, record: records.append(record), **settings)
    return records


def unfinished(recipe, out):
    """The folder of a run with all of its epochs but no results, as after a kill before the end."""
    run(recipe, out)
    (out / recipe.name / "card.json").unlink()
    return out / recipe.name


class StoppedError(Exception):
    """Raised in the place of a kill."""


def stop_after(epoch):
    """A report that stops a training after an epoch."""

    def stop(_, record):
        if record["epoch"] == epoch:
            raise StoppedError

    return stop


def weights(folder):
    return load_file(folder / "weights.safetensors")


def history(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{**json.loads(line), "seconds": None} for line in lines]
