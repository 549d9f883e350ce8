"""The search for eigenvalues on matrices whose spectrum is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from refocal.curvature.lanczos import NotConvergedError, find_spectrum_ends

SIZE = 120
BULK = np.linspace(-0.1, 0.1, SIZE)
SPECTRA = {
    "outliers": [10.0, 8.0, 3.0],
    "close to each other": [1.0, 0.9999],
    "the largest in modulus are negative": [-10.0, -5.0, 0.5],
    "a tie in modulus": [5.0, -5.0],
    "none stands out": [],
}


def searched(values, *, k, tolerance=1e-8, basis=40, max_products=2000, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    turn = np.linalg.qr(np.random.default_rng(0).standard_normal((SIZE, SIZE)))[0]
    matrix = torch.tensor((turn * values) @ turn.T, dtype=dtype)
    return find_spectrum_ends(
        lambda vector: matrix @ vector,
        torch.randn(SIZE, dtype=dtype, generator=generator),
        k=k,
        tolerance=tolerance,
        max_products=max_products,
        basis=basis,
        generator=generator,
    )


def check(found, values, k, tolerance):
    largest = np.sort(np.abs(values))[::-1]
    np.testing.assert_allclose(found.algebraic, np.sort(values)[::-1][:k], atol=tolerance * largest[0], rtol=0)
    np.testing.assert_allclose(np.abs(found.modulus), largest[:k], atol=tolerance * largest[0], rtol=0)


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("name", SPECTRA)
def test_both_ends(name, k):
    values = np.concatenate([SPECTRA[name], BULK[len(SPECTRA[name]) :]])
    check(searched(values, k=k), values, k, 1e-8)
    check(searched(values, k=k, basis=18), values, k, 1e-8)  # with many restarts


def test_modulus_keeps_its_sign():
    found = searched(np.concatenate([[-7.0, 3.0], BULK[2:]]), k=2)
    assert found.modulus == pytest.approx([-7.0, 3.0])


@pytest.mark.parametrize("k", [1, 6])
def test_a_rank_below_what_is_asked(k):
    values = np.zeros(SIZE)
    values[:4] = 4.0, 3.0, -2.0, 1.0
    check(searched(values, k=k), values, k, 1e-8)
    check(searched(np.zeros(SIZE), k=k), np.zeros(SIZE), k, 1e-8)


def test_single_precision():
    values = np.concatenate([[10.0, 8.0], BULK[2:]])
    check(searched(values, k=2, tolerance=1e-4, dtype=torch.float32), values, 2, 1e-6)


def test_few_products_for_an_outlier():
    assert searched(np.concatenate([[10.0], BULK[1:]]), k=1, tolerance=1e-6).products <= 6


def test_giving_up():
    with pytest.raises(NotConvergedError, match="did not reach 1e-08 in 9 products"):
        searched(BULK, k=1, max_products=9)
