"""The zoo: entries, measures, groups, published numbers, commands and errors."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import numpy as np
import pytest

from made_zoo import CLASSES, add, parts
from refocal import metrics, posterior_from_logits
from refocal.calibrators import FocalTemperatureScaling, TemperatureScaling
from refocal.predictions import Predictions
from refocal_lab import cli, zoo
from refocal_lab.zoo import measures, tables
from refocal_lab.zoo.published import _numbers, lookup


def check(found, probs, labels):
    """Compute all measures of one method by direct calls."""
    assert found["error"] == metrics.error(probs, labels)
    for name, expected in {
        "nll": metrics.nll(probs, labels),
        "ece_10": metrics.ece(probs, labels, bins=10),
        "ece_15": metrics.ece(probs, labels, bins=15),
        "adaptive_ece_10": metrics.adaptive_ece(probs, labels, bins=10),
        "adaptive_ece_15": metrics.adaptive_ece(probs, labels, bins=15),
    }.items():
        assert found[name] == pytest.approx(expected, rel=1e-12), name


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_every_method_agrees_with_a_direct_call(tmp_path, smoothing):
    add(tmp_path, "one", loss="focal", gamma=3.0, label_smoothing=smoothing, smoothing_edge="exact")
    [entry] = zoo.entries(tmp_path)
    found = zoo.measure(entry)
    assert tuple(found) == measures.METHODS
    (val, val_labels), (logits, labels) = parts(tmp_path, "one")
    check(found["raw"], posterior_from_logits(logits, gamma=0), labels)
    check(
        found["psi"], posterior_from_logits(logits, gamma=3, label_smoothing=smoothing, smoothing_edge="exact"), labels
    )
    check(found["ts-nll"], TemperatureScaling().fit(val, val_labels).predict_proba(logits), labels)
    check(found["ts-ece"], TemperatureScaling(objective="ece").fit(val, val_labels).predict_proba(logits), labels)
    for method, posterior in (("ts-fl", False), ("ts-fl-psi", True)):
        scaling = TemperatureScaling(objective="focal", gamma=3, apply_posterior=posterior).fit(val, val_labels)
        check(found[method], scaling.predict_proba(logits), labels)
    check(found["fts"], FocalTemperatureScaling().fit(val, val_labels).predict_proba(logits), labels)
    assert len({values["nll"] for values in found.values()}) == 7
    assert len({values["error"] for values in found.values()}) == 1


def test_maps_belong_to_losses(tmp_path):
    losses = {"cross-entropy": 0, "fls-531": 1, "fls-532": 2, "brier": 0, "mmce": 0, "flsd-53": None, "adafocal": None}
    for loss in (*losses, "dual-focal"):
        add(tmp_path, loss, loss=loss, gamma=2.0 if loss == "dual-focal" else None)
    for entry in zoo.entries(tmp_path):
        found = zoo.measure(entry)
        gamma = losses.get(entry.card.loss)
        assert ("psi" in found) == (gamma is not None)
        assert ("ts-fl" in found) == (gamma is not None and entry.card.loss not in ("brier", "mmce"))
        if gamma is not None:
            _, (logits, labels) = parts(tmp_path, entry.card.name)
            check(found["psi"], posterior_from_logits(logits, gamma=gamma), labels)


def test_kl_to_people(tmp_path):
    add(tmp_path, "cifar", data="cifar10")
    add(tmp_path, "other", data="svhn")
    _, (logits, labels) = parts(tmp_path, "cifar")
    human = 0.9 * np.eye(CLASSES)[labels] + 0.1 / CLASSES
    cifar, other = (zoo.measure(entry, human) for entry in zoo.entries(tmp_path))
    expected = metrics.kl_to_posterior(posterior_from_logits(logits, gamma=0), human)
    assert cifar["raw"]["kl_human"] == pytest.approx(expected)
    assert "kl_human" not in other["raw"]
    with pytest.raises(
        zoo.ZooError, match=r"cifar\.npz: the test part must be that of CIFAR-10 in the published order"
    ):
        zoo.measure(zoo.entries(tmp_path)[0], np.roll(human, 1, axis=1))
    with pytest.raises(zoo.ZooError, match="the test part must be that of CIFAR-10"):
        zoo.measure(zoo.entries(tmp_path)[0], human[:-1])


def test_groups_join_seeds_and_separate_recipes(tmp_path):
    for seed in range(3):
        add(tmp_path, f"a{seed}", seed=seed)
    add(tmp_path, "longer", seed=3, epochs=100)
    add(tmp_path, "summed", seed=4, recipe={"sum_loss": True, "seed": 4})
    found = zoo.entries(tmp_path)
    measured = [zoo.measure(entry) for entry in found]
    groups = zoo.summarize(found, measured)
    assert [[card.name for card in group.cards] for group in groups] == [["a0", "a1", "a2"], ["summed"], ["longer"]]
    values = [each["ts-nll"]["nll"] for each in measured[:3]]
    assert groups[0].methods["ts-nll"]["nll"][:2] == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert groups[1].methods["raw"]["nll"].deviation is None
    assert [group.notes for group in groups] == [[], [], []]


@pytest.mark.thorough
def test_many_entries_are_measured_by_several_processes(tmp_path):
    for seed in range(9):
        add(tmp_path, f"a{seed}", seed=seed, val=50, test=50)
    found = zoo.entries(tmp_path)
    assert list(zoo.measure_all(found)) == [zoo.measure(entry) for entry in found]


def test_a_wrong_card_is_noted(tmp_path):
    add(tmp_path, "one", nll=0.5)
    found = zoo.entries(tmp_path)
    [group] = zoo.summarize(found, [zoo.measure(entry) for entry in found])
    [note] = group.notes
    assert note.startswith("one: nll is 0.5000 on its card but ")


def test_published_numbers():
    # Mukhoti et al. (2020), Tables 1, 7, 10, 11 and 3, transcribed by hand
    own = ("cifar10", "resnet110-bottleneck")
    for variant, method, measure, value in (
        (("cross-entropy", None, 0.0), "raw", "ece_15", 0.0441),
        (("cross-entropy", None, 0.0), "ts-ece", "ece_15", 0.0109),
        (("cross-entropy", None, 0.0), "raw", "error", 0.0489),
        (("focal", 3.0, 0.0), "raw", "ece_15", 0.0155),
        (("focal", 3.0, 0.0), "raw", "adaptive_ece_15", 0.0162),
        (("fla-53", None, 0.0), "raw", "nll", 0.1854),
        (("fls-532", None, 0.0), "ts-ece", "nll", 0.2021),
    ):
        [found] = lookup(*own, variant, method, measure)
        assert found.paper == "002"
        assert found.value == pytest.approx(value)
    # Komisarenko and Kull (2024), Table 1: log-loss after temperature scaling, with its deviation
    assert lookup("cifar10", "resnet50", ("focal", 7.0, 0.0), "ts-nll", "nll")[0][2:] == pytest.approx((0.23, 0.01))
    assert [found.paper for found in lookup("cifar10", "resnet50", ("cross-entropy", None, 0.0), "raw", "error")] == [
        "002",
        "003",
    ]
    # the ResNet-110 of He et al. and that of Mukhoti et al. are different networks
    [he] = lookup("cifar10", "resnet110", ("cross-entropy", None, 0.0), "raw", "error")
    assert (he.paper, he.value) == ("He 2016", pytest.approx(0.0643))
    assert not lookup("cifar10", "resnet110", ("cross-entropy", None, 0.0), "raw", "ece_15")
    for data, model, (loss, _, _), method, measure in _numbers():
        assert method in {*measures.METHODS, "ts-adaptive-ece", "fts-adaptive-ece"}
        assert measure in {*measures.MEASURES, *measures.FURTHER, "temperature", "gamma"}
        assert (data, model) != ("cifar10", "resnet110") or (loss, measure) == ("cross-entropy", "error")


def test_table_1_of_komisarenko_and_kull():
    """Means and temperatures that are legible in the text of the paper, by hand: 7, 11 and 11 rows of up to five."""
    cells = {key: cell for key, found in _numbers().items() for cell in found if cell.id == "003-table-1"}
    counted = Counter(data for data, *_, measure in cells if measure != "gamma")
    assert counted == {"cifar100": 7 * 5, "cifar10": 10 * 5 + 4, "tiny-imagenet": 9 * 5 + 4 + 2}
    ada, focal = ("adafocal", None, 0.0), ("focal", 7.0, 0.0)
    assert cells["cifar100", "resnet50", ada, "fts-adaptive-ece", "adaptive_ece_15"][2:] == pytest.approx(
        (0.0271, 0.0017)
    )
    assert cells["cifar100", "resnet50", ada, "fts", "error"][2:] == pytest.approx((0.224, 0.002))
    assert cells["cifar10", "resnet50", ada, "fts", "temperature"][2:] == (3.7, None)
    assert cells["tiny-imagenet", "resnet50", focal, "ts-adaptive-ece", "temperature"].value == 0.85
    assert cells["tiny-imagenet", "resnet50", focal, "fts", "gamma"].value == 0.05
    assert ("tiny-imagenet", "resnet50", focal, "ts-nll", "nll") not in cells  # printed, but a digit is lost


def test_temperatures_of_mukhoti():
    """Each distinct column of the 280 printed temperatures: 3 and 7 losses, 10 networks, T by ECE and by AdaECE."""
    own = {
        key: cell.value
        for key, found in _numbers().items()
        for cell in found
        if (cell.paper, key[-1]) == ("002", "temperature")
    }
    assert Counter(method for *_, method, _ in own) == {"ts-ece": 100, "ts-adaptive-ece": 100}
    text, loss = ("newsgroups20", "gp-cnn"), ("cross-entropy", None, 0.0)
    assert own[*text, loss, "ts-ece", "temperature"] == 3.4
    assert own[*text, loss, "ts-adaptive-ece", "temperature"] == 3.3
    assert own["sst", "tree-lstm", ("focal", 3.0, 0.0), "ts-ece", "temperature"] == 0.5


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make a zoo in the working directory, without human labels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("REFOCAL_DATA", str(tmp_path))
    for seed in range(2):
        add(tmp_path / "zoo", f"plain-{seed}", seed=seed, data="cifar10")
        add(tmp_path / "zoo", f"focal-{seed}", seed=seed, data="cifar10", loss="focal", gamma=3.0)
    add(tmp_path / "zoo", "adafocal", data="svhn", loss="adafocal", epochs=50)
    return tmp_path


def run(capsys, *arguments):
    status = cli.main(list(arguments))
    return status, *capsys.readouterr()


def test_list(made, capsys):
    status, shown, _ = run(capsys, "zoo", "list")
    assert status == 0
    assert "5 entries" in shown
    assert "svhn-resnet20-…" in shown
    assert "focal, γ = 3" in shown
    status, shown, _ = run(capsys, "zoo", "list", "--json")
    assert [card["name"] for card in json.loads(shown)] == ["plain-0", "plain-1", "focal-0", "focal-1", "adafocal"]
    add(made / "another", "alone")
    assert "1 entry\n" in run(capsys, "zoo", "list", "--zoo", "another")[1]


def test_no_loss_is_cut_off_on_a_terminal_of_80_columns(made, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(capsys, "zoo", "table")[1]
    assert "method" in shown
    assert "…" not in shown


def test_table(made, capsys):
    status, shown, _ = run(capsys, "zoo", "table")
    assert status == 0
    for expected in (
        "cifar10, resnet20",
        "svhn, resnet20",
        "2 seeds, 50 epochs",
        "He 2016: 8.75%",
        "He 2016: published numbers, from Table 6.",
        "TS_FL, Ψ",
        " ±\u00a0",
    ):
        assert expected in shown
    status, shown, _ = run(capsys, "zoo", "table", "--json")
    plain, focal, adafocal = json.loads(shown)
    assert plain["entries"] == ["plain-0", "plain-1"]
    values = [zoo.measure(entry)["fts"]["ece_10"] for entry in zoo.entries("zoo")[2:4]]
    assert focal["methods"]["fts"]["ece_10"]["mean"] == pytest.approx(np.mean(values))
    assert focal["methods"]["fts"]["ece_10"]["std"] == pytest.approx(np.std(values, ddof=1))
    assert plain["methods"]["raw"]["error"]["published"][0]["value"] == pytest.approx(0.0875)
    assert "psi" not in adafocal["methods"]


def test_markdown(made, capsys):
    card = json.loads((made / "zoo" / "adafocal.json").read_text(encoding="utf-8"))
    (made / "zoo" / "adafocal.json").write_text(json.dumps(card | {"model": "a|b<script>"}), encoding="utf-8")
    status, shown, _ = run(capsys, "zoo", "table", "--markdown")
    assert status == 0
    assert "## svhn, a\\|b&lt;script>" in shown
    rows = [line for line in shown.splitlines() if line.startswith("| ")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {8}
    assert sum("Ψ" in line for line in rows) == 6
    adafocal = [line for line in rows if "| Ψ |" in line][-1]
    assert adafocal.count("–") == 5


def test_human_folder(made, capsys):
    status, _, errors = run(capsys, "zoo", "table", "--human", str(made / "nowhere"))
    assert status == 1
    assert "CIFAR-10H is not in" in errors


def test_one_form_of_output(made, capsys):
    assert run(capsys, "zoo", "table", "--json", "--markdown")[::2] == (
        1,
        "refocal-lab: --json and --markdown exclude each other\n",
    )


def test_an_infinite_mean_becomes_null():
    assert tables._mean_json(zoo.summary._mean([np.inf, 1.0], [])) == {"mean": None, "std": None, "published": []}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": "3"}, r"one\.json: gamma must be of type int or float or NoneType, got '3'"),
        ({"seed": True}, r"one\.json: seed must be of type int, got True"),
        ({"gamma": -2.0}, r"one\.json: gamma must be at least 0, got -2\.0"),
        ({"label_smoothing": 1}, r"one\.json: label_smoothing must be in \[0, 1\), got 1"),
        ({"epochs": 0}, r"one\.json: epochs must be at least 1, got 0"),
        ({"schema": 2}, r"one\.json must be a card of schema 1"),
        ({"recipe": 3}, r"one\.json: recipe must be of type dict, got 3"),
        ({"name": "two"}, r"one\.json: name must be the file name 'one', got 'two'"),
    ],
)
def test_cards_are_checked(tmp_path, change, message):
    card = add(tmp_path, "one")
    (tmp_path / "one.json").write_text(json.dumps(card | change), encoding="utf-8")
    with pytest.warns(zoo.SkippedWarning, match=message):
        assert zoo.entries(tmp_path) == []


def test_files_are_checked(tmp_path):
    with pytest.raises(FileNotFoundError, match="the zoo must be a folder"):
        zoo.entries(tmp_path / "absent")
    assert zoo.entries(tmp_path) == []
    card = add(tmp_path, "one")
    del card["command"]
    (tmp_path / "one.json").write_text(json.dumps(card), encoding="utf-8")
    with pytest.warns(zoo.SkippedWarning, match="command must be of type str, got None"):
        assert zoo.entries(tmp_path) == []
    for content in (b"{", b"\xff"):
        (tmp_path / "one.json").write_bytes(content)
        with pytest.warns(zoo.SkippedWarning, match=r"one\.json is not JSON"):
            assert zoo.entries(tmp_path) == []
    (tmp_path / "one.json").unlink()
    with pytest.warns(zoo.SkippedWarning, match=r"one needs both \.json and \.npz, \.json is missing"):
        assert zoo.entries(tmp_path) == []
    card = add(tmp_path, "one")
    Predictions(np.full((4, 2), 0.5), input="probs", labels=[0, 1, 0, 1]).write(tmp_path / "one.npz", overwrite=True)
    with pytest.raises(zoo.ZooError, match=r"one\.npz must contain logits and labels"):
        zoo.measure(zoo.entries(tmp_path)[0])
    masked = np.array([[0.0, -np.inf], [0.0, 1.0]])
    predictions = Predictions(masked, input="logits", labels=[0, 1], split=["val", "test"])
    predictions.write(tmp_path / "one.npz", overwrite=True)
    with pytest.raises(zoo.ZooError, match=r"one\.npz must contain finite logits, got -inf"):
        zoo.measure(zoo.entries(tmp_path)[0])


def test_a_later_setting_does_not_split_a_group(tmp_path):
    add(tmp_path, "before", seed=0, recipe={"clip_norm": None})
    add(tmp_path, "after", seed=1, recipe={"clip_norm": None, "curvature_penalty": None})
    add(tmp_path, "other", seed=2, recipe={"clip_norm": None, "curvature_penalty": 0.1})
    before, after, other = (entry.card.settings for entry in zoo.entries(tmp_path))
    assert before == after
    assert other != before


def finished_run(folder, **changes):
    """Write the files of a finished run."""
    card = add(folder, "run", **changes)
    (folder / "run.npz").rename(folder / "predictions.npz")
    (folder / "run.json").rename(folder / "card.json")
    (folder / "metrics.jsonl").write_text('{"epoch": 1}\n', encoding="utf-8")
    return card


def test_a_penalized_network_is_not_compared_with_the_papers(tmp_path):
    for name, penalty in (("plain", None), ("tau", 0.1)):
        add(tmp_path, name, data="cifar10", recipe={"curvature_penalty": penalty})
    found = zoo.entries(tmp_path)
    plain, penalized = zoo.summarize(found, list(zoo.measure_all(found)))
    assert [number.paper for number in plain.methods["raw"]["error"].published] == ["He 2016"]
    assert penalized.methods["raw"]["error"].published == []
    shown = tables.render_markdown([plain, penalized])
    assert shown.count("curvature penalty 0.1") == 1
    assert [group["curvature_penalty"] for group in tables.to_json([plain, penalized])] == [None, 0.1]


def test_factors_of_mmce_are_kept_apart(tmp_path):
    for factor in (2.0, 8.0):
        add(tmp_path, f"f{factor:g}", loss="mmce", gamma=None, recipe={"loss": "mmce", "factor": factor})
    found = zoo.entries(tmp_path)
    groups = zoo.summarize(found, list(zoo.measure_all(found)))
    assert [group["factor"] for group in tables.to_json(groups)] == [2.0, 8.0]
    shown = tables.render_markdown(groups)
    assert [shown.count(f"| factor {factor} |") for factor in (2, 8)] == [1, 1]


def test_runs_are_added_once_and_again(tmp_path):
    run, folder = tmp_path / "run", tmp_path / "zoo"
    card = finished_run(run, recipe={"learning_rate": 0.1})
    for _ in range(2):
        assert zoo.add(run, folder).content == card
    (entry,) = zoo.entries(folder)
    assert entry.predictions.read_bytes() == (run / "predictions.npz").read_bytes()
    assert gzip.decompress((folder / "run.jsonl.gz").read_bytes()) == b'{"epoch": 1}\n'
    (run / "card.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"is not a finished run: card\.json is missing"):
        zoo.add(run, folder)


def test_a_run_does_not_replace_one_with_other_settings(tmp_path):
    for rate in (0.1, 0.05):
        finished_run(tmp_path / f"run-{rate}", recipe={"learning_rate": rate})
    zoo.add(tmp_path / "run-0.1", tmp_path / "zoo")
    with pytest.raises(zoo.ZooError, match=r"zoo has run with other settings than .*run-0\.05"):
        zoo.add(tmp_path / "run-0.05", tmp_path / "zoo")
    assert zoo.entries(tmp_path / "zoo")[0].card.content["recipe"] == {"learning_rate": 0.1}


@pytest.mark.parametrize("name", ["../outside", "in/side", ""])
def test_a_card_cannot_choose_its_path(tmp_path, name):
    card = finished_run(tmp_path / "run") | {"name": name}
    (tmp_path / "run" / "card.json").write_text(json.dumps(card), encoding="utf-8")
    with pytest.raises(zoo.ZooError, match="name must be a file name"):
        zoo.add(tmp_path / "run", tmp_path / "zoo")
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
