"""The command `refocal-lab reproduce`: figures, the list, the gallery, and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from refocal_lab import cli

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("REFOCAL_DATA", raising=False)


def call(capsys, tmp_path, *arguments):
    common = ["--experiments", str(EXPERIMENTS), "--results", str(tmp_path / "results")]
    status = cli.main(["reproduce", *common, *arguments])
    return status, *capsys.readouterr()


def test_a_figure_is_made_once(capsys, tmp_path):
    status, out, _ = call(capsys, tmp_path, "003-fig-3", "--scale", "smoke")
    assert status == 0
    assert "(no result yet)" in out
    assert "  upper bound by theory, γ = 4: paper: 0.238, ours: 0.2384, within: yes\n" in out
    assert (tmp_path / "results/003-fig-3/smoke/figure.svg").is_file()
    assert "(already stored)" in call(capsys, tmp_path, "003-fig-3", "--scale", "smoke")[1]
    assert "(forced)" in call(capsys, tmp_path, "003-fig-3", "--scale", "smoke", "--force")[1]


def test_a_figure_is_drawn_again(capsys, tmp_path):
    name = "004-fig-1"
    assert call(capsys, tmp_path, name, "--scale", "smoke")[0] == 0
    file = tmp_path / "results" / name / "smoke" / "figure.png"
    drawn = file.read_bytes()
    file.write_bytes(b"")
    status, out, _ = call(capsys, tmp_path, name, "--scale", "smoke", "--redraw")
    assert status == 0
    assert "(drawn again)" in out
    assert file.read_bytes() == drawn


def test_json(capsys, tmp_path):
    _, out, _ = call(capsys, tmp_path, "001-fig-1", "002-fig-4a", "--scale", "smoke", "--json")
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["id"] for record in records] == ["001-fig-1", "002-fig-4a"]
    assert records[0]["values"]["tau_uc(3)"] == pytest.approx(0.252584, abs=1e-6)


def test_the_list_shows_what_has_results(capsys, tmp_path):
    call(capsys, tmp_path, "003-fig-3", "--scale", "smoke")
    _, out, _ = call(capsys, tmp_path, "--list", "--json")
    listed = {item["id"]: item for item in json.loads(out)}
    made = {
        name: [scale for scale, seconds in item["seconds"].items() if seconds is not None]
        for name, item in listed.items()
    }
    assert made == {name: ["smoke"] if name == "003-fig-3" else [] for name in listed}
    assert listed["003-fig-3"]["within"] == 4
    assert (listed["003-fig-4"]["compared"], listed["003-fig-4"]["within"]) == (0, 0)
    status, out, _ = call(capsys, tmp_path, "--list")
    assert status == 0
    assert "003-fig-3" in out
    assert "4 of 5" in out


def test_the_list_names_every_figure_on_a_narrow_terminal(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = call(capsys, tmp_path, "--list")[1]
    assert all(f" {path.stem} " in out for path in EXPERIMENTS.glob("*.toml"))


def test_the_list_needs_no_zoo(capsys, tmp_path):
    empty = tmp_path / "zoo"
    empty.mkdir()
    call(capsys, tmp_path, "002-table-6", "--scale", "smoke", "--zoo", str(empty))
    empty.rmdir()
    status, out, _ = call(capsys, tmp_path, "--list", "--json", "--zoo", str(empty))
    assert status == 0
    listed = {item["id"]: item for item in json.loads(out)}
    seconds = listed["002-table-6"]["seconds"]
    assert [scale for scale, value in seconds.items() if value is not None] == ["smoke"]
    assert listed["002-table-6"]["out_of_date"] == []


def test_the_gallery_ignores_smoke_runs(capsys, tmp_path):
    call(capsys, tmp_path, "003-fig-3", "--scale", "smoke")
    call(capsys, tmp_path, "001-fig-1", "--scale", "small")
    page = tmp_path / "gallery.md"
    status, out, _ = call(capsys, tmp_path, "--gallery", str(page))
    assert status == 0
    assert out.startswith("1 of ")
    text = page.read_text(encoding="utf-8")
    assert "](results/001-fig-1/small/figure.svg)" in text
    assert "003-fig-3/smoke" not in text
    assert "There is no stored result." in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["003-fig-33"], "ID must be one of 001-fig-1, .*, got 003-fig-33"),
        ([], "name figures or tables"),
        (["--gallery", "notes.txt"], "--gallery must end in .md, got 'notes.txt'"),
        (
            ["003-fig-3", "--redraw"],
            "003-fig-3 has no result for its parameters at scale small: make it without --redraw",
        ),
        (["003-fig-3", "--redraw", "--engine", "ray"], "--redraw needs no cluster: leave out --engine ray"),
        (["001-study-c", "--scale", "smoke"], "this figure needs a data folder with tabular/"),
        (["001-study-c", "--scale", "smoke", "--data", "."], "no data set 'wine': tabular/wine.npz does not exist"),
    ],
)
def test_refusals(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    status, _, err = call(capsys, tmp_path, *arguments)
    assert status == 1
    assert re.search(message, err)


def test_commands_of_the_readme(capsys, tmp_path):
    readme = (EXPERIMENTS.parent / "README.md").read_text(encoding="utf-8")
    lines = [line.split("#")[0].split()[2:] for line in readme.splitlines() if line.startswith("refocal-lab reproduce")]
    assert lines == [["003-fig-3"], ["--list"]]
    for line in lines:
        assert call(capsys, tmp_path, *line, "--scale", "smoke")[0] == 0
    said = re.search(r'"(paper: .*?)" for each', readme)[1]
    assert said in call(capsys, tmp_path, "003-fig-3", "--scale", "smoke")[1]


def test_a_figure_that_fails_does_not_stop_the_others(capsys, tmp_path):
    status, out, trouble = call(capsys, tmp_path, "001-study-c", "001-fig-1", "--scale", "smoke")
    assert status == 1
    assert "001-fig-1, scale smoke" in out
    assert "needs a data folder with tabular/*.npz" in trouble
