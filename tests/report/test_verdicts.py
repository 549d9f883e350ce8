"""Verdicts are true in simulated situations whose truth is known: a small version of benchmarks/verdicts.py."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from scipy import stats

from benchmark_files import BENCHMARKS, load
from refocal import metrics
from refocal.report import calibrate, evaluate, evaluate_multilabel

situations = load("verdict_situations")
benchmark = load("verdicts")

REPEATS = 5
MOST = 5_000  # samples
NAMES = [situation.name for situation in situations.SITUATIONS]
LABELS = {situation.name: situation for situation in situations.SITUATIONS if situation.multilabel}
SMALL = [each for each in situations.SITUATIONS if "1,000 classes" not in each.name and not each.multilabel]
CALIBRATED = [situation for situation in SMALL if situation.true == situations.RIGHT and situation.samples <= MOST]
WRONG = [situation for situation in SMALL if situation.true <= situations.WRONG and situation.samples <= MOST]


def test_there_are_enough_situations():
    assert len(situations.SITUATIONS) >= 40
    assert len(set(NAMES)) == len(NAMES)


def test_the_committed_table_has_every_situation_and_pages_say_how_many():
    table = (BENCHMARKS / "results/verdicts.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip().removesuffix(" *") for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:] == NAMES
    assert f"Limits kept in {len(NAMES)} of {len(NAMES)} situations." in table
    for page in ("CHANGELOG", "docs/explanation/intervals", "docs/how-to/metrics", "docs/reference/report"):
        text = (BENCHMARKS.parent / f"{page}.md").read_text(encoding="utf-8")
        assert re.search(rf"\b{len(NAMES)} (?:simulated\s)?situations\b", text)


@pytest.mark.thorough
def test_false_alarms_are_rare():
    repeats = 2 * REPEATS
    alarms = [benchmark.simulate(situation, repeats=repeats).alarm * repeats for situation in CALIBRATED]
    assert stats.binomtest(round(sum(alarms)), repeats * len(alarms), 0.05, alternative="greater").pvalue > 0.001


@pytest.mark.parametrize("situation", WRONG, ids=lambda situation: situation.name)
@pytest.mark.thorough
def test_detectable_errors_are_not_trusted_and_named(situation):
    rates = benchmark.simulate(situation, repeats=REPEATS)
    assert rates.trusted == 0
    assert rates.true >= 0.8
    assert not situation.culprits or rates.named == 1


def test_false_alarms_over_20_classes_are_rare():
    alarms = benchmark.simulate(LABELS["multi-label, calibrated, 20 classes, few samples"], repeats=10).alarm
    assert stats.binomtest(round(10 * alarms), 10, 0.05, alternative="greater").pvalue > 0.001


def test_one_bad_class_of_20_is_found_and_named():
    for name in ("multi-label, 1 of 20 classes too high", "multi-label, 1 of 20 classes too extreme"):
        situation = dataclasses.replace(LABELS[name], samples=1000)
        rates = benchmark.simulate(situation, repeats=2)
        assert (rates.alarm, rates.true, rates.named) == (1, 1, 1)


def test_words_of_a_binary_verdict():
    rng = np.random.default_rng(0)
    truth = rng.beta(0.3, 13, 20_000)
    labels = (rng.random(20_000) < truth).astype(int)
    report = evaluate(np.minimum(3.6 * truth, 0.99), labels, input="probs", class_names=("fine", "fraud"))
    assert report.task == "binary"
    assert report.shown_classes == ()
    assert report.verdict.regime == "too high"
    assert report.verdict.sentences[0] == "The probabilities of fraud are too high."
    assert "times) too high" in report.verdict.sentences[1]
    assert "Where the probability of fraud is" in report.verdict.sentences[2]
    low = evaluate(truth / 2, labels, input="probs")
    assert low.verdict.sentences[0] == "The probabilities of class 1 are too low."


@pytest.mark.parametrize("predicted", [0.0, 1e-6])
def test_no_positive_in_60_samples_is_no_reason_to_trust(predicted):
    report = evaluate(np.full(60, predicted), np.zeros(60, int), input="probs", class_names=("fine", "fraud"))
    assert report.verdict.regime == "unclear"
    assert (
        report.verdict.sentences[0] == "No sign of miscalibration, but fraud is too rare for 60 samples to rule it out."
    )
    assert report.verdict.sentences[-1] == "Fraud could be far more frequent than predicted and go unnoticed."


def test_a_rare_class_that_is_predicted_too_rarely_is_not_trusted():
    names = [name for name in NAMES if "times as frequent" in name]
    assert len(names) == 5
    rates = [benchmark.simulate(situations.SITUATIONS[NAMES.index(name)], repeats=20) for name in names]
    assert max(rate.trusted for rate in rates) == 0
    assert min(rate.alarm for rate in rates) > 0


def test_the_class_that_is_too_rare_is_the_rarer_one():
    labels = np.arange(1000) > 9  # 10 times y = 0
    report = evaluate(np.full(1000, 0.99), labels.astype(int), input="probs")
    assert "but class 0 is too rare for 1,000 samples" in report.verdict.sentences[0]
    assert report.verdict.sentences[-1] == "Class 0 could be 2.6 times as frequent as predicted and go unnoticed."


@pytest.mark.parametrize(("samples", "predicted"), [(100, 0.01), (500, 0.01), (1000, 0.001), (30_000, 0.0001)])
def test_a_rare_class_is_rarely_more_frequent_than_stated_and_unnoticed(samples, predicted):
    probs, count = np.full(samples, predicted), round(samples * predicted)
    unnoticed = evaluate(probs, np.arange(samples) < count, input="probs")
    (stated,) = re.findall(r"could be (\d+\.\d) times", unnoticed.verdict.sentences[-1])
    while metrics.diagnose(probs, np.arange(samples) < count + 1, task="binary").p_value > 0.05:
        count += 1
    assert 0.03 < stats.binom.cdf(count, samples, float(stated) * predicted) < 0.1


def test_a_factor_above_10_is_not_stated():
    report = evaluate(np.full(300, 0.001), np.zeros(300, int), input="probs")
    last = "Class 1 could be more than 10 times as frequent as predicted and go unnoticed."
    assert report.verdict.sentences[-1] == last


def test_trust_in_a_rare_class_would_have_noticed_twice_its_frequency():
    rng = np.random.default_rng(4)
    for samples in (1650, 2300):  # just too few, and just enough
        probs = np.full(samples, 0.01)
        judged = [benchmark.judge(probs, (rng.random(samples) < 0.02).astype(int)) for _ in range(60)]
        assert sum(each.verdict.regime == "calibrated" for each in judged) <= 6  # 5% are 3
        calm = benchmark.judge(probs, np.arange(samples) < samples // 100)
        assert calm.verdict.regime == ("unclear" if samples == 1650 else "calibrated")


def test_only_rare_classes_are_called_too_rare():
    report = evaluate(np.full(12, 0.4), np.arange(12) < 5, input="probs")
    assert "12 samples are too few to rule it out" in report.verdict.sentences[0]
    assert "unnoticed" not in " ".join(report.verdict.sentences)


def test_three_times_too_high_is_not_slightly_too_high():
    labels = np.arange(20_000) < 80
    for predicted, words in ((0.012, "are too high"), (0.0055, "are slightly too high")):
        report = evaluate(np.full(20_000, predicted), labels, input="probs")
        assert report.given.measures["ece"].value < 0.01
        assert words in report.verdict.sentences[0]
        turned = evaluate(np.full(20_000, 1 - predicted), ~labels, input="probs")  # y = 0 is the rarer one
        assert words.replace("high", "low") in turned.verdict.sentences[0]


@pytest.mark.parametrize(("predicted", "positives"), [(1e-5, 100), (0.004, 0)])
def test_a_hundred_times_too_low_or_too_high_is_not_slightly_so(predicted, positives):
    report = evaluate(np.full(20_000, predicted), np.arange(20_000) < positives, input="probs")
    side = "low" if positives else "high"
    assert report.verdict.sentences[0] == f"The probabilities of class 1 are too {side}."


def test_a_class_that_stays_too_rare_after_calibration_is_named():
    rng = np.random.default_rng(3)
    probs = rng.beta(0.3, 60, 3000)
    labels = (rng.random(3000) < probs).astype(int)
    scores = 3 * probs.clip(0, 0.3)
    report = calibrate(scores, labels, input="probs", method="temperature").report(scores, labels)
    last = report.verdict.sentences[-1]
    assert last.startswith("After it, no sign of miscalibration is left")
    assert last.endswith("but class 1 could be 2.5 times as frequent as predicted and go unnoticed.")


def test_percentages_have_as_many_digits_as_tell_them_apart():
    certain = np.zeros((5000, 3))
    certain[:, 0] = 1
    report = evaluate(certain, np.eye(5000, dtype=int)[7], input="probs")
    assert "100.00% sure and 99.98% right" in report.verdict.sentences[1]
    assert "class 0, 100.00% predicted on average, 99.98% observed" in report.verdict.sentences[2]


def test_one_column_and_two_give_the_same_report():
    rng = np.random.default_rng(1)
    p = rng.random(500)
    labels = (rng.random(500) < p).astype(int)
    one = evaluate(p, labels, input="probs")
    two = evaluate(np.stack([1 - p, p], axis=1), labels, input="probs")
    assert one.given.measures["ece"].value == pytest.approx(two.given.measures["ece"].value)
    assert one.verdict == two.verdict


@pytest.mark.thorough
def test_a_shifted_prior_is_named_and_mended():
    rng = np.random.default_rng(2)
    probs = rng.dirichlet(np.ones(3), 8000)
    truth = situations.scaled(probs, np.array([0.6, 0.9, 1.6]))
    labels = (rng.random((8000, 1)) > np.cumsum(truth, axis=1)[:, :-1]).sum(axis=1)
    calibration = calibrate(probs[:4000], labels[:4000], input="probs")
    report = calibration.report(probs[4000:], labels[4000:], class_names=("cat", "dog", "fox"))
    assert report.verdict.regime == "miscalibrated"
    words = " ".join(report.verdict.sentences)
    assert "Class frequencies are off: " in words
    assert "fox, 33" in words
    assert "of the samples, and the error goes from" in words
    assert report.chosen.diagnosis.p_value > 0.05


@pytest.mark.thorough
def test_the_remedy_is_not_praised_if_miscalibration_is_left():
    rng = np.random.default_rng(3)
    probs = rng.dirichlet(np.ones(3), 8000)
    truth = situations.scaled(probs, np.array([0.6, 0.9, 1.6]))
    labels = (rng.random((8000, 1)) > np.cumsum(truth, axis=1)[:, :-1]).sum(axis=1)
    logits = 2 * np.log(probs)
    report = calibrate(logits[:4000], labels[:4000], method="temperature").report(logits[4000:], labels[4000:])
    assert report.verdict.sentences[0].endswith("; temperature scaling makes them better, but not right.")
    assert "some miscalibration is left (p < 0.001): class frequencies are off" in report.verdict.sentences[-1]


def test_trust_says_what_would_have_been_seen():
    rng = np.random.default_rng(4)
    probs = rng.dirichlet(np.full(5, 0.3), 20_000)
    labels = (rng.random((20_000, 1)) > np.cumsum(probs, axis=1)[:, :-1]).sum(axis=1)
    report = evaluate(probs, labels, input="probs")
    assert report.verdict.regime == "calibrated"
    limit = 100 * report.given.diagnosis.detectable
    assert report.verdict.sentences[2].startswith(f"An error above {limit:.1f} points (ECE")
    few = evaluate(probs[:100], labels[:100], input="probs")
    assert few.verdict.regime == "unclear"
    assert "100 samples are too few" in few.verdict.sentences[0]


def test_errors_that_alternate_from_bin_to_bin_are_seen():
    rng = np.random.default_rng(5)
    p = rng.random(10_000)
    side = np.where(np.floor(15 * p) % 2, 1, -1)
    labels = (rng.random(10_000) < np.clip(p + 0.06 * side, 0, 1)).astype(int)
    report = evaluate(p, labels, input="probs")
    assert report.verdict.regime not in situations.RIGHT
    assert report.given.diagnosis.failed("bins")


def test_a_few_failures_of_certain_claims_are_seen():
    rng = np.random.default_rng(6)
    p = np.where(np.arange(6000) % 2, rng.random(6000), 0.0)
    labels = (rng.random(6000) < p).astype(int)
    labels[:6:2] = 1
    report = evaluate(p, labels, input="probs")
    assert report.given.diagnosis.p_value == pytest.approx(0, abs=1e-12)
    assert not any("times too low" in sentence for sentence in report.verdict.sentences)


def test_three_samples_tell_nothing():
    report = evaluate(np.array([0.5, 0.6, 0.4]), np.array([1, 1, 0]), input="probs")
    assert report.verdict.regime == "unclear"
    assert report.verdict.sentences[-1] == "No error would have been seen reliably in so few samples."
    assert "right" not in report.verdict.sentences[1]


def draw_rounded(classes, rows, *, decimals, temperature=1.0):
    """Draw calibrated probabilities, with labels, and sharpen and round the probabilities."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.standard_normal((rows, classes))
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    probs = np.exp(logits / temperature - np.max(logits / temperature, axis=1, keepdims=True))
    probs = np.round(probs / probs.sum(axis=1, keepdims=True), decimals)
    return (probs[:, 1] if classes == 2 else probs), labels


@pytest.mark.filterwarnings("ignore:rows of probs sum to 1 only within rounding")
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_rounding_alone_is_called_rounding(classes):
    probs, labels = draw_rounded(classes, 6000, decimals=2)
    report = evaluate(probs, labels, input="probs")
    found = report.given.diagnosis
    assert found.p_value < 0.001
    assert found.certain.rounding
    assert found.certain.p_value > 0.05
    assert report.verdict.regime == "miscalibrated"
    assert report.verdict.sentences[0] == (
        "Probabilities of exactly 0 or 1 are wrong, perhaps from rounding, but the others show no sign of "
        "miscalibration."
    )
    assert report.verdict.sentences[2] == (
        f"In {found.certain.refuted} of 6,000 samples, the class that came true has a probability of exactly 0, so the "
        "log loss is infinite. If the numbers were rounded, save more decimals."
    )
    assert "Where the probability" not in " ".join(report.verdict.sentences)
    assert evaluate(draw_rounded(classes, 6000, decimals=5)[0], labels, input="probs").given.diagnosis.certain is None


@pytest.mark.filterwarnings("ignore:rows of probs sum to 1 only within rounding")
@pytest.mark.parametrize("classes", [2, 3])
def test_rounding_does_not_hide_other_errors(classes):
    probs, labels = draw_rounded(classes, 6000, decimals=2, temperature=0.7)
    verdict = evaluate(probs, labels, input="probs").verdict
    assert verdict.regime == "overconfident"
    assert "a probability of exactly 0" in verdict.sentences[-1]


def test_wrong_certainties_that_rounding_does_not_explain_are_named_without_it():
    p, labels = np.repeat([0.0, 0.5], 500), np.tile([0, 1], 500)
    labels[:400] = 0  # 50 positives among 500 probabilities of 0
    report = evaluate(p, labels, input="probs")
    certain = report.given.diagnosis.certain
    assert (certain.refuted, certain.rounding) == (50, False)
    assert certain.p_value > 0.05
    assert report.verdict.sentences[0] == "The probabilities of class 1 are too low."
    assert report.verdict.sentences[-1].endswith("so the log loss is infinite.")
    decisions = evaluate(labels[::-1].astype(float), labels, input="probs").given.diagnosis.certain
    assert decisions.p_value is None


def test_certain_votes_among_many_classes_are_not_called_rounded():
    """One of 25 is wrong, but a 1 that is rounded stands for at least 0.995, however many classes have the rest."""
    probs, labels = np.eye(10)[np.zeros(1000, int)], np.where(np.arange(1000) % 25, 0, 5)
    probs[:100, :2], labels[:100] = [0.6, 0.4], np.arange(100) % 5 > 2
    report = evaluate(probs, labels, input="probs")
    certain = report.given.diagnosis.certain
    assert (certain.refuted, certain.rounding) == (36, False)
    assert certain.p_value > 0.05
    assert report.verdict.regime == "overconfident"


def test_rows_of_weight_zero_refute_nothing():
    p, labels = np.array([0.0, 0.5, 0.5, 0.5]), np.array([1, 0, 1, 1])
    for classes in (1, 2):
        probs = p if classes == 1 else np.column_stack([1 - p, p])
        task = "binary" if classes == 1 else "multiclass"
        weighted = metrics.diagnose(probs, labels, sample_weight=[0, 1, 1, 1], task=task)
        assert weighted.certain is None
        assert metrics.diagnose(probs, labels, task=task).certain.refuted == 1
        alone = metrics.diagnose(probs, labels, sample_weight=[1, 0, 0, 0], task=task)
        assert alone.certain.p_value is None


def test_a_class_of_several_that_fails_by_rounding_is_called_so():
    p, labels = draw_rounded(2, 6000, decimals=2)
    rng = np.random.default_rng(1)
    right = rng.random(6000)
    both = np.column_stack([p, right]), np.column_stack([labels, rng.random(6000) < right])
    report = evaluate_multilabel(*both, input="probs")
    assert "its probabilities are wrong where they are 0 or 1" in report.verdict.sentences[1]
