"""Code on the pages: it runs as it stands, block after block, and prints what the comments say."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from harness.pages import run_page

REPOSITORY = Path(__file__).parents[1]
# the losses on docs/how-to/which-map.md are other packages': tests/peers runs them
PAGES = [
    REPOSITORY / "README.md",
    *sorted(set((REPOSITORY / "docs").rglob("*.md")) - {REPOSITORY / "docs/how-to/which-map.md"}),
    REPOSITORY / "lab" / "README.md",
    *sorted((REPOSITORY / "lab" / "docs").glob("*.md")),
]
TUTORIALS = sorted((REPOSITORY / "docs" / "tutorials").glob("*.md"))

# what pages need besides the packages of `make test`
NEEDS = {
    "boosting.md": ("lightgbm", "xgboost"),
    "hugging-face.md": ("transformers",),
    "jax.md": ("jax", "optax"),
    "lightgbm-csv.md": ("lightgbm",),
    "lightning.md": ("lightning",),
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_code_prints_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    for package in NEEDS.get(page.name, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: `make test-integrations` runs this page")
    monkeypatch.chdir(tmp_path)
    if page.name == "jax.md":
        importlib.import_module("jax").config.update("jax_enable_x64", False)  # as in the process of a reader
    run_page(page, capsys, tutorial=page in TUTORIALS)


@pytest.mark.parametrize(
    "page",
    [
        page
        for pattern in ("*.md", "docs/**/*.md", "lab/*.md", "lab/docs/*.md", "lab/zoo/*.md", "benchmarks/results/*.md")
        for page in sorted(REPOSITORY.glob(pattern))
    ],
    ids=lambda page: str(page.relative_to(REPOSITORY)),
)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


# folders below which CONTRIBUTING names files, beside the repository itself
ROOTS = [
    *("src/refocal", "src/refocal/calibrators", "src/refocal/predictions", "src/refocal/losses", "src/refocal/metrics"),
    *("src/refocal/report", "lab/src/refocal_lab/train"),
    *("lab/src/refocal_lab", "lab/src/refocal_lab/reproduce", "lab/src/refocal_lab/zoo", "lab/experiments", "tests"),
    *("tests/maps", "tests/losses", "lab/tests/claims", "lab/tests/train"),
]


def test_paths_that_contributing_names_exist():
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|toml|txt|json))`", text))
    roots = [REPOSITORY, *(REPOSITORY / root for root in ROOTS)]
    missing = {name for name in named if not any((root / name).exists() for root in roots)}
    assert missing == {"lab/zoo/NAME.json", "lab/zoo/NAME.npz"}


@pytest.mark.parametrize(
    "page", [*PAGES, REPOSITORY / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(REPOSITORY))
)
def test_no_wrapped_line_becomes_a_list(page):
    """A line of prose that happens to begin with "1. " or "- " would."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    pairs = re.findall(r"^([^\n|#>*+\- \d][^\n]*)\n((?:1[.)]|[-+*>]) [^\n]*)", text, flags=re.MULTILINE)
    assert [second for first, second in pairs if not first.endswith(":")] == []
