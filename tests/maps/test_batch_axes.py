"""Classes are on the last axis; all axes before it are batch axes, any number of them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, softmax

import refocal
from arrays import random_simplex
from refocal.maps.heads import logistic_head, mixture_head, quadratic_head, structured_head, table_head
from refocal.maps.inverse_focal import inverse_focal_posterior_from_logits
from refocal.maps.posterior import MapSettings

SEVERAL = {"gamma": [0.5, 1.0, 2.0, 4.0], "weight": [0.5, 1.0, 2.0, 3.0]}
SMOOTHED = {"gamma": 2.0, "label_smoothing": 0.05}
KNOTS = np.sort(np.random.default_rng(1).normal(0, 3, (4, 8)), axis=1)
VALUES = np.sort(np.random.default_rng(2).random((4, 8)), axis=1)


BASE = {"temperature": 2.0, "settings": MapSettings.check(1.5, None, 0.0, False, classes=4), "uniform": 0.01}


def head(function, *parameters, **settings):
    return lambda x: function(x, *parameters, **settings, xp=np)


LOGITS = {
    **{f"{log}-{i}": lambda x, options=options, log=log: refocal.posterior_from_logits(x, log=log, **options)
       for log in (False, True) for i, options in enumerate((SEVERAL, SMOOTHED, {"gamma": -0.5}))},
    "inverse": lambda x: inverse_focal_posterior_from_logits(x, gamma=0.7, weight=[0.5, 1, 2, 3]),
    "sigmoid": lambda x: refocal.sigmoid_posterior(x, gamma=2.0, alpha=0.25, normalize=True),
    **{f"head-{log}-{i}": make(log) for log in (False, True) for i, make in enumerate((
        lambda log: head(structured_head, KNOTS[:, :4], VALUES[0, :4], **BASE, centered=False, log=log),
        lambda log: head(structured_head, VALUES[0, :4], VALUES[1, :4], **BASE, centered=True, log=log),
        lambda log: head(mixture_head, np.array([0.5, 0.3, 0.2]), temperature=2.0, log=log),
        lambda log: head(logistic_head, VALUES[0, :4], VALUES[1, :4], KNOTS[0, :4], log=log),
        lambda log: head(quadratic_head, KNOTS[:, ::7].T, VALUES[:2, :4], KNOTS[0, :4], log=log),
        lambda log: head(table_head, KNOTS, VALUES, 0 * VALUES, top_label=False, temperature=1.0, log=log),
        lambda log: head(
            table_head, KNOTS[:1], VALUES[:1], 0 * VALUES[:1], top_label=True, temperature=1.5, log=log
        ),
    ))},
}  # fmt: skip
PROBS = {
    f"{function.__name__}-{i}": lambda x, function=function, options=options: function(x, **options)
    for function in (refocal.posterior, refocal.minimizer)
    for i, options in enumerate((SEVERAL, SMOOTHED))
}


def check(function, batch):
    found = function(batch)
    assert found.shape == batch.shape
    for place in np.ndindex(batch.shape[:-1]):
        np.testing.assert_allclose(found[place], function(batch[place]), rtol=1e-10, atol=1e-300)


@pytest.mark.parametrize("name", LOGITS)
def test_maps_of_logits(name):
    check(LOGITS[name], np.random.default_rng(0).normal(0, 2, (2, 3, 4)))


@pytest.mark.parametrize("name", PROBS)
def test_maps_of_probabilities(name):
    check(PROBS[name], random_simplex(np.random.default_rng(0), (2, 3, 4)))


def test_proper_part():
    rng = np.random.default_rng(0)
    probs, labels = random_simplex(rng, (2, 3, 4)), rng.integers(0, 4, (2, 3))
    found = refocal.proper_focal_partial(probs, labels, gamma=2.0)
    for place in np.ndindex(2, 3):
        alone = refocal.proper_focal_partial(probs[place], labels[place], gamma=2.0)
        assert found[place] == pytest.approx(float(alone), rel=1e-12)


def test_regimes():
    """Use rows near the thresholds, where sums over the classes decide."""
    probs = random_simplex(np.random.default_rng(1), (2, 3, 4), spread=0.1)
    found = refocal.confidence_regime(probs, gamma=3.0)
    assert found.shape == (2, 3)
    for place in np.ndindex(2, 3):
        assert found[place] == refocal.confidence_regime(probs[place], gamma=3.0)


@pytest.mark.parametrize("log", [False, True])
def test_heads_of_two_classes(log):
    rows = np.random.default_rng(0).normal(0, 2, (2, 3, 2))
    check(head(logistic_head, VALUES[0, :1], VALUES[1, :1], KNOTS[0, :1], log=log), rows)
    check(head(quadratic_head, KNOTS[:1, ::7].T, VALUES[:2, :1], KNOTS[0, :1], log=log), rows)
    check(head(table_head, KNOTS[:1], VALUES[:1], 0 * VALUES[:1], top_label=False, temperature=1.0, log=log), rows)


def test_heads_equal_their_formulas():
    rng = np.random.default_rng(5)
    z, a, b, c = rng.normal(0, 2, (20, 3)), rng.random(3) + 0.5, rng.random(3) + 0.5, rng.normal(0, 1, 3)
    p = softmax(z, axis=1)
    x = np.log(0.99 * refocal.posterior_from_logits(z / 2, gamma=1.5) + 0.01 / 3)
    base = {"temperature": 2.0, "settings": MapSettings.check(1.5, None, 0.0, False, classes=3), "uniform": 0.01}
    diagonal = head(structured_head, a, c, **base, centered=True, log=False)(z)
    np.testing.assert_allclose(diagonal, softmax((x - x.mean(axis=1, keepdims=True)) * a + c, axis=1), rtol=1e-12)
    matrix = rng.normal(0, 1, (3, 3))
    full = head(structured_head, matrix, c, **base, centered=False, log=False)(z)
    np.testing.assert_allclose(full, softmax(x @ matrix.T + c, axis=1), rtol=1e-12)
    mixed = head(mixture_head, np.array([0.5, 0.3, 0.2]), temperature=2.0, log=False)(z)
    np.testing.assert_allclose(mixed, 0.5 * softmax(z / 2, axis=1) + 0.3 * p + 0.2 / 3, rtol=1e-12)
    logistic = head(logistic_head, a, b, c, log=False)(z)
    each = expit(a * np.log(p) - b * np.log1p(-p) + c)
    np.testing.assert_allclose(logistic, each / each.sum(axis=1, keepdims=True), rtol=1e-10)
    low, high = -1 - a, 1 + b
    inside = np.clip(np.log(p / (1 - p)), low, high)
    score = c + a * (inside - low) + (b - a) / (2 * (high - low)) * (inside - low) ** 2
    each = expit(score)
    quadratic = head(quadratic_head, np.stack([low, high]), np.stack([a, b]), c, log=False)(z)
    np.testing.assert_allclose(quadratic, each / each.sum(axis=1, keepdims=True), rtol=1e-10)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -4])
def test_classes_on_any_axis(axis):
    """More elements than one block has, so that both ways through `map_row_blocks` are taken."""
    rng = np.random.default_rng(0)
    for shape in ((2, 3, 5, 4), (40, 20, 20, 4)):
        logits = rng.normal(0, 3, shape)
        moved = np.moveaxis(logits, -1, axis)
        expected = np.moveaxis(refocal.posterior_from_logits(logits, **SEVERAL), -1, axis)
        np.testing.assert_array_equal(refocal.posterior_from_logits(moved, **SEVERAL, axis=axis), expected)
        probs = softmax(logits, axis=-1)
        expected = np.moveaxis(refocal.posterior(probs, **SMOOTHED), -1, axis)
        np.testing.assert_array_equal(refocal.posterior(np.moveaxis(probs, -1, axis), **SMOOTHED, axis=axis), expected)


def test_images_in_torch_keep_their_layout_and_gradient():
    torch = pytest.importorskip("torch")
    logits = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = refocal.posterior_from_logits(logits.requires_grad_(), gamma=3, axis=1)
    expected = refocal.losses.FocalLoss(3).posterior(logits)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    found[:, 0].sum().backward()
    assert torch.isfinite(logits.grad).all() and logits.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("axis", "error", "message"),
    [
        (4, ValueError, r"axis must be an axis of logits with shape \(2, 3, 1, 5\), got 4"),
        (-5, ValueError, "axis must be an axis of logits"),
        (1.0, TypeError, "axis must be a whole number, got 1.0"),
        (2, ValueError, r"logits must have at least 2 classes on axis 2, got shape \(2, 3, 1, 5\)"),
    ],
)
def test_wrong_axes_are_rejected(axis, error, message):
    with pytest.raises(error, match=message):
        refocal.posterior_from_logits(np.zeros((2, 3, 1, 5)), gamma=2, axis=axis)
    with pytest.raises(error, match=message.replace("logits", "probs")):
        refocal.posterior(np.full((2, 3, 1, 5), 0.2), gamma=2, axis=axis)
