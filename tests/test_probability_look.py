"""Scores that look like probabilities are rejected where logits are expected, unless the caller says what they are."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import refocal
from refocal import calibrators, metrics
from refocal._probability_look import find_probability_look
from refocal.predictions import ColumnChoice, Predictions, PredictionsError, PredictionsReader
from refocal.report import cross_calibrate

RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.standard_normal((400, 3))
LABELS = np.argmax(LOGITS + RNG.gumbel(size=LOGITS.shape), axis=1)
PROBS = refocal.posterior_from_logits(LOGITS, gamma=0.0)
ONE = 1 / (1 + np.exp(-LOGITS[:, 0]))
BINARY = (RNG.random(400) < ONE).astype(int)

ROWS = r"scores look like probabilities: every row sums to 1; "
COLUMN = r"scores look like probabilities: every value lies in \[0, 1\]; "
REMEDY = "pass input='probs', or input='logits' if they are logits"
EVERY = [
    *(family() for family in calibrators.BY_NAME.values()),
    calibrators.FocalPosterior(gamma=2.0),
    calibrators.AutoCalibrator(candidates=[calibrators.TemperatureScaling()], cv=2),
]


@pytest.mark.thorough
def test_evaluate_and_calibrate():
    one_method = {"method": "temperature"}
    calibrate, cross = partial(refocal.calibrate, **one_method), partial(cross_calibrate, **one_method)
    for use in (refocal.evaluate, calibrate, cross):
        with pytest.raises(ValueError, match=ROWS + REMEDY):
            use(PROBS, LABELS)
        with pytest.raises(ValueError, match=COLUMN + REMEDY):
            use(ONE, BINARY)
        use(ONE, BINARY, input="probs")
        use(ONE[:, None], BINARY, input="logits")
        use(PROBS, LABELS, input="probs")
        use(PROBS, LABELS, input="logits")
        use(LOGITS, LABELS)


@pytest.mark.parametrize("family", EVERY, ids=lambda each: type(each).__name__)
def test_calibrators(family):
    with pytest.raises(ValueError, match=ROWS + REMEDY):
        clone(family).fit(PROBS, LABELS)
    with pytest.raises(ValueError, match=COLUMN + REMEDY):
        clone(family).fit(ONE, BINARY)
    clone(family).set_params(input="logits").fit(PROBS, LABELS).predict_proba(PROBS)
    fitted = clone(family).fit(LOGITS, LABELS)
    assert fitted.input_ == "logits"
    refit = f"this {type(family).__name__} takes logits: fit it with input='probs', or input='logits' if they are"
    for predict in (fitted.predict_proba, fitted.predict_log_proba, fitted.predict):
        with pytest.raises(ValueError, match=ROWS + refit):
            predict(PROBS)
    fitted = clone(family).set_params(input="probs").fit(PROBS, LABELS)
    assert fitted.input_ == "probs"
    with pytest.raises(ValueError, match=r"probs must be non-negative .*\(for logits, pass input='logits'\)"):
        fitted.predict_proba(LOGITS)
    with pytest.raises(ValueError, match=r"rows of probs must sum to 1 \(for logits, pass input='logits'\)"):
        fitted.predict_proba(LOGITS - LOGITS.min())


def test_a_fitted_calibrator_keeps_its_input_in_a_file(tmp_path):
    for input in (None, "logits", "probs"):
        scores = PROBS if input == "probs" else LOGITS
        calibrators.TemperatureScaling(input=input).fit(scores, LABELS).save(tmp_path / f"{input}.json")
        assert calibrators.load(tmp_path / f"{input}.json").input == input
    calibrators.TemperatureScaling().fit(LOGITS, LABELS).save(tmp_path / "calibrator.json")
    with pytest.raises(ValueError, match=ROWS):
        calibrators.load(tmp_path / "calibrator.json").predict_proba(PROBS)


def test_exports_and_wrappers_take_logits_by_default():
    torch = pytest.importorskip("torch")
    fitted = calibrators.TemperatureScaling().fit(LOGITS, LABELS)
    found = fitted.to_torch()(torch.tensor(LOGITS)).numpy()
    np.testing.assert_allclose(found, fitted.predict_proba(LOGITS), rtol=1e-12)
    model = LogisticRegression().fit(LOGITS, LABELS)
    wrapped = calibrators.Calibrated(model, calibrators.TemperatureScaling()).fit(LOGITS, LABELS)
    scores = model.decision_function(LOGITS)
    np.testing.assert_array_equal(
        wrapped.predict_proba(LOGITS), calibrators.TemperatureScaling().fit(scores, LABELS).predict_proba(scores)
    )


def test_selections_reject_the_other_kind():
    selection = refocal.calibrate(LOGITS, LABELS, method="temperature")
    assert selection.input == "logits"
    with pytest.raises(ValueError, match=ROWS + "this TemperatureScaling takes logits"):
        selection.predict_proba(PROBS)
    selection = refocal.calibrate(PROBS, LABELS, method="temperature", input="probs")
    with pytest.raises(ValueError, match="for logits, pass input='logits'"):
        selection.predict_proba(LOGITS)


def test_metrics_say_how_to_pass_logits():
    with pytest.raises(ValueError, match=r"scores must lie in \[0, 1\] \(for logits, pass input='logits'\)"):
        metrics.ece(LOGITS[:, 0], BINARY, task="binary")


@pytest.mark.parametrize(
    "scores",
    [
        PROBS,
        PROBS.astype(np.float32),
        PROBS.astype(np.float16),
        PROBS[:3],
        PROBS.round(3),
        PROBS.round(2),
        np.eye(3)[LABELS],
        np.full((30, 4), 0.25),
        ONE,
        ONE[:20],
        ONE[:, None].astype(np.float32),
    ],
    ids=lambda scores: f"{scores.dtype} {scores.shape}",
)
def test_probabilities_are_found(scores):
    one_column = scores.ndim == 1 or scores.shape[1] == 1
    assert find_probability_look(scores) == ("every value lies in [0, 1]" if one_column else "every row sums to 1")


@pytest.mark.parametrize(
    "scores",
    [
        LOGITS,
        np.abs(LOGITS),
        np.zeros((400, 3)),
        np.zeros(400),
        np.log(PROBS),
        PROBS[:2],
        np.vstack([PROBS, LOGITS[:1]]),
        np.eye(3)[LABELS[:10]],
        np.where(PROBS > 0.5, PROBS, -np.inf),
        np.where(PROBS > 0.5, PROBS, np.nan),
        RNG.random((50, 3)),
        BINARY.astype(float),
        ONE[:19],
        np.append(ONE, 1.01),
        LOGITS[:, 0],
        np.empty((0, 3)),
    ],
    ids=lambda scores: f"{scores.dtype} {scores.shape}",
)
def test_logits_are_not_taken_for_probabilities(scores):
    assert find_probability_look(scores) is None


def test_the_word_is_checked():
    for use in (refocal.evaluate, refocal.calibrate, calibrators.TemperatureScaling(input="odds").fit):
        settings = {} if use.__name__ == "fit" else {"input": "odds"}
        with pytest.raises(ValueError, match="input must be one of 'logits', 'probs', got 'odds'"):
            use(LOGITS, LABELS, **settings)


@pytest.mark.parametrize("name", ["scores.npz", "scores.csv", "scores.parquet"])
@pytest.mark.parametrize("scores", [PROBS, ONE], ids=["rows", "column"])
def test_files_of_logits(tmp_path, name, scores):
    if not name.endswith("npz"):
        pytest.importorskip("pyarrow")
    labels = LABELS if scores.ndim > 1 else BINARY
    Predictions(scores, input="logits", labels=labels).write(tmp_path / name)
    message = "logits.* look like probabilities: every .*; choose with --prob, .* or with logit if they are logits"
    with pytest.raises(PredictionsError, match=message):
        Predictions.read(tmp_path / name)
    with pytest.raises(PredictionsError, match=message), PredictionsReader(tmp_path / name) as blocks:
        list(blocks)
    pattern = "logit*"
    logits = Predictions.read(tmp_path / name, columns=ColumnChoice(logit=pattern))
    probs = Predictions.read(tmp_path / name, columns=ColumnChoice(prob=pattern))
    assert (logits.input, probs.input) == ("logits", "probs")
    np.testing.assert_array_equal(logits.scores, probs.scores)
    Predictions(scores, input="probs", labels=labels).write(tmp_path / name, overwrite=True)
    assert Predictions.read(tmp_path / name).input == "probs"
