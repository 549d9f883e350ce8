"""Which runs of a network enter the summary by gamma, and what it says."""

from __future__ import annotations

import numpy as np
import pytest

from refocal_lab.reproduce.curvature_runs import summarize_by_gamma, summarize_by_tau


def run(gamma, seed, *, growth=1.1, ece=0.05):
    """Make a run whose largest eigenvalue is 100 * growth ** gamma."""
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


def test_more_gammas_with_two_seeds_win_over_more_seeds():
    seeds = {0.0: 5, 1.0: 5, 2.0: 5, 3.0: 5, 5.0: 3, 7.0: 3}
    runs = [run(gamma, seed) for gamma, count in seeds.items() for seed in range(count)]
    found = said(runs)
    np.testing.assert_allclose(found["seeds"], [1.1**7] * 3)
    assert found["low"] == pytest.approx(found["high"])


def test_a_gamma_with_one_seed_does_not_remove_the_interval():
    runs = [run(gamma, seed) for gamma in (0.0, 1.0, 2.0) for seed in range(2)]
    found = said([*runs, run(7.0, 0)])
    np.testing.assert_allclose(found["seeds"], [1.1**2] * 2)
    assert "low" in found


def test_one_seed_of_each_gamma_has_no_interval():
    found = said([run(gamma, 0, growth=0.5) for gamma in (0.0, 1.0, 3.0)])
    assert found == {"seeds": [pytest.approx(0.125)]}


@pytest.mark.parametrize("gammas", [(0.0,), (0.0, 2.0), (1.0, 2.0, 3.0)], ids=str)
def test_too_few_gammas_give_no_summary(gammas):
    assert summarize_by_gamma([run(gamma, seed) for gamma in gammas for seed in range(3)]) == {}


def test_the_lowest_ece_lies_in_between():
    runs = [run(gamma, seed, ece=ece) for gamma, ece in ((0.0, 0.04), (1.0, 0.01), (3.0, 0.09)) for seed in (1, 4)]
    found = summarize_by_gamma(runs)["a"]
    assert found["gamma_of_least_ece"]["mean"] == 1.0
    assert found["ece_at_0_less_least_between"]["mean"] == pytest.approx(0.03)
    assert found["ece_at_largest_less_least_between"]["mean"] == pytest.approx(0.08)


def test_a_hessian_that_was_not_measured_is_left_out():
    runs = [run(gamma, seed) for gamma in (0.0, 1.0, 3.0) for seed in range(2)]
    partial = [{key: value for key, value in one.items() if "cross_entropy" not in key} for one in runs]
    found = summarize_by_gamma(partial)["a"]
    assert found["lambda_max_trained_at_largest_over_at_0"] == said(runs)
    assert not any("cross_entropy" in name for name in found)


def penalized(tau, seed, *, ece, trace, diverged=False):
    record = {"tau": tau, "rate": 0.1, "seed": seed, "diverged": diverged}
    return record if diverged else {**record, "ece": ece, "error": 0.1 + tau, "trace": trace}


def test_changes_with_a_penalty():
    runs = [penalized(0.0, seed, ece=0.08, trace=100.0) for seed in range(3)]
    runs += [penalized(0.01, seed, ece=0.05 + seed / 100, trace=50.0) for seed in range(3)]
    found = summarize_by_tau(runs)
    assert found["ece fall(0.1, 0.01)"] == pytest.approx(0.02)
    assert found["ece fall, low(0.1, 0.01)"] < 0.02 < found["ece fall, high(0.1, 0.01)"]
    assert found["error rise(0.1, 0.01)"] == pytest.approx(0.01)
    assert found["trace over at 0(0.1, 0.01)"] == pytest.approx(0.5)


def test_diverged_and_collapsed_networks():
    runs = [penalized(0.0, seed, ece=0.08, trace=100.0) for seed in range(2)]
    lost = summarize_by_tau([*runs, *(penalized(0.03, seed, ece=0, trace=0, diverged=True) for seed in range(2))])
    assert lost == {}
    one = summarize_by_tau(
        [*runs, penalized(0.03, 0, ece=0.01, trace=-0.1), penalized(0.03, 1, ece=0, trace=0, diverged=True)]
    )
    assert one["ece fall(0.1, 0.03)"] == pytest.approx(0.07)
    assert not any("trace" in name or "low" in name for name in one)
