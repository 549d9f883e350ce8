from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import refocal
from refocal import cli, demo


def test_data_is_what_it_claims():
    data = demo.load()
    recovered = refocal.posterior_from_logits(data.logits.astype(np.float64), gamma=data.gamma)
    np.testing.assert_allclose(recovered, data.posterior, rtol=2e-5, atol=1e-12)
    frequencies = np.bincount(data.labels, minlength=5) / len(data.labels)
    expected = data.posterior.mean(axis=0)
    sigma = np.sqrt(np.mean(data.posterior * (1 - data.posterior), axis=0) / len(data.labels))
    assert np.all(np.abs(frequencies - expected) < 4 * sigma)


def test_measures_against_plain_loops():
    data = demo.load()
    probs = refocal.posterior_from_logits(data.logits.astype(np.float64), gamma=0)
    quality = demo.measure(probs, data)
    bins = [[] for _ in range(15)]
    nll, kl, wrong = [], [], 0
    for row, label, truth in zip(probs, data.labels, data.posterior.astype(float), strict=True):
        top = max(range(5), key=lambda k: row[k])
        wrong += top != label
        nll.append(-np.log(row[label]))
        kl.append(sum(t * np.log(t / p) for t, p in zip(truth, row, strict=True) if t > 0))
        index = next(i for i in range(15) if row[top] <= (i + 1) / 15)
        bins[index].append((row[top], top == label))
    ece = sum(abs(sum(c for c, _ in b) - sum(a for _, a in b)) for b in bins) / len(probs)
    assert quality == pytest.approx((wrong / len(probs), np.mean(nll), ece, np.mean(kl)), rel=1e-9)


def test_recovery_keeps_decisions_and_mends_probabilities(capsys):
    assert cli.main(["demo"]) == 0
    shown = capsys.readouterr().out
    assert "recovered" in shown
    assert "underconfident" in shown
    data = demo.load()
    before = demo.measure(refocal.posterior_from_logits(data.logits.astype(np.float64), gamma=0), data)
    after = demo.measure(refocal.posterior_from_logits(data.logits.astype(np.float64), gamma=data.gamma), data)
    assert after.error == before.error
    assert after.kl < 1e-6 < before.kl
    assert after.nll < before.nll
    assert after.ece < before.ece / 5


def test_confidence_at_the_edges_of_bins():
    from refocal.core.binning import equal_width_bins

    bins = equal_width_bins(np.array([0.0, 0.1, 0.2, 0.20001, 1.0]), np.array([1, 0, 1, 1, 1]), bins=5)
    assert bins.samples.tolist() == [3, 1, 0, 0, 1]
    assert bins.correct.tolist() == [2, 1, 0, 0, 1]


def test_command_line():
    version = subprocess.run([sys.executable, "-m", "refocal", "--version"], check=True, capture_output=True, text=True)
    assert version.stdout.strip() == f"refocal {refocal.__version__}"
    nothing = subprocess.run([sys.executable, "-m", "refocal"], capture_output=True, text=True, check=False)
    assert nothing.returncode == 2
    assert "COMMAND" in nothing.stderr


def test_readme_shows_what_the_demo_prints(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    cli.main(["demo"])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert readme.split("```text\n")[1].split("```")[0].splitlines() == printed
