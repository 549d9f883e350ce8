"""Results on disk: computed once, written completely or not at all, and computed again when the spec changes."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace

import numpy as np
import pytest

from refocal_lab import reproduce
from refocal_lab.reproduce import result_files, runner
from refocal_lab.reproduce.computation import Kind, Numbers


@dataclass(frozen=True)
class Parameters:
    start: float
    steps: int


class Counting:
    """A kind that counts its runs and fails on demand."""

    def __init__(self):
        self.runs = 0
        self.compute_error = self.draw_error = None

    def compute(self, given, _):
        self.runs += 1
        if self.compute_error:
            raise self.compute_error
        return Numbers({"end": given.start + given.steps}, {"path": [given.start + i for i in range(given.steps)]})

    def draw(self, figure, _, numbers):
        if self.draw_error:
            raise self.draw_error
        figure.subplots().plot(numbers.curves["path"])


@pytest.fixture
def counting(monkeypatch):
    made = Counting()
    monkeypatch.setitem(reproduce.KINDS, "counting", Kind(Parameters, made.compute, made.draw))
    return made


@pytest.fixture
def spec(counting):
    published = (reproduce.PublishedNumber("end", "the end", "Fig. 1", 5.0, tolerance=0.5),)
    scales = {scale: Parameters(1.0, steps) for scale, steps in (("smoke", 2), ("small", 4), ("paper", 8))}
    finding = "It ends at {end:.1f}."
    return reproduce.Spec("001-fig-9", "001", "Count", "Counts.", finding, "counting", scales, published)


def make(spec, folder, **more):
    return reproduce.reproduce(spec, scale="small", results=folder, **more)


def test_a_figure_is_computed_once(spec, counting, tmp_path):
    first, second = make(spec, tmp_path), make(spec, tmp_path)
    assert counting.runs == 1
    assert (first.why, second.why) == ("no result yet", "already stored")
    assert first.result == second.result
    assert first.finding == second.finding == "It ends at 5.0."
    assert first.result.published[0].line == "the end: paper: 5, ours: 5, within: yes"
    assert make(spec, tmp_path, force=True).why == "forced"
    assert counting.runs == 2


def test_scales_are_kept_apart(spec, counting, tmp_path):
    make(spec, tmp_path)
    other = reproduce.reproduce(spec, scale="smoke", results=tmp_path)
    assert counting.runs == 2
    assert other.result.published[0].line == "the end: paper: 5, ours: 3, within: no"


def test_a_changed_spec_runs_again(spec, counting, tmp_path):
    make(spec, tmp_path)
    changed = replace(spec, parameters={**spec.parameters, "small": Parameters(2.0, 4)})
    outcome = make(changed, tmp_path)
    assert outcome.why == "the spec has changed since the result was stored"
    assert outcome.result.numbers.values == {"end": 6.0}
    assert counting.runs == 2


def test_new_published_numbers_are_compared_without_a_run(spec, counting, tmp_path):
    make(spec, tmp_path)
    changed = replace(spec, published=(replace(spec.published[0], value=9.0),))
    outcome = make(changed, tmp_path)
    assert counting.runs == 1
    assert "new published numbers" in outcome.why
    assert not result_files.load(tmp_path, changed, "small").published[0].within


@pytest.mark.parametrize("where", ["compute_error", "draw_error"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no")])
def test_an_interrupted_run_leaves_nothing(spec, counting, tmp_path, where, error):
    setattr(counting, where, error)
    with pytest.raises(type(error)):
        make(spec, tmp_path)
    assert list(tmp_path.rglob("*")) == []


def test_an_interruption_while_writing_leaves_the_old_result(spec, counting, tmp_path, monkeypatch):
    first = make(spec, tmp_path)

    def interrupted(result):
        raise KeyboardInterrupt

    monkeypatch.setattr(result_files, "_to_text", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(spec, tmp_path, force=True)
    assert result_files.load(tmp_path, spec, "small") == first.result
    assert [folder.name for folder in (tmp_path / spec.id).iterdir()] == ["small"]


def test_a_figure_is_drawn_again_without_a_run(spec, counting, tmp_path):
    first = make(spec, tmp_path)
    (first.folder / "figure.svg").write_bytes(b"old")
    changed = replace(spec, published=(replace(spec.published[0], differs=("data",)),))
    outcome = reproduce.redraw(changed, scale="small", results=tmp_path)
    assert (counting.runs, outcome.why) == (1, "drawn again")
    assert outcome.result.numbers == first.result.numbers
    assert (first.folder / "figure.svg").read_bytes().startswith(b"<?xml")
    assert result_files.load(tmp_path, changed, "small") == outcome.result
    assert outcome.result.published[0].line == "the end: paper: 5, ours: 5, within: yes, other data"


def test_only_a_current_result_is_drawn_again(spec, counting, tmp_path):
    with pytest.raises(ValueError, match="001-fig-9 has no result for its parameters at scale small"):
        reproduce.redraw(spec, scale="small", results=tmp_path)
    make(spec, tmp_path)
    changed = replace(spec, parameters={**spec.parameters, "small": Parameters(2.0, 4)})
    with pytest.raises(ValueError, match="has no result for its parameters at scale small: make it without --redraw"):
        reproduce.redraw(changed, scale="small", results=tmp_path)


def test_the_gallery_tells_other_settings_from_contradictions(spec, tmp_path):
    def shown(value, *differs):
        odd = replace(spec, published=(replace(spec.published[0], value=value, differs=differs),), differs=differs)
        return reproduce.render_gallery({odd.id: odd}, {odd.id: make(odd, tmp_path).result}, figures="results")

    assert "| 5 | **no** |" in shown(9.0)
    assert "| Charoenphakdee et al. (2021) | 1 | 0 | 1 | 0 | 0 | 0 |" in shown(9.0)
    assert "Not the paper's own" not in shown(9.0)
    other = shown(9.0, "network", "schedule")
    assert "| 5 | no, other network and schedule |" in other
    assert "| Charoenphakdee et al. (2021) | 1 | 0 | 0 | 0 | 1 | 0 |" in other
    assert "\nCounts. Not the paper's own: network and schedule. Scale small" in other
    assert "| 5 | yes, other data |" in shown(5.0, "data")


def test_a_setting_that_the_paper_leaves_open_is_not_a_contradiction(spec, tmp_path):
    published = (replace(spec.published[0], value=9.0, unstated="range of γ"),)
    left_open = replace(spec, published=published)
    found = {left_open.id: make(left_open, tmp_path).result}
    shown = reproduce.render_gallery({left_open.id: left_open}, found, figures="results")
    assert "| 5 | no, range of γ not stated |" in shown
    assert "| Charoenphakdee et al. (2021) | 1 | 0 | 0 | 0 | 1 | 0 |" in shown
    assert result_files.load(tmp_path, left_open, "small").published[0].unstated == "range of γ"


def test_a_result_without_a_time(spec, tmp_path):
    result = replace(make(spec, tmp_path).result, seconds=None)
    result_files.update(tmp_path, spec, result)
    assert result_files.load(tmp_path, spec, "small") == result
    assert "Scale small, time not recorded." in reproduce.render_gallery(
        {spec.id: spec}, {spec.id: result}, figures="results"
    )


def test_a_published_number_must_be_computed(spec, counting, tmp_path):
    wrong = replace(spec, published=(replace(spec.published[0], number="start"),))
    with pytest.raises(ValueError, match="published numbers must be among end, got start"):
        make(wrong, tmp_path)


def test_a_finding_must_name_computed_values(spec, counting, tmp_path):
    with pytest.raises(ValueError, match="finding must name values among end, got start"):
        make(replace(spec, finding="From {start:.1f}."), tmp_path)
    with pytest.raises(ValueError, match=r"finding must have formats such as \.3f, got '>999'"):
        make(replace(spec, finding="To {end:>999}."), tmp_path)


def test_a_damaged_result_is_named(spec, counting, tmp_path):
    folder = make(spec, tmp_path).folder
    (folder / "numbers.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match=r"numbers\.json is not a valid result .*: make it again with --force"):
        make(spec, tmp_path)
    assert make(spec, tmp_path, force=True).why == "forced"
    (folder / "numbers.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a valid result"):
        make(spec, tmp_path)


def test_missing_packages_are_named_before_any_work(spec, counting, tmp_path, monkeypatch):
    monkeypatch.setitem(reproduce.KINDS, "counting", Kind(Parameters, counting.compute, counting.draw, ("torch",)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"this needs matplotlib and torch: pip install 'refocal\[plot,torch\]'"):
        make(spec, tmp_path)
    assert counting.runs == 0


def test_scale_is_checked(spec, tmp_path):
    with pytest.raises(ValueError, match="scale must be one of 'smoke', 'small', 'paper', got 'large'"):
        runner.reproduce(spec, scale="large", results=tmp_path)


def test_the_same_numbers_give_the_same_files(spec, tmp_path):
    first, second = (make(spec, tmp_path / name).folder for name in ("a", "b"))
    for name in ("figure.svg", "figure.png"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_the_gallery_escapes_text(spec, tmp_path):
    odd = replace(spec, title="a | b <script>", caption="One\ntwo.")
    made = make(odd, tmp_path).result
    shown = reproduce.render_gallery({odd.id: odd}, {odd.id: made}, figures="results")
    assert "### 001-fig-9: a \\| b &lt;script&gt;\n" in shown
    assert "\nOne two. Scale small, " in shown
    assert "| the end | Fig. 1 | 5 ± 0.5 | 5 | yes |\n\nIt ends at 5.0.\n" in shown


def test_rounding_keeps_what_a_figure_shows():
    assert result_files.round_curves({"a": [1 / 3, (2, None)], "b": "text"}) == {"a": [0.33333, [2, None]], "b": "text"}
    assert result_files.round_curves([np.arange(2), np.float64(1 / 3)]) == [[0, 1], 0.33333]


def test_the_gallery_links_to_a_folder_of_any_name(tmp_path):
    assert (
        reproduce.relative_link(tmp_path / "docs/page.md", tmp_path / "experiments/results") == "../experiments/results"
    )
    assert (
        reproduce.relative_link(tmp_path / "page.md", tmp_path / "my <results> (1)") == "my%20%3Cresults%3E%20%281%29"
    )
