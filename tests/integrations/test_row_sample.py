"""Random samples of rows that come in batches."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("lightning", reason="needs the extra lightning: `make test-integrations`")

from refocal.integrations.lightning.row_sample import RowSample, choose


def sample_rows(sizes, *, limit, seed):
    """Add batches of rows that are numbered by their labels; return the sample and the most rows it ever held."""
    sample, start, most = RowSample(limit, seed=seed), 0, 0
    for size in sizes:
        labels = np.arange(start, start + size)
        sample.add(np.stack([labels, -labels], axis=1).astype(np.float32), labels)
        start, most = start + size, max(most, sum(len(part.labels) for part in sample._parts))
    return sample.collect(), most


def test_few_rows_are_all_kept_in_order():
    rows, _ = sample_rows([3, 0, 4], limit=7, seed=[0])
    assert rows.labels.tolist() == list(range(7))
    np.testing.assert_array_equal(rows.scores[:, 1], -np.arange(7))


@pytest.mark.parametrize("sizes", [[1000], [1] * 300, [7] * 100, [64, 64, 1, 500]])
def test_never_more_rows_than_the_limit(sizes):
    rows, most = sample_rows(sizes, limit=40, seed=[3])
    assert len(rows.labels) == len(set(rows.labels.tolist())) == 40
    assert most <= 1.25 * 40
    np.testing.assert_array_equal(rows.scores[:, 0], rows.labels)
    assert (np.diff(rows.labels) > 0).all()


def test_every_row_has_the_same_chance():
    """The count of each row over 2,000 samples is binomial."""
    counts = np.zeros(60)
    for seed in range(2000):
        counts[sample_rows([7] * 8 + [4], limit=15, seed=[seed])[0].labels] += 1
    expected, variance = 2000 * 15 / 60, 2000 * (15 / 60) * (45 / 60)
    assert ((counts - expected) ** 2).sum() / variance < 100  # 60 on average, standard deviation 11


def test_samples_of_processes_merge_as_one():
    """Both keep their smallest numbers, so the smallest of all numbers are among them."""
    parts = [sample_rows([50, 50], limit=20, seed=[0, rank])[0] for rank in range(2)]
    every = np.concatenate([np.random.default_rng([0, rank]).random(100) for rank in range(2)])
    numbers = np.concatenate([part.numbers for part in parts])
    kept = np.concatenate([part.numbers[choose(part.numbers, numbers, limit=20)] for part in parts])
    assert sorted(kept) == sorted(every)[:20]
    assert choose(parts[0].numbers, numbers, limit=40).all()


def test_nothing_was_added():
    rows = RowSample(5, seed=[0]).collect()
    assert rows.scores.shape == (0, 0)
    assert len(rows.labels) == len(rows.numbers) == 0


def test_batches_of_different_classes_are_rejected():
    sample = RowSample(5, seed=[0])
    sample.add(np.zeros((2, 3), np.float32), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="all batches must have 3 classes, got 4"):
        sample.add(np.zeros((2, 4), np.float32), np.zeros(2, np.int64))
