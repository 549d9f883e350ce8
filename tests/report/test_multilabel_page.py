"""The page, the notebook view and the terminal table of multi-label reports."""

from __future__ import annotations

import dataclasses
import html.parser
import io
import re

import numpy as np
import pytest
from rich.console import Console

from refocal import calibrate_multilabel, evaluate_multilabel
from refocal.report.multilabel_page import render_multilabel_notebook, render_multilabel_page
from refocal.report.multilabel_table import build_multilabel_table

NAMES = ("fine", "<b>sure</b> [red]", "high")


def draw(seed, rows=1500):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, 3)) * 1.5
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(int)
    return logits * [1, 3, 1] + [0, 0, 1], labels


@pytest.fixture(scope="module")
def given():
    return evaluate_multilabel(*draw(1), class_names=NAMES, source="test.csv")


@pytest.fixture(scope="module")
def report():
    calibration = calibrate_multilabel(*draw(0), class_names=NAMES, gamma=2.0, alpha=0.25)
    return calibration.report(*draw(1), source="test.csv")


class Elements(html.parser.HTMLParser):
    """The ids of a page, the targets of its links, and how deep its elements are nested at the end."""

    VOID = frozenset({"meta", "link", "wbr", "br", "input", "circle", "line", "rect", "path"})

    def __init__(self, text):
        super().__init__()
        self.ids, self.targets, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.targets += [found["href"][1:]] if found.get("href", "").startswith("#") else []
        self.open += [] if tag in self.VOID else [tag]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def find_rows(page):
    table = re.search(r"<table class='sortable'>.*?</table>", page, re.S).group()
    return [re.sub(r"<[^>]+>", " ", row) for row in re.findall(r"<tr.*?</tr>", table, re.S)]


def test_the_page_ranks_the_classes_and_shows_the_worst(report):
    page = render_multilabel_page(report)
    elements = Elements(page)
    assert elements.open == []
    assert len(elements.ids) == len(set(elements.ids))
    assert {*elements.targets} <= {*elements.ids}
    head, *rows = find_rows(page)
    assert [
        part
        for part in ("Positives", "Mean P(y\u00a0=\u00a01)", "Frequency", "ECE, debiased", "Verdict")
        if part not in head
    ] == []
    assert "Recommended" in head
    assert [row.split()[0] for row in rows] == ["high", "&lt;b&gt;sure&lt;/b&gt;", "fine"]
    assert "too high" in rows[0]
    assert "trusted" in rows[2] or "cannot tell" in rows[2]
    assert page.count("<article>") == 3
    for own in report.reports:
        assert own.verdict.sentences[0].replace("<", "&lt;").replace(">", "&gt;") in page
    assert "<b>sure</b> [red]" not in page
    assert "Reliability of the worst class, <bdi>high</bdi>, <b class='before'>before</b>" in page
    assert "report.calibrator.save(&#x27;cal.json&#x27;)" in page
    assert "InferenceSession(&#x27;cal.onnx&#x27;)" in page
    assert "<dt>α of the training loss</dt><dd><bdi>0.25</bdi></dd>" in page
    assert render_multilabel_page(report) == page


def test_the_page_of_scores_as_given_has_no_after(given):
    page = render_multilabel_page(given)
    assert Elements(page).open == []
    body = page[page.index("<body>") : page.index("<script")]
    assert "Recommended" not in body
    assert "class='before'" not in body
    assert "refocal.calibrate_multilabel(val_scores, val_labels)" in body
    assert "refocal calibrate val.csv \\\n  --test test.csv" in body


def test_calibrators_that_change_nothing_need_not_be_applied():
    rng = np.random.default_rng(5)
    logits = rng.standard_normal((900, 2))
    labels = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(int)
    report = calibrate_multilabel(logits[:400], labels[:400]).report(logits[400:], labels[400:])
    assert not report.is_changed
    page = render_multilabel_page(report)
    assert "Nothing has to be applied. Use the sigmoid of the scores." in page
    assert "No class fails. These have the largest debiased ECE." in page
    assert "Recommended for all classes" in page
    probs = dataclasses.replace(report, settings={**report.settings, "input": "probs"})
    assert "Use the probabilities as given." in render_multilabel_page(probs)


def test_many_failing_classes_are_cut(report):
    many = dataclasses.replace(
        report, class_names=tuple(f"class-{k}" for k in range(30)), reports=(report.reports[2],) * 30
    )
    page = render_multilabel_page(many)
    assert "The 6 worst of 30 classes that fail." in page
    assert len(find_rows(page)) == 31
    assert page.count("<article>") == 6
    assert "The 20 worst classes; 10 more are on the page." in str(many)


def test_save(report, tmp_path):
    report.save(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == render_multilabel_page(report)
    with pytest.raises(FileExistsError):
        report.save(tmp_path / "report.html")


def test_notebook(report, given):
    for each in (report, given):
        shown = render_multilabel_notebook(each)
        assert shown == each._repr_html_()
        assert Elements(shown).open == []
        assert "<b>sure</b> [red]" not in shown
        assert "The diagram is of <bdi>high</bdi>." in shown
        assert ("ECE after" in shown) == each.is_changed


def test_terminal(report):
    stream = io.StringIO()
    Console(file=stream, width=200, color_system=None).print(build_multilabel_table(report))
    text = stream.getvalue()
    assert text.startswith(report.verdict.sentences[0])
    assert "<b>sure</b> [red]" in text  # markup of users is text
    assert "test.csv: 1,500 samples, 3 classes (multi-label)" in text
    for heading in ("class", "mean", "frequency", "ECE, debiased", "p-value", "verdict", "method", "ECE after"):
        assert heading in text


def test_signs_stay_with_their_numbers(report):
    page = render_multilabel_page(report).partition("<script")[0]
    assert "p\u00a0&lt;\u00a00.001" in page
    assert not re.search(r"\bp (&lt;|=) \d", page)
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(build_multilabel_table(report))
    signs = re.findall(r"\bp\s+[<=]\s+\d", stream.getvalue().partition("━")[0])
    assert signs
    assert all("\n" not in each for each in signs)
