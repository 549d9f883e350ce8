"""Every numbered statement of the four papers has a claim, and every verdict agrees with the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from refocal_lab.claims import CheckMethod, ClaimVerdict, all_claims, check

PAGE = Path(__file__).parents[2] / "docs" / "claims.md"
# The numbered statements of the papers. Propositions 3 and 4 of Mukhoti et al. (2020) repeat 1 and 2 with proofs.
STATEMENTS = {
    "001": {"def": [1, 2, 4, 7], "thm": [3, 5, 8, 11], "prop": [6, 12], "cor": [9, 10]},
    "002": {"prop": [1, 2, 3, 4]},
    "003": {"prop": [1, 2, 3, 4, 5]},
    "004": {"def": [1, 2, 3], "lem": [1], "thm": [1, 2], "cor": [1, 2], "conj": [1]},
}
# The claim that covers each numbered equation; None if the equation only defines notation.
EQUATIONS = {
    "001": [None, "def-1", None, None, "eq-6", "eq-6", None, "def-7", "def-7", "eq-10", *["thm-11"] * 3],
    "002": ["eq-1", "eq-2", "eq-3", *["prop-3"] * 3, "eq-7", "eq-9", "eq-9", "eq-10", "prop-4", "eq-12", "eq-13"],
    "003": ["prop-4"],
    "004": [
        *[None, "def-1", "def-2", "lem-1", "eq-5", None, "thm-1", "thm-1", "thm-1", None, None],
        *["eq-12", "eq-12", "eq-12", "eq-15", "eq-15", "eq-17", "cor-1", "eq-19", None, *["eq-26"] * 6],
        *["eq-28", "eq-28", "def-3", "eq-30", "eq-31", "eq-32", "eq-33"],
    ],
}
# Statements in dispute, and their verdicts.
DISPUTES = {
    "003-prop-5": "refuted",
    "001-thm-8": "holds",
    "004-eq-28": "refuted",
    "004-eq-30": "refuted",
    "004-text-gamma-half": "refuted",
    "004-fig-1": "misprint",
    "004-eq-5": "holds in part",
    "004-lem-1": "holds",
    "001-talk-table": "misprint",
    "002-prop-2-formula": "holds",
    "002-appendix-h-line-3": "holds",
    "002-text-edge": "holds",
    "003-text-80": "holds",
    "002-text-temperatures": "holds in part",
    "002-text-table-7": "holds in part",
    "002-networks-s99": "not reproduced",
    "003-networks-choice": "reproduced in part",
    "003-fit-2": "holds in part",
    "003-fit-3": "holds in part",
    "003-fit-4": "not reproduced",
    "003-text-error-4": "holds in part",
    "003-fig-7": "holds in part",
    "001-footnote-2": "holds",
    "003-fig-2": "misprint",
    "003-fig-5": "misprint",
    "004-eq-32": "misprint",
    "004-cor-1": "misprint",
    "002-text-nll-convex": "holds",
    "002-text-nll-stuck": "refuted",
    "003-negative-decision": "holds",
    "003-negative-injective": "holds",
    "003-text-gamma-accuracy": "holds in part",
    "004-text-entropy-curvature": "holds in part",
    "004-text-lipschitz": "holds in part",
    "004-thm-1-chain": "refuted",
}


def test_the_inventory_has_no_gaps():
    assert sorted(number for numbers in STATEMENTS["001"].values() for number in numbers) == list(range(1, 13))
    assert {paper: len(covered) for paper, covered in EQUATIONS.items()} == {"001": 13, "002": 13, "003": 1, "004": 33}


@pytest.mark.parametrize("paper", STATEMENTS)
def test_every_numbered_statement_has_a_claim(paper):
    ids = {claim.id for claim in all_claims()}
    wanted = {f"{paper}-{kind}-{number}" for kind, numbers in STATEMENTS[paper].items() for number in numbers}
    wanted |= {f"{paper}-{name}" for name in EQUATIONS[paper] if name}
    assert wanted <= ids


def test_ids_are_unique_and_well_formed():
    ids = [claim.id for claim in all_claims()]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"00[1-4](-[a-z0-9]+)+", id) for id in ids)


@pytest.mark.thorough
def test_every_verdict_agrees_with_the_page():
    """This is one test, so that the checks run only once."""
    records = {record.id: record for record in check([claim.id for claim in all_claims()], processes=1)}
    for id, record in records.items():
        assert record.evidence and record.statement and record.where
        assert (record.verdict == ClaimVerdict.NOT_CHECKABLE) == (record.method == CheckMethod.NONE), id
    verdicts = {id: record.verdict for id, record in records.items()}
    assert {id: verdicts[id] for id in DISPUTES} == DISPUTES
    rows = re.findall(r"^\| `(\S+)`<br>.*? \| \*\*(.+?)\*\* \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert dict(rows) == verdicts
    assert len(rows) == len(records)
