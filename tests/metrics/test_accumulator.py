"""Accumulators agree with the functions, in any batches and any order, and reject damaged states."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest
from scipy.special import softmax

from arrays import draw_calibrated, random_simplex, sharpen
from refocal import metrics
from refocal.metrics import CalibrationAccumulator


def accumulate(batches, **settings):
    accumulator = CalibrationAccumulator(**settings)
    for batch in batches:
        accumulator.update(*batch[:2], sample_weight=batch[2] if len(batch) > 2 else None)
    return accumulator


def functions(probs, labels, **rest):
    """The expected fields of the summary, from the functions."""
    share = metrics.confidence_share(probs, labels, **rest)
    return {
        "ece": metrics.ece(probs, labels, **rest),
        "rms": metrics.ece(probs, labels, norm="l2", **rest),
        "mce": metrics.mce(probs, labels, **rest),
        "nll": metrics.nll(probs, labels, **rest),
        "brier": metrics.brier(probs, labels, **rest),
        "error": metrics.error(probs, labels, **rest),
        "confidence_share": share.share,
        "share_accuracy": share.accuracy,
    }


@pytest.mark.parametrize("task", ["multiclass", "binary", "multilabel"])
def test_batches_give_the_same_as_one_call(task):
    rng = np.random.default_rng(0)
    probs, labels = draw_calibrated(rng, (1000, 4), spread=4)
    weights = rng.random(1000)
    if task == "binary":
        probs, labels = probs[:, 0], labels % 2
    elif task == "multilabel":
        labels = (rng.random(probs.shape) < probs).astype(int)
    pieces = [slice(0, 10), slice(10, 11), slice(11, 700), slice(700, 1000)]
    found = accumulate([(probs[piece], labels[piece], weights[piece]) for piece in pieces], task=task).compute()
    for name, value in functions(probs, labels, task=task, sample_weight=weights).items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-12), name
    if task == "multiclass":
        expected = metrics.classwise_ece(probs, labels, sample_weight=weights)
        assert found.classwise_ece == pytest.approx(expected, rel=1e-12)
        assert found.confidence == pytest.approx(np.average(probs.max(axis=1), weights=weights), rel=1e-12)
    else:
        assert np.isnan(found.classwise_ece)


def test_weight_0_removes_an_infinite_score():
    found = accumulate([(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([1, 0]), np.array([0.0, 2.0]))]).compute()
    assert found.nll == pytest.approx(np.log(2))
    assert accumulate([(np.array([[1.0, 0.0]]), np.array([1]))]).compute().nll == np.inf


@pytest.mark.parametrize("bins", [1, 7, 15])
@pytest.mark.parametrize("spread", [0.3, 2.0, 20.0])
def test_equal_mass_bins_from_the_grid_are_within_one_thousandth(bins, spread):
    """10,000 flat, spread and saturated confidences, calibrated or not."""
    rng = np.random.default_rng(1)
    for power in (0.7, 1.0, 2.0):
        probs, labels = draw_calibrated(rng, (10_000, 5), spread=spread)
        probs = sharpen(probs, power=power)
        found = accumulate([(probs, labels)], bins=bins).compute().adaptive_ece
        assert found == pytest.approx(metrics.adaptive_ece(probs, labels, bins=bins), abs=1e-3)


def test_the_order_of_merging_does_not_matter():
    rng = np.random.default_rng(2)
    batches = [draw_calibrated(rng, (50 * (i + 1), 3)) for i in range(4)]
    whole = accumulate(batches).compute()
    for order in permutations(range(4)):
        total = CalibrationAccumulator()
        for index in order:
            assert total.merge(accumulate([batches[index]])) is total
        assert total.compute() == pytest.approx(whole, rel=1e-12)
    pair = accumulate(batches[:2]).merge(accumulate(batches[2:]))
    assert pair.compute() == pytest.approx(whole, rel=1e-12)
    empty = accumulate(batches).merge(CalibrationAccumulator())
    assert empty.compute() == pytest.approx(whole, rel=1e-12)


def test_merge_does_not_change_the_other():
    batch = draw_calibrated(np.random.default_rng(3), (50, 3))
    other, target = accumulate([batch]), CalibrationAccumulator()
    before = other.compute()
    target.merge(other)
    target.update(*batch)
    assert other.compute() == before


@pytest.mark.parametrize("suffix", ["npz", "json"])
@pytest.mark.parametrize("settings", [{}, {"bins": 7, "classwise": False, "threshold": 0.9, "ignore_index": -1}])
def test_state_is_saved_and_loaded(tmp_path, suffix, settings):
    accumulator = accumulate([draw_calibrated(np.random.default_rng(4), (200, 3))], **settings)
    path = tmp_path / f"state.{suffix}"
    accumulator.save(path)
    loaded = CalibrationAccumulator.load(path)
    assert loaded.settings() == accumulator.settings()
    np.testing.assert_equal(loaded.compute()._asdict(), accumulator.compute()._asdict())
    assert loaded.merge(accumulator).compute().samples == 400
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_an_empty_state_is_saved_too(tmp_path):
    CalibrationAccumulator().save(tmp_path / "empty.npz")
    with pytest.raises(ValueError, match=r"compute\(\) needs at least one sample: call update\(\) first"):
        CalibrationAccumulator.load(tmp_path / "empty.npz").compute()


def test_states_with_other_settings_are_rejected(tmp_path):
    path = tmp_path / "state.json"
    CalibrationAccumulator().save(path)
    state = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**state, "schema": 99}), encoding="utf-8")
    with pytest.raises(ValueError, match="path must hold a state of schema 1, got 99"):
        CalibrationAccumulator.load(path)
    with pytest.raises(ValueError, match=r"path must end in .npz or .json, got 'state.pkl'"):
        CalibrationAccumulator().save("state.pkl")


@pytest.mark.parametrize("task", ["multiclass", "binary"])
def test_logits_give_the_same_as_their_probabilities(task):
    rng = np.random.default_rng(5)
    logits, labels = 5 * rng.standard_normal((500, 3)), rng.integers(0, 3, 500)
    probs = softmax(logits, axis=1)
    if task == "binary":
        logits, labels = logits[:, 0], labels % 2
        probs = 1 / (1 + np.exp(-logits))
    accumulator = CalibrationAccumulator(task=task)
    accumulator.update(logits, labels, input="logits")
    expected = accumulate([(probs, labels)], task=task).compute()
    np.testing.assert_allclose(accumulator.compute(), expected, rtol=1e-9)


def test_dense_batches_with_ignored_places():
    rng = np.random.default_rng(6)
    dense = np.moveaxis(random_simplex(rng, (2, 6, 5, 3)), -1, 1)
    labels = rng.integers(0, 3, (2, 6, 5))
    labels[0] = 255
    accumulator = CalibrationAccumulator(ignore_index=255)
    accumulator.update(dense, labels)
    assert accumulator.compute().samples == 30
    assert accumulator.compute().ece == pytest.approx(metrics.ece(dense[1:], labels[1:]), rel=1e-12)


def test_a_batch_without_counting_rows_adds_nothing():
    """An image without a labeled pixel must not stop an epoch."""
    probs, labels = draw_calibrated(np.random.default_rng(2), (40, 3))
    accumulator = accumulate([(probs, labels)], ignore_index=-1)
    before = accumulator.compute()
    accumulator.update(probs, np.full(40, -1))
    accumulator.update(np.log(probs), np.full(40, -1), input="logits")
    accumulator.update(probs, labels, sample_weight=np.zeros(40))
    assert accumulator.compute() == pytest.approx(before, nan_ok=True)
    with pytest.raises(ValueError, match="needs at least one sample"):
        accumulate([(probs, np.full(40, -1))], ignore_index=-1).compute()


def test_a_rejected_batch_changes_nothing():
    good = draw_calibrated(np.random.default_rng(7), (60_000, 3))
    accumulator = accumulate([good])
    before = accumulator.compute()
    bad = good[0].copy()
    bad[-1, 0] = np.nan
    with pytest.raises(ValueError, match="got nan in row 59999"):
        accumulator.update(bad, good[1])
    assert accumulator.compute() == before


def test_mismatched_input_is_rejected():
    accumulator = accumulate([draw_calibrated(np.random.default_rng(8), (20, 3))])
    with pytest.raises(ValueError, match="scores must have 3 classes as before, got 4"):
        accumulator.update(*draw_calibrated(np.random.default_rng(9), (20, 4)))
    with pytest.raises(ValueError, match="other must have 3 classes, got 4"):
        accumulator.merge(accumulate([draw_calibrated(np.random.default_rng(9), (20, 4))]))
    with pytest.raises(ValueError, match=r"other must have the same settings .*'bins': 15.*got .*'bins': 10"):
        accumulator.merge(CalibrationAccumulator(bins=10))
    with pytest.raises(ValueError, match="bins must be at least 1"):
        CalibrationAccumulator(bins=0)
    with pytest.raises(TypeError, match="ignore_index must be a whole number, got 'none'"):
        CalibrationAccumulator(ignore_index="none")


def test_memory_does_not_grow():
    accumulator = accumulate([draw_calibrated(np.random.default_rng(10), (10, 3))])
    before = sum(part.nbytes for part in (accumulator.sums, accumulator.grid, accumulator.classes))
    for seed in range(3):
        accumulator.update(*draw_calibrated(np.random.default_rng(seed), (5000, 3)))
    assert sum(part.nbytes for part in (accumulator.sums, accumulator.grid, accumulator.classes)) == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "is not a saved CalibrationAccumulator"),
        ('{"schema": 1}', "is not a saved CalibrationAccumulator: KeyError"),
        ('{"schema": 2, "settings": {}}', "must hold a state of schema 1, got 2"),
        ('{"schema": 1, "settings": {"nope": 3}}', "is not a saved CalibrationAccumulator: TypeError"),
        ('{"schema": 1, "settings": {}, "sums": [1], "grid": [[1]]}', "is damaged: its arrays must have the shapes"),
        ("garbage", "Expecting value"),
    ],
)
def test_foreign_and_damaged_states(content, message, tmp_path):
    path = tmp_path / "state.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        CalibrationAccumulator.load(path)


def test_foreign_npz_states(tmp_path):
    path = tmp_path / "state.npz"
    np.savez(path, other=1)
    with pytest.raises(ValueError, match="is not a saved CalibrationAccumulator: KeyError"):
        CalibrationAccumulator.load(path)
    np.savez_compressed(path, header='{"schema": 1, "settings": {}}', sums=np.zeros(6), grid=np.zeros((3, 1 << 20)))
    with pytest.raises(ValueError, match=r"its arrays must not be compressed, got 25,1\d\d,\d\d\d bytes unpacked"):
        CalibrationAccumulator.load(path)
    path.write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(ValueError, match="is not a saved CalibrationAccumulator: BadZipFile"):
        CalibrationAccumulator.load(path)
