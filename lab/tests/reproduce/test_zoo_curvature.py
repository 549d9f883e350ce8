"""Figures 2 and 3 of Kimura and Naganuma (2024), from cards with known numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from made_zoo import add, add_history
from refocal_lab import reproduce
from refocal_lab.reproduce import Context

SPECS = reproduce.read_specs(Path(__file__).parents[2] / "experiments")
ECE = {0.0: 0.04, 1.0: 0.02, 2.0: 0.01, 3.0: 0.05}
NAME = "cifar10 resnet20"


def entry(loss, top, trace, **changes):
    base = {"part": "val", "samples": 1000, "loss": loss, "matrix": "hessian", "trace_standard_error": 0.1}
    return {**base, "largest_eigenvalues": [top], "trace": trace, **changes}


def write(folder, *, seeds=3, gammas=ECE):
    """Write cards whose lambda_max is scaled by 10^(-gamma / 3) for the training loss, and rises for cross-entropy."""
    for gamma in gammas:
        for seed in range(seeds):
            name, factor = f"g{gamma:g}-s{seed}", 1 + seed / 10
            measured = [
                entry("trained", factor * 10 ** (-gamma / 3), 50 - 10 * gamma),
                entry("cross-entropy", factor * (1 + gamma), 100.0 + gamma),
                # must be ignored: fewer samples, another part, another matrix
                entry("trained", 99.0, 99.0, samples=10),
                entry("trained", 99.0, 99.0, part="train"),
                entry("trained", 99.0, 99.0, matrix="ggn"),
            ]
            loss = {"loss": "focal", "gamma": gamma} if gamma else {}
            ece = ECE[gamma] + seed / 1000
            known = {"data": "cifar10", "ece": ece, "val_ece": 2 * ece, "curvature": measured}
            add(folder, name, seed=seed, val=20, test=20, **loss, **known)
            add_history(folder, name, epochs=1)
    return folder


def computed(number, folder):
    spec = SPECS[f"004-fig-{number}-zoo"]
    return spec, reproduce.KINDS[spec.kind].compute(spec.parameters["smoke"], Context(zoo=folder))


def drawn(spec, numbers):
    figure = Figure(layout="constrained")
    reproduce.KINDS[spec.kind].draw(figure, spec.parameters["smoke"], numbers)
    return figure


def test_eigenvalues_by_gamma(tmp_path):
    spec, found = computed(2, write(tmp_path))
    values = found.values
    assert values[f"lambda_max_trained_rank_correlation_with_gamma({NAME})"] == pytest.approx(-1)
    assert values[f"lambda_max_cross_entropy_rank_correlation_with_gamma({NAME})"] == pytest.approx(1)
    assert values[f"lambda_max_trained_at_largest_over_at_0({NAME})"] == pytest.approx(0.1)
    assert values[f"lambda_max_trained_at_largest_over_at_0, high({NAME})"] == pytest.approx(0.1)
    assert values[f"lambda_max_cross_entropy_at_largest_over_at_0({NAME})"] == pytest.approx(4)
    assert values[f"gamma_of_least_ece({NAME})"] == 2
    assert values[f"ece_at_0_less_least_between({NAME})"] == pytest.approx(0.03)
    assert values[f"ece_at_largest_less_least_between({NAME})"] == pytest.approx(0.04)
    assert {published.number for published in spec.published if NAME in published.number} <= values.keys()
    assert "gamma_of_least_ece(svhn resnet20)" in found.absent
    rows = {row[:2]: row[2:] for row in found.table}
    assert rows["CIFAR-10, ResNet-20", "ECE, %"][2] == "1.10 ± 0.10"
    assert rows["CIFAR-10, ResNet-20", "λmax, cross-entropy"][0] == "1.10 ± 0.10"
    assert len(drawn(spec, found).axes) == 2


def test_the_cubic(tmp_path):
    spec, found = computed(3, write(tmp_path))
    values = found.values
    traces = np.repeat([50 - 10 * gamma for gamma in ECE], 3)
    eces = 2 * np.array([value + seed / 1000 for value in ECE.values() for seed in range(3)])  # of the validation part
    rest = eces - np.polyval(np.polyfit(traces, eces, 3), traces)
    share = 1 - rest.var() / eces.var()
    assert values[f"share_of_variance_explained({NAME}, trained)"] == pytest.approx(share)
    assert values[f"least_is_inside({NAME}, trained)"] == 1
    assert np.polyval(found.curves["found"][f"{NAME}, trained"]["cubic_in_trace"], 30) == pytest.approx(
        np.polyval(np.polyfit(traces, eces, 3), 30)
    )
    assert 30 < values[f"trace_at_least_ece({NAME}, trained)"] < 40
    assert values[f"rank_correlation_of_trace_and_gamma({NAME}, trained)"] == pytest.approx(-1)
    assert values[f"rank_correlation_of_trace_and_gamma({NAME}, cross_entropy)"] == pytest.approx(1)
    assert {published.number for published in spec.published if NAME in published.number} <= values.keys()
    assert [len(ax.lines) for ax in drawn(spec, found).axes] == [5, 5]  # four gammas and the cubic


def test_seeds_without_all_gammas_are_left_out(tmp_path):
    write(tmp_path, seeds=2)
    for suffix in ("json", "npz", "jsonl.gz"):
        (tmp_path / f"g3-s1.{suffix}").unlink()
    _, found = computed(2, tmp_path)
    # two seeds with three gammas win over one seed with four
    assert found.values[f"lambda_max_cross_entropy_at_largest_over_at_0({NAME})"] == pytest.approx(3)
    assert f"gamma_of_least_ece, low({NAME})" in found.values


def test_different_seeds_are_matched_by_rank(tmp_path):
    write(tmp_path, seeds=2)
    for path in tmp_path.glob("g3-*.json"):
        card = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**card, "seed": card["seed"] + 5}), encoding="utf-8")
    _, found = computed(2, tmp_path)
    assert found.values[f"lambda_max_cross_entropy_at_largest_over_at_0({NAME})"] == pytest.approx(4)
    assert found.values[f"lambda_max_cross_entropy_at_largest_over_at_0, low({NAME})"] == pytest.approx(4)


@pytest.mark.parametrize("number", [2, 3])
def test_cards_without_curvature(tmp_path, number):
    write(tmp_path, seeds=1)
    for path in tmp_path.glob("*.json"):
        card = json.loads(path.read_text(encoding="utf-8"))
        card["curvature"] = card["curvature"][1:2]  # only that of cross-entropy
        path.write_text(json.dumps(card), encoding="utf-8")
    spec, found = computed(number, tmp_path)
    assert not any("trained" in name for name in found.values)
    assert {published.number for published in spec.published if "trained" in published.number} <= set(found.absent)
    words = "λmax" if number == 2 else "trace"
    not_measured = [*["not measured"] * 4, "no entry", "no entry"]
    assert (("CIFAR-10, ResNet-20", f"{words}, training loss", *not_measured)) in found.table
    ece = {2: "4.00", 3: "8.00"}[number]  # of the test part, and of the validation part
    assert any(row[1] == "ECE, %" and row[2] == ece for row in found.table)


def test_ece_needs_no_curvature(tmp_path):
    write(tmp_path, seeds=1)
    for path in tmp_path.glob("g[23]-*.json"):
        card = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**card, "curvature": []}), encoding="utf-8")
    spec, found = computed(2, tmp_path)
    assert found.values[f"gamma_of_least_ece({NAME})"] == 2
    assert f"lambda_max_trained_rank_correlation_with_gamma({NAME})" in found.absent  # two gammas are not enough
    eigenvalues, eces = drawn(spec, found).axes
    assert [len(line.get_xdata()) for line in eigenvalues.lines] == [2, 2, 2, 2]
    assert [len(line.get_xdata()) for line in eces.lines] == [4, 4]


@pytest.mark.parametrize("number", [2, 3])
def test_networks_without_any_curvature_are_not_drawn(tmp_path, number):
    write(tmp_path, seeds=1)
    for path in tmp_path.glob("*.json"):
        card = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**card, "curvature": []}), encoding="utf-8")
    spec, found = computed(number, tmp_path)
    assert [text.get_text() for text in drawn(spec, found).axes[0].texts] == ["no entry"]


@pytest.mark.parametrize("number", [2, 3])
def test_cards_with_the_hessian_of_the_training_loss_only(tmp_path, number):
    _, whole = computed(number, write(tmp_path, seeds=2))
    for path in tmp_path.glob("*.json"):
        card = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**card, "curvature": card["curvature"][:1]}), encoding="utf-8")
    spec, found = computed(number, tmp_path)
    assert found.values == {name: value for name, value in whole.values.items() if "cross_entropy" not in name}
    assert any("cross_entropy" in name for name in found.absent)
    texts = [text.get_text() for ax in drawn(spec, found).axes for text in ax.texts]
    assert ("Hessian of cross-entropy:\nnot measured" in texts) is (number == 3)
