"""The README: short, and its numbers are those of the stored results."""

from __future__ import annotations

import json
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
WHY = (REPOSITORY / "docs/explanation/why-softmax-is-not-the-posterior.md").read_text(encoding="utf-8")


def join_lines(text):
    return " ".join(text.split())


def read_values(name):
    file = REPOSITORY / f"lab/experiments/results/{name}/small/numbers.json"
    return json.loads(file.read_text(encoding="utf-8"))["values"]


def test_it_is_short():
    assert len(re.findall(r"\S*\w\S*", README)) <= 900


def test_the_closed_form_does_what_is_said():
    density, sst = read_values("001-fig-3"), read_values("002-text-sst")
    raw, mapped, fitted = (density[f"ECE({how}, 5)"] for how in ("raw", "psi", "TS"))
    before, after = (sst[f"ece_15(sst tree-lstm, focal 3, {how})"] for how in ("raw", "psi"))
    assert f"from {raw:.1%} to {mapped:.1%}, while a fitted temperature reaches {fitted:.1%}" in join_lines(README)
    assert f"from {raw:.1%} to {mapped:.1%} at γ = 5" in join_lines(WHY)
    assert f"from {before:.1f}% to {after:.1f}% (γ = 3)" in join_lines(README)
    assert f"At γ = 3, Ψ takes ECE from {before:.1f}% to {after:.1f}%" in join_lines(WHY)
    first = [sst[f"ece_15(sst tree-lstm, focal 1, {how})"] for how in ("raw", "psi")]
    assert f"from {first[0]:.1f}% to {first[1]:.1f}%" in join_lines(WHY)


def test_times_are_the_measured_ones():
    measured = (REPOSITORY / "benchmarks/results/comparison.md").read_text(encoding="utf-8")
    header = next(line for line in README.splitlines() if line.startswith("| | refocal"))
    titles = [title.strip() for title in header.split("|")[2:-1]]
    for task in ("top-label ECE", "temperature scaling"):
        row = next(line for line in README.splitlines() if line.startswith(f"| {task}, time"))
        given = dict(zip(titles, (cell.strip() for cell in row.split("|")[2:-1]), strict=True))
        found = re.findall(rf"^\| {task} \| (.+?) \| [\d.]+ \| ([\d.]+) \|", measured, flags=re.MULTILINE)
        ratios = {re.sub("^refocal .*", "refocal", package): ratio for package, ratio in found}
        assert {title: cell for title, cell in given.items() if re.fullmatch(r"[\d.]+", cell)} == ratios
    assert re.search(r"^(\d{4}-\d\d-\d\d);", measured, flags=re.MULTILINE)[1] in README
