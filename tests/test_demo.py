"""The predictions that ship with the package, and the numbers that the page about the demo gives for them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from PIL import Image

import refocal
from harness.pages import are_equal_to_the_last_digit, check_agreement, parse
from refocal import cli, demo
from refocal.report import words

REPOSITORY = Path(__file__).parents[1]
PAGE = REPOSITORY / "docs" / "how-to" / "read-the-demo.md"
PICTURE = REPOSITORY / "docs" / "figures" / "report.png"


def test_predictions_are_what_they_claim():
    predictions = demo.load()
    assert predictions.input == "logits"
    assert predictions.classes == len(predictions.class_names) == 10
    assert set(predictions.split) == {"val", "test"}
    assert 0.05 < np.mean(np.argmax(predictions.scores, axis=1) != predictions.labels) < 0.2


def test_the_page_shows_what_make_demo_prints(monkeypatch, capsys, tmp_path):
    command = re.search(r"refocal (demo .*)", (REPOSITORY / "Makefile").read_text(encoding="utf-8"))[1]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    assert cli.main(command.split()) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    check_agreement(printed, read_page(), close=are_close)


def test_the_picture_was_taken_of_the_same_numbers():
    with Image.open(PICTURE) as picture:
        printed = picture.text["printed"].splitlines()
    check_agreement([line.rstrip() for line in printed], read_page()[:-1], close=are_close)


def read_page():
    """What the page says that `make demo` prints, line by line."""
    return PAGE.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0].splitlines()


def are_close(first, second):
    """Whether numbers are equal to the last digit; the limits of ECE, which are simulated, to half a point."""
    if first.endswith("%") and second.endswith("%"):
        return abs(parse(first) - parse(second)) <= 0.5
    return are_equal_to_the_last_digit(first, second)


def test_the_page_tells_what_the_closed_form_does_to_the_demo():
    val, test = demo.load().select("val"), demo.load().select("test")
    report = refocal.calibrate(val.scores, val.labels, gamma=demo.GAMMA).report(test.scores, test.labels)
    posterior = next(method for method in report.methods if method.name == "posterior")
    sure, right = words.mean_confidence_and_accuracy(posterior)
    before, after = (method.measures["ece"].value for method in (report.given, posterior))
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"takes ECE, here not debiased, from {before:.1%} to {after:.1%}. It undoes" in page
    assert f"after it, these networks are {sure:.1%} sure and {right:.1%} right" in page
