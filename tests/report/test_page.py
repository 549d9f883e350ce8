"""The page as text: deterministic, escaped, well formed, small."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import sample
from refocal.maps.posterior import posterior_from_logits
from refocal.metrics import ece
from refocal.report.evaluation import evaluate
from refocal.report.live import map_two_classes, measure_rows
from refocal.report.page import render_page, save_page
from refocal.report.record import Diagram, Estimate, Slider, freeze
from refocal.stats.binning import equal_width_bins
from refocal.stats.proper_scores import log_scores

VOID = {"meta", "link", "img", "input", "wbr"}


@pytest.fixture(scope="module")
def report():
    return sample.sample_report(1000)


@pytest.fixture(scope="module")
def page(report):
    return render_page(report)


class Outline(HTMLParser):
    """Checks that every element is closed, and collects ids, attributes, scripts and visible text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.ids, self.shown, self.scripts = [], [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] in {"script", "style"} else self.shown).append(data)


def test_a_report_always_gives_the_same_page(report, page):
    assert render_page(report) == page
    assert render_page(sample.sample_report(1000)) == page


def test_page_is_well_formed_and_its_links_have_targets(page):
    outline = Outline(page)
    assert len(outline.ids) == len(set(outline.ids))
    for _, attributes in outline.elements:
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert set((attributes.get(name) or "").split()) <= set(outline.ids)
        if (attributes.get("href") or "").startswith("#"):
            assert attributes["href"][1:] in outline.ids


def test_page_loads_nothing_and_styles_nothing_inline(page):
    for tag, attributes in Outline(page).elements:
        assert "src" not in attributes
        assert "style" not in attributes, "the policy would refuse it"
        assert not any(name.startswith("on") for name in attributes)
        if "href" in attributes:
            assert attributes["href"].startswith("#") or attributes["href"] == "data:,"
        assert tag not in {"iframe", "object", "embed", "form", "img"}
    assert "unsafe" not in page.split("<style>")[0]
    assert re.search(r"content=\"default-src 'none'; style-src 'sha256-[^']{44}'; script-src 'sha256-[^']{44}'", page)


def test_charts_and_tables_say_what_they_are(page):
    outline = Outline(page)
    charts = [attributes for tag, attributes in outline.elements if tag == "svg"]
    assert len(charts) == 8
    assert all(chart["role"] == "img" and chart["aria-labelledby"] for chart in charts)
    tags = [tag for tag, _ in outline.elements]
    assert tags.count("caption") == tags.count("table")
    assert {"header", "nav", "main", "footer"} <= set(tags)


@pytest.mark.parametrize("string", [*sample.NASTY, "${data}$$&amp;<"])
def test_user_strings_are_text_wherever_they_stand(report, string):
    page = render_page(sample.poisoned(report, string))
    plain, poisoned = Outline(render_page(sample.poisoned(report, "plain"))), Outline(page)
    assert [tag for tag, _ in poisoned.elements] == [tag for tag, _ in plain.elements]
    assert poisoned.scripts == plain.scripts
    shown = "".join(poisoned.shown)
    expected = re.sub("[\x00-\x08\x7f-\x9f\ud800-\udfff]", "\ufffd", string)
    assert shown.count(expected) >= 10
    page.encode()  # no character is left that cannot be encoded


def test_data_holds_no_character_that_could_end_it(page):
    data = re.search('<script type="application/json" id="data">(.*?)</script>', page, flags=re.S)[1]
    assert not set("<>&\u2028\u2029") & set(data)
    assert len(json.loads(data)["live"]["labels"]) == 1000


def test_page_is_small_enough_to_send():
    assert len(render_page(sample.sample_report(10_000)).encode()) < 1_000_000


@pytest.mark.thorough
def test_largest_slider_keeps_the_page_below_its_bound():
    largest = sample.sample_report(200_000, 2)
    assert len(render_page(largest).encode()) < 6_000_000


def test_page_says_how_many_rows_it_recomputes(page):
    assert "The numbers are for all 1,000 test rows, each counted once" in page
    assert "The numbers are for 300 of the 1,000 test rows" in render_page(sample.sample_report(1000, slider_rows=300))


def test_a_fit_outside_the_sliders_widens_them(report):
    slider = Slider.pack(report.slider.rows(), np.array(report.slider.labels), gamma=-0.95, temperature=25.0)
    page = render_page(dataclasses.replace(report, slider=slider))
    assert 'min="-0.95" max="10"' in page
    assert 'min="0.1" max="25"' in page


def test_a_report_without_classes_changes_or_measures_still_renders(report):
    bare = dataclasses.replace(
        report,
        shown_classes=(),
        worst_classes=(),
        slices=(),
        costs=None,
        changes=(),
        methods=tuple(
            dataclasses.replace(method, class_diagrams=(), measures=freeze({}), diagram=Diagram((), (), (), (), ()))
            for method in report.methods
        ),
    )
    page = render_page(bare)
    Outline(page)
    assert "nan" not in "".join(Outline(page).shown)
    assert "changed" not in Outline(page).ids
    assert not {"by-class", "slices", "decisions"} & set(Outline(page).ids)


def test_scores_that_need_no_change_are_recommended_as_given(report):
    kept = tuple(dataclasses.replace(method, chosen=method.given) for method in report.methods)
    page = render_page(dataclasses.replace(report, methods=kept))
    assert "Recommended as given: <b class='after'><bdi>Softmax, as given" in page
    assert "<b class='after'>As given</b>, the mean confidence is" in page
    assert "→" not in page.split("</header>")[0].split("</style>")[1]


def test_a_missing_measure_is_a_dash_and_an_infinite_one_a_sign(report):
    first, *others = report.methods
    uneven = dataclasses.replace(first, measures=freeze({"nll": Estimate(float("inf"), 1.0, float("inf"))}))
    page = render_page(dataclasses.replace(report, methods=(uneven, *others)))
    assert "<td data-label='NLL' data-value='Infinity'>∞<small>1.0000 to ∞</small></td>" in page
    assert "<td data-label='ECE' data-value='nan'>–</td>" in page


def test_saved_page_is_whole_and_not_overwritten_unasked(report, page, tmp_path):
    path = tmp_path / "report.html"
    save_page(report, path)
    assert path.read_bytes().decode() == page
    with pytest.raises(FileExistsError, match=r"report\.html exists; pass overwrite=True to replace it"):
        save_page(report, path)
    path.write_text("old", encoding="utf-8")
    save_page(report, str(path), overwrite=True)
    assert path.read_bytes().decode() == page
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_named(report, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path must be in an existing folder, got '.*none.report\.html'"):
        save_page(report, tmp_path / "none" / "report.html")


def test_a_page_that_cannot_be_written_leaves_nothing(report, tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk is gone")))
    with pytest.raises(OSError, match="disk is gone"):
        save_page(report, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("gamma", "temperature"), [(0.0, 1.0), (3.0, 1.2), (-0.8, 0.3)])
def test_numbers_of_the_rows_are_those_of_the_probabilities(report, gamma, temperature):
    slider = report.slider
    labels = np.array(slider.labels)
    probs = posterior_from_logits(slider.rows() / temperature, gamma=gamma)
    live = measure_rows(slider, gamma=gamma, temperature=temperature)
    wrong = np.argmax(probs, axis=1) != labels
    bins = equal_width_bins(probs.max(axis=1), ~wrong, bins=15)
    np.testing.assert_allclose(live.ece, bins.expected_calibration_error, rtol=1e-9)
    np.testing.assert_allclose(live.nll, log_scores(probs, labels).mean(), rtol=1e-9)
    assert live.error == wrong.mean()
    assert sum(live.diagram.count) == len(labels)


def test_two_classes_are_measured_by_the_probability_of_the_second():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((300, 2))
    labels = (rng.random(300) < 0.3).astype(int)
    live = measure_rows(Slider.pack(logits, labels, gamma=0.0, temperature=1.0), gamma=2.0, temperature=1.5)
    positive = posterior_from_logits(logits / 1.5, gamma=2.0)[:, 1]
    np.testing.assert_allclose(live.ece, ece(positive, labels, task="binary"), atol=1e-6)
    np.testing.assert_allclose(live.confidence, positive.mean(), rtol=1e-6)
    assert live.error == np.mean((positive > 0.5) != labels)


def test_map_is_the_identity_without_gamma_and_temperature():
    p, mapped = map_two_classes(gamma=0.0, temperature=1.0)
    np.testing.assert_allclose(mapped, p, atol=1e-15)


def test_a_page_of_one_method_says_one_way():
    page = render_page(evaluate(np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1])))
    assert "The scores as given." in page
    assert "<table class='sortable single'>" in page
    assert "Click a heading to sort" not in page
    assert "Nothing was fitted. Shown: <b class='after'><bdi>As given</bdi></b>" in page
    assert "ecommended" not in page.partition("<script")[0]


def test_a_page_of_one_method_shows_each_diagram_once():
    page = render_page(evaluate(np.array([[2.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 3.0]]), np.array([0, 1, 1])))
    outline = Outline(page)
    charts = [attributes["id"] for tag, attributes in outline.elements if tag == "svg"]
    assert charts == ["overview", "after", "class-after", "histogram", "live", "map"]
    shown = "".join(outline.shown)
    assert "Before" not in shown
    assert "Fitted" not in shown
    assert "Nothing was fitted." in shown
    assert all(len(of_class) == 1 for of_class in json.loads(outline.scripts[-2])["classes"])
    assert "Bins, as given" in shown


def test_cells_of_a_table_carry_their_headings(page):
    cells = [attributes for tag, attributes in Outline(page).elements if tag == "td" and "data-label" in attributes]
    assert {cell["data-label"] for cell in cells} >= {"NLL", "ECE", "p-value", "Fit", "True class", "Change"}


def test_a_binary_page_is_about_the_probability_of_class_1():
    rng = np.random.default_rng(0)
    p = rng.random(500)
    report = evaluate(p, (rng.random(500) < p).astype(int), input="probs", class_names=("stays", "leaves"))
    shown = "".join(Outline(render_page(report)).shown)
    assert "If the probability of leaves is 20%, does it occur 20% of the time?" in shown
    assert "Reliability diagram of P(y = 1), as given" in shown
    assert "the mean probability of leaves is" in shown
    assert "Number of samples by their probability of leaves" in shown
    for text in ("Mean probability of leaves", "Frequency of leaves"):
        assert text in shown
    assert "class 1" not in shown
    before_live = shown.partition("The map, live")[0]
    assert "predicted probability (%)" in before_live
    assert "confidence (%)" not in before_live


@pytest.mark.parametrize(("name", "text"), [("<i>x</i> & y", "&lt;i&gt;x&lt;/i&gt; &amp; y"), ("1", "class 1")])
def test_the_class_of_a_binary_page_is_named_as_text(name, text):
    """A name is escaped everywhere; a number is called a class."""
    rng = np.random.default_rng(0)
    p = rng.random(200)
    labels, groups = (rng.random(200) < p).astype(int), np.arange(200) % 2
    report = evaluate(p, labels, input="probs", class_names=("0", name), slices={"group": groups})
    page = render_page(report)
    for sentence in ("Mean probability of", "Frequency of", "the mean probability of", "Observed: frequency of"):
        assert f"{sentence} <bdi>{text}</bdi>" in page
    assert "<i>x</i>" not in page
