"""The commands with the images of a segmentation network: npz files of scores with spatial axes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import refocal
from refocal import calibrators, cli, report, segmentation
from refocal.calibrators import FocalPosterior, FocalTemperatureScaling, MultilabelCalibrator, TemperatureScaling, load
from refocal.cli.image_batches import ImageBatches
from refocal.predictions import ColumnChoice

IGNORED = 255
GIVEN = ("--ignore-index", "255")
FIELDS = ("ece", "overconfidence", "nll", "brier", "accuracy")


def draw(count=12, classes=3, size=(8, 9), *, seed=2, factor=3.0):
    """Draw logits (N, K, ...) of an overconfident network, and labels (N, ...); the first row has none."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (count, classes, *size))
    logits[:, 0] += 2
    labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1).astype(np.uint8)
    labels[:, 0] = IGNORED
    return (factor * logits).astype(np.float32), labels


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("val", 2), ("test", 1)):
        logits, labels = draw(seed=seed)
        np.savez(f"{name}.npz", logits=logits, labels=labels)
    return tmp_path


def run(capsys, *arguments):
    status = cli.main([str(argument) for argument in arguments])
    shown, said = capsys.readouterr()
    assert status == 0, said
    return shown


def run_json(capsys, *arguments):
    return json.loads(run(capsys, *arguments, "--json"), parse_constant=pytest.fail)


def reject(capsys, message, *arguments):
    assert cli.main([str(argument) for argument in arguments]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert message in said
    assert len(said) < 400


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
    assert before["ece"]["low"] > 0.1 > 0.05 > after["ece"]["high"]
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


LOGITS, LABELS = draw(3)
FILES = {
    "wrong.npz": {"logits": LOGITS, "labels": LABELS[:, :, 1:]},
    "floats.npz": {"logits": LOGITS, "labels": LABELS.astype(float)},
    "rows.npz": {"logits": LOGITS[:, :, 0, 0], "labels": np.arange(3)},
    "none.npz": {"logits": LOGITS},
    "ignored.npz": {"logits": LOGITS, "labels": np.full_like(LABELS, IGNORED)},
    "probable.npz": {"logits": softmax(LOGITS, axis=1), "labels": LABELS},
    "probs.npz": {"probs": softmax(LOGITS, axis=1), "labels": LABELS},
    "impossible.npz": {"probs": LOGITS, "labels": LABELS},
    "whole.npz": {"logits": LOGITS.astype(int), "labels": LABELS},
    "empty.npz": {"logits": LOGITS[:0], "labels": LABELS[:0]},
    "flat.npz": {"logits": LOGITS[:, :, :0], "labels": LABELS[:, :0]},
    "split.npz": {"logits": LOGITS, "labels": LABELS, "split": np.array(["val", "val", "test"])},
    "weights.npz": {"logits": LOGITS, "labels": LABELS, "weights": np.ones(3)},
    "fortran.npz": {"logits": np.asfortranarray(LOGITS), "labels": LABELS},
    "two.npz": {"logits": LOGITS[:, :2], "labels": np.minimum(LABELS, 1)},
    "named.npz": {"logits": LOGITS, "labels": LABELS, "class_names": np.array(["a", "b"])},
    "single.npz": {"logits": LOGITS[:1], "labels": LABELS[:1]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("wrong.npz, labels: must have shape (3, 8, 9), one label per pixel, got (3, 8, 8)", "evaluate wrong.npz"),
        ("labels: must have shape (1, 3, 8), one label per pixel, got (1, 8, 9)", "evaluate single.npz --axis -1"),
        ("floats.npz, labels: must be whole numbers, got float64", "evaluate floats.npz"),
        ("none.npz has no labels, which measuring and fitting need", "evaluate none.npz"),
        ("ignored.npz: compute() needs at least one pixel that counts: all pixels seen are ignored",
         "evaluate ignored.npz --ignore-index 255"),
        ("ignored.npz: batches have no pixel that counts", "calibrate ignored.npz --ignore-index 255"),
        ("val.npz: labels must be from 0 to 2, got 255 in row (0, 0, 0)", "evaluate val.npz"),
        ("probable.npz, logits: look like probabilities: every row sums to 1; choose with --prob",
         "evaluate probable.npz --ignore-index 255"),
        ("impossible.npz: scores must be non-negative", "evaluate impossible.npz --ignore-index 255"),
        ("whole.npz, logits: must be float16, float32 or float64, got int64", "evaluate whole.npz"),
        ("empty.npz, logits: there are no images", "evaluate empty.npz"),
        ("must have shape (images, classes, ...) for images, got (3, 3, 0, 9)", "evaluate flat.npz"),
        ("split.npz, split: files of images have no splits", "evaluate split.npz"),
        ("weights.npz, weights: files of images have no weights", "evaluate weights.npz"),
        ("fortran.npz, logits: is in Fortran order", "evaluate fortran.npz"),
        ("class_names: must have one name for each of 3 classes", "evaluate named.npz"),
        ("axis must not be the axis of the images, 0", "evaluate val.npz --axis 0"),
        ("axis must be an axis of logits with shape (12, 3, 8, 9), got 4", "evaluate val.npz --axis 4"),
        ("rows.npz, logits: must have shape (images, classes, ...) for images, got (3, 3)", "evaluate val.npz rows.npz"),
        ("--ignore-index is only for the images of a segmentation network", "evaluate rows.npz --ignore-index 255"),
        ("--axis is only for the images of a segmentation network", "apply cal.json rows.npz --out a.npz --axis 1"),
        ("--axis is only for the images of a segmentation network", "calibrate nothing.csv --axis 1"),
        ("an image of val.npz, and the sums of all images, would take about", "evaluate val.npz --memory 10K"),
        ("--task does not work with the images", "evaluate val.npz --task multiclass"),
        ("--classes does not work with the images", "evaluate val.npz --classes a,b,c"),
        ("--split does not work with the images", "evaluate val.npz --split val"),
        ("--slice does not work with the images", "evaluate val.npz --slice city"),
        ("--costs does not work with the images", "calibrate val.npz --costs costs.csv"),
        ("--sets does not work with the images", "calibrate val.npz --sets 0.9"),
        ("--engine does not work with the images", "evaluate val.npz --engine local"),
        ("--engine does not work with the images", "apply cal.json val.npz --out a.npz --engine local"),
        ("--report does not work with the images", "evaluate val.npz --report a.html"),
        ("for images, --method must be one of 'auto', 'posterior'", "calibrate val.npz --method vector"),
        ("method='posterior' needs gamma", "calibrate val.npz --method posterior"),
        ("got 3 columns and one class per row", "calibrate val.npz --loss sigmoid-focal --gamma 2 --alpha .25"),
        ("one value for each of 3 classes, got 2 values",
         'calibrate val.npz --ignore-index 255 --loss {"gamma":2,"weight":[1,2]}'),
        ("val.npz cannot be both fitted to and measured on", "calibrate val.npz --test ./val.npz"),
        ("val.npz and two.npz must hold the same kind of scores, got logits of 3 classes and logits of 2",
         "calibrate val.npz --test two.npz"),
        ("must hold the same kind of scores, got logits of 3 classes and probs of 3", "calibrate val.npz --test probs.npz"),
        ("--holdout is only for predictions without --test", "calibrate val.npz --test test.npz --holdout .5"),
        ("--holdout must lie strictly between 0 and 1", "calibrate val.npz --holdout 1"),
        ("holdout must leave images on both sides, got 0.3 of 1 images", "calibrate single.npz --ignore-index 255"),
        ("--out must end in .npz", "calibrate val.npz --out a.csv"),
        ("--save must end in .json", "calibrate val.npz --save a.npz"),
        ("must not name another file", "calibrate val.npz --out val.npz --force"),
        ("apply takes one file of images, got 2", "apply cal.json val.npz test.npz --out a.npz"),
        ("--out must end in .npz", "apply cal.json val.npz --out folder"),
        ("the calibrator takes logits, but probs.npz holds probs", "apply cal.json probs.npz --out a.npz"),
        ("two.npz has 2 classes of scores, but the calibrator was fitted to 3", "apply cal.json two.npz --out a.npz"),
        ("the calibrator is for multi-label scores", "apply several.json val.npz --out a.npz"),
    ],
)  # fmt: skip
def test_what_is_rejected(message, words, capsys):
    for name, arrays in FILES.items():
        if name in words:
            np.savez(name, **arrays)
    rng = np.random.default_rng(0)
    rows, answers = rng.normal(size=(30, 3)), np.arange(30) % 3
    TemperatureScaling().fit(rows, answers).save("cal.json")
    if "several" in words:
        MultilabelCalibrator(calibrators.PlattScaling()).fit(rows, answers[:, None] == np.arange(3)).save("several.json")
    reject(capsys, message, *words.split())
    assert not Path("a.npz").exists()


def test_damaged_files_are_reported(capsys):
    content = Path("val.npz").read_bytes()
    Path("cut.npz").write_bytes(content[:-200])
    reject(capsys, "cut.npz: cannot read the zip archive", "evaluate", "cut.npz")
    at = content.index(b"NUMPY") + 500
    Path("bent.npz").write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    reject(capsys, "bent.npz: cannot read logits; the file is damaged", "evaluate", "bent.npz", *GIVEN)


def test_rows_of_images_are_rejected_in_python():
    logits, labels = draw(4, size=(8, 8))
    fitted = TemperatureScaling().fit(np.eye(3), [0, 1, 2])
    for call in (
        lambda: refocal.evaluate(logits, labels),
        lambda: refocal.calibrate(logits, labels),
        lambda: report.cross_calibrate(logits, labels),
        lambda: TemperatureScaling().fit(logits, labels),
        lambda: FocalTemperatureScaling().fit(logits, labels),
        lambda: fitted.predict_proba(logits),
        lambda: FocalPosterior(gamma=2).predict_proba(logits),
    ):
        with pytest.raises(
            ValueError,
            match=r"must have shape \(N, K\), or \(N,\) for two classes.* got \(4, 3, 8, 8\): for images, use "
            "refocal.segmentation, whose intervals take an image, not a pixel, for the sample",
        ):
            call()
