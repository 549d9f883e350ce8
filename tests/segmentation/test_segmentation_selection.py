"""Calibrators measured on images, and the choice among them with images as the sample."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import rich
from scipy.special import logsumexp
from segmentation_images import IGNORED, draw_images

from refocal.calibrators import FocalPosterior, TemperatureScaling, VectorScaling, load
from refocal.report import words
from refocal.segmentation import SegmentationCalibration, calibrate, fit, predict_proba, to_rows


def measure(logits, labels, classes=3, **settings):
    calibration = SegmentationCalibration(classes, ignore_index=IGNORED, **settings)
    calibration.update(logits, labels)
    return calibration


def test_a_calibrator_is_measured_like_its_probabilities():
    logits, labels = draw_images(5)
    rows = to_rows(logits, labels, ignore_index=IGNORED)
    for calibrator in (FocalPosterior(gamma=2), VectorScaling().fit(rows.scores, rows.labels)):
        probs = predict_proba(calibrator, logits)
        expected = measure(probs, labels, input="probs").compute(resamples=100)
        found = measure(logits, labels, calibrator=calibrator).compute(resamples=100)
        for name in ("ece", "nll", "brier", "accuracy", "overconfidence"):
            assert getattr(found.overall, name).value == pytest.approx(getattr(expected.overall, name).value)
        assert found.classwise_ece.value == pytest.approx(expected.classwise_ece.value)


def test_one_channel_and_ignored_nan():
    logits, labels = draw_images(5, 2)
    one = logits[:, 1:] - logits[:, :1]
    two = measure(logits, labels, 2, calibrator=FocalPosterior(gamma=2)).compute(resamples=100)
    one[labels[:, None] == IGNORED] = np.nan
    found = measure(one, labels, 2, calibrator=FocalPosterior(gamma=2)).compute(resamples=100)
    assert found.overall.nll == pytest.approx(two.overall.nll)


def test_probabilities_do_not_underflow():
    logits = np.array([[1000.0, 0.0, -1000.0]]).reshape(1, 3, 1, 1)
    nll = measure(logits, np.array([[[2]]]), calibrator=TemperatureScaling().fit(np.eye(3), [0, 1, 2])).compute()
    assert np.isfinite(nll.overall.nll.value)


def test_objects_with_equal_calibrators_are_merged():
    logits, labels = draw_images(6)
    first = fit(TemperatureScaling(), [(logits, labels)], ignore_index=IGNORED)
    again = fit(TemperatureScaling(), [(logits, labels)], ignore_index=IGNORED)
    both = measure(logits[:3], labels[:3], calibrator=first).merge(measure(logits[3:], labels[3:], calibrator=again))
    whole = measure(logits, labels, calibrator=first)
    assert both.compute(resamples=100).overall.nll == pytest.approx(whole.compute(resamples=100).overall.nll)
    for other in (FocalPosterior(gamma=2), None):
        with pytest.raises(ValueError, match="other must have the same settings"):
            both.merge(SegmentationCalibration(3, ignore_index=IGNORED, calibrator=other))


def test_wrong_calibrators_are_rejected():
    with pytest.raises(TypeError, match="calibrator must be a fitted calibrator"):
        SegmentationCalibration(3, calibrator="temperature")
    with pytest.raises(ValueError, match=r"input must be left out if a calibrator is given.*got 'logits'"):
        SegmentationCalibration(3, calibrator=FocalPosterior(gamma=2), input="logits")


def test_image_sums_are_loops_over_images():
    logits, labels = draw_images(4)
    labels[2] = IGNORED
    sums, pixels = measure(logits, labels).image_nll()
    for image in range(4):
        counted = labels[image] != IGNORED
        own = np.take_along_axis(logits[image], np.where(counted, labels[image], 0)[None], axis=0)[0]
        assert pixels[image] == counted.sum()
        assert sums[image] == pytest.approx((logsumexp(logits[image], axis=0) - own)[counted].sum())


def test_the_choice_follows_the_standard_error_over_images():
    """Another sum of the same rule: the spread of the differences between images."""
    batches = [draw_images(10, seed=seed, size=size) for seed, size in ((1, (6, 7)), (2, (6, 7)))]
    selection = calibrate(batches, gamma=1.0, ignore_index=IGNORED)
    assert [each.name for each in selection.candidates] == ["given", "posterior", "temperature", "focal-temperature"]
    means, parameters = {}, {"given": 0, "posterior": 0, "temperature": 1, "focal-temperature": 2}
    logits, labels = (np.concatenate(part) for part in zip(*batches, strict=True))
    counted = labels != IGNORED
    for each in selection.candidates:
        log_p = np.log(predict_proba(each.calibrator, logits))
        own = np.take_along_axis(log_p, np.where(counted, labels, 0)[:, None], axis=1)[:, 0]
        means[each.name] = np.array([-own[image][counted[image]].sum() for image in range(20)])
    sizes = counted.sum(axis=(1, 2))
    best = min(means, key=lambda name: means[name].sum())
    for method in selection.choice.methods:
        away = means[method.name] - means[best]
        behind = away.sum() / sizes.sum()
        assert method.nll == pytest.approx(means[method.name].sum() / sizes.sum())
        assert method.behind == pytest.approx(behind, abs=1e-12)
        error = np.std(away / sizes, ddof=1) / np.sqrt(20)
        assert method.error == pytest.approx(error, rel=0.1, abs=1e-9)  # images count by their pixels
    near = [each.name for each in selection.choice.methods if each.behind <= each.error]
    assert selection.chosen.name == min(near, key=lambda name: (parameters[name], means[name].sum()))


def test_calibrated_scores_are_kept(tmp_path):
    batches = [draw_images(10, power=1.0, seed=3)]
    selection = calibrate(batches, ignore_index=IGNORED)
    assert selection.chosen.name == words.GIVEN
    assert selection.choice.rule.startswith("The scores as given were kept: their NLL on the fitted images is")
    selection.save(tmp_path / "cal.json")
    np.testing.assert_allclose(
        predict_proba(load(tmp_path / "cal.json"), batches[0][0]).sum(axis=1), np.ones((10, 6, 7))
    )


def test_a_comparison_is_shown_and_written():
    selection = calibrate([draw_images(8)], method="temperature", ignore_index=IGNORED)
    found = selection.measure([draw_images(8, seed=1)], resamples=100, source="others", protocol="Other images.")
    assert found.chosen.name == "temperature"
    assert found.given.summary == measure(*draw_images(8, seed=1), classwise=False).compute(resamples=100)
    shown = io.StringIO()
    rich.print(found, file=shown)
    for text in ("others: ", "As given", "Temperature scaling", "ECE near", "Other images.", "← recommended"):
        assert text in shown.getvalue()
    plain = json.loads(found.to_json())
    assert (plain["task"], plain["rule"], plain["protocol"]) == ("segmentation", None, "Other images.")
    nll = found.chosen.summary.overall.nll
    assert plain["methods"][1]["summary"]["overall"]["nll"] == nll._asdict()


def test_images_without_interior_have_no_measures_of_it():
    labels = (np.indices((1, 4, 4)).sum(axis=0) % 2).astype(int)
    summary = measure(np.zeros((1, 3, 4, 4)), labels).compute(resamples=100)
    found = json.loads(summary.to_json())
    assert found["interior"]["ece"]["value"] is None
    assert found["interior"]["nll"]["high"] is None
    shown = io.StringIO()
    rich.print(summary, file=shown)
    assert shown.getvalue().count("–") == 5
    assert "nan" not in shown.getvalue()
    assert "Calibration of pixels, 95% limits over 1 image " in shown.getvalue()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "vector"}, "method must be one of 'auto', 'posterior', 'temperature', 'focal-temperature'"),
        ({"method": "posterior"}, "method='posterior' needs gamma"),
        ({"weight": [1, 2, 3]}, "describe a training loss whose gamma must be given"),
        ({"gamma": 2, "weight": [1, 2]}, "one value for each of 3 classes, got 2 values"),
        ({"gamma": -2}, "gamma must be greater than -1"),
        ({"axis": 0}, "axis must not be the axis of the images"),
    ],
)
def test_wrong_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        calibrate([draw_images(2)], ignore_index=IGNORED, **settings)


def test_nothing_is_chosen_by_a_single_image():
    """The standard error of a difference is unknown, and not 0. An image without labels does not count."""
    logits, labels = draw_images(2)
    labels[1] = IGNORED
    with pytest.raises(ValueError, match=r"method='auto' needs two images or more.*name a method"):
        calibrate([(logits, labels)], ignore_index=IGNORED)
    assert calibrate([(logits, labels)], method="temperature", ignore_index=IGNORED).chosen.name == "temperature"


def test_no_batches_are_rejected():
    with pytest.raises(ValueError, match="batches must not be empty"):
        calibrate([])
