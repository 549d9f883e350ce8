"""One network with many losses: direct calls, missing entries, and both ways to measure a subset of the classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from made_zoo import add, parts
from refocal import metrics, posterior_from_logits
from refocal.calibrators import FocalTemperatureScaling
from refocal_lab import reproduce
from refocal_lab.reproduce import Context, result_files, style
from refocal_lab.reproduce.computation import NO_ENTRY

SPECS = reproduce.read_specs(Path(__file__).parents[2] / "experiments")
NETWORK = "newsgroups20 gp-cnn"


def computed(name, folder):
    spec = SPECS[name]
    given = spec.parameters["smoke"]
    return spec, given, reproduce.KINDS[spec.kind].compute(given, Context(zoo=folder))


@pytest.fixture(scope="module")
def messages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zoo")
    for seed in range(2):
        for scale, changes in (
            (1.0, {}),
            (0.5, {"loss": "focal", "gamma": 3.0}),
            (0.8, {"label_smoothing": 0.05}),
            (0.7, {"loss": "brier"}),
        ):
            name = f"{changes.get('loss', 'cross-entropy')}-{scale}-s{seed}"
            add(folder, name, seed=seed, scale=scale, data="newsgroups20", model="gp-cnn", **changes)
            (folder / f"{name}.jsonl.gz").write_bytes(b"")
    return folder


def test_values_agree_with_direct_calls(messages):
    _, given, numbers = computed("002-text-newsgroups20", messages)
    found = {"ece_15": [], "psi": [], "fts": [], "low": [], "p": []}
    for seed in range(2):
        (val, val_labels), (logits, labels) = parts(messages, f"focal-0.5-s{seed}")
        _, (base, _) = parts(messages, f"cross-entropy-1.0-s{seed}")
        probs, psi = (posterior_from_logits(logits, gamma=gamma) for gamma in (0.0, 3.0))
        found["ece_15"].append(metrics.ece(probs, labels))
        found["psi"].append(metrics.nll(psi, labels))
        found["fts"].append(
            metrics.adaptive_ece(FocalTemperatureScaling().fit(val, val_labels).predict_proba(logits), labels)
        )
        found["low"].append(metrics.interval(metrics.ece, probs, labels, resamples=given.resamples).low)
        softmax = posterior_from_logits(base, gamma=0.0)
        found["p"].append(metrics.paired_test(metrics.ece, softmax, probs, labels, resamples=given.resamples).p_value)
    values = numbers.values
    assert values[f"ece_15({NETWORK}, focal 3, raw)"] == pytest.approx(100 * np.mean(found["ece_15"]))
    assert values[f"nll({NETWORK}, focal 3, psi)"] == pytest.approx(100 * np.mean(found["psi"]))
    assert values[f"adaptive_ece_15({NETWORK}, focal 3, fts)"] == pytest.approx(100 * np.mean(found["fts"]))
    assert values[f"ece low({NETWORK}, focal 3, raw)"] == pytest.approx(100 * min(found["low"]))
    assert values[f"p({NETWORK}, focal 3, raw)"] == pytest.approx(max(found["p"]))


def test_the_table_has_the_papers_numbers_and_only_existing_entries(messages):
    spec, given, numbers = computed("002-text-newsgroups20", messages)
    rows = [row[1:3] for row in numbers.table if row[0] == "20 Newsgroups, Global Pooling CNN"]
    assert [row for row in rows if row[1] in ("as given", "Ψ")] == [
        ("cross-entropy", "as given"),
        ("Brier score", "as given"),
        ("γ = 3", "as given"),
        ("γ = 3", "Ψ"),
        ("cross-entropy, smoothing 0.05", "as given"),
        ("cross-entropy, smoothing 0.05", "Ψ"),
    ]
    cell = next(row for row in numbers.table if row[1:3] == ("γ = 3", "as given"))
    assert [text.partition(" [")[2] for text in cell[3:]] == ["29.26]", "109.62]", "8.67]", "8.65]", "", "18.85]"]
    assert ("20 Newsgroups by date, Global Pooling CNN", NO_ENTRY, *[""] * 7) in numbers.table
    assert "Focal loss with γ = 1, 2 and 3 has no entry %" in result_files.fill_finding(spec.finding, numbers)
    assert set(style.render(reproduce.KINDS[spec.kind].draw, given, numbers)) == {"figure.svg", "figure.png"}


def test_an_empty_zoo_has_no_entries(tmp_path):
    spec, given, numbers = computed("002-text-sst", tmp_path)
    assert numbers.values == {}
    assert numbers.table[1:] == (("SST Binary, Tree LSTM", NO_ENTRY, *[""] * 7),)
    assert NO_ENTRY in result_files.fill_finding(spec.finding, numbers)
    style.render(reproduce.KINDS[spec.kind].draw, given, numbers)


def test_a_subset_of_the_classes_is_measured_both_ways(tmp_path):
    add(tmp_path, "s0", data="sst", model="tree-lstm", loss="focal", gamma=3.0)
    (tmp_path / "s0.jsonl.gz").write_bytes(b"")
    (tmp_path / "all-classes").mkdir()
    with np.load(tmp_path / "s0.npz") as both:
        some = both["labels"] < 2
        every = {"logits": both["logits"][some, :3], "labels": 2 * both["labels"][some], "split": both["split"][some]}
    np.savez(tmp_path / "all-classes" / "s0.npz", **every)
    np.savez(tmp_path / "s0.npz", **every | {"logits": every["logits"][:, [0, 2]], "labels": every["labels"] // 2})
    _, _, numbers = computed("002-text-sst", tmp_path)
    test = every["split"] == "test"
    logits, labels = every["logits"][test].astype(np.float64), every["labels"][test]
    probs = posterior_from_logits(logits, gamma=0.0)
    values = numbers.values
    assert values["nll(sst tree-lstm all, focal 3, raw)"] == pytest.approx(100 * metrics.nll(probs, labels))
    of_two = posterior_from_logits(logits[:, [0, 2]], gamma=0.0)
    assert values["nll(sst tree-lstm, focal 3, raw)"] == pytest.approx(100 * metrics.nll(of_two, labels // 2))
    titles = list(dict.fromkeys(row[0] for row in numbers.table[1:]))
    assert titles == ["SST Binary, Tree LSTM", "SST Binary, Tree LSTM, softmax over all classes"]
    shown = {row[0]: row[3] for row in numbers.table if row[2] == "as given"}
    assert ["[12.19]" in shown[title] for title in titles] == [False, True]
