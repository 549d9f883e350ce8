"""Which runs of a network stand for a statement about gamma, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

from refocal_lab.reproduce.curvature_runs import summarize_by_gamma


def run(gamma, seed, *, growth=1.1, ece=0.05):
    """A run whose largest eigenvalue is 100 at gamma 0, and `growth` times that for each gamma more."""
    value = 100 * growth**gamma
    return {
        "network": "a",
        "gamma": gamma,
        "seed": seed,
        "ece": ece,
        **{f"{what}_{name}": value for what in ("lambda_max", "trace") for name in ("trained", "cross_entropy")},
    }


def said(runs):
    return summarize_by_gamma(runs)["a"]["lambda_max_trained_at_largest_over_at_0"]


def test_all_gammas_that_have_two_seeds_come_before_more_seeds_of_fewer():
    seeds = {0.0: 5, 1.0: 5, 2.0: 5, 3.0: 5, 5.0: 3, 7.0: 3}
    runs = [run(gamma, seed) for gamma, count in seeds.items() for seed in range(count)]
    found = said(runs)
    np.testing.assert_allclose(found["seeds"], [1.1**7] * 3)
    assert found["low"] == pytest.approx(found["high"])


def test_a_gamma_with_one_seed_does_not_take_the_interval_from_the_others():
    runs = [run(gamma, seed) for gamma in (0.0, 1.0, 2.0) for seed in range(2)]
    found = said([*runs, run(7.0, 0)])
    np.testing.assert_allclose(found["seeds"], [1.1**2] * 2)
    assert "low" in found


def test_one_seed_of_each_gamma_has_no_interval():
    found = said([run(gamma, 0, growth=0.5) for gamma in (0.0, 1.0, 3.0)])
    assert found == {"seeds": [pytest.approx(0.125)]}


@pytest.mark.parametrize("gammas", [(0.0,), (0.0, 2.0), (1.0, 2.0, 3.0)], ids=str)
def test_too_few_gammas_say_nothing(gammas):
    assert summarize_by_gamma([run(gamma, seed) for gamma in gammas for seed in range(3)]) == {}


def test_the_least_ece_lies_between():
    runs = [run(gamma, seed, ece=ece) for gamma, ece in ((0.0, 0.04), (1.0, 0.01), (3.0, 0.09)) for seed in (1, 4)]
    found = summarize_by_gamma(runs)["a"]
    assert found["gamma_of_least_ece"]["mean"] == 1.0
    assert found["ece_at_0_less_least_between"]["mean"] == pytest.approx(0.03)
    assert found["ece_at_largest_less_least_between"]["mean"] == pytest.approx(0.08)
