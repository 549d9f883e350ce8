"""The losses for boosted trees: values, weights, starting scores, posteriors, and every error."""

from __future__ import annotations

import copy
import pickle
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import optimize

import refocal
from refocal.boosting import BinaryFocal, MulticlassFocal
from refocal.losses import focal_loss, sigmoid_focal_loss

RNG = np.random.default_rng(0)
ROWS = 60
BINARY = RNG.integers(0, 2, ROWS)
CLASSES = RNG.integers(0, 3, ROWS)
MARGINS = 3 * RNG.standard_normal(ROWS)
SCORES = 3 * RNG.standard_normal((ROWS, 3))
WEIGHTS = RNG.uniform(0, 2, ROWS)
CLASS_WEIGHTS = (1.0, 4.0, 0.5)

each_gamma = pytest.mark.parametrize("gamma", [0, 0.5, 2, 5.0])
each_alpha = pytest.mark.parametrize("alpha", [None, 0.25])
each_class_weight = pytest.mark.parametrize("weight", [None, CLASS_WEIGHTS])
each_package = pytest.mark.parametrize("package", ["lightgbm", "xgboost", "catboost"])


def gradient_of(loss, scores):
    leaf = torch.tensor(scores, requires_grad=True)
    (gradient,) = torch.autograd.grad((loss(leaf) * torch.tensor(WEIGHTS)).sum(), leaf)
    return gradient.numpy()


@each_gamma
@each_alpha
def test_binary_loss_and_gradient_are_those_of_sigmoid_focal_loss(gamma, alpha):
    focal = BinaryFocal(gamma=gamma, alpha=alpha)
    target = torch.tensor(BINARY, dtype=torch.float64)

    def loss(scores):
        return sigmoid_focal_loss(scores, target, gamma=gamma, alpha=alpha)

    expected = np.average(loss(torch.tensor(MARGINS)).numpy(), weights=WEIGHTS)
    np.testing.assert_allclose(focal.loss(BINARY, MARGINS, sample_weight=WEIGHTS), expected, rtol=1e-12)
    gradient, _ = focal.differentiate(BINARY, MARGINS, sample_weight=WEIGHTS)
    np.testing.assert_allclose(gradient, gradient_of(loss, MARGINS), rtol=1e-10)


@each_gamma
@each_class_weight
def test_multiclass_loss_and_gradient_are_those_of_focal_loss(gamma, weight):
    focal = MulticlassFocal(gamma=gamma, weight=weight)
    target = torch.tensor(CLASSES)
    class_weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)

    def loss(scores):
        return focal_loss(scores, target, gamma=gamma, weight=class_weight)

    of_class = np.ones(3) if weight is None else np.array(weight)
    expected = loss(torch.tensor(SCORES)).numpy() @ WEIGHTS / (of_class[CLASSES] @ WEIGHTS)
    np.testing.assert_allclose(focal.loss(CLASSES, SCORES, sample_weight=WEIGHTS), expected, rtol=1e-12)
    gradient, _ = focal.differentiate(CLASSES, SCORES, sample_weight=WEIGHTS)
    np.testing.assert_allclose(gradient, gradient_of(loss, SCORES), rtol=1e-10)


@pytest.mark.parametrize(
    ("focal", "labels", "scores"),
    [
        (BinaryFocal(gamma=2, alpha=0.3), BINARY, MARGINS),
        (MulticlassFocal(gamma=2, weight=CLASS_WEIGHTS), CLASSES, SCORES),
    ],
)
def test_whole_weights_count_repetitions(focal, labels, scores):
    counts = np.arange(ROWS) % 4
    repeated = np.repeat(labels, counts), np.repeat(scores, counts, axis=0)
    np.testing.assert_allclose(focal.loss(labels, scores, sample_weight=counts), focal.loss(*repeated))
    np.testing.assert_allclose(
        focal.starting_score(labels, sample_weight=counts), focal.starting_score(repeated[0]), rtol=1e-12
    )
    for weighted, plain in zip(
        focal.differentiate(labels, scores, sample_weight=counts), focal.differentiate(*repeated), strict=True
    ):
        np.testing.assert_allclose(weighted.sum(axis=0), plain.sum(axis=0))


@each_gamma
@each_alpha
def test_binary_starting_score_minimizes_the_loss(gamma, alpha):
    focal = BinaryFocal(gamma=gamma, alpha=alpha)
    start = focal.starting_score(BINARY, sample_weight=WEIGHTS)
    found = optimize.minimize_scalar(lambda x: focal.loss(BINARY, np.full(ROWS, x), sample_weight=WEIGHTS))
    assert start == pytest.approx(found.x, abs=1e-6)
    gradient, _ = focal.differentiate(BINARY, np.full(ROWS, start), sample_weight=WEIGHTS)
    assert abs(gradient.sum()) < 1e-12
    assert focal.posterior(start) == pytest.approx(np.average(BINARY, weights=WEIGHTS), rel=1e-12)


@each_gamma
@each_class_weight
def test_multiclass_starting_score_minimizes_the_loss(gamma, weight):
    focal = MulticlassFocal(gamma=gamma, weight=weight)
    start = focal.starting_score(CLASSES, sample_weight=WEIGHTS)
    gradient, _ = focal.differentiate(CLASSES, np.tile(start, (ROWS, 1)), sample_weight=WEIGHTS)
    np.testing.assert_allclose(gradient.sum(axis=0), 0, atol=1e-11)
    shares = np.bincount(CLASSES, weights=WEIGHTS) / WEIGHTS.sum()
    np.testing.assert_allclose(focal.posterior(start), shares, rtol=1e-10)


def test_posteriors_are_the_maps():
    binary, several = BinaryFocal(gamma=2, alpha=0.25), MulticlassFocal(gamma=3, weight=CLASS_WEIGHTS)
    expected = refocal.sigmoid_posterior(MARGINS, gamma=2, alpha=0.25)
    np.testing.assert_array_equal(binary.posterior(MARGINS), expected)
    expected = refocal.posterior_from_logits(SCORES, gamma=3, weight=CLASS_WEIGHTS)
    np.testing.assert_array_equal(several.posterior(SCORES), expected)


def test_scores_may_be_lists_or_whole_numbers():
    np.testing.assert_array_equal(BinaryFocal(gamma=2).posterior([0, 1]), BinaryFocal(gamma=2).posterior([0.0, 1.0]))
    found = MulticlassFocal(gamma=2).posterior([[0, 1, 2]])
    np.testing.assert_array_equal(found, MulticlassFocal(gamma=2).posterior([[0.0, 1.0, 2.0]]))


def test_labels_and_weights_may_be_lists_floats_booleans_or_series():
    focal = BinaryFocal(gamma=2)
    expected = focal.starting_score(BINARY, sample_weight=WEIGHTS)
    for labels in (BINARY.tolist(), BINARY.astype(np.float32), BINARY == 1, pd.Series(BINARY)):
        assert focal.starting_score(labels, sample_weight=pd.Series(WEIGHTS)) == expected


def test_a_loss_can_be_copied_compared_and_pickled():
    for focal in (BinaryFocal(gamma=2, alpha=0.25), MulticlassFocal(gamma=2, weight=np.array(CLASS_WEIGHTS))):
        for other in (copy.deepcopy(focal), pickle.loads(pickle.dumps(focal))):
            assert other == focal
            assert hash(other) == hash(focal)


@each_package
def test_an_absent_package_is_named_with_its_extra(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    for focal in (BinaryFocal(gamma=2), MulticlassFocal(gamma=2)):
        with pytest.raises(ImportError, match=rf"refocal.boosting needs {package}: pip install 'refocal\[boosting\]'"):
            getattr(focal, package)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BinaryFocal(gamma=-0.5), "gamma must be at least 0 and finite, got -0.5"),
        (lambda: BinaryFocal(gamma=2, alpha=1.0), "alpha must lie strictly between 0 and 1"),
        (lambda: MulticlassFocal(gamma=np.inf), "gamma must be at least 0 and finite, got inf"),
        (
            lambda: MulticlassFocal(gamma=2, weight=[1.0, 0.0]),
            "weight must be positive and finite, got 0.0",
        ),
        (
            lambda: MulticlassFocal(gamma=2, weight=[1.0]),
            "weight must have one value per class, for at least 2",
        ),
        (lambda: BinaryFocal(gamma=2).loss([0, 2], [0.0, 1.0]), "labels must be 0 or 1, got 2 in row 1"),
        (lambda: BinaryFocal(gamma=2).loss([0, 0.5], [0.0, 1.0]), "labels must be 0 or 1, got 0.5 in row 1"),
        (lambda: BinaryFocal(gamma=2).loss([0, np.nan], [0.0, 1.0]), "labels must be 0 or 1, got nan in row 1"),
        (lambda: BinaryFocal(gamma=2).loss([], []), r"labels must be numbers of shape \(N,\) with N >= 1"),
        (lambda: BinaryFocal(gamma=2).loss(["a"], [0.0]), r"labels must be numbers of shape \(N,\)"),
        (lambda: BinaryFocal(gamma=2).loss([0, 1], [0.0]), r"scores must have shape \(2,\), one score per label"),
        (
            lambda: BinaryFocal(gamma=2).loss([0, 1], [0.0, 1.0], sample_weight=[1.0]),
            r"sample_weight must have shape \(2,\), one weight per label, got \(1,\)",
        ),
        (
            lambda: BinaryFocal(gamma=2).loss([0, 1], [0.0, 1.0], sample_weight=[1.0, -1.0]),
            "sample_weight must be non-negative and finite, got -1.0 in row 1",
        ),
        (
            lambda: BinaryFocal(gamma=2).loss([0, 1], [0.0, 1.0], sample_weight=[0.0, 0.0]),
            "sample_weight must not be zero everywhere",
        ),
        (
            lambda: BinaryFocal(gamma=2).starting_score([0, 0]),
            "labels must have every class .* got none of class 1",
        ),
        (
            lambda: MulticlassFocal(gamma=2).starting_score([0, 2]),
            "labels must have every class .* got none of class 1",
        ),
        (
            lambda: MulticlassFocal(gamma=2).starting_score([0, 1], sample_weight=[0.0, 1.0]),
            "labels must have every class .* got none of class 0",
        ),
        (lambda: MulticlassFocal(gamma=2).starting_score([-1, 0]), "labels must be class indices, 0 or more, got -1"),
        (
            lambda: MulticlassFocal(gamma=2).loss([3], SCORES[:1]),
            "labels must be class indices from 0 to 2, got 3 in row 0",
        ),
        (lambda: MulticlassFocal(gamma=2).loss([0, 1], [0.0, 1.0]), r"scores must have shape \(N, K\) with K >= 2"),
        (
            lambda: MulticlassFocal(gamma=2).loss([0], SCORES[:2]),
            "scores must have one row for each of 1 labels",
        ),
        (
            lambda: MulticlassFocal(gamma=2, weight=[1.0, 2.0]).loss([0], SCORES[:1]),
            "scores must have 2 classes, one for each value of weight, got 3",
        ),
    ],
)
def test_errors_name_the_argument(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
