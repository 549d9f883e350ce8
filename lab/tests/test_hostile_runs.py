"""Cards, runs, specs and results that are made to harm: each is rejected in one line that names it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from hostile_values import CONTROL, DEEP, ESCAPES, HOSTILE, needs_fifo
from made_zoo import add
from refocal_lab import zoo
from refocal_lab.cli import main
from refocal_lab.reproduce import read_specs, result_files
from refocal_lab.train import checkpoint
from refocal_lab.train.data import DataError, word_vectors
from refocal_lab.train.data import load as load_data
from refocal_lab.train.history import History
from refocal_lab.train.recipe import read_settings
from refocal_lab.train.run_folder import RunFolder
from refocal_lab.train.trained_network import load_network

REPOSITORY = Path(__file__).parents[1]


def run(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def test_one_bad_card_leaves_the_others(tmp_path, capsys):
    """Every key of a card with every kind of value: it is listed or skipped by name, and its neighbor is listed."""
    add(tmp_path, "good", seed=1)
    card = add(tmp_path, "bad")
    skipped = 0
    for key in [*card, "recipe", "kept_epoch"]:
        for value in HOSTILE:
            (tmp_path / "bad.json").write_text(json.dumps({**card, key: value}), encoding="utf-8")
            status, shown, trouble = run(capsys, "zoo", "list", "--zoo", tmp_path)
            assert status == 0, (key, value)
            assert "good" in shown
            assert ("1 entry" in shown) == ("bad.json" in trouble), (key, value, trouble)
            assert not CONTROL.search(shown + trouble), (key, value)
            skipped += "bad.json" in trouble
        status, shown, _ = run(capsys, "zoo", "list", "--zoo", tmp_path, "--json")
        assert status == 0
        assert "good" in [entry["name"] for entry in json.loads(shown)]
    assert skipped > 100


@pytest.mark.parametrize(
    "recipe", [{"nonsense": 1}, {"epochs": -3}, {"loss": 3}, {"gamma": 10**400}, {"milestones": [{}]}]
)
def test_a_card_with_a_recipe_that_is_none(tmp_path, capsys, recipe):
    add(tmp_path, "good")
    add(tmp_path, "bad", recipe=recipe)
    status, shown, trouble = run(capsys, "zoo", "list", "--zoo", tmp_path)
    assert (status, "1 entry" in shown) == (0, True)
    assert "bad.json: recipe is invalid: " in trouble


def test_a_card_of_any_bytes(tmp_path):
    add(tmp_path, "bad")
    for content in (DEEP.encode(), b"9" * 5000, b"\xff", b"", b"{}", b"null"):
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.warns(zoo.SkippedWarning, match=r"skipped: .*bad\.json"):
            assert zoo.entries(tmp_path) == []


def finished(folder, **changes):
    """A run's folder with the card that training writes."""
    folder.mkdir()
    card = {"schema": 1, "name": "run", "recipe": {"data": "digits", "model": "mlp"}, "error": 0.1, "nll": 0.2}
    card |= {"ece": 0.3, "seconds": 2.5, **changes}
    (folder / "card.json").write_text(json.dumps(card), encoding="utf-8")
    return folder


def test_cards_of_runs(tmp_path, capsys):
    """What the commands read of a card is there and of its type, and is shown as text."""
    from refocal_lab.cli.train import show_cards

    number = 0
    for key in ("name", "error", "nll", "ece", "seconds", "recipe", "kept_epoch", "curvature"):
        for value in ("x", True, None, [3], {"a": 1}):
            number += 1
            folder = finished(tmp_path / str(number), **{key: value})
            try:
                card = RunFolder(folder).read_card()
            except ValueError as error:
                assert "card.json" in str(error), (key, value)
            else:
                show_cards([card], as_json=False)
    show_cards([RunFolder(finished(tmp_path / "escapes", name=ESCAPES)).read_card()], as_json=False)
    assert not CONTROL.search(capsys.readouterr().out)
    (tmp_path / "escapes" / "card.json").write_text(DEEP, encoding="utf-8")
    with pytest.raises(ValueError, match=r"card\.json is not JSON: it is nested too deeply"):
        RunFolder(tmp_path / "escapes").read_card()


@pytest.mark.parametrize(
    "noted", [{}, {"epochs": "x"}, {"settings": "[]"}, {"settings": DEEP}, {"settings": "{"}, {"processes": "many"}]
)
def test_checkpoints_of_other_content(tmp_path, noted):
    path = tmp_path / "checkpoint.safetensors"
    content = {"epochs": "1", "settings": "{}", "processes": "1", **noted} if noted else {}
    safetensors.torch.save_file({"a": torch.zeros(1)}, path, metadata=content)
    with pytest.raises(checkpoint.CheckpointError, match=r"checkpoint\.safetensors cannot be read"):
        checkpoint.load(path)


def test_weights_of_another_network(tmp_path):
    folder = finished(tmp_path / "run")
    safetensors.torch.save_file({"a": torch.zeros(1)}, folder / "weights.safetensors")
    with pytest.raises(ValueError, match=r"weights\.safetensors cannot be read"):
        load_network(folder, classes=10, shape=(1, 8, 8))


@pytest.mark.parametrize("line", ["3", "[]", '{"epoch": 1}', '{"epoch": 1, "val": {"error": "x"}}', DEEP])
def test_histories_of_other_content(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(line + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged"):
        History(tmp_path / "metrics.jsonl").find_best("error")


@pytest.mark.parametrize(
    "change", [{"scale": "x"}, {"scale": None}, {"seconds": "x"}, {"values": 3}, {"published": [3]}]
)
def test_stored_results_of_other_content(tmp_path, change):
    found = min((REPOSITORY / "experiments" / "results").glob("*/small/numbers.json"))
    scale, name = found.parts[-2], found.parts[-3]
    spec = read_specs(REPOSITORY / "experiments")[name]
    copy = tmp_path / name / scale / "numbers.json"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(found.read_bytes())
    assert result_files.load(tmp_path, spec, scale).numbers.values == json.loads(found.read_bytes())["values"]
    copy.write_text(json.dumps(json.loads(found.read_bytes()) | change), encoding="utf-8")
    with pytest.raises(ValueError, match=r"numbers\.json is not a valid result"):
        result_files.load(tmp_path, spec, scale)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")
def test_names_do_not_command_the_terminal(tmp_path, capsys):
    add(tmp_path, "\x1b[31mred[bold]")
    status, shown, trouble = run(capsys, "zoo", "list", "--zoo", tmp_path)
    assert status == 0
    assert not CONTROL.search(shown + trouble)
    assert "red[bold]" in shown


def test_deep_nesting_names_the_file(tmp_path):
    deep = tmp_path / "deep.toml"
    deep.write_text("a = " + DEEP, encoding="utf-8")
    for read in (read_settings, lambda path: read_specs(path.parent)):
        with pytest.raises(ValueError, match=r"deep\.toml.*nested too deeply"):
            read(deep)


@needs_fifo
def test_a_fifo_is_rejected_at_once(tmp_path):
    """Nobody writes to it: a program that opened it would wait forever."""
    for name in ("a.toml", "glove.txt", "trainDevTestTrees_PTB.zip"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match=r"a\.toml must be a regular file, got a FIFO"):
        read_settings(tmp_path / "a.toml")
    with pytest.raises(DataError, match=r"glove\.txt must be a regular file, got a FIFO"):
        word_vectors.read(tmp_path / "glove.txt", ["word"])
    with pytest.raises(DataError, match=r"PTB\.zip must be a regular file, got a FIFO"):
        load_data("sst", folder=tmp_path)
    (tmp_path / "zoo").mkdir()
    add(tmp_path / "zoo", "bad")
    (tmp_path / "zoo" / "bad.json").unlink()
    os.mkfifo(tmp_path / "zoo" / "bad.json")
    with pytest.warns(zoo.SkippedWarning, match=r"bad\.json must be a regular file"):
        assert zoo.entries(tmp_path / "zoo") == []


@needs_fifo
def test_a_fifo_in_an_entry_of_the_zoo(tmp_path):
    add(tmp_path, "one")
    os.mkfifo(tmp_path / "one.jsonl.gz")
    (entry,) = zoo.entries(tmp_path)
    for read in (entry.history, entry.digest):
        with pytest.raises(ValueError, match=r"one\.jsonl\.gz must be a regular file, got a FIFO"):
            read()


@needs_fifo
def test_a_fifo_in_the_folder_of_a_run(tmp_path):
    files = RunFolder(tmp_path)
    os.mkfifo(files.history)
    history = History(files.history)
    for use in (history.read, lambda: history.append({"epoch": 1})):
        with pytest.raises(ValueError, match=r"metrics\.jsonl must be a regular file, got a FIFO"):
            use()
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(ValueError, match=r"\.lock must be a regular file, got a FIFO"), files.lock():
        pass


def test_counts_are_bounded(tmp_path, capsys):
    small = ("train", "--data", "digits", "--model", "mlp", "--loss", "ce", "--out", tmp_path)
    for option, message in (
        ("--trials", "trials must be 1 to 10000, got 1000000000"),
        ("--epochs", "epochs must be at most 1,000,000, got 1000000000"),
        ("--batch-size", "batch_size must be at most 1,000,000, got 1000000000"),
    ):
        status, _, trouble = run(capsys, *small, option, 1_000_000_000)
        assert (status, message in trouble) == (1, True), trouble
    assert not list(tmp_path.iterdir())
