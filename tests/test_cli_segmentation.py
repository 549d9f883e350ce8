"""The commands with the images of a segmentation network: npz files of scores with spatial axes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import refocal
from image_files import GIVEN, IGNORED, draw, reject, run, run_json, write_val_and_test
from refocal import segmentation
from refocal.calibrators import TemperatureScaling, load
from refocal.cli.image_batches import ImageBatches
from refocal.predictions import ColumnChoice

FIELDS = ("ece", "overconfidence", "nll", "brier", "accuracy")


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_val_and_test()


def measure(logits, labels, **settings):
    """What the library says about all images at once."""
    classes = max(2, logits.shape[settings.get("axis", 1)])
    calibration = segmentation.SegmentationCalibration(classes, ignore_index=IGNORED, **settings)
    calibration.update(logits, labels)
    return json.loads(calibration.compute().to_json())


def check_same(found, expected):
    """Compare measures and limits; sums over batches differ by rounding."""
    for region in ("overall", "boundary", "interior"):
        assert found[region]["pixels"] == expected[region]["pixels"]
        for name in FIELDS:
            for part, value in expected[region][name].items():
                assert found[region][name][part] == (value if value is None else pytest.approx(value, rel=1e-9))
    assert found["classwise_ece"] == pytest.approx(expected["classwise_ece"], rel=1e-9)


def test_evaluate_equals_the_library(capsys):
    found = run_json(capsys, "evaluate", "val.npz", *GIVEN)
    check_same(found, measure(*draw()))
    assert (found["task"], found["source"], found["images"]) == ("segmentation", "val.npz", 12)
    assert len(found["classes"]) == 3
    assert len(found["overall"]["bins"]["samples"]) == 15
    shown = run(capsys, "evaluate", "val.npz", *GIVEN)
    assert "val.npz: 95% limits over 12 images" in shown
    for word in ("boundary", "interior", "overconfidence", "mean probability", "756"):
        assert word in shown


def test_layouts_and_dtypes_agree(capsys):
    logits, labels = draw()
    expected = run_json(capsys, "evaluate", "val.npz", *GIVEN)
    np.savez_compressed("packed.npz", logits=logits, labels=labels)
    np.savez("last.npz", logits=np.moveaxis(logits, 1, -1).copy(), labels=labels.astype(">i4"))
    np.savez("wide.npz", logits=logits.astype(">f8"), y_true=labels.astype(np.int64))
    np.savez("named.npz", a=logits, b=labels, c=np.zeros(3))
    for words in (
        ("packed.npz",),
        ("last.npz", "--axis", "-1"),
        ("wide.npz",),
        ("named.npz", "--logit", "a", "--label", "b"),
    ):
        check_same(run_json(capsys, "evaluate", *words, *GIVEN), expected)


def test_volumes_and_sequences(capsys):
    for size in ((30,), (3, 4, 5)):
        logits, labels = draw(size=size)
        np.savez("a.npz", logits=logits, labels=labels)
        check_same(run_json(capsys, "evaluate", "a.npz", *GIVEN), measure(logits, labels))


def test_one_channel_is_class_1_of_two(capsys):
    logits, labels = draw(classes=2)
    np.savez("two.npz", logits=logits, labels=labels)
    np.savez("one.npz", logits=logits[:, 1:] - logits[:, :1], labels=labels)
    two, one = (run_json(capsys, "evaluate", name, *GIVEN) for name in ("two.npz", "one.npz"))
    for name in FIELDS:
        assert one["overall"][name]["value"] == pytest.approx(two["overall"][name]["value"], rel=1e-5)
    words = ("--loss", "sigmoid-focal", "--gamma", "2", "--alpha", ".25")
    run(capsys, "calibrate", "one.npz", *GIVEN, *words, "--save", "cal.json", "--out", "held.npz")
    run(capsys, "apply", "cal.json", "one.npz", "--out", "probs.npz")
    with np.load("probs.npz") as found:
        assert (found["probs"].shape, found["probs"].dtype) == ((12, 1, 8, 9), np.float32)
        np.testing.assert_array_equal(found["labels"], labels)
    run(capsys, "evaluate", "probs.npz", *GIVEN)


def test_logits_of_one_image_may_lie_between_0_and_1(capsys):
    logits, labels = draw(classes=2)
    one = logits[:, 1:] - logits[:, :1]
    one[0] = np.random.default_rng(0).random(one[0].shape)
    np.savez("a.npz", logits=one, labels=labels)
    assert run_json(capsys, "evaluate", "a.npz", *GIVEN)["images"] == 12
    np.savez("b.npz", logits=one[:1], labels=labels[:1])
    reject(capsys, "b.npz, logits: look like probabilities: every value lies in [0, 1]", "evaluate", "b.npz", *GIVEN)


@pytest.mark.parametrize("size", [(8, 9), (40,)])
def test_batches_do_not_matter(size, capsys):
    """Batches of one image give the numbers of a single batch."""
    logits, labels = draw(20, size=size)
    np.savez_compressed("a.npz", logits=logits, labels=labels)
    choice = ColumnChoice()
    small, large = (
        ImageBatches.open(["a.npz"], labels=True, most_bytes=most, columns=choice) for most in (54_500, 1 << 30)
    )
    assert [len(scores) for scores, _ in small] == [1] * 20
    assert [len(scores) for scores, _ in large] == [20]
    for words in (("evaluate", "a.npz"), ("calibrate", "a.npz", "--seed", "3")):
        one = run_json(capsys, *words, *GIVEN, "--memory", "54500")
        all_at_once = run_json(capsys, *words, *GIVEN)
        if words[0] == "evaluate":
            check_same(one, all_at_once)
        else:
            for first, second in zip(one["methods"], all_at_once["methods"], strict=True):
                assert first["parameters"] == pytest.approx(second["parameters"], rel=1e-6)
                assert first["summary"]["overall"]["nll"] == pytest.approx(second["summary"]["overall"]["nll"])


def test_memory_is_bounded_by_the_batch(tmp_path):
    import tracemalloc

    logits, labels = draw(400, size=(32, 32))
    np.savez("a.npz", logits=logits, labels=labels)
    images = ImageBatches.open([tmp_path / "a.npz"], labels=True, most_bytes=1_500_000, columns=ColumnChoice())
    calibration = segmentation.SegmentationCalibration(3, ignore_index=IGNORED)
    tracemalloc.start()
    for scores, answers in images:
        calibration.update(scores, answers)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 1 < images.size < 10
    assert peak < 1_500_000 < logits.nbytes / 3


def test_calibrate_apply_and_evaluate(capsys):
    files = ("--save", "cal.json", "--out", "probs.npz")
    words = ("calibrate", "val.npz", "--test", "test.npz", *GIVEN, *files)
    found = run_json(capsys, *words)
    assert [method["name"] for method in found["methods"]] == ["given", "temperature", "focal-temperature"]
    chosen = next(method for method in found["methods"] if method["chosen"])
    assert chosen["name"] == "temperature"
    assert "of such methods it has the fewest parameters (1 instead of 2)" in found["rule"]
    assert found["written"] == {"calibrator": "cal.json", "predictions": "probs.npz"}
    before, after = found["methods"][0]["summary"]["overall"], chosen["summary"]["overall"]
    check = measure(*draw(seed=1))["overall"]
    assert before["nll"] == pytest.approx(check["nll"])
    assert before["ece"]["low"] > after["ece"]["high"]
    assert after["nll"]["high"] < before["nll"]["low"]
    # the fit equals one to rows of all pixels, and the file holds what the calibrator says
    logits, labels = draw()
    rows = segmentation.to_rows(logits, labels, ignore_index=IGNORED)
    calibrator = load("cal.json")
    assert calibrator.temperature_ == pytest.approx(TemperatureScaling().fit(rows.scores, rows.labels).temperature_)
    others, answers = draw(seed=1)
    with np.load("probs.npz") as file:
        assert file["probs"].dtype == np.float32
        expected = softmax(others.astype(float) / calibrator.temperature_, axis=1)
        np.testing.assert_allclose(file["probs"], expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(file["labels"], answers)
    again = run_json(capsys, "evaluate", "probs.npz", *GIVEN)
    for name in FIELDS:
        assert again["overall"][name]["value"] == pytest.approx(after[name]["value"], rel=1e-5)
    assert "12 images calibrated: again.npz" in run(capsys, "apply", "cal.json", "test.npz", "--out", "again.npz")
    assert Path("again.npz").read_bytes() == Path("probs.npz").read_bytes()
    reject(capsys, "cal.json exists", *words)
    run(capsys, *words, "--force")


def test_a_network_trained_with_focal_loss(capsys):
    """Its softmax is the focal risk minimizer of the true probabilities, which the closed form gives back."""
    rng = np.random.default_rng(0)
    posterior = softmax(rng.normal(0, 2, (30, 8, 8, 3)), axis=-1)
    labels = (posterior.cumsum(axis=-1) < rng.random((30, 8, 8, 1))).sum(axis=-1)
    trained = np.log(refocal.minimizer(posterior, gamma=3.0))
    np.savez("focal.npz", logits=trained, labels=labels)
    words = ("calibrate", "focal.npz", "--axis", "-1", "--gamma", "3")
    found = run_json(capsys, *words)
    chosen = next(method for method in found["methods"] if method["chosen"])
    assert (chosen["name"], chosen["parameters"]) == ("posterior", {"gamma": 3.0})
    assert chosen["summary"]["overall"]["ece"]["low"] == 0
    assert found["methods"][0]["summary"]["overall"]["overconfidence"]["high"] < -0.05
    shown = run(capsys, *words, "--method", "focal-temperature", "--save", "cal.json")
    assert "← recommended: Focal temperature scaling" in shown
    assert "was chosen" not in shown
    assert load("cal.json").gamma_ == pytest.approx(3, abs=1.5)


def test_one_file_is_divided_by_images(capsys):
    words = ("calibrate", "val.npz", *GIVEN)
    found = run_json(capsys, *words)
    assert "Measured on 4 images held out at random, 30% of all (seed 0)." in found["protocol"]
    assert "fitted to the other 8 images." in found["protocol"]
    held = run_json(capsys, *words, "--holdout", ".5", "--seed", "1", "--out", "held.npz")
    assert held["methods"][0]["summary"]["images"] == 6
    logits, labels = draw()
    with np.load("held.npz") as file:
        places = [int(np.flatnonzero((labels == image).all(axis=(1, 2)))[0]) for image in file["labels"]]
        probs = file["probs"]
    assert places == sorted(set(places))
    assert len(places) == 6
    # measured on these images, and fitted to the others
    rest = np.setdiff1d(np.arange(12), places)
    fitted = segmentation.fit(TemperatureScaling(), [(logits[rest], labels[rest])], ignore_index=IGNORED)
    np.testing.assert_allclose(probs, segmentation.predict_proba(fitted, logits[places]), rtol=1e-5, atol=1e-7)
    assert run_json(capsys, *words, "--holdout", ".5", "--seed", "2")["methods"] != held["methods"]


def test_several_files(capsys):
    both = run_json(capsys, "evaluate", "val.npz", "test.npz", *GIVEN)
    assert [each["source"] for each in both["files"]] == ["val.npz", "test.npz"]
    as_one = run_json(capsys, "evaluate", "*.npz", *GIVEN)
    assert as_one["images"] == 24
    logits, labels = (np.concatenate(part) for part in zip(draw(seed=1), draw(), strict=True))
    check_same(as_one, measure(logits, labels))


def test_labels_of_files_with_other_dtypes_stay_as_they_are(capsys):
    logits, labels = draw()
    signed = np.where(labels == IGNORED, -1, labels).astype(np.int8)
    np.savez("part-a.npz", logits=logits, labels=signed)
    np.savez("part-b.npz", logits=logits, labels=signed.clip(0).astype(np.uint16))
    np.savez("fit.npz", logits=logits, labels=signed)
    run(capsys, "calibrate", "fit.npz", "--test", "part-*.npz", "--ignore-index", "-1", "--out", "probs.npz")
    with np.load("probs.npz") as file:
        np.testing.assert_array_equal(file["labels"], np.concatenate([signed, signed.clip(0)]))


def test_names_of_classes(capsys):
    logits, labels = draw()
    names = np.array(["road", "[red]sky", "tree"])
    np.savez("a.npz", logits=logits, labels=labels, class_names=names)
    assert "[red]sky" in run(capsys, "evaluate", "a.npz", *GIVEN)
    assert run_json(capsys, "evaluate", "a.npz", *GIVEN)["class_names"] == names.tolist()
    run(capsys, "calibrate", "a.npz", *GIVEN, "--save", "cal.json")
    run(capsys, "apply", "cal.json", "a.npz", "--out", "probs.npz")
    with np.load("probs.npz") as file:
        assert file["class_names"].tolist() == names.tolist()
    np.savez("b.npz", logits=logits, labels=labels, class_names=names[::-1])
    reject(capsys, "must have the same class names", "calibrate", "a.npz", "--test", "b.npz", *GIVEN)


def test_ignored_pixels_may_hold_anything_but_others_not(capsys):
    logits, labels = draw()
    logits[:, :, 0] = np.nan
    np.savez("a.npz", logits=logits, labels=labels)
    assert run_json(capsys, "evaluate", "a.npz", *GIVEN) == {
        **run_json(capsys, "evaluate", "val.npz", *GIVEN),
        "source": "a.npz",
    }
    run(capsys, "calibrate", "a.npz", *GIVEN, "--save", "cal.json")
    reject(capsys, "a.npz: Input X contains NaN", "apply", "cal.json", "a.npz", "--out", "probs.npz")
    assert not Path("probs.npz").exists()
    logits[5, 1, 2, 3] = np.nan
    np.savez("b.npz", logits=logits, labels=labels)
    for words in (("evaluate", "b.npz"), ("calibrate", "val.npz", "--test", "b.npz")):
        reject(capsys, "b.npz: scores must be finite or -inf (masked)", *words, *GIVEN)
    said = "b.npz, rows counted from image 5: scores must be finite or -inf (masked), with at least one finite value"
    reject(capsys, said, "evaluate", "b.npz", *GIVEN, "--memory", "38000")
    said = "got nan in row (0, 2, 3)"
    reject(capsys, said, "evaluate", "b.npz", *GIVEN, "--memory", "38000")


def test_masked_logits_are_measured_but_not_fitted(capsys):
    logits, labels = draw()
    labels[labels == 2] = IGNORED
    logits[:, 2] = -np.inf
    np.savez("a.npz", logits=logits, labels=labels)
    found = run_json(capsys, "evaluate", "a.npz", *GIVEN)
    assert found["overall"]["nll"]["value"] == pytest.approx(measure(logits, labels)["overall"]["nll"]["value"])
    reject(capsys, "a.npz: scores must be finite for a fit to batches, got -inf", "calibrate", "a.npz", *GIVEN)


def test_extreme_logits_have_a_finite_nll(capsys):
    logits, labels = draw(factor=1000.0)
    np.savez("a.npz", logits=logits, labels=labels)
    found = run_json(capsys, "calibrate", "a.npz", *GIVEN, "--gamma", "2")
    assert all(method["summary"]["overall"]["nll"]["value"] is not None for method in found["methods"])
    log_probs = log_softmax(logits.astype(float), axis=1)
    counted = labels != IGNORED
    own = np.take_along_axis(log_probs, np.where(counted, labels, 0)[:, None].astype(int), axis=1)[:, 0][counted]
    overall = run_json(capsys, "evaluate", "a.npz", *GIVEN)["overall"]
    assert overall["nll"]["value"] == pytest.approx(-own.mean(), rel=1e-5)
