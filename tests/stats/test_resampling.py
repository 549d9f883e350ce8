"""Resamples have the moments that theory predicts, drawn one by one or, for very many samples, as Gaussians.

The tests use 4,000 resamples. A mean is within 5 standard errors (false alarm: 6e-7), a variance within 15 %, which is
6.7 standard errors.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.stats import poisson

from refocal.stats import resampling
from refocal.stats.resampling import Cells, bootstrap_sums, calibrated_hits, class_hits, draw_counts, group_cells

RESAMPLES = 4000


def close(found, mean, variance):
    np.testing.assert_array_less(np.abs(found.mean(axis=0) - mean), 5 * np.sqrt(variance / RESAMPLES) + 1e-12)
    np.testing.assert_allclose(found.var(axis=0), variance, rtol=0.15)


def made_cells(rng, count, copies):
    confidence, weight = rng.uniform(0.1, 0.9, count), rng.uniform(0.5, 2, count)
    return Cells(copies, weight, confidence, np.zeros(count), rng.integers(0, 4, count))


@pytest.mark.parametrize("many", [10**9, 30], ids=["each", "Gaussian"])
@pytest.mark.parametrize("repeated", [False, True])
def test_hits_of_a_calibrated_model(many, repeated, monkeypatch):
    """The hits of a bin have mean sum n w c and variance sum n w^2 c (1 - c)."""
    monkeypatch.setattr(resampling, "_MANY_CELLS", many)
    rng = np.random.default_rng(0)
    cells = made_cells(rng, 60, rng.integers(1, 9, 60).astype(float) if repeated else np.ones(60))
    found = calibrated_hits(cells, resamples=RESAMPLES, bins=4, rng=rng)
    c, mass = cells.confidence, cells.copies * cells.weight
    mean = np.bincount(cells.bin, weights=mass * c)
    close(found, mean, np.bincount(cells.bin, weights=mass * cells.weight * c * (1 - c)))


def test_hits_are_not_gaussian_if_one_of_many_samples_dominates(monkeypatch):
    monkeypatch.setattr(resampling, "_MANY_CELLS", 30)
    rng = np.random.default_rng(0)
    cells = made_cells(rng, 60, np.ones(60))._replace(weight=np.where(np.arange(60), 1e-6, 1.0), bin=np.zeros(60, int))
    found = calibrated_hits(cells, resamples=RESAMPLES, bins=1, rng=rng)
    assert set(found.round(3).ravel()) == {0.0, 1.0}


@pytest.mark.parametrize("many", [10**9, 30], ids=["each", "Gaussian"])
def test_bootstrap_of_weighted_means(many, monkeypatch):
    """A ratio of resampled sums has the covariance of sum (r - c w) / total, with c the observed mean."""
    monkeypatch.setattr(resampling, "_MANY_CELLS", many)
    rng = np.random.default_rng(1)
    weight = rng.uniform(0.5, 2, 400)
    several = [csr_array(rng.normal(2, 1, (400, size)) * weight[:, None]) for size in (3, 2)]
    found = bootstrap_sums(several, weight, resamples=RESAMPLES, rng=rng)
    residuals = np.concatenate([each.toarray() for each in several], axis=1)
    center = residuals.sum(axis=0) / weight.sum()
    away = residuals - np.outer(weight, center)
    covariance = away.T @ away / weight.sum() ** 2
    joined = np.concatenate(found, axis=1)
    assert [part.shape for part in found] == [(RESAMPLES, 3), (RESAMPLES, 2)]
    # The ratio has a bias of order 1 / n, which is below its standard error here.
    close(joined, center, np.diag(covariance))
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(np.cov(joined.T) / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=0.1)


def test_hits_of_calibrated_classes():
    """Each class of each row is the label with its probability; exactly one class of a row is."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), 40)
    column = rng.integers(0, 5, (40, 3))
    weight = rng.uniform(0.5, 2, 40)
    found = class_hits(probs, column, weight, size=5, resamples=RESAMPLES, rng=rng)
    one_hot = column[:, :, None] == np.arange(5)
    in_column = np.sum(probs[:, :, None] * one_hot, axis=1)  # of the label of each row, (40, 5)
    close(found, weight @ in_column, weight**2 @ (in_column * (1 - in_column)))
    np.testing.assert_allclose(found.sum(axis=1), weight.sum(), rtol=1e-12)
    # Classes without a column (here: number 4) do not count.
    fewer = class_hits(probs, column, weight, size=4, resamples=10, rng=rng)
    assert fewer.shape == (10, 4)


def test_counts_are_poisson():
    """Mean, variance and shares of counts with mean 1, over 400,000 draws (5 standard errors)."""
    drawn = np.concatenate(list(draw_counts(np.ones(100), resamples=RESAMPLES, rng=np.random.default_rng(2))))
    assert drawn.shape == (RESAMPLES, 100)
    close(drawn, np.ones(100), np.ones(100))
    shares = np.bincount(drawn.ravel().astype(int))[:5] / drawn.size
    expected = poisson.pmf(np.arange(5), 1)
    np.testing.assert_array_less(np.abs(shares - expected), 5 * np.sqrt(expected / drawn.size))


def test_an_empty_resample_is_replaced_by_the_sample():
    drawn = np.concatenate(list(draw_counts(np.full(1, 3.0), resamples=500, rng=np.random.default_rng(0))))
    assert drawn.min() == 1


def test_chunks_add_up_to_all_resamples(monkeypatch):
    monkeypatch.setattr(resampling, "_CHUNK_ELEMENTS", 100)
    found = [len(part) for part in draw_counts(np.ones(30), resamples=10, rng=np.random.default_rng(0))]
    assert found == [3, 3, 3, 1]
    wide = [len(part) for part in draw_counts(np.ones(300), resamples=3, rng=np.random.default_rng(0))]
    assert wide == [1, 1, 1]


@pytest.mark.parametrize("count", [2048, 20_000])
def test_cells_keep_the_sums_of_their_bins(count):
    rng = np.random.default_rng(4)
    confidence, correct = rng.random(count), rng.random(count) < 0.4
    index = rng.integers(0, 5, count)
    cells = group_cells(confidence, correct, None, index)
    for given, kept in (
        (np.ones(count), cells.weight),
        (confidence, cells.weight * cells.confidence),
        (correct.astype(float), cells.weight * cells.correct),
    ):
        expected = np.bincount(index, weights=given)
        np.testing.assert_allclose(np.bincount(cells.bin, weights=cells.copies * kept), expected, rtol=1e-12)
    assert np.all(np.isin(cells.correct, [0, 1]))
    # Samples are grouped only without weights, and only if there are more samples than levels of confidence.
    assert (len(cells.copies) < count) == (count > 2048)
    weights = rng.random(count)
    alone = group_cells(confidence, correct, weights, index)
    np.testing.assert_array_equal(alone.weight, weights)
    np.testing.assert_array_equal(alone.confidence, confidence)
