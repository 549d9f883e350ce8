"""Each checker tells true statements from false ones, and says so if it cannot decide."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from flint import arb

from refocal_lab.claims import ClaimVerdict, Outcome, balls, komisarenko2024_tables, mukhoti2020_tables, settle
from refocal_lab.claims.claim import settle_reproduction
from refocal_lab.claims.identities import check_identity, compare_printed, is_about, rounds_to
from refocal_lab.claims.sampling import (
    check_at_least,
    find_shortest,
    proportion_bounds,
    search,
    short_rows,
    simplex_rows,
)


def test_balls_prove_a_true_inequality_and_locate_a_violation():
    assert balls.prove(lambda x, y: 2 + x * y - x * x, [(0.0, 1.0), (0.0, 1.0)]).holds
    false = balls.prove(lambda x: x - 0.75, [(0.0, 1.0)])
    assert false.holds is False
    low, high = map(float, false.words.partition("[")[2].rstrip("]").split(","))
    assert high <= 0.75 and low < high


def test_balls_do_not_decide_if_equality_is_reached_inside():
    undecided = balls.prove(lambda x: (x - arb(1) / 3) ** 2, [(0.0, 1.0)], most=500)
    assert undecided.holds is None
    assert "undecided after 500 balls" in undecided.words
    with pytest.raises(RuntimeError, match="could not decide"):
        settle(undecided)


def test_a_point_is_decided_only_if_its_ball_is_clear_of_zero():
    assert balls.decide(balls.decimal("0.1"), "yes", "no") == (True, "yes")
    assert balls.decide(-balls.decimal("0.1"), "yes", "no") == (False, "no")
    assert balls.decide(balls.ball(-1.0, 1.0), "yes", "no") == (None, "no")


def test_identities_in_many_digits():
    points = [("0.1",), ("2",)]
    assert check_identity(lambda x: mp.sinh(x) + mp.cosh(x), mp.exp, points).holds
    close = check_identity(lambda x: mp.exp(x) + mp.mpf("1e-20"), mp.exp, points)  # float64 would miss this difference
    assert close.holds is False
    assert close.words.startswith("at (0.1)")


def test_nan_never_counts_as_a_proof():
    assert check_identity(lambda _: mp.nan, lambda x: x, [("1",)]).holds is None
    assert check_identity(lambda x: x, lambda _: mp.nan, [("1",)]).holds is None
    broken = search(lambda x: np.where(x[:, 0] < 0.5, np.nan, x[:, 0]), lambda rng, n: rng.random((n, 1)), budget=100)
    assert broken.holds is None
    with pytest.raises(RuntimeError, match="could not decide: violated by nan at"):
        settle(broken)


def test_printed_numbers_are_compared_after_rounding():
    assert rounds_to(0.7749, "0.77") and not rounds_to(0.7751, "0.77")
    assert compare_printed([("a", 1.23, "1.2"), ("b", 4.0, "4")])[0].holds
    wrong, right = compare_printed([("a", 1.23, "1.3")])
    assert wrong == (False, "a: printed 1.3, computed 1.2300")
    assert right == "a: 1.230"


def test_search_finds_violations_and_nothing_else():
    def draw(rng, count):
        return rng.random((count, 2))

    rare = search(lambda rows: rows[:, 0] * rows[:, 1] - 0.98, draw, budget=60_000)
    assert rare.holds is False and "violated by" in rare.words
    assert search(lambda rows: rows[:, 0] * rows[:, 1] - 1, draw, budget=60_000).holds


def test_the_shortest_counterexample_has_fewest_classes_then_decimals():
    def crowded(rows, gamma):  # a false claim: the top of a row is above gamma
        return gamma - rows[:, 0]

    row, gamma = find_shortest(crowded, classes=(2, 3), decimals=(1, 2), gammas=(0.45, 0.35))
    assert (row.tolist(), gamma) == ([0.4, 0.4, 0.2], 0.45)
    assert find_shortest(crowded, classes=(2,), decimals=(1, 2), gammas=(0.45,)) is None


def test_rows_are_descending_distributions():
    for rows in (short_rows(4, decimals=1), simplex_rows(np.random.default_rng(0), 500, classes=4)):
        assert np.allclose(rows.sum(axis=1), 1) and np.all(rows > 0) and np.all(np.diff(rows, axis=1) <= 0)
    assert len(short_rows(4, decimals=1)) == 9  # partitions of 10 into 4 parts


def test_monte_carlo_decides_only_with_enough_trials():
    assert check_at_least(990, 1000, 0.95, error=1e-6).holds
    assert check_at_least(900, 1000, 0.95, error=1e-6).holds is False
    assert check_at_least(95, 100, 0.95, error=1e-6).holds is None
    assert proportion_bounds(0, 10, error=0.01)[0] == 0 and proportion_bounds(10, 10, error=0.01)[1] == 1


def test_monte_carlo_errs_as_rarely_as_it_says():
    rng = np.random.default_rng(0)
    wrong = sum(check_at_least(int(k), 200, 0.9, error=0.05).holds is False for k in rng.binomial(200, 0.9, 2000))
    assert wrong / 2000 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)


def test_tables_are_compared_row_by_row():
    lower = mukhoti2020_tables._lower("fla-53", "brier", "raw", "ece_15")
    assert lower.holds is False
    assert (
        "not lower in 3 of 10 rows, for example ResNet-110, CIFAR-100: sample-wise 5,3 8.56, Brier 7.88" in lower.words
    )
    assert mukhoti2020_tables._lower("focal 3", "focal 1", "ts-ece", "ece_15").holds is False
    assert mukhoti2020_tables._lower("fls-532", "fls-531", "raw", "ece_15").holds


def test_a_trend_is_judged_by_pairs():
    falls = komisarenko2024_tables._falls_with_gamma({0: 3.0, 1: 2.0, 3: 2.5, 7: 1.0}, "x")
    assert falls == (True, "x: 3 (γ = 0), 2 (γ = 1), 2.5 (γ = 3), 1 (γ = 7) falls in 5 of 6 pairs")
    assert komisarenko2024_tables._falls_with_gamma({0: 1.0, 1: 1.0}, "x").holds is False


TRUE, FALSE = Outcome(True, "so it is"), Outcome(False, "not at 2")


@pytest.mark.parametrize(
    ("finding", "verdict"),
    [
        (lambda: settle(TRUE), ClaimVerdict.HOLDS),
        (lambda: settle(TRUE, inside=TRUE, corrected=TRUE), ClaimVerdict.HOLDS),
        (lambda: settle(FALSE), ClaimVerdict.REFUTED),
        (lambda: settle(FALSE, inside=FALSE), ClaimVerdict.REFUTED),
        (lambda: settle(FALSE, corrected=FALSE), ClaimVerdict.REFUTED),
        (lambda: settle(FALSE, inside=TRUE, where="below 2"), ClaimVerdict.IN_PART),
        (lambda: settle(FALSE, corrected=TRUE), ClaimVerdict.MISPRINT),
        (lambda: settle(FALSE, instead=TRUE), ClaimVerdict.REFUTED),
        (lambda: settle_reproduction([TRUE, TRUE]), ClaimVerdict.REPRODUCED),
        (lambda: settle_reproduction([TRUE, FALSE]), ClaimVerdict.REPRODUCED_IN_PART),
        (lambda: settle_reproduction([FALSE, FALSE]), ClaimVerdict.NOT_REPRODUCED),
    ],
)
def test_verdicts_follow_from_outcomes(finding, verdict):
    assert finding().verdict is verdict


def test_outcomes_combine():
    unknown = Outcome(None, "?")
    assert (TRUE & TRUE).holds and (TRUE & FALSE) == FALSE and (unknown & FALSE) == FALSE
    assert (TRUE & unknown).holds is None
    assert (
        TRUE.as_counterexample().holds is False
        and FALSE.as_counterexample().holds is None
        and unknown.as_counterexample().holds is None
    )
    assert FALSE.reword("fine") == FALSE and TRUE.reword("fine").words == "fine"


def test_evidence_has_true_minus_signs():
    assert (
        settle(Outcome(True, "from -1 to -.5, 1e-06, p-value, x-1")).evidence == "from −1 to −.5, 1e-06, p-value, x-1"
    )


@pytest.mark.parametrize(
    ("function", "exact", "domain"),
    [
        (balls.s, lambda p: -p * mp.log(p) / (1 - p), (0.0, 1.0)),
        (balls.c, lambda x: (-mp.log(1 - x) - x) / x**2, (0.0, 0.99)),
        (balls.log1p_ratio, lambda x: mp.log1p(x) / x, (0.0, 50.0)),
        (balls.log1p_deficit, lambda x: (x - mp.log1p(x)) / x**2, (0.0, 50.0)),
        (balls.expm1_ratio, lambda x: -mp.expm1(-x) / x, (-5.0, 5.0)),
    ],
)
def test_the_ball_of_an_interval_contains_every_value_inside(function, exact, domain):
    rng = np.random.default_rng(0)
    with mp.workdps(40):
        for _ in range(200):
            low, high = np.sort(rng.uniform(*domain, 2))
            ball = function(balls.ball(float(low), float(high)))
            inner = rng.uniform(low, high)
            assert ball.contains(arb(str(exact(mp.mpf(float(inner)))), 1e-30))
        for end in domain:
            assert function(arb(end)).is_finite()


def test_ball_formulas_agree_with_the_library():
    import refocal

    for p, gamma in ((0.3, 2.0), (0.01, 0.5), (0.9, -0.5)):
        assert float(balls.phi(arb(p), arb(gamma)).mid()) == pytest.approx(
            float(refocal.phi(p, gamma=gamma)), rel=1e-14
        )
    row = [0.5, 0.3, 0.2]
    mapped = [float(v.mid()) for v in balls.posterior([arb(v) for v in row], arb(3))]
    assert mapped == pytest.approx(refocal.posterior(np.array(row), gamma=3).tolist(), rel=1e-14)
    rate = float(balls.log_phi_rate(arb(0.3), arb(2)).mid())
    assert 2 * rate == pytest.approx(np.log(refocal.phi(0.3, gamma=2.0)))


def test_what_is_true_instead_must_be_true():
    assert settle(FALSE, instead=TRUE).evidence.endswith(f". Instead: {TRUE.words}")
    with pytest.raises(RuntimeError, match="what should hold instead does not"):
        settle(FALSE, instead=FALSE)
    with pytest.raises(RuntimeError, match="could not decide"):
        settle_reproduction([TRUE, Outcome(None, "too wide")])


def test_an_explanation_is_marked_by_its_experiment():
    assert f". A likely explanation: {TRUE.words}" in settle_reproduction([FALSE], explanation=TRUE).evidence
    assert f". Not the explanation: {FALSE.words}" in settle_reproduction([FALSE], explanation=FALSE).evidence


@pytest.mark.parametrize(
    ("value", "printed", "expected"),
    [(0.6266, "0.62", True), (0.6301, "0.62", False), (0.6099, "0.62", False), (1.028, "1", True), (2.1, "1", False)],
)
def test_numbers_that_are_printed_as_approximate(value, printed, expected):
    assert is_about(value, printed) == expected
