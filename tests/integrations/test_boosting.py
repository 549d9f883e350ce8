"""Focal loss in LightGBM, XGBoost and CatBoost themselves."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pytest
from boosters import TRAIN, draw
from scipy.special import expit, logit
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from refocal import metrics, minimizer, sigmoid_minimizer
from refocal.boosting import BinaryFocal, MulticlassFocal

ABSENT = "needs the extra boosting: `make test-integrations`"


@pytest.fixture(params=sorted(TRAIN))
def package(request):
    pytest.importorskip(request.param, reason=ABSENT)
    return request.param


@pytest.fixture
def train(package):
    return TRAIN[package]


def losses(**settings):
    return [BinaryFocal(**settings), MulticlassFocal(**settings)]


def classes_of(focal):
    return 2 if isinstance(focal, BinaryFocal) else 3


def truth_of(focal, data):
    return data.posterior[:, 1] if isinstance(focal, BinaryFocal) else data.posterior


def raw_of(focal, probs):
    """The sigmoid or softmax of the scores whose posterior is `probs`, which users take for a probability."""
    if isinstance(focal, BinaryFocal):
        return sigmoid_minimizer(probs.astype(float), gamma=focal.gamma, alpha=focal.alpha)
    return minimizer(probs.astype(float), gamma=focal.gamma, weight=focal.weight)


def rows_for(package, focal, rows):
    """CatBoost calls Python for every row if there are several classes."""
    return 300 if package == "catboost" and isinstance(focal, MulticlassFocal) else rows


@pytest.mark.parametrize("focal", losses(gamma=0), ids=["binary", "multiclass"])
@pytest.mark.parametrize("weighted", [False, True])
def test_gamma_zero_is_the_cross_entropy_of_the_package(package, train, focal, weighted):
    data = draw(rows_for(package, focal, 1000), classes=classes_of(focal), seed=0)
    features = data.features + np.random.default_rng(1).normal(size=data.features.shape)
    weight = np.random.default_rng(2).uniform(0.2, 3, len(features)) if weighted else None
    settings = {"weight": weight, "rounds": 20, "learning_rate": 0.2, "max_depth": 3}
    ours, _ = train(focal, features, data.labels, **settings)
    theirs, _ = train(focal, features, data.labels, builtin=True, **settings)
    np.testing.assert_allclose(ours(features), theirs(features), atol=1e-5)
    assert np.ptp(ours(features)) > 0.1


CASES = [
    BinaryFocal(gamma=2),
    BinaryFocal(gamma=3, alpha=0.25),
    MulticlassFocal(gamma=2),
    MulticlassFocal(gamma=3, weight=[1.0, 4.0, 2.0]),
]


@pytest.mark.parametrize("focal", CASES, ids=str)
def test_the_posterior_is_calibrated_and_the_score_is_not(package, train, focal):
    """Trained on so many rows, as weighted cells, that the posterior is known better than the test can see."""
    data, new = (draw(rows, classes=classes_of(focal), seed=rows) for rows in (1_000_000, 5_000))
    cells, counts = np.unique(np.column_stack([data.features, data.labels]), axis=0, return_counts=True)
    # CatBoost multiplies its penalty by the mean weight
    settings = {"lightgbm": {"min_data_in_leaf": 1}, "catboost": {"l2_leaf_reg": 0.01}}.get(package, {})
    posterior, _ = train(
        focal,
        cells[:, :2],
        cells[:, 2].astype(int),
        weight=counts.astype(float),
        rounds=200,
        learning_rate=0.3,
        **settings,
    )
    probs = posterior(new.features).astype(float)
    raw = raw_of(focal, probs)
    truth = truth_of(focal, new)
    assert np.abs(probs - truth).max() < 0.02
    assert np.abs(raw - truth).mean() > 0.08
    task = "binary" if isinstance(focal, BinaryFocal) else "multiclass"
    assert metrics.ece(probs, new.labels, task=task) < 0.03
    assert metrics.ece(raw, new.labels, task=task) > 0.1
    assert metrics.calibration_test(probs, new.labels, task=task, resamples=999).p_value > 0.01
    assert metrics.calibration_test(raw, new.labels, task=task, resamples=999).p_value == pytest.approx(0.001)


@pytest.mark.parametrize("focal", losses(gamma=2), ids=["binary", "multiclass"])
def test_early_stopping_watches_the_focal_loss(package, train, focal):
    rng = np.random.default_rng(0)
    data, valid = (draw(rows_for(package, focal, 600), classes=classes_of(focal), seed=seed) for seed in (0, 1))
    # noise to overfit
    data, valid = (each._replace(features=rng.normal(each.features, 1)) for each in (data, valid))
    rounds = 150
    posterior, model = train(focal, data.features, data.labels, valid=valid, rounds=rounds, learning_rate=0.1)
    history = {
        "lightgbm": lambda: [model.best_score["valid_0"]["focal_loss"]],
        "xgboost": lambda: [model.best_score],
        "catboost": lambda: [model.best_score_["validation"][type(focal.catboost.metric).__name__]],
    }[package]()
    trees = {"lightgbm": "best_iteration", "xgboost": "best_iteration", "catboost": "best_iteration_"}[package]
    assert 0 < getattr(model, trees) < rounds - 10
    # the value that was watched is the loss of the model that predicts
    scores = raw_of(focal, posterior(valid.features))
    scores = logit(scores) if scores.ndim == 1 else np.log(scores)
    assert focal.loss(valid.labels, scores) == pytest.approx(history[0], rel=1e-4)


@pytest.mark.parametrize("focal", losses(gamma=2), ids=["binary", "multiclass"])
def test_whole_weights_count_repetitions(package, train, focal):
    data = draw(rows_for(package, focal, 400), classes=classes_of(focal), seed=0)
    counts = 1 + np.arange(len(data.labels)) % 3
    # limits on the number of rows in a leaf would tell repeated rows from weighted ones
    settings = {"rounds": 20, "max_depth": 3, "learning_rate": 0.2}
    settings |= {"min_data_in_leaf": 1} if package == "lightgbm" else {}
    settings |= {"tree_method": "exact"} if package == "xgboost" else {}
    settings |= {"l2_leaf_reg": 1e-6} if package == "catboost" else {}  # it multiplies its penalty by the mean weight
    weighted, _ = train(focal, data.features, data.labels, weight=counts.astype(float), **settings)
    features, labels = np.repeat(data.features, counts, axis=0), np.repeat(data.labels, counts)
    repeated, _ = train(focal, features, labels, **settings)
    np.testing.assert_allclose(weighted(data.features), repeated(data.features), atol=1e-5)


@pytest.mark.parametrize("focal", losses(gamma=2), ids=["binary", "multiclass"])
def test_missing_values_are_a_group_of_their_own(package, train, focal):
    """Where the only feature is missing, the probability is the frequency among rows that miss it."""
    data = draw(rows_for(package, focal, 3000), classes=classes_of(focal), seed=0)
    missing = data.labels == np.arange(len(data.labels)) % classes_of(focal)
    features = np.where(missing, np.nan, 0.0)[:, None]
    posterior, _ = train(focal, features, data.labels, rounds=100, learning_rate=0.5)
    found = posterior(np.array([[np.nan], [0.0]]))
    expected = np.array([np.bincount(data.labels[group]) / group.sum() for group in (missing, ~missing)])
    np.testing.assert_allclose(found, expected[:, 1] if found.ndim == 1 else expected, atol=0.02)


def test_a_model_of_another_number_of_classes_is_rejected(package, train):
    binary, several = losses(gamma=2)
    for own, other in ((binary, several), (several, binary)):
        data = draw(100, classes=classes_of(own), seed=0)
        _, model = train(own, data.features, data.labels, rounds=2)
        message = rf"model must predict raw scores of shape \(N,.*\) for {type(other).__name__}, got \(100,"
        with pytest.raises(ValueError, match=message):
            getattr(other, package).posterior(model, data.features)


def test_every_probability_is_a_probability(package, train):
    """Raw scores are negative for rare classes: LightGBM#6389, catboost#2563."""
    focal = BinaryFocal(gamma=2, alpha=0.25)
    data = draw(2000, classes=2, seed=0)
    posterior, _ = train(focal, data.features, data.labels, rounds=50)
    probs = posterior(data.features)
    assert probs.shape == (2000,)
    assert ((probs > 0) & (probs < 1)).all()


@pytest.mark.parametrize("alpha", [0.25, 0.5])
def test_the_focal_loss_of_catboost(alpha):
    """CatBoost's own focal loss fits nearly the same model, and its scores have the same posterior."""
    catboost = pytest.importorskip("catboost", reason=ABSENT)
    focal, data = BinaryFocal(gamma=2, alpha=alpha), draw(20_000, classes=2, seed=0)
    settings = {"iterations": 100, "learning_rate": 0.1, "bootstrap_type": "No", "random_strength": 0}
    settings |= {"thread_count": 1, "verbose": False, "allow_writing_files": False}
    named = catboost.CatBoostClassifier(loss_function=f"Focal:focal_alpha={alpha};focal_gamma=2", **settings)
    named.fit(data.features, data.labels)
    ours = catboost.CatBoostClassifier(
        loss_function=focal.catboost.objective, eval_metric=focal.catboost.metric, **settings
    ).fit(data.features, data.labels)
    probs = focal.catboost.posterior(named, data.features)
    assert np.abs(probs - focal.catboost.posterior(ours, data.features)).max() < 0.005
    assert np.abs(probs - data.posterior[:, 1]).mean() < 0.02
    assert np.abs(named.predict_proba(data.features)[:, 1] - data.posterior[:, 1]).mean() > 0.05


def test_lightgbm_estimators():
    lightgbm = pytest.importorskip("lightgbm", reason=ABSENT)
    for focal in (BinaryFocal(gamma=2), MulticlassFocal(gamma=2)):
        data = draw(1000, classes=classes_of(focal), seed=0)
        names = np.array(["no", "perhaps", "yes"])[data.labels]  # LightGBM passes indices to the objective
        weight = np.random.default_rng(0).uniform(0.5, 2, len(names))
        start = focal.starting_score(data.labels, sample_weight=weight)
        rows = np.full(1000, start) if np.ndim(start) == 0 else np.tile(start, (1000, 1))
        settings = {"n_estimators": 20, "n_jobs": 1, "verbosity": -1, "random_state": 0}
        model = clone(lightgbm.LGBMClassifier(objective=focal.lightgbm.objective, **settings))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LightGBM 4.7 renames eval_set
            model.fit(
                data.features,
                names,
                sample_weight=weight,
                init_score=rows,
                eval_set=[(data.features, names)],
                eval_metric=focal.lightgbm.metric,
                eval_init_score=[rows],
                eval_sample_weight=[weight],
            )
        model = pickle.loads(pickle.dumps(model))
        native, _ = TRAIN["lightgbm"](focal, data.features, data.labels, weight=weight, rounds=20)
        probs = focal.lightgbm.posterior(model, data.features, starting_score=start)
        np.testing.assert_allclose(probs, native(data.features), atol=1e-12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            raw = model.predict_proba(data.features)
        assert raw.min() < 0  # what users complain about
        (history,) = model.evals_result_.values()
        watched = history["focal_loss"][-1]
        assert watched == pytest.approx(focal.loss(data.labels, raw + start, sample_weight=weight), rel=1e-9)


def test_xgboost_estimators():
    xgboost = pytest.importorskip("xgboost", reason=ABSENT)
    for focal in (BinaryFocal(gamma=2), MulticlassFocal(gamma=2)):
        data = draw(1000, classes=classes_of(focal), seed=0)
        weight = np.random.default_rng(0).uniform(0.5, 2, 1000)
        start = focal.xgboost.base_score(data.labels, sample_weight=weight)
        settings = {"n_estimators": 20, "n_jobs": 1, "random_state": 0, "base_score": start}
        model = xgboost.XGBClassifier(
            objective=focal.xgboost.objective, eval_metric=focal.xgboost.metric, early_stopping_rounds=5, **settings
        )
        model = clone(model).fit(
            data.features,
            data.labels,
            sample_weight=weight,
            eval_set=[(data.features, data.labels)],
            sample_weight_eval_set=[weight],
            verbose=False,
        )
        model = pickle.loads(pickle.dumps(model))
        native, _ = TRAIN["xgboost"](focal, data.features, data.labels, weight=weight, rounds=20)
        probs = focal.xgboost.posterior(model, data.features)
        np.testing.assert_allclose(probs, native(data.features), atol=1e-6)
        # what looks like probabilities is the link of cross-entropy
        proba = model.predict_proba(data.features)
        margin = model.predict(data.features, output_margin=True)
        if isinstance(focal, BinaryFocal):
            np.testing.assert_allclose(proba[:, 1], expit(margin), atol=1e-6)
        assert np.abs(raw_of(focal, probs) - (proba[:, 1] if probs.ndim == 1 else proba)).max() < 1e-4
        watched = model.evals_result()["validation_0"]["focal_loss"][model.best_iteration]
        assert watched == pytest.approx(focal.loss(data.labels, margin, sample_weight=weight), rel=1e-5)


def test_xgboost_in_a_grid_search():
    xgboost = pytest.importorskip("xgboost", reason=ABSENT)
    data = draw(400, classes=2, seed=0)
    model = xgboost.XGBClassifier(objective=BinaryFocal(gamma=2).xgboost.objective, n_estimators=5, n_jobs=1)
    grid = {"objective": [BinaryFocal(gamma=gamma).xgboost.objective for gamma in (1, 3)]}
    search = GridSearchCV(model, grid, cv=2, scoring="roc_auc").fit(data.features, data.labels)
    assert search.best_score_ > 0.6
