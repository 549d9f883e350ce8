"""The pages with numbers of the zoo agree with its entries and with each other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from refocal_lab import zoo
from refocal_lab.cli.parser import build_parser
from refocal_lab.cli.recipes import build_recipes
from refocal_lab.train.recipe import parse_recipe

REPOSITORY = Path(__file__).parents[2]
MEASURED = (REPOSITORY / "zoo/README.md").read_text(encoding="utf-8")


def rows(text):
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return cells[2:]


def section(text, title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


def test_the_command_on_every_card_gives_its_recipe():
    for entry in zoo.entries(REPOSITORY / "zoo"):
        card = entry.card.content
        options = build_parser().parse_args(shlex.split(card["command"])[1:])
        assert build_recipes(options) == [parse_recipe(card["recipe"])], entry.card.name


def test_no_two_plans_train_a_network_of_the_same_name():
    plans = sorted((REPOSITORY / "zoo").glob("*.toml"))
    recipes = [each for plan in plans for each in build_recipes(build_parser().parse_args(["train", str(plan)]))]
    names = [recipe.name for recipe in recipes]
    assert len(set(names)) == len(names)
    assert {entry.card.name for entry in zoo.entries(REPOSITORY / "zoo")} <= set(names)


def test_the_zoo_is_small():
    files = (path for path in (REPOSITORY / "zoo").rglob("*") if path.is_file())
    assert sum(path.stat().st_size for path in files) < 110 * 2**20


def test_every_entry_is_in_the_table():
    seeds = map(int, re.findall(r"^\| (\d+) seeds?, ", MEASURED, re.MULTILINE))
    assert sum(seeds) == len(zoo.entries(REPOSITORY / "zoo"))


def measures_by_loss(title):
    """The NLL and ECE of each method in a section of the zoo's table, and what is said about the loss."""
    by_loss, group = {}, {}
    for about, method, nll, _, ece, *_ in rows(section(MEASURED, title)):
        if method == "as given":
            group = {"about": []}
        group["about"].append(about)
        group[method] = {"NLL": nll, "ECE": ece.partition("<br>")[0].replace("%", "")}
        if method == "focal TS":
            loss, *more = (line for line in group["about"] if line)
            smoothed = [line for line in more if line.startswith("label smoothing")]
            by_loss[", ".join([loss, *smoothed])] = group
    return by_loss


def test_the_page_about_training_agrees_with_the_table():
    by_loss = measures_by_loss("cifar10, resnet20")
    page = (REPOSITORY / "docs/training.md").read_text(encoding="utf-8")
    shown = rows(section(page, "Which loss"))
    assert len(shown) == 13
    for loss, seeds, error, raw, psi, scaled, nll in shown:
        found = by_loss[loss]
        assert f"{seeds} seeds, 200 epochs" in found["about"], loss
        assert f"error {error.replace(' ', '% ', 1)}" in found["about"], loss
        assert [raw, psi, scaled] == [found[method]["ECE"] for method in ("as given", "Ψ", "TS by NLL")], loss
        assert nll == found["TS by NLL"]["NLL"], loss


def test_pages_of_the_library_quote_what_the_map_does():
    def say(title, gamma, *methods):
        measured = measures_by_loss(title)["cross-entropy" if gamma == 0 else f"focal, γ = {gamma}"]
        return [f"{float(measured[method]['ECE'].split()[0]):.1f}%" for method in methods]

    def read(name):
        return " ".join((REPOSITORY.parent / f"docs/{name}.md").read_text(encoding="utf-8").split())

    both = ("as given", "Ψ")
    before, after = say("svhn, resnet20", 3, *both)
    small, large = say("cifar10, resnet44", 2, *both)
    tutorial = read("tutorials/focal-trained-network")
    assert f"on SVHN has an ECE of {before}, and the map takes it to {after}" in tutorial
    assert f"a ResNet-44 on CIFAR-10 has an ECE of {small}," in tutorial
    assert f"There the map raises ECE to {large}" in tutorial

    why = read("explanation/why-softmax-is-not-the-posterior")
    assert "at γ = 2, ECE goes from {} to {}".format(*say("cifar10, resnet20", 2, *both)) in why
    assert "ResNet-20 on CIFAR-10 from {} to {}".format(*say("cifar10, resnet20", 5, *both)) in why
    plain = [say(title, 0, "as given")[0] for title in ("svhn, resnet20", "cifar10, resnet20")]
    assert "whose ECE is {} and {}".format(*plain) in why


def test_the_page_about_training_quotes_resnet50():
    by_loss = measures_by_loss("cifar10, resnet50")
    page = " ".join((REPOSITORY / "docs/training.md").read_text(encoding="utf-8").split())
    losses = ("cross-entropy", "mmce", *(f"focal, γ = {gamma}" for gamma in (1, 2, 3)), "adafocal", "fla-53")
    told = (
        "the ECE as given is {}% with cross-entropy, {}% with MMCE, {}, {} and {}% with γ = 1, 2 and 3, {}% with "
        "AdaFocal and {}% with FLA-53"
    )
    assert told.format(*(by_loss[loss]["as given"]["ECE"] for loss in losses)) in page
    best = min(by_loss, key=lambda loss: by_loss[loss]["TS by NLL"]["NLL"])
    assert best == "focal, γ = 1"
    assert "The lowest error, and the lowest NLL after a temperature, are those of γ = 1" in page
