"""Networks that know more classes than occur among their samples: storage, and both ways to measure them."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from hostile_values import needs_fifo
from made_zoo import add
from refocal import metrics, posterior_from_logits
from refocal.calibrators import TemperatureScaling
from refocal_lab import zoo
from refocal_lab.reproduce.zoo_entries import fit_temperature
from refocal_lab.zoo import measures
from refocal_lab.zoo.scoring import Scoring, read_as_published

SCORED = np.array([0, 2])


def logits_of_three(seed, count):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    logits = 1.5 * rng.standard_normal((count, 3))
    logits[np.arange(count), SCORED[labels]] += 2
    return logits.astype(np.float16), labels


def write_run(folder, **changes):
    """Write the folder of a finished run: a network of three classes on samples of two."""
    add(folder.parent / "made", "sst-x-s0", data="sst", model="tree-lstm", **changes)
    card = json.loads((folder.parent / "made" / "sst-x-s0.json").read_text(encoding="utf-8"))
    (every, labels), split = logits_of_three(0, 700), np.repeat(["val", "test"], [300, 400])
    folder.mkdir()
    np.savez(folder / "predictions.npz", logits=every[:, SCORED], labels=labels, split=split)
    np.savez(folder / "all-classes.npz", logits=every, labels=SCORED[labels], split=split)
    (folder / "card.json").write_text(json.dumps(card), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    return every.astype(np.float64), labels


@pytest.fixture
def entry(tmp_path):
    every, labels = write_run(tmp_path / "run", loss="focal", gamma=3.0)
    zoo.add(tmp_path / "run", tmp_path / "zoo")
    [found] = zoo.entries(tmp_path / "zoo")
    return found, every, labels


def test_logits_of_all_classes_belong_to_an_entry(entry):
    found, every, labels = entry
    assert found.all_classes == found.predictions.parent / "all-classes" / found.predictions.name
    assert found.files[-1] == found.all_classes
    val, test = measures.read_all_classes(found)
    np.testing.assert_array_equal(np.concatenate([val.logits, test.logits]), every)
    np.testing.assert_array_equal(test.labels, SCORED[labels[300:]])
    before = found.digest()
    found.all_classes.unlink()
    assert found.all_classes is None
    assert found.digest() != before
    with pytest.raises(zoo.ZooError, match="sst-x-s0 has no logits of all classes"):
        measures.read_all_classes(found)


@needs_fifo
def test_a_fifo_in_place_of_the_logits_of_all_classes(tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "run" / "all-classes.npz").unlink()
    os.mkfifo(tmp_path / "run" / "all-classes.npz")
    with pytest.raises(ValueError, match=r"all-classes\.npz must be a regular file, got a FIFO"):
        zoo.add(tmp_path / "run", tmp_path / "zoo")


def test_the_posterior_of_all_classes_is_conditioned_on_the_scored_ones(entry):
    found, every, labels = entry
    probs = posterior_from_logits(every[300:], gamma=3.0)[:, SCORED]
    probs /= probs.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(measures.scored_posterior(found), probs, rtol=1e-12)
    measured = zoo.measure(found)
    assert measured["psi"]["nll"] == pytest.approx(metrics.nll(probs, labels[300:]), rel=1e-12)
    of_two = posterior_from_logits(every[300:, SCORED], gamma=3.0)
    assert measured["psi"]["nll"] != pytest.approx(metrics.nll(of_two, labels[300:]), rel=0.05)
    assert not {"ts-fl", "ts-fl-psi"} & measured.keys()


def test_measures_as_in_mukhoti_2020(entry):
    found, _, labels = entry
    _, test, scoring = read_as_published(found)
    probs = posterior_from_logits(test.logits, gamma=0.0)
    confidence = np.array([max(row[0], row[2]) for row in probs])
    correct = np.array([(row[2] > row[0]) == label for row, label in zip(probs, labels[300:], strict=True)])
    assert confidence.min() < 0.3
    expected = {
        "error": 1 - correct.mean(),
        "nll": -np.mean([np.log(row[2 * label]) for row, label in zip(probs, labels[300:], strict=True)]),
        "ece_15": metrics.ece(confidence, correct, bins=15, task="binary"),
        "mce_15": metrics.mce(confidence, correct, bins=15, task="binary"),
        "classwise_ece_15": np.mean(
            [metrics.ece(probs[:, k], test.labels == k, bins=15, task="binary") for k in SCORED]
        ),
        "confident_99": np.mean(confidence >= 0.99),
    }
    for name, value in expected.items():
        assert scoring.value(name, probs, test.labels) == pytest.approx(value, rel=1e-12), name
    gaps = [
        abs(correct[inside].sum() - confidence[inside].sum())
        for inside in (np.ceil(15 * confidence) == bin_ for bin_ in range(1, 16))
    ]
    assert expected["ece_15"] == pytest.approx(sum(gaps) / len(correct), rel=1e-12)
    assert np.isnan(Scoring(SCORED).value("accuracy_99", np.array([[0.5, 0.1, 0.4]]), np.array([0])))


def test_the_temperature_is_chosen_by_the_same_measure(entry):
    found, _, _ = entry
    val, _, scoring = read_as_published(found)
    grid = np.arange(1, 101) / 10
    errors = [scoring.value("ece_15", posterior_from_logits(val.logits / T, gamma=0.0), val.labels) for T in grid]
    assert fit_temperature("ts-ece", val, scoring=scoring).temperature == pytest.approx(grid[np.argmin(errors)])
    by_nll = TemperatureScaling().fit(val.logits, val.labels).temperature_
    assert fit_temperature("ts-nll", val, scoring=scoring).temperature == pytest.approx(by_nll)


@pytest.mark.parametrize(("kept", "gamma"), [(1, 5.0), (7, 5.0), (8, 3.0), (18, 3.0), (19, 2.0), (None, 2.0)])
def test_the_map_of_a_schedule_is_that_of_the_kept_epoch(tmp_path, kept, gamma):
    changes = {} if kept is None else {"kept_epoch": kept}
    add(tmp_path, "one", loss="fls-532", epochs=25, **changes)
    [entry] = zoo.entries(tmp_path)
    assert measures.posterior_gamma(entry.card) == gamma
