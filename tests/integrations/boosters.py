"""One way to train and to read each package of boosted trees, and data whose posterior is known."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import softmax


class Data(NamedTuple):
    """Rows with their labels and the posterior that the labels were drawn from, (N, K)."""

    features: np.ndarray
    labels: np.ndarray
    posterior: np.ndarray


def draw(rows, *, classes, seed):
    """Imbalanced classes: 6 x 5 cells of two features, each with its own posterior; about a tenth is of class 1."""
    rng = np.random.default_rng(seed)
    features = np.stack([rng.integers(0, 6, rows), rng.integers(0, 5, rows)], axis=1).astype(float)
    first, second = features.T
    logits = [2.5 + 0 * first, 0.7 * first - 0.5 * second, 0.5 * second - 0.4 * first][:classes]
    posterior = softmax(np.stack(logits, axis=1), axis=1)
    labels = (rng.random(rows)[:, None] > posterior.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return Data(features, labels, posterior)


def train_lightgbm(focal, features, labels, *, weight=None, rounds=100, valid=None, builtin=False, **settings):
    import lightgbm

    start = focal.starting_score(labels, sample_weight=weight)
    several = np.ndim(start) == 1
    params = {"verbosity": -1, "num_threads": 1, "seed": 0, "deterministic": True, **settings}
    params |= {"num_class": len(start)} if several else {}
    if builtin:  # it starts from the class frequencies by itself
        params["objective"] = "multiclass" if several else "binary"
        model = lightgbm.train(params, lightgbm.Dataset(features, labels, weight=weight), rounds)
        return model.predict, model
    data = lightgbm.Dataset(features, labels, weight=weight, init_score=_repeat(start, len(labels)))
    params |= {"objective": focal.lightgbm.objective, "metric": "None"}
    stopping = {}
    if valid is not None:
        held_out = data.create_valid(valid.features, valid.labels, init_score=_repeat(start, len(valid.labels)))
        stopping = {"valid_sets": [held_out], "feval": focal.lightgbm.metric}
        stopping["callbacks"] = [lightgbm.early_stopping(10, verbose=False)]
    model = lightgbm.train(params, data, rounds, **stopping)
    return lambda rows: focal.lightgbm.posterior(model, rows, starting_score=start), model


def train_xgboost(focal, features, labels, *, weight=None, rounds=100, valid=None, builtin=False, **settings):
    import xgboost

    start = focal.xgboost.base_score(labels, sample_weight=weight)
    several = isinstance(start, list)
    params = {"nthread": 1, "seed": 0, "base_score": start, **settings}
    params |= {"objective": "multi:softprob", "num_class": len(start)} if several else {"objective": "binary:logistic"}
    data = xgboost.DMatrix(features, labels, weight=weight)
    if builtin:
        model = xgboost.train(params, data, rounds)
        return lambda rows: model.predict(xgboost.DMatrix(rows)), model
    stopping = {}
    if valid is not None:
        stopping = {"evals": [(xgboost.DMatrix(valid.features, valid.labels), "valid")], "verbose_eval": False}
        stopping |= {"custom_metric": focal.xgboost.metric, "early_stopping_rounds": 10}
    model = xgboost.train(params, data, rounds, obj=focal.xgboost.objective, **stopping)
    return lambda rows: focal.xgboost.posterior(model, rows), model


def train_catboost(focal, features, labels, *, weight=None, rounds=100, valid=None, builtin=False, **settings):
    import catboost

    start = focal.starting_score(labels, sample_weight=weight)
    several = np.ndim(start) == 1
    params = {"iterations": rounds, "thread_count": 1, "random_seed": 0, "verbose": False, "allow_writing_files": False}
    # without random choices, and as the built-in losses take one step per tree
    params |= {"bootstrap_type": "No", "random_strength": 0, "leaf_estimation_iterations": 1} | settings
    data = catboost.Pool(features, labels, weight=weight, baseline=_repeat(start, len(labels)))
    if builtin:
        model = catboost.CatBoostClassifier(loss_function="MultiClass" if several else "Logloss", **params).fit(data)

        def predict(rows):
            probs = model.predict_proba(catboost.Pool(rows, baseline=_repeat(start, len(rows))))
            return probs if several else probs[:, 1]

        return predict, model
    params |= {"classes_count": len(start)} if several else {}
    params |= {"loss_function": focal.catboost.objective, "eval_metric": focal.catboost.metric}
    stopping = {}
    if valid is not None:
        held_out = catboost.Pool(valid.features, valid.labels, baseline=_repeat(start, len(valid.labels)))
        stopping = {"eval_set": held_out, "early_stopping_rounds": 10}
    model = catboost.CatBoostClassifier(**params).fit(data, **stopping)
    return lambda rows: focal.catboost.posterior(model, rows, starting_score=start), model


TRAIN = {"lightgbm": train_lightgbm, "xgboost": train_xgboost, "catboost": train_catboost}


def _repeat(start, rows):
    return np.full(rows, start) if np.ndim(start) == 0 else np.tile(start, (rows, 1))
