"""Every spec of the repository runs, and agrees with its stored results and with the gallery."""

from __future__ import annotations

import importlib.metadata
import json
import re
import xml.etree.ElementTree as ET
from itertools import combinations
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from made_zoo import write_zoo
from refocal_lab import reproduce
from refocal_lab.papers import PAPERS
from refocal_lab.reproduce import result_files, style
from refocal_lab.reproduce.computation import NO_ENTRY
from small_data import write_sets

REPOSITORY = Path(__file__).parents[2]
EXPERIMENTS = REPOSITORY / "experiments"
RESULTS = EXPERIMENTS / "results"
SPECS = reproduce.read_specs(EXPERIMENTS)
STORED = [
    (spec, scale) for spec in SPECS.values() for scale in ("small", "paper") if (RESULTS / spec.id / scale).exists()
]
PNG = b"\x89PNG\r\n"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_sets(tmp_path_factory.mktemp("tabular"))


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    return write_zoo(tmp_path_factory.mktemp("zoo"))


def check_files(folder):
    assert sorted(file.name for file in folder.iterdir()) == ["figure.png", "figure.svg", "numbers.json"]
    svg, png = (folder / "figure.svg").read_bytes(), (folder / "figure.png").read_bytes()
    assert ET.fromstring(svg).tag.endswith("svg")
    assert png.startswith(PNG)
    assert len(svg) < 300_000
    assert len(png) < 250_000


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.forward_mode) if spec.kind == "curvature-penalty" else name
        for name, spec in SPECS.items()
    ],
)
@pytest.mark.thorough
def test_each_spec_runs(name, tmp_path, data, networks):
    spec = SPECS[name]
    context = reproduce.Context(data, zoo=networks)
    outcome = reproduce.reproduce(spec, scale="smoke", results=tmp_path, context=context)
    assert outcome.folder == tmp_path / name / "smoke"
    check_files(outcome.folder)
    content = json.loads((outcome.folder / "numbers.json").read_text(encoding="utf-8"))
    assert content["versions"]["refocal"]
    assert content["seconds"] >= 0
    assert [item["paper"] for item in content["published"]] == [item.value for item in spec.published]
    assert result_files.load(tmp_path, spec, "smoke") == outcome.result


def test_every_figure_has_a_result():
    assert {spec.id for spec, _ in STORED} == set(SPECS)


@pytest.mark.parametrize(("spec", "scale"), STORED, ids=[f"{spec.id}-{scale}" for spec, scale in STORED])
def test_stored_results_belong_to_their_specs(spec, scale):
    check_files(RESULTS / spec.id / scale)
    result = result_files.load(RESULTS, spec, scale)
    assert (result.id, result.scale, result.kind) == (spec.id, scale, spec.kind)
    assert result.parameters == result_files.to_json(spec.parameters[scale])
    assert result.published == result_files.compare(spec.published, result.numbers)


@pytest.mark.parametrize(("spec", "scale"), STORED, ids=[f"{spec.id}-{scale}" for spec, scale in STORED])
def test_captions_name_only_panels_that_are_drawn(spec, scale):
    drawn = re.findall(r"<!-- \(([a-z])\)", (RESULTS / spec.id / scale / "figure.svg").read_text(encoding="utf-8"))
    assert set(re.findall(r"\(([a-z])\)", f"{spec.caption} {spec.finding}")) <= set(drawn)


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "scale"), STORED, ids=[f"{spec.id}-{scale}" for spec, scale in STORED])
def test_stored_figures_are_drawn_from_the_stored_numbers(spec, scale):
    result = result_files.load(RESULTS, spec, scale)
    if result.versions["matplotlib"] != importlib.metadata.version("matplotlib"):
        pytest.skip("another Matplotlib draws other bytes")
    drawn = style.render(reproduce.KINDS[spec.kind].draw, spec.parameters[scale], result.numbers)
    for name, content in drawn.items():
        assert (RESULTS / spec.id / scale / name).read_bytes() == content, name


@pytest.mark.thorough
@pytest.mark.parametrize(("spec", "scale"), STORED, ids=[f"{spec.id}-{scale}" for spec, scale in STORED])
def test_no_text_or_mark_of_a_figure_is_cut_off_or_covered_by_text(spec, scale):
    with mpl.rc_context(style._STYLE):
        figure = Figure(figsize=(style.WIDTH, 3.1), layout="constrained")
        numbers = result_files.load(RESULTS, spec, scale).numbers
        reproduce.KINDS[spec.kind].draw(figure, spec.parameters[scale], numbers)
        figure.draw_without_rendering()
        texts = [(text.get_text(), text.get_window_extent()) for text in find_texts(figure)]
    width, height = figure.get_size_inches() * figure.dpi
    for words, box in texts:
        assert min(box.x0, box.y0, width - box.x1, height - box.y1) > -1, words
    for (words, box), (other, its) in combinations(texts, 2):
        shared = min(box.x1, its.x1) - max(box.x0, its.x0), min(box.y1, its.y1) - max(box.y0, its.y0)
        assert min(shared) < 1, (words, other)
    for ax in figure.axes:
        for line in ax.lines:
            if line.get_marker() not in ("None", "|") and line.get_clip_on():
                heights = ax.transData.transform(line.get_xydata())[:, 1]
                assert heights.max() < ax.get_window_extent().y1 - 1, spec.id


def find_texts(figure):
    """Find the texts that are drawn; of the labels of ticks, those inside of the axes' limits."""
    ticks, drawn = set(), set()
    for axis in (axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis)):
        every = {label for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()] for label in labels_of(tick)}
        ticks |= every
        drawn |= {label for tick in axis._update_ticks() for label in labels_of(tick)} if axis.axes.axison else set()
    found = (text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip())
    return [text for text in found if text not in ticks or text in drawn]


def labels_of(tick):
    return tick.label1, tick.label2


def test_the_gallery_shows_the_stored_results():
    shown = (REPOSITORY / "docs/gallery.md").read_text(encoding="utf-8")
    found = reproduce.read_results(RESULTS, SPECS)
    assert shown == reproduce.render_gallery(SPECS, found, figures="../experiments/results")
    assert shown.count("figure.svg") == len(SPECS)


def test_the_readme_agrees_with_the_results():
    values = reproduce.read_results(RESULTS, SPECS)["001-study-c"].numbers.values
    raw, mapped = (100 * values[f"difference({how}, 3, best)"] for how in ("raw", "psi"))
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    said = f"an ECE {raw:.1f} points above that of cross-entropy. After Ψ, the difference is {mapped:.1f} points"
    assert said in readme


def test_the_readme_counts_the_numbers_beside_the_papers():
    readme = " ".join((REPOSITORY / "README.md").read_text(encoding="utf-8").split())
    found = reproduce.read_results(RESULTS, SPECS)

    def cells(paper):
        tables = (found[name].numbers.table for name in SPECS if name.startswith(f"{paper}-table"))
        return [(row[0], cell) for table in tables for row in table for cell in row if "[" in cell]

    theirs = cells("002")
    ours = [network for network, cell in theirs if not cell.startswith(NO_ENTRY)]
    own = ours.count("CIFAR-10, ResNet-50")
    assert f"Mukhoti et al. have {len(theirs):,} numbers. Of these, {len(ours)} have ours beside them" in readme
    larger = ours.count("CIFAR-100, ResNet-50")
    assert f"beside them: {own} for ResNet-50 on CIFAR-10, {larger} for ResNet-50 on CIFAR-100, and the rest" in readme
    texts = {ours.count("20 Newsgroups, Global Pooling CNN"), ours.count("SST Binary, Tree LSTM")}
    assert texts == {(len(ours) - own - larger) // 2}
    assert f"and the rest, {min(texts)} each, for 20 Newsgroups and SST" in readme

    temperatures = [cell.startswith(NO_ENTRY) for _, cell in theirs if "(" in cell.partition("[")[2]]
    assert f"tables also print {len(temperatures)} temperatures; {temperatures.count(False)} have ours" in readme

    theirs = cells("003")
    beside = sum(not cell.startswith(NO_ENTRY) for _, cell in theirs)
    said = f"Of the {len(theirs)} legible numbers in Table 1 of Komisarenko and Kull, {beside} have ours beside them"
    assert f"{said}; the other {len(theirs) - beside} are" in readme
    values = found["002-table-1"].numbers.values
    usual, focal = (values[f"ece_15(cifar10 resnet50, {loss}, raw)"] for loss in ("cross-entropy", "fla-53"))
    assert f"its ECE is {usual:.2%} with cross-entropy and {focal:.2%} with FLA-53" in readme


def test_papers_are_known():
    assert {spec.paper for spec in SPECS.values()} <= set(PAPERS)
