"""Curvature under `python -O`, where PyTorch leaves out some derivatives in forward mode."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import torch
from torch import nn
from refocal.curvature import hessian_trace
from refocal.losses import FocalLoss

model, data = nn.Linear(3, 2), [(torch.eye(3), torch.tensor([0, 1, 1]))]
print(hessian_trace(model, FocalLoss(2.0), data, probes=2).value > 0)
hessian_trace(model, nn.CrossEntropyLoss(), data, probes=2)
"""
LAST_LINE = (
    "RuntimeError: curvature needs derivatives that PyTorch leaves out under python -O: "
    "start Python without -O and without PYTHONOPTIMIZE"
)


@pytest.mark.thorough
def test_a_missing_derivative_is_explained():
    done = subprocess.run(
        [sys.executable, "-O", "-W", "ignore", "-c", PROGRAM],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
        timeout=240,
    )
    assert done.stdout == "True\n"  # the loss has all derivatives there
    assert done.returncode == 1
    assert done.stderr.rstrip().splitlines()[-1] == LAST_LINE
