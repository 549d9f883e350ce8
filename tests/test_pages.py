"""Code and commands on the pages: they run as they stand, block after block, and print what the page says."""

from __future__ import annotations

import importlib
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from harness.pages import run_command, run_page
from refocal import demo

REPOSITORY = Path(__file__).parents[1]
# the losses on docs/how-to/which-map.md are other packages': tests/peers runs them
PAGES = [
    REPOSITORY / "README.md",
    *sorted(set((REPOSITORY / "docs").rglob("*.md")) - {REPOSITORY / "docs/how-to/which-map.md"}),
    REPOSITORY / "lab" / "README.md",
    *sorted((REPOSITORY / "lab" / "docs").glob("*.md")),
    REPOSITORY / "lab" / "zoo" / "README.md",
]
# pages that print numbers of networks or trees which they train
TRAINED = {"compare-losses.md", "focal-trained-network.md", "lightgbm-csv.md"}

# what pages need besides the packages of `make test`
NEEDS = {
    "boosting.md": ("lightgbm", "xgboost"),
    "hugging-face.md": ("transformers",),
    "jax.md": ("jax", "optax"),
    "lightgbm-csv.md": ("lightgbm",),
    "lightning.md": ("lightning",),
}

RESNET110 = (
    "refocal-lab train --data cifar10 --model resnet110 --loss focal --gamma 3 --epochs 200 --trials 4 --out runs"
)
GPU = "it trains for minutes or hours on a GPU, on data that must be downloaded: `test_a_command_is_valid` reads it"
# commands that do not run here, and why; `tests/test_page_commands.py` checks these, too
NOT_RUN = {
    "README.md": {
        "make demo": "it makes an environment; tests/test_demo.py runs what it runs",
        "make test": "it is what runs this test",
    },
    "lab/README.md": {
        "pip install . ./lab": "tests/test_install.py installs both wheels",
        "refocal-lab train --data sst --model tree-lstm --loss focal --gamma 3": GPU,
        "refocal-lab train --data newsgroups20 --model gp-cnn --loss mmce --factor 8": GPU,
    },
    "lab/docs/training.md": {
        RESNET110: GPU,
        "refocal-lab train lab/zoo/cifar10-resnet20.toml --out runs": GPU,
        "torchrun --nproc-per-node 2 -m refocal_lab train --data cifar10 --model resnet50 --out runs": GPU,
    },
    "lab/zoo/README.md": {"refocal-lab train zoo/cifar10-resnet20.toml --out runs": GPU},
}


def write_demo(folder):
    for name, split in (("val", "val"), ("test", "test"), ("new", "test")):
        demo.load().select(split).write(folder / f"{name}.npz")


def copy_part_of_the_lab(folder):
    """One figure and four networks: the commands take those of the current folder."""
    (folder / "experiments").mkdir()
    shutil.copy(REPOSITORY / "lab/experiments/003-fig-3.toml", folder / "experiments")
    (folder / "zoo").mkdir()
    for loss in ("cross-entropy", "focal-g3"):
        for part in REPOSITORY.glob(f"lab/zoo/sst-tree-lstm-{loss}-s[01].*"):
            shutil.copy(part, folder / "zoo")


def write_own_module(folder):
    text = (REPOSITORY / "lab/docs/training.md").read_text(encoding="utf-8")
    code = re.search(r"Put this into `mine.py`:\n\n```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)[1]
    (folder / "mine.py").write_text(code, encoding="utf-8")


def train_quickly(folder):
    copy_part_of_the_lab(folder)
    run_command("refocal-lab train --data digits --model mlp --epochs 1 --out runs")


# the files that the reader of a page has
PREPARE = {
    "README.md": write_demo,
    "lab/README.md": copy_part_of_the_lab,
    "lab/docs/training.md": write_own_module,
    "lab/zoo/README.md": train_quickly,
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
@pytest.mark.thorough
def test_code_prints_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    for package in NEEDS.get(page.name, ()):
        pytest.importorskip(package, reason=f"{package} is not installed: `make test-integrations` runs this page")
    monkeypatch.chdir(tmp_path)
    if page.name == "jax.md":
        importlib.import_module("jax").config.update("jax_enable_x64", False)  # as in the process of a reader
    monkeypatch.setenv("COLUMNS", "80")  # as on the pages
    name = str(page.relative_to(REPOSITORY))
    if name in PREPARE:
        PREPARE[name](tmp_path)
    capsys.readouterr()
    demo_page = page.name == "read-the-demo.md"  # tests/test_demo.py compares what it shows
    run_page(page, capsys, trained=page.name in TRAINED, not_run=NOT_RUN.get(name, {}), compared_elsewhere=demo_page)
    sys.modules.pop("mine", None)  # of lab/docs/training.md


# what runs blocks of each kind: this file, tests/test_page_sketches.py, and the build of the site
KINDS = {"python", "sh", "text", "py", "json", "{toctree}", "{eval-rst}", "{command-line}"}
EVERY_PAGE = [*PAGES, REPOSITORY / "docs/how-to/which-map.md", *sorted(REPOSITORY.glob("*.md"))]


@pytest.mark.parametrize("page", dict.fromkeys(EVERY_PAGE), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_block_is_of_a_kind_that_tests_run(page):
    fences = re.findall(r"^ *(?:```+|~~~+)(.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    openings, ends = fences[::2], fences[1::2]
    assert {opening.partition(" ")[0] for opening in openings} <= KINDS
    assert set(ends) <= {""}
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^(?: {4,}|\t)(?:refocal|refocal-lab|pip|make|python) .*", text, flags=re.MULTILINE) == []


def test_blocks_of_json_are_files_that_a_command_reads(tmp_path, monkeypatch):
    pages = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    blocks = {
        name: re.findall(r"^```json\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE) for name, text in pages.items()
    }
    assert {name for name, found in blocks.items() if found} == {"files.md"}
    monkeypatch.chdir(tmp_path)
    for name, block in zip(("loss.json", "costs.json"), blocks["files.md"], strict=True):
        Path(name).write_text(block, encoding="utf-8")
    rng = np.random.default_rng(0)
    np.savez("val.npz", logits=rng.normal(size=(200, 2)), labels=rng.integers(0, 2, 200))
    run_command("refocal calibrate val.npz --loss loss.json --costs costs.json --report report.html")


LINKING = [
    page
    for pattern in ("*.md", "docs/**/*.md", "lab/*.md", "lab/docs/*.md", "lab/zoo/*.md", "benchmarks/results/*.md")
    for page in sorted(REPOSITORY.glob(pattern))
]


def list_places(page):
    """What a link can name after `#`: the headings, as a service that shows the repository writes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_to_files_and_headings(page):
    broken = []
    for path, place in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        target = page.parent / path if path else page
        if "://" not in path and (not target.exists() or (place and place not in list_places(target))):
            broken.append(f"{path}#{place}")
    assert broken == []


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
