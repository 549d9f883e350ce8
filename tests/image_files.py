"""Files of images for tests of the commands, and how these are run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from refocal import cli

IGNORED = 255
GIVEN = ("--ignore-index", "255")


def draw(count=12, classes=3, size=(8, 9), *, seed=2, factor=3.0):
    """Draw logits (N, K, ...) of an overconfident network, and labels (N, ...); the first row has none."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (count, classes, *size))
    logits[:, 0] += 2
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1).astype(np.uint8)
    labels[:, 0] = IGNORED
    return (factor * logits).astype(np.float32), labels


def write_val_and_test():
    """Write val.npz and test.npz into the current folder."""
    for name, seed in (("val", 2), ("test", 1)):
        logits, labels = draw(seed=seed)
        np.savez(f"{name}.npz", logits=logits, labels=labels)


def run(capsys, *arguments):
    """Run a command, which must succeed; returns what it prints."""
    status = cli.main([str(argument) for argument in arguments])
    shown, said = capsys.readouterr()
    if status != 0:
        pytest.fail(said)
    return shown


def run_json(capsys, *arguments):
    """Run a command, which must print strict JSON."""
    return json.loads(run(capsys, *arguments, "--json"), parse_constant=pytest.fail)


def reject(capsys, message, *arguments):
    """Run a command, which must fail with a message in one line."""
    status = cli.main([str(argument) for argument in arguments])
    said = capsys.readouterr().err.splitlines()[-1]
    if status != 1 or message not in said or len(said) > 400:
        pytest.fail(f"status {status}, {said!r}")
