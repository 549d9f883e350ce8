"""The posterior map: known values, mpmath, invariances, extreme input."""

from __future__ import annotations

import functools

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refocal
from arrays import random_simplex, to_numpy
from reference import TwoFloats, mp_log_posterior, relative_errors

ETA = np.array([0.55, 0.30, 0.10, 0.05])
# minimizers for ETA, published to four digits: plain softmax focal loss, and its detached form
PLAIN = {1: (0.4944, 0.3278, 0.1194, 0.0583), 2: (0.4522, 0.3324, 0.1436, 0.0719), 3: (0.4206, 0.3272, 0.1642, 0.0880)}
DETACHED = {
    1: (0.4664, 0.3228, 0.1371, 0.0736),
    2: (0.4230, 0.3202, 0.1621, 0.0947),
    3: (0.3946, 0.3136, 0.1789, 0.1129),
}


@pytest.mark.parametrize("gamma", [1, 2, 3])
@pytest.mark.parametrize(("table", "detached"), [(PLAIN, False), (DETACHED, True)])
def test_known_minimizers_map_back_to_the_posterior(xp, gamma, table, detached):
    scores = np.array(table[gamma])
    probs = xp.asarray(scores / scores.sum())
    np.testing.assert_allclose(to_numpy(refocal.posterior(probs, gamma=gamma, detached=detached)), ETA, atol=4e-4)


def test_plain_map_is_wrong_for_a_detached_loss():
    scores = np.array(DETACHED[2])
    assert np.abs(refocal.posterior(scores / scores.sum(), gamma=2) - ETA).max() > 0.03


@pytest.mark.parametrize(("gamma", "score"), [(1, 0.7744), (3, 0.6471), (5, 0.5974)])
def test_binary_posterior_of_nine_tenths(gamma, score):
    np.testing.assert_allclose(refocal.posterior([score, 1 - score], gamma=gamma), [0.9, 0.1], atol=2e-4)


def accuracy_cases():
    """Rows from the whole supported domain: logits in +-1000, K to 1000, gamma in [-0.97, 50], T in [0.01, 100]."""
    rng = np.random.default_rng(7)
    cases = []
    for index in range(400):
        classes = 1000 if index % 80 == 0 else int(rng.choice([2, 3, 5, 10, 40]))
        logits = rng.standard_normal(classes) * rng.choice([1e-8, 1e-3, 0.1, 1, 5, 30, 300])
        if index % 3 == 1:
            logits = np.round(logits)
        if index % 3 == 2:
            logits[rng.integers(classes)] += rng.choice([1, 20, 39, 41, 300, 1000])
        gamma = float(rng.choice([-0.97, -0.9, -0.5, -0.1, 0.0, 0.01, 0.5, 1, 2, 3, 10, 50, rng.uniform(-0.97, 50)]))
        if index % 5 == 0:
            gamma = rng.choice([-0.97, -0.5, 0.0, 0.5, 2, 5, 50], size=classes)
        weight = rng.uniform(0.1, 10, size=classes) if index % 7 == 0 else None
        temperature = float(rng.choice([0.01, 0.1, 1, 1, 1, 3, 100]))
        settings_ = {"gamma": gamma, "weight": weight, "temperature": temperature, "detached": index % 6 == 0}
        cases.append((np.clip(logits, -1000, 1000), settings_))
    return cases


@functools.cache
def exact_posteriors(dtype):
    """Row, settings, log Psi and Psi to 30 digits for each case, computed once for all array libraries."""
    found = []
    for logits, settings_ in accuracy_cases():
        row = logits.astype(dtype)
        exact = mp_log_posterior(row, **settings_)
        with mp.workdps(60):
            found.append((row, settings_, TwoFloats.of(exact), TwoFloats.of([mp.exp(value) for value in exact])))
    return found


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_probability_agrees_with_mpmath(xp, dtype):
    for row, settings_, exact, exact_probs in exact_posteriors(dtype):
        tolerance = 8 * np.finfo(dtype).eps * (8 + np.abs(exact.high))
        array = xp.asarray(row)
        log_probs = to_numpy(refocal.posterior_from_logits(array, log=True, **settings_))
        assert np.all(relative_errors(log_probs, exact) <= tolerance), settings_
        probs = to_numpy(refocal.posterior_from_logits(array, **settings_))
        assert probs.dtype == dtype
        representable = exact.high > np.log(max(1e-290, np.finfo(dtype).tiny))
        errors = np.abs(exact_probs.difference(probs))
        assert np.all((errors <= tolerance * exact_probs.high) | ~representable), settings_
        assert abs(probs.sum(dtype=np.float64) - 1) <= 8 * np.finfo(dtype).eps


def test_probabilities_and_logits_agree(xp):
    rng = np.random.default_rng(0)
    logits = 4 * rng.standard_normal((20, 3, 7))
    probs = refocal.posterior_from_logits(logits, gamma=0)
    for options in ({"gamma": 2.5}, {"gamma": -0.5}, {"gamma": np.linspace(0, 3, 7), "weight": np.arange(1.0, 8)}):
        from_probs = to_numpy(refocal.posterior(xp.asarray(probs), **options))
        from_logits = to_numpy(refocal.posterior_from_logits(xp.asarray(logits), **options))
        np.testing.assert_allclose(from_probs, from_logits, rtol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 2.0},
        {"gamma": -0.5, "weight": [0.1, 1, 2, 30]},
        {"gamma": [0, 0.5, 1, 5], "weight": [0.1, 1, 2, 30]},
        {"gamma": [0, 0.5, 1, 5], "detached": True, "temperature": 0.3},
        {"gamma": 1.0, "label_smoothing": 0.05},
        {"gamma": 1.0, "label_smoothing": 0.05, "smoothing_edge": "exact"},
    ],
)
def test_log_probabilities_match_probabilities(xp, options):
    logits = xp.asarray(np.random.default_rng(3).normal(0, 2, (20, 4)))
    probs = to_numpy(refocal.posterior_from_logits(logits, **options))
    logs = to_numpy(refocal.posterior_from_logits(logits, log=True, **options))
    np.testing.assert_allclose(np.exp(logs), probs, rtol=1e-12)
    assert np.all(np.isneginf(logs) == (probs == 0))


def test_gamma_zero_is_softmax(xp):
    logits = np.array([[1.0, 2.0, 3.0], [-5.0, 0.0, 700.0]])
    softmax = np.exp(logits - logits.max(axis=-1, keepdims=True))
    softmax /= softmax.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(
        to_numpy(refocal.posterior_from_logits(xp.asarray(logits), gamma=0)), softmax, rtol=1e-14
    )


@pytest.mark.parametrize("gamma", [-0.9, 0.3, 1, 5, 50])
def test_level_rows_are_fixed_points(xp, gamma):
    rows = np.array([[1.0, 0, 0, 0], [0, 0.5, 0.5, 0], [0.25] * 4])
    np.testing.assert_allclose(to_numpy(refocal.posterior(xp.asarray(rows), gamma=gamma)), rows, rtol=1e-14)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-1000, 1000), min_size=2, max_size=12),
    st.floats(-0.97, 50),
    st.booleans(),
    st.floats(-500, 500),
    st.randoms(use_true_random=False),
)
def test_shift_permutation_and_arg_max(logits, gamma, detached, shift, random):
    logits = np.array(logits)
    probs = refocal.posterior_from_logits(logits, gamma=gamma, detached=detached)
    assert probs[np.argmax(logits)] >= probs.max() * (1 - 1e-14)
    order = np.array(random.sample(range(len(logits)), len(logits)))
    permuted = refocal.posterior_from_logits(logits[order], gamma=gamma, detached=detached)
    np.testing.assert_allclose(permuted, probs[order], rtol=1e-11)
    if np.all((logits + shift) - shift == logits):
        shifted = refocal.posterior_from_logits(logits + shift, gamma=gamma, detached=detached)
        np.testing.assert_allclose(shifted, probs, rtol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gamma", [-0.5, 0.3, 1.0, 2.0, 5.0])
def test_ties_of_the_top_classes_stay_ties(xp, gamma, dtype):
    """Logits with few digits have ties; rounding must not break them and change the arg max."""
    logits = np.random.default_rng(0).integers(-3, 4, (3000, 6)) / 4
    array = xp.asarray(logits, dtype=getattr(xp, dtype))
    for log in (False, True):
        found = to_numpy(refocal.posterior_from_logits(array, gamma=gamma, log=log))
        assert np.array_equal(found.argmax(axis=-1), logits.argmax(axis=-1))


@pytest.mark.parametrize("gamma", [0.5, 3.0, [0.0, 1.0, 2.0, 3.0]])
def test_masked_classes_get_zero_and_do_not_change_others(xp, gamma):
    logits = np.array([[0.3, -np.inf, 1.0, 0.2], [5.0, -np.inf, -np.inf, -np.inf]])
    keep = np.array([0, 2, 3])
    probs = to_numpy(refocal.posterior_from_logits(xp.asarray(logits), gamma=gamma))
    without = refocal.posterior_from_logits(logits[:, keep], gamma=np.broadcast_to(gamma, 4)[keep])
    assert np.all(probs[:, 1] == 0)
    np.testing.assert_allclose(probs[:, keep], without, rtol=1e-14)
    np.testing.assert_array_equal(probs[1], [1, 0, 0, 0])
    assert np.all(np.isneginf(to_numpy(refocal.posterior_from_logits(xp.asarray(logits), gamma=gamma, log=True))[:, 1]))


def test_label_smoothing_is_undone_exactly(xp):
    rng = np.random.default_rng(3)
    eta = random_simplex(rng, (50, 6))
    options = {"gamma": 2, "label_smoothing": 0.1, "weight": np.arange(1.0, 7)}
    scores = xp.asarray(refocal.minimizer(eta, **options))
    np.testing.assert_allclose(to_numpy(refocal.posterior(scores, smoothing_edge="exact", **options)), eta, atol=1e-13)
    # no class below twice the level of smoothing: both forms agree
    eta = (eta + 0.2) / (1 + 6 * 0.2)
    scores = xp.asarray(refocal.minimizer(eta, **options))
    np.testing.assert_allclose(to_numpy(refocal.posterior(scores, **options)), eta, atol=1e-13)


def test_values_below_the_smoothing_floor_are_clipped_and_normalized(xp):
    logits = xp.asarray(np.array([[10.0, 0.0, 0.0], [1.0, 0.5, 0.0]]))
    options = {"gamma": 1, "label_smoothing": 0.3, "smoothing_edge": "exact"}
    probs = to_numpy(refocal.posterior_from_logits(logits, **options))
    np.testing.assert_allclose(probs[0], [1, 0, 0], rtol=1e-15, atol=0)
    np.testing.assert_allclose(probs.sum(axis=-1), 1, rtol=1e-15)
    log_probs = to_numpy(refocal.posterior_from_logits(logits, log=True, **options))
    np.testing.assert_allclose(log_probs[0], [0, -np.inf, -np.inf], atol=1e-15)


@pytest.mark.parametrize("smoothing", [1e-6, 0.05, 0.3, 0.5, 0.8, 0.999])
@pytest.mark.parametrize(
    "options", [{"gamma": 0}, {"gamma": 2, "weight": [1.0, 0.3, 2.0, 5.0]}, {"gamma": [0, 1, 3, 5]}]
)
def test_a_soft_edge_keeps_probabilities_positive(xp, smoothing, options):
    """The definition, class by class, from the estimate of the smoothed target."""
    logits = np.concatenate([np.random.default_rng(0).normal(0, 3, (60, 4)), np.zeros((1, 4)), [[30.0, 0, -30, -600]]])
    targets = to_numpy(refocal.posterior_from_logits(logits, **options))
    level, even = smoothing / 4, 1 / 4
    width = min(level, even - level)

    def soften(t):
        return t - level if t >= level + width else width * (t / (level + width)) ** ((level + width) / width)

    mass = np.array([[soften(t) for t in row] for row in targets])
    found = to_numpy(refocal.posterior_from_logits(xp.asarray(logits), label_smoothing=smoothing, **options))
    np.testing.assert_allclose(found, mass / mass.sum(axis=1, keepdims=True), rtol=1e-9 / (1 - smoothing), atol=1e-290)
    logs = to_numpy(refocal.posterior_from_logits(xp.asarray(logits), label_smoothing=smoothing, log=True, **options))
    assert np.isfinite(logs).all()
    np.testing.assert_allclose(np.exp(logs), found, rtol=1e-9, atol=1e-290)
    order = np.argsort(targets, axis=1, kind="stable")
    assert (np.diff(np.take_along_axis(logs, order, axis=1), axis=1) >= 0).all()
    single = refocal.posterior_from_logits(
        xp.asarray(logits.astype(np.float32)), label_smoothing=smoothing, log=True, **options
    )
    assert np.isfinite(to_numpy(single)).all()
    np.testing.assert_allclose(np.exp(to_numpy(single)), found, atol=1e-6 / (1 - smoothing))


def test_the_soft_edge_has_no_kink():
    smoothing, classes = 0.2, 4
    edge = 2 * smoothing / classes

    def mass_ratio(t):
        probs = refocal.posterior(np.array([t, 0.3, 0.3, 0.4 - t]), gamma=0, label_smoothing=smoothing)
        return probs[0] / probs[1]

    left, right = ((mass_ratio(edge + s * 1e-6) - mass_ratio(edge)) / (s * 1e-6) for s in (-1, 1))
    assert left == pytest.approx(right, rel=1e-4)
    with pytest.raises(ValueError, match="smoothing_edge must be one of 'soft', 'exact', got 'hard'"):
        refocal.posterior(np.array([0.5, 0.5]), gamma=0, smoothing_edge="hard")


def test_equal_weights_and_equal_gammas_have_no_effect(xp):
    logits = xp.asarray(np.array([[1.0, 0.0, -2.0]]))
    plain = to_numpy(refocal.posterior_from_logits(logits, gamma=2))
    same = refocal.posterior_from_logits(logits, gamma=[2, 2, 2], weight=[3.0, 3.0, 3.0])
    np.testing.assert_array_equal(to_numpy(same), plain)


def test_torch_rows_are_processed_in_blocks_unless_they_need_gradients():
    torch = pytest.importorskip("torch")
    logits = torch.randn(700, 100, generator=torch.Generator().manual_seed(0))
    expected = refocal.posterior_from_logits(logits.numpy(), gamma=2)
    np.testing.assert_allclose(refocal.posterior_from_logits(logits, gamma=2).numpy(), expected, rtol=1e-5, atol=1e-12)
    leaf = logits.clone().requires_grad_()
    probs = refocal.posterior_from_logits(leaf, gamma=2)
    probs[:, 0].sum().backward()
    np.testing.assert_allclose(probs.detach().numpy(), expected, rtol=1e-5, atol=1e-12)
    assert (leaf.grad.abs().sum(dim=1) > 0).all()


def test_extreme_weights_in_float32(xp):
    logits = xp.asarray(np.float32([0, 0, -104]))
    probs = to_numpy(refocal.posterior_from_logits(logits, gamma=2, weight=[1, 1, 1e-8]))
    assert probs[2] == pytest.approx(2.03e-38, rel=1e-2)
    ratio = to_numpy(refocal.posterior_from_logits(xp.asarray(np.float32([0, 0])), gamma=2, weight=[1e-50, 1e-51]))
    np.testing.assert_allclose(ratio, [1 / 11, 10 / 11], rtol=1e-5)
    impossible = refocal.posterior(xp.asarray(np.float32([0.5, 0.5, 0])), gamma=2, weight=[1, 1, 1e-50])
    np.testing.assert_allclose(to_numpy(impossible), [0.5, 0.5, 0], rtol=1e-6)


def test_blocks_of_rows_give_the_same_rows():
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((2, 700, 100)).astype(np.float32)
    whole = refocal.posterior_from_logits(logits, gamma=2)
    np.testing.assert_array_equal(whole[1, 333], refocal.posterior_from_logits(logits[1, 333], gamma=2))
    assert whole.dtype == np.float32
    assert whole.shape == logits.shape


def test_input_is_not_changed_and_may_be_read_only_or_strided():
    logits = np.random.default_rng(2).standard_normal((40, 2000))[:, ::2]
    before = logits.copy()
    logits.flags.writeable = False
    refocal.posterior_from_logits(logits, gamma=2)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("shape", [(0, 3), (2, 0, 3), (3,)])
def test_any_leading_shape(xp, shape):
    rows = xp.zeros(shape) + 1 / 3
    assert tuple(refocal.posterior(rows, gamma=2).shape) == shape
    assert tuple(refocal.posterior_from_logits(rows, gamma=2).shape) == shape


def test_half_precision_is_computed_in_float32():
    torch = pytest.importorskip("torch")
    logits = torch.tensor([[12.0, 0.0, -3.0], [60.0, 1.0, 0.0]])
    exact = refocal.posterior_from_logits(logits, gamma=0.5)
    for dtype in (torch.float16, torch.bfloat16):
        probs = refocal.posterior_from_logits(logits.to(dtype), gamma=0.5)
        assert probs.dtype == dtype
        torch.testing.assert_close(probs, exact.to(dtype), rtol=0, atol=0)


def test_lists_become_numpy_arrays():
    np.testing.assert_array_equal(refocal.posterior([0.5, 0.5], gamma=1), [0.5, 0.5])
