"""What our figures have other than the papers': each number says so, and the cards of the zoo agree."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from refocal_lab import reproduce, zoo
from refocal_lab.zoo.measures import read_parts

LAB = Path(__file__).parents[2]
SPECS = reproduce.read_specs(LAB / "experiments")
DATA = r"cifar10|cifar10-s|cifar100|svhn|tiny-imagenet|newsgroups20[a-z-]*|sst"
NETWORK = re.compile(rf"\((?P<data>{DATA}) (?P<model>[a-z0-9-]+)[,)]")
# The networks of the papers by figure, or by paper if all of its figures have the same.
PAPERS_NETWORKS = {
    "001-fig-5": {
        *((data, model) for data in ("svhn", "cifar10") for model in ("resnet20", "resnet110")),
        *(("cifar10", model) for model in ("resnet8", "resnet44")),
        ("cifar10-s", "resnet110"),
    },
    "001-fig-6": {("cifar10", "resnet110"), ("cifar10-s", "resnet110")},
    "002": {("cifar10", "resnet50"), ("newsgroups20", "gp-cnn"), ("sst", "tree-lstm")},
    "003": {(data, "resnet50") for data in ("cifar10", "cifar100", "tiny-imagenet")},
    "004": {("cifar100", model) for model in ("resnet18", "resnet18-wide2", "mobilenet-v2", "vgg19", "vit-small")},
}
# Networks that are the paper's by name but not in every respect: see the captions.
CHANGED = {("002", "newsgroups20"): {"network", "data"}, ("002", "sst"): {"network"}}
EPOCHS = {
    **{("001", data): 200 for data in ("cifar10", "cifar10-s")},
    ("001", "svhn"): 50,
    **{(paper, data): 350 for paper in ("002", "003") for data in ("cifar10", "cifar100")},
    ("002", "newsgroups20"): 50,
    ("002", "sst"): 25,
}
OF_SMALL_NETWORKS = ("one-dimension", "tabular", "curvature-penalty")
NUMBERS = [
    (spec, number, match["data"], match["model"])
    for spec in SPECS.values()
    for number in spec.published
    if (match := NETWORK.search(number.number))
]


@pytest.fixture(scope="module")
def epochs():
    """The epochs of the networks of the zoo."""
    found: dict[tuple[str, str], set[int]] = {}
    for entry in zoo.entries(LAB / "zoo"):
        found.setdefault((entry.card.data, entry.card.model), set()).add(entry.card.content["epochs"])
    return found


@pytest.mark.parametrize(
    ("spec", "number", "data", "model"), NUMBERS, ids=[f"{spec.id}-{number.number}" for spec, number, *_ in NUMBERS]
)
def test_a_number_says_what_differs_from_the_paper(spec, number, data, model, epochs):
    theirs = PAPERS_NETWORKS.get(spec.id) or PAPERS_NETWORKS[spec.paper]
    expected = set(CHANGED.get((spec.paper, data), set()))
    if (data, model) not in theirs:
        expected.add("network")
    if data not in {known for known, _ in theirs}:
        expected.add("data")
    stated = EPOCHS.get((spec.paper, data))  # None if the paper does not state it
    if stated is not None and not epochs.get((data, model), {stated}) <= {stated}:
        expected.add("schedule")
    assert set(number.differs) == expected
    assert number.unstated == ("schedule" if stated is None else "")


@pytest.mark.parametrize("spec", [spec for spec in SPECS.values() if spec.differs], ids=lambda spec: spec.id)
def test_the_caption_explains_what_differs(spec):
    text = f"{spec.caption} {spec.finding}"
    assert re.search(r"[Tt]he paper|The others differ from", text), "the caption must name the paper's own setting"
    if "schedule" in spec.differs:
        assert re.search(r"epochs|training", text)


def test_a_known_setting_is_told_from_one_that_the_paper_leaves_open():
    """The ledger calls what depends on an open setting "reproduced" or not; the gallery does not make it a bold no."""
    open_ = {(spec.id, number.number) for spec in SPECS.values() for number in spec.published if number.unstated}
    assert {("003-fig-2", "slope(2, 10)"), ("003-fig-6", "slope(4, 10)"), ("003-fig-6", "error(4, 9)")} <= open_
    assert not {("003-fig-6", "error(3, 9)"), ("003-fig-2", "T(2, 3)")} & open_
    for spec in (spec for spec in SPECS.values() if any(number.unstated for number in spec.published)):
        words = f"{spec.caption} {spec.finding}"
        assert re.search(r"does\s+not\s+state|states its grid|prints neither|002-fig-5", words), spec.id


TRAINED = [spec for spec in SPECS.values() if spec.kind.startswith("zoo-") or spec.kind in OF_SMALL_NETWORKS]


@pytest.mark.parametrize("spec", TRAINED, ids=lambda spec: spec.id)
def test_the_caption_of_trained_networks_tells_for_how_long(spec):
    assert re.search(r"\d epochs|epoch \d", " ".join(spec.caption.split()))


@pytest.mark.parametrize("name", ["002-text-sst", *(f"002-table-{number}" for number in range(7, 14))])
def test_the_caption_tells_that_two_losses_kept_the_same_networks(name):
    cards = {entry.card.name: entry for entry in zoo.entries(LAB / "zoo") if "sst-tree-lstm-fls" in entry.card.name}
    for seed in range(3):
        one, other = (cards[f"sst-tree-lstm-fls-{gammas}-s{seed}"] for gammas in ("531", "532"))
        assert one.card.content["kept_epoch"] == other.card.content["kept_epoch"] < 100 / 350 * 25
        assert np.array_equal(*(read_parts(each)[1].logits for each in (one, other)))
    caption = " ".join(SPECS[name].caption.split())
    assert "FLS-531 and FLS-532 are the same networks" in caption
    assert "before the first change of γ" in caption or "precede the first change of γ" in caption
