"""Small networks trained on digits on a CPU, and what they leave."""

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
    """Read once."""
    return load("digits")


def run(recipe, out, *, data=None, **settings):
    records = []
    data = digits() if data is None else data
    train([recipe], data, out, device=CPU, report=lambda _, record: records.append(record), **settings)
    return records


def unfinished(recipe, out):
    """The folder of a run with all of its epochs and no results, as a kill before the end leaves it."""
    run(recipe, out)
    (out / recipe.name / "card.json").unlink()
    return out / recipe.name


def weights(folder):
    return load_file(folder / "weights.safetensors")


def history(folder):
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{**json.loads(line), "seconds": None} for line in lines]
