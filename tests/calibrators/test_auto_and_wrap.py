"""Choice of a calibrator by cross-validation, and classifiers joined with their calibrator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from labeled_logits import draw_calibrated, draw_focal, mean_nll
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from refocal.calibrators import (
    AutoCalibrator,
    Calibrated,
    FocalPosterior,
    FocalTemperatureScaling,
    MatrixScaling,
    MultilabelCalibrator,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
    load,
)

# --- AutoCalibrator


def test_weights_count_as_repetitions_in_the_standard_error():
    logits, labels = draw_calibrated(400, 3)
    few = [FocalPosterior(gamma=0.0), TemperatureScaling(), FocalTemperatureScaling()]
    once, often = (
        AutoCalibrator(candidates=few, combine="select").fit(2 * logits, labels, np.full(400, times))
        for times in (1.0, 100.0)
    )
    ratios = [b["error"] / a["error"] for a, b in zip(once.results_[1:3], often.results_[1:3], strict=True)]
    assert ratios == pytest.approx([np.sqrt(399 / 39_999)] * 2, rel=0.1)


@pytest.mark.parametrize(("scale", "chosen"), [(1.0, "FocalPosterior"), (3.0, "TemperatureScaling")])
def test_the_simplest_sufficient_calibrator_is_chosen(scale, chosen):
    logits, labels = draw_calibrated(3000, 4)
    auto = AutoCalibrator(combine="select").fit(scale * logits, labels)
    assert [type(member).__name__ for member in auto.members_] == [chosen]
    assert auto.n_parameters_ == auto.members_[0].n_parameters_
    np.testing.assert_array_equal(auto.predict_proba(logits), auto.members_[0].predict_proba(logits))
    names = [result["name"] for result in auto.results_]
    assert len(names) == 7
    assert [result["name"] for result in auto.results_ if result["chosen"]] == [chosen]
    scores = [result["score"] for result in auto.results_]
    assert scores == sorted(scores)
    assert auto.results_[0]["behind"] == auto.results_[0]["error"] == 0
    assert auto.results_[0]["p_value"] == 1
    assert sorted(result["index"] for result in auto.results_) == list(range(7))
    assert [result["index"] for result in auto.results_ if result["chosen"]] == [auto.best_index_]


def test_effective_parameters_decide_and_not_all_numbers():
    """A matrix under a strong penalty has fewer effective parameters than a vector under a weak one."""
    logits, labels = draw_calibrated(300, 6, seed=1)
    auto = AutoCalibrator(candidates=[VectorScaling(), MatrixScaling()], combine="select").fit(2 * logits, labels)
    vector, matrix = auto.results_
    assert [vector["name"], matrix["name"]] == ["VectorScaling", "MatrixScaling"]
    assert matrix["behind"] < matrix["error"]
    assert matrix["parameters"] < vector["parameters"]
    assert auto.candidates_[1].n_parameters_ > auto.candidates_[0].n_parameters_
    assert matrix["chosen"]
    assert isinstance(auto.members_[0], MatrixScaling)


def test_two_classes_have_their_own_candidates():
    logits, labels = draw_calibrated(400, 2)
    for scores in (logits, logits[:, 1] - logits[:, 0]):
        auto = AutoCalibrator(cv=2, combine="select").fit(3 * scores + 1, labels)
        parameters = {result["name"]: result["parameters"] for result in auto.results_}
        assert parameters.pop("IsotonicCalibration") > 3
        assert parameters == {
            "FocalPosterior": 0,
            "TemperatureScaling": 1,
            "FocalTemperatureScaling": 2,
            "PlattScaling": 2,
            "BetaCalibration": 3,
            "QuadraticScaling": 3,
        }


def test_a_focal_network_gets_focal_temperature_scaling():
    logits, labels = draw_focal(20_000, 5, gamma=5.0, temperature=2.0)
    auto = AutoCalibrator(cv=3, combine="select").fit(logits, labels)
    assert isinstance(auto.members_[0], FocalTemperatureScaling)


def test_scores_come_from_held_out_folds():
    logits, labels = draw_calibrated(200, 3)
    folds = KFold(4)
    auto = AutoCalibrator(candidates=[FocalTemperatureScaling()], cv=folds, combine="select").fit(2 * logits, labels)
    parts = []
    for train, test in folds.split(logits):
        fitted = FocalTemperatureScaling().fit(2 * logits[train], labels[train])
        parts.append(mean_nll(fitted, 2 * logits[test], labels[test]))
    assert auto.results_[0]["score"] == pytest.approx(np.mean(parts))
    brier = AutoCalibrator(candidates=[FocalPosterior(gamma=0)], cv=folds, scoring="brier").fit(logits, labels)
    probs = FocalPosterior(gamma=0).predict_proba(logits)
    expected = np.mean(np.sum((probs - np.eye(3)[labels]) ** 2, axis=1))
    by_name = {result["name"]: result["score"] for result in brier.results_}
    assert by_name["FocalPosterior"] == pytest.approx(expected, rel=1e-6)


def test_linear_maps_hold_out_the_folds_of_the_comparison():
    """With a given penalty nothing is chosen by the held-out rows: scores are those of fits to the other rows."""
    logits, labels = draw_calibrated(300, 3)
    candidate = VectorScaling(penalty=1.0)
    auto = AutoCalibrator(candidates=[candidate], combine="select").fit(2 * logits, labels)
    parts = []
    for train, test in KFold(5, shuffle=True, random_state=0).split(logits):
        fitted = VectorScaling(penalty=1.0).fit(2 * logits[train], labels[train])
        parts.append(mean_nll(fitted, 2 * logits[test], labels[test]))
    assert auto.results_[0]["score"] == pytest.approx(np.mean(parts), abs=2e-3)  # the base may differ


# --- mixtures


def test_a_mixture_predicts_held_out_rows_better_than_its_members():
    """Half of the rows come from a sharp network, half from a dull one: no temperature is right for both."""
    rng = np.random.default_rng(0)
    logits = 2 * rng.standard_normal((4000, 4))
    noisy = rng.random(4000) < 0.2
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    labels[noisy] = rng.integers(0, 4, noisy.sum())
    auto = AutoCalibrator().fit(3 * logits[:2000], labels[:2000])
    assert auto.weights_.sum() == pytest.approx(1)
    assert auto.weights_.min() >= 0.005
    assert auto.results_[0]["name"] == "mixture"
    rows = 3 * logits[2000:]
    probs = auto.uniform_ / 4 + (1 - auto.uniform_) * sum(
        weight * member.predict_proba(rows) for weight, member in zip(auto.weights_, auto.members_, strict=True)
    )
    np.testing.assert_allclose(auto.predict_proba(rows), probs, rtol=1e-12)
    others = [mean_nll(candidate, rows, labels[2000:]) for candidate in auto.candidates_]
    assert mean_nll(auto, rows, labels[2000:]) < min(others) + 0.003


def test_a_mixture_is_never_certain():
    logits, labels = draw_calibrated(60, 3)
    auto = AutoCalibrator().fit(50 * logits, logits.argmax(axis=1))  # separable
    assert auto.uniform_ == pytest.approx(1 / 61)
    assert auto.predict_proba(50 * logits).min() >= 0.999 / 61 / 3
    assert mean_nll(auto, 50 * logits, labels) < np.log(61 * 3)


def test_a_mixture_of_useless_scores_is_nearly_uniform():
    rng = np.random.default_rng(0)
    logits, labels = 5 * rng.standard_normal((500, 4)), rng.integers(0, 4, 500)
    assert mean_nll(AutoCalibrator().fit(logits, labels), logits, labels) < np.log(4) + 0.01


@pytest.mark.parametrize("scoring", ["nll", "brier"])
@pytest.mark.parametrize("masked", [False, True])
def test_many_candidates_may_share_the_weight(masked, scoring):
    """Each of 120 equal candidates has a weight below 1 %."""
    logits, labels = draw_calibrated(400, 4)
    if masked:
        logits[labels != 3, 3] = -np.inf
    auto = AutoCalibrator(candidates=[TemperatureScaling()] * 120, cv=2, scoring=scoring).fit(3 * logits, labels)
    assert auto.weights_.sum() == pytest.approx(1)
    alone = TemperatureScaling().fit(3 * logits, labels).predict_proba(3 * logits)
    np.testing.assert_allclose(auto.predict_proba(3 * logits), alone, atol=0.02)


@pytest.mark.parametrize("combine", ["mixture", "select"])
def test_brier_scores_are_not_worse_than_those_of_temperature_scaling(combine):
    logits, labels = draw_focal(4000, 5, gamma=3.0, temperature=1.5)
    one_hot = np.eye(5)[labels]
    auto = AutoCalibrator(scoring="brier", combine=combine).fit(logits[:2000], labels[:2000])
    plain = TemperatureScaling().fit(logits[:2000], labels[:2000])
    scores = [np.mean(np.sum((c.predict_proba(logits) - one_hot)[2000:] ** 2, axis=1)) for c in (auto, plain)]
    assert scores[0] < scores[1] + 5e-4


@pytest.mark.parametrize("input", ["logits", "probs"])
def test_members_are_calibrators_of_the_same_scores(input, tmp_path):
    """Each can be used, and saved, without the others."""
    logits, labels = draw_calibrated(400, 2)
    scores = logits if input == "logits" else 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
    scores = np.round(scores, 2)
    names = np.array(["no", "yes"])
    auto = AutoCalibrator(input=input).fit(scores, names[labels])
    for member in auto.members_:
        member.save(tmp_path / "member.json", overwrite=True)
        probs = load(tmp_path / "member.json").predict_proba(scores)
        np.testing.assert_array_equal(probs, member.predict_proba(scores))
        assert member.classes_.tolist() == ["no", "yes"]


def test_a_mixture_of_brier_scores_does_not_depend_on_the_order_of_candidates():
    """Also if probabilities are exactly 0 and 1, so that errors do not tell the label."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 300)
    logits = 300 * np.where(rng.random(300) < 0.3, -1, 1)[:, None] * np.stack([1 - 2 * labels, 2 * labels - 1], axis=1)
    pair = [FocalPosterior(gamma=0.0), PlattScaling()]
    probs = [
        AutoCalibrator(candidates=few, scoring="brier").fit(logits, labels).predict_proba(logits)
        for few in (pair, pair[::-1])
    ]
    np.testing.assert_allclose(*probs, atol=1e-6)


def test_votes_without_a_runner_up_can_be_calibrated():
    """The classes below the top are equal, so they have no temperature of their own."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    top = np.where(rng.random(300) < 0.2, (labels + 1) % 3, labels)
    auto = AutoCalibrator(input="probs").fit(0.85 * np.eye(3)[top] + 0.05, labels)
    assert auto.predict_proba([[0.9, 0.05, 0.05]])[0, 0] == pytest.approx(0.8, abs=0.12)


def test_splitters_count_samples_of_weight_0():
    logits, labels = draw_calibrated(210, 3)
    weights = np.ones(210)
    weights[::7] = 0
    auto = AutoCalibrator(cv=KFold(5), combine="select").fit(3 * logits, labels, weights)
    by_name = {result["name"]: result["score"] for result in auto.results_}
    assert by_name["VectorScaling"] == pytest.approx(by_name["TemperatureScaling"], abs=0.1)
    with pytest.raises(ValueError, match="cv must leave samples of positive weight on both sides of each fold"):
        AutoCalibrator(cv=KFold(2)).fit(logits, labels, (np.arange(210) < 105) * 1.0)


def test_scores_are_those_of_candidates_without_a_floor():
    """A probability of 0 for a true class costs the scores as given what it costs their user."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet([1.0] * 3, 600)
    labels = np.array([rng.choice(3, p=row) for row in probs])
    probs = np.where(probs < 0.02, 0, probs)
    probs /= probs.sum(axis=1, keepdims=True)
    assert np.any(probs[np.arange(600), labels] == 0)
    auto = AutoCalibrator(input="probs", combine="select").fit(probs, labels)
    scores = {result["name"]: result["score"] for result in auto.results_}
    assert scores["FocalPosterior"] > scores["TemperatureScaling"] + 1
    assert not isinstance(auto.members_[0], FocalPosterior)


@pytest.mark.parametrize("offset", [0.0, 1e8, -1e9])
def test_shifted_logits_give_the_same_mixture(offset):
    logits, labels = draw_calibrated(500, 3)
    logits = np.round(3 * logits, 6) if offset == 0 else np.round(3 * logits, 6) + offset
    auto = AutoCalibrator().fit(logits, labels)
    by_name = {result["name"]: result["score"] for result in auto.results_}
    assert by_name["VectorScaling"] == pytest.approx(0.6392, abs=1e-3)


def test_the_seed_determines_the_folds():
    logits, labels = draw_calibrated(300, 3)
    first, again, other = (AutoCalibrator(random_state=seed).fit(logits, labels).results_ for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_auto_accepts_probabilities_weights_and_class_names():
    logits, labels = draw_calibrated(300, 3)
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    names = np.array(["a", "b", "c"])
    auto = AutoCalibrator(input="probs", candidates=[TemperatureScaling(), MatrixScaling()], cv=2)
    auto.fit(probs, names[labels], np.ones(300))
    assert set(auto.predict(probs)) <= {"a", "b", "c"}
    plain = AutoCalibrator(candidates=[TemperatureScaling(), MatrixScaling()], cv=2).fit(logits, labels)
    assert auto.results_[0]["score"] == pytest.approx(plain.results_[0]["score"], rel=1e-4)


def test_candidates_may_come_from_an_iterator():
    logits, labels = draw_calibrated(50, 3)
    auto = AutoCalibrator(candidates=iter([TemperatureScaling()]), cv=2).fit(logits, labels)
    assert auto.members_[0].temperature_ == TemperatureScaling().fit(logits, labels).temperature_


def test_auto_errors():
    logits, labels = draw_calibrated(20, 3)
    for options, message in [
        ({"scoring": "ece"}, "scoring must be one of"),
        ({"combine": "vote"}, "combine must be one of"),
        ({"candidates": []}, "candidates must be a sequence of calibrators"),
        ({"candidates": [GaussianNB()]}, "candidates must be a sequence of calibrators"),
        ({"candidates": TemperatureScaling()}, r"candidates must be a sequence .* got TemperatureScaling\(\)"),
        (
            {"candidates": [TemperatureScaling(), MultilabelCalibrator()]},
            r"candidates must be calibrators for mutually exclusive classes, got MultilabelCalibrator\(\): "
            r"for rows with several labels, use MultilabelCalibrator\(AutoCalibrator\(",
        ),
        ({"cv": 1}, "cv must be a splitter or a number of folds from 2 to 20, the number of samples, got 1"),
        ({"cv": 21}, "cv must be a splitter or a number of folds from 2 to 20, the number of samples, got 21"),
    ]:
        with pytest.raises(ValueError, match=message):
            AutoCalibrator(**options).fit(logits, labels)


# --- Calibrated

X, Y = load_digits(return_X_y=True)
X = X / 16


def test_a_fitted_classifier_and_its_calibrator():
    model = LogisticRegression(C=100, max_iter=300).fit(X[:500], Y[:500])
    wrapped = Calibrated(model, TemperatureScaling()).fit(X[500:1100], Y[500:1100])
    assert wrapped.estimator_ is model
    alone = TemperatureScaling().fit(model.decision_function(X[500:1100]), Y[500:1100])
    np.testing.assert_allclose(wrapped.predict_proba(X[1100:]), alone.predict_proba(model.decision_function(X[1100:])))
    assert np.array_equal(wrapped.predict(X[1100:]), model.predict(X[1100:]))
    np.testing.assert_allclose(np.exp(wrapped.predict_log_proba(X[:5])), wrapped.predict_proba(X[:5]))
    ready = Calibrated(model, alone)  # nothing left to fit
    assert ready.classes_.tolist() == list(range(10))
    assert get_scorer("neg_log_loss")(ready, X[1100:], Y[1100:]) > -1.0
    assert not hasattr(Calibrated(model, TemperatureScaling()), "classes_")
    np.testing.assert_allclose(ready.predict_proba(X[1100:]), wrapped.predict_proba(X[1100:]))
    with pytest.raises(NotFittedError):
        Calibrated(model, TemperatureScaling()).predict_proba(X)
    with pytest.raises(NotFittedError):
        Calibrated(LogisticRegression(), alone).predict_proba(X)


def test_cross_fitting_in_a_pipeline_and_a_search():
    wrapped = Calibrated(LinearSVC(), TemperatureScaling(), cv=3)
    pipeline = make_pipeline(StandardScaler(), wrapped)
    scores = cross_val_score(pipeline, X[:600], Y[:600], cv=2, scoring="neg_log_loss")
    assert np.all(scores > -1.5)
    search = GridSearchCV(wrapped, {"estimator__C": [0.01, 1.0]}, cv=2, scoring="neg_log_loss")
    assert search.fit(X[:300], Y[:300]).predict_proba(X[:3]).shape == (3, 10)
    assert repr(clone(wrapped)) == repr(wrapped)


def test_probabilities_and_two_classes():
    binary = Y < 5
    bayes = Calibrated(GaussianNB(), TemperatureScaling(input="probs"), cv=3).fit(X[:800], binary[:800])
    raw = GaussianNB().fit(X[:800], binary[:800]).predict_proba(X[800:])
    labels = binary[800:].astype(int)
    nll = [
        -np.mean(np.log(np.maximum(p[np.arange(len(p)), labels], 1e-12))) for p in (raw, bayes.predict_proba(X[800:]))
    ]
    assert nll[1] < nll[0]
    svc = Calibrated(LinearSVC(), TemperatureScaling(), cv=3).fit(X[:800], binary[:800])
    assert svc.classes_.tolist() == [False, True]
    assert np.array_equal(svc.predict(X[800:]), svc.estimator_.predict(X[800:]))
    weighted = Calibrated(LinearSVC(), TemperatureScaling(), cv=3).fit(X[:300], binary[:300], np.ones(300))
    assert np.isfinite(weighted.calibrator_.temperature_)


def test_a_torch_module_and_its_calibrator():
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(32, 10)
    )
    network.train()
    network[0].eval()
    wrapped = Calibrated(network, TemperatureScaling()).fit(X[:300], Y[:300])
    assert [part.training for part in network.modules()] == [True, False, True, True, True]
    network.eval()
    with torch.no_grad():
        logits = network(torch.tensor(X, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(wrapped.predict_proba(X), wrapped.calibrator_.predict_proba(logits), atol=1e-6)
    ready = Calibrated(network, wrapped.calibrator_)
    np.testing.assert_allclose(ready.predict_proba(X[:9]), wrapped.predict_proba(X[:9]))
    with pytest.raises(TypeError, match="cv needs a scikit-learn classifier"):
        Calibrated(network, TemperatureScaling(), cv=3).fit(X, Y)


def test_a_module_in_float64_keeps_its_precision():
    torch.manual_seed(0)
    network = torch.nn.Linear(64, 10).double()
    wrapped = Calibrated(network, TemperatureScaling()).fit(X[:300], Y[:300])
    with torch.no_grad():
        logits = network(torch.tensor(X, dtype=torch.float64)).numpy()
    assert np.array_equal(wrapped.predict_proba(X), wrapped.calibrator_.predict_proba(logits))


class Named(torch.nn.Linear):
    """A module that returns a dictionary, as those of transformers do."""

    def forward(self, inputs):
        return {"logits": super().forward(inputs)}


def test_wrong_parts_and_labels_are_rejected():
    model = LogisticRegression(max_iter=300).fit(X[:500], Y[:500])
    with pytest.raises(TypeError, match=r"calibrator must be a calibrator of refocal.calibrators, got 'sigmoid'"):
        Calibrated(model, "sigmoid").fit(X, Y)
    with pytest.raises(TypeError, match="got the class TemperatureScaling: call it"):
        Calibrated(model, TemperatureScaling).fit(X, Y)
    with pytest.raises(ValueError, match=r"y should be a 1d array, got an array of shape \(1797, 2\)"):
        Calibrated(model, TemperatureScaling(), cv=3).fit(X, np.stack([Y, Y], axis=1))
    with pytest.raises(TypeError, match=r"the module must return a tensor of logits \(N, K\), got dict"):
        Calibrated(Named(64, 10), TemperatureScaling()).fit(X, Y)


def test_a_classifier_without_the_scores_is_rejected():
    with pytest.raises(TypeError, match="GaussianNB has no decision_function: pass input='probs' to the calibrator"):
        Calibrated(GaussianNB().fit(X, Y), TemperatureScaling(input="logits")).fit(X, Y)
    with pytest.raises(TypeError, match="LinearSVC has no predict_proba: pass input='logits' to the calibrator"):
        Calibrated(LinearSVC().fit(X, Y), TemperatureScaling(input="probs")).fit(X, Y)
