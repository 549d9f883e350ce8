"""The command `refocal-lab claims`."""

from __future__ import annotations

import json
import sys

import pytest

from refocal_lab.claims import all_claims, check, find
from refocal_lab.claims.rendering import render_markdown, save_plot
from refocal_lab.cli import main


def run(capsys, *arguments):
    status = main(arguments)
    done = capsys.readouterr()
    return status, done.out, done.err


@pytest.mark.thorough
def test_one_paper_as_json(capsys):
    status, out, _ = run(capsys, "claims", "--paper", "001", "--json")
    records = json.loads(out)
    assert status == 0
    assert [record["id"] for record in records] == [claim.id for claim in all_claims() if claim.paper == "001"]
    assert {"id", "paper", "statement", "method", "domain", "verdict", "evidence"} <= set(records[0])


def test_the_table_and_the_page(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    page = tmp_path / "page.md"
    status, out, _ = run(capsys, "claims", "--paper", "004", "--markdown", str(page))
    assert status == 0
    assert "004-eq-32" in out and "misprint" in out and "not checkable" in out
    assert "**misprint**" in page.read_text(encoding="utf-8")
    status, _, trouble = run(capsys, "claims", "--paper", "004", "--markdown", str(page))
    assert (status, "--force" in trouble) == (1, True)


def test_show_one(capsys):
    status, out, _ = run(capsys, "claims", "show", "003-prop-5")
    assert status == 0
    for part in ("statement", "method", "domain", "evidence", "refuted", "0.3, 0.3, 0.3, 0.1"):
        assert part in out
    assert json.loads(run(capsys, "claims", "show", "003-prop-5", "--json")[1])["verdict"] == "refuted"
    assert json.loads(run(capsys, "claims", "--json", "show", "001-thm-5")[1])["verdict"] == "holds"


def test_one_id_runs_one_check(monkeypatch):
    from refocal_lab.claims import charoenphakdee2021

    ran = []
    for claim in charoenphakdee2021.CLAIMS:
        monkeypatch.setitem(
            claim.__dict__, "check", lambda claim=claim, old=claim.check: (ran.append(claim.id), old())[1]
        )
    check(["001-thm-5"])
    assert ran == ["001-thm-5"]


SLOW = {"003-fit-3", "003-fit-4"}  # the same figure as 003-fit-2, with more classes


@pytest.mark.parametrize(
    "claim", [claim for claim in all_claims() if claim.draw and claim.id not in SLOW], ids=lambda claim: claim.id
)
def test_plots(claim, tmp_path):
    figure = tmp_path / "figure.svg"
    save_plot(claim, figure, overwrite=False)
    assert "<svg" in figure.read_text(encoding="utf-8")
    with pytest.raises(FileExistsError):
        save_plot(claim, figure, overwrite=False)


def test_show_with_a_plot(capsys, tmp_path):
    figure = tmp_path / "figure.png"
    assert run(capsys, "claims", "show", "003-prop-3", "--plot", str(figure))[0] == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert run(capsys, "claims", "show", "003-prop-3", "--plot", str(figure))[0] == 1
    assert run(capsys, "claims", "show", "003-prop-3", "--plot", str(figure), "--force")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "003-prop-55"), "there is no claim '003-prop-55'; the nearest is '003-prop-5'"),
        (("--paper", "005"), "--paper must be one of 001, 002, 003, 004, got '005'"),
        (("--markdown", "page.txt"), "--markdown must end in .md, got 'page.txt'"),
        (("--markdown", "none/page.md"), "--markdown must be in a folder that exists, got 'none/page.md'"),
        (("show", "003-prop-5", "--plot", "a.pdf"), "--plot must end in .svg or .png, got 'a.pdf'"),
        (("show", "001-thm-5", "--plot", "a.svg"), "001-thm-5 has no plot"),
        (("--markdown", "no/page.md"), "--markdown must be in a folder that exists, got 'no/page.md'"),
        (("show", "003-prop-5", "--plot", "no/a.svg"), "--plot must be in a folder that exists, got 'no/a.svg'"),
        (("--markdown", "page.md", "show", "003-prop-5"), "--paper and --markdown are for several claims"),
        (("--paper", "001", "show", "003-prop-5"), "--paper and --markdown are for several claims"),
    ],
)
def test_refusals(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("refocal_lab.claims.check", lambda *_, **__: pytest.fail("nothing is checked before"))
    monkeypatch.chdir(tmp_path)
    status, out, trouble = run(capsys, "claims", *arguments)
    assert (status, out) == (1, "")
    assert message in trouble


def test_a_missing_package_is_named_in_one_line(capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("refocal_lab.claims")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flint", None)
    status, _, trouble = run(capsys, "claims", "show", "001-thm-5")
    assert (status, "flint" in trouble, trouble.count("\n")) == (1, True, 1)


def test_processes_give_the_same_records_in_order():
    ids = ["004-eq-32", "001-thm-5", "003-prop-1"]
    seen = []
    assert check(ids, processes=2, progress=seen.append) == check(ids, processes=1)
    assert sorted(seen) == sorted(ids)


def test_an_undecided_check_is_an_error_with_its_id(monkeypatch):
    from refocal_lab.claims import Outcome, settle

    claim = find("001-thm-5")
    monkeypatch.setitem(claim.__dict__, "check", lambda: settle(Outcome(None, "too wide")))
    with pytest.raises(RuntimeError, match="001-thm-5: the check could not decide: too wide"):
        check(["001-thm-5"])


def test_a_cell_of_the_page_cannot_break_its_table():
    record = check(["001-thm-5"])[0]._replace(statement="a | b * c_d <script>", evidence="x\\y")
    row = next(line for line in render_markdown([record]).splitlines() if line.startswith("| `001"))
    assert "a \\| b \\* c\\_d \\<script\\>" in row and "x\\\\y" in row


def test_without_a_zoo_claims_about_networks_are_not_checkable(monkeypatch, tmp_path):
    from refocal_lab import clone
    from refocal_lab.claims import networks

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clone, "_LAB", tmp_path)
    networks._all_entries.cache_clear()
    record = check(["001-networks-svhn"])[0]
    networks._all_entries.cache_clear()
    assert record.verdict == "not checkable" and "clone of the repository" in record.evidence


def test_the_page_begins_with_the_disagreements():
    records = check(["001-thm-5", "004-eq-30", "004-fig-1"])
    page = render_markdown([*records, records[0]._replace(id="001-x", verdict="not reproduced")])
    listed = [line for line in page.splitlines() if line.startswith("- `")]
    assert [line.split("`")[1] for line in listed] == ["004-eq-30", "001-x"]
    assert listed[1].endswith("(not reproduced)") and "Refuted" in page
    assert "Refuted" not in render_markdown(records[:1])
