"""Prediction sets beside those of MAPIE (`make test-peers`)."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from refocal.conformal import PredictionSets
from refocal.conformal.thresholds import compute_conformity

reason = "other packages are not installed: `make test-peers` runs them"
classification = pytest.importorskip("mapie.classification", reason=reason)

COVERAGES = (0.6, 0.9, 0.95)


class Given(ClassifierMixin, BaseEstimator):
    """A fitted classifier whose features are its probabilities."""

    def __init__(self, classes=2):
        self.classes = classes
        self.classes_ = np.arange(classes)
        self.n_features_in_ = classes

    def fit(self, X, y):  # noqa: ARG002
        return self

    def predict_proba(self, X):
        return X

    def predict(self, X):
        return X.argmax(axis=1)

    def __sklearn_is_fitted__(self):
        return True


class Fixed(np.random.RandomState):
    """Random numbers that the test chooses: 1 - u, because MAPIE subtracts u p from the sum."""

    def __init__(self, parts):
        super().__init__(0)
        self.parts = list(parts)

    def uniform(self, size):
        return (1 - self.parts.pop(0)).reshape(size)


def draw(classes):
    rng = np.random.default_rng(classes)
    probs = rng.dirichlet(np.full(classes, 0.4), 1500)
    labels = np.argmax(np.log(probs) * 0.7 + rng.gumbel(size=probs.shape), axis=1)
    return probs, labels


def run_mapie(method, coverage, probs, labels, new, *, random_state=None, **options):
    theirs = classification.SplitConformalClassifier(
        Given(probs.shape[1]), confidence_level=coverage, conformity_score=method, random_state=random_state
    ).conformalize(probs, labels)
    return theirs, theirs.predict_set(new, conformity_score_params=options)[1][:, :, 0]


def check_same(ours, new, expected):
    """Check equal sets. Where a sum is at the threshold, 1 for instance, MAPIE's rounding may exclude the class."""
    found = ours.predict_set(new)
    differ = found != expected
    ranking, uniform = ours._ranking(), ours._draw(np.random.default_rng([0, 1]), len(new))
    at_threshold = np.abs(compute_conformity(new, ranking, uniform) - ours.thresholds_) < 1e-12
    assert not (differ & ~at_threshold).any()
    assert differ.sum() <= 2
    assert (found >= expected).all()


@pytest.mark.parametrize("coverage", COVERAGES)
@pytest.mark.parametrize("classes", [3, 20])
def test_lac(classes, coverage):
    probs, labels = draw(classes)
    _, expected = run_mapie("lac", coverage, probs[:700], labels[:700], probs[700:])
    ours = PredictionSets(coverage=coverage, input="probs", allow_empty=True).fit(probs[:700], labels[:700])
    check_same(ours, probs[700:], expected)


@pytest.mark.parametrize("coverage", COVERAGES)
@pytest.mark.parametrize("classes", [3, 20])
@pytest.mark.parametrize("randomized", [False, True])
def test_aps(classes, coverage, randomized):
    """MAPIE always randomizes its scores. With u = 0, its `include_last_label=True` gives the sets without chance."""
    probs, labels = draw(classes)
    uniform = [np.random.default_rng([0, stream]).random(size) for stream, size in ((0, 700), (1, 800))]
    if not randomized:
        uniform = [0 * part for part in uniform]
    _, expected = run_mapie(
        "aps",
        coverage,
        probs[:700],
        labels[:700],
        probs[700:],
        random_state=Fixed(uniform),
        include_last_label="randomized" if randomized else True,
    )
    ours = PredictionSets(
        method="aps", coverage=coverage, input="probs", randomized=randomized, allow_empty=randomized
    ).fit(probs[:700], labels[:700])
    check_same(ours, probs[700:], expected)


@pytest.mark.parametrize("coverage", COVERAGES)
@pytest.mark.parametrize("classes", [3, 20])
def test_raps(classes, coverage, monkeypatch):
    """MAPIE chooses its penalty on a part of the rows; with it and u = 1, the rest gives the same sets."""
    monkeypatch.setattr(PredictionSets, "_draw", lambda _, __, rows: np.ones((rows, 1)))
    probs, labels = draw(classes)
    theirs, expected = run_mapie(
        "raps",
        coverage,
        probs[:700],
        labels[:700],
        probs[700:],
        random_state=Fixed([np.ones(630)]),
        include_last_label=False,
    )
    score = theirs._mapie_classifier.conformity_score_function_
    tuning = {row.tobytes() for row in np.ascontiguousarray(score.X_raps)}
    rest = np.array([row.tobytes() not in tuning for row in np.ascontiguousarray(probs[:700])])
    ours = PredictionSets(
        method="raps",
        coverage=coverage,
        input="probs",
        penalty=float(np.squeeze(score.lambda_star)),
        penalty_after=int(np.squeeze(score.k_star)),
    ).fit(probs[:700][rest], labels[:700][rest])
    check_same(ours, probs[700:], expected)
