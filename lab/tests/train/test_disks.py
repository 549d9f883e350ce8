"""Full disks, damaged files and files that a kill left: each is reported, and the run so far is kept."""

import contextlib
import json
import subprocess
import sys

import pytest
import torch
from small_runs import DIGITS, SMALL, history, run, unfinished

from refocal_lab.cli import main
from refocal_lab.train import checkpoint
from refocal_lab.train.recipe import TrainingRecipe


@contextlib.contextmanager
def largest_file(size):
    """Limit the size of files, as a full disk does."""
    resource = pytest.importorskip("resource")
    usual, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (usual, most))


@pytest.mark.parametrize("damage", [slice(100), slice(0), slice(64, 128)])
def test_an_unreadable_checkpoint_is_reported_and_kept(tmp_path, damage):
    recipe = TrainingRecipe(**DIGITS)
    folder = unfinished(recipe, tmp_path)
    path = folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[damage])
    with pytest.raises(checkpoint.CheckpointError, match=r"cannot be read .* remove it to start again"):
        run(recipe, tmp_path)
    assert path.exists()
    assert len(history(folder)) == recipe.epochs


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    recipe = TrainingRecipe(**DIGITS)
    folder = tmp_path / recipe.name
    folder.mkdir()
    checkpoint.save(
        folder / "checkpoint.safetensors", {"a": torch.zeros(1)}, epochs=1, settings=json.dumps(recipe.settings())
    )
    with pytest.raises(checkpoint.CheckpointError, match="is of another network"):
        run(recipe, tmp_path)


def test_a_checkpoint_of_other_shapes_is_refused(tmp_path):
    recipe = TrainingRecipe(**DIGITS)
    folder = unfinished(recipe, tmp_path)
    path = folder / "checkpoint.safetensors"
    tensors, epochs, settings = checkpoint.load(path)
    narrow = {name: tensor[:1] if name == "parameter.5.bias" else tensor for name, tensor in tensors.items()}
    assert narrow["parameter.5.bias"].shape == (1,)  # would be broadcast to all classes
    checkpoint.save(path, narrow, epochs=epochs, settings=json.dumps(settings))
    with pytest.raises(checkpoint.CheckpointError, match=r"is of another network: parameter.5.bias does not fit"):
        run(recipe, tmp_path)


def test_a_full_disk_is_reported_and_the_run_so_far_is_kept(tmp_path, capsys):
    options = ["train", *SMALL, "--loss", "focal", "--gamma", "1", "--device", "cpu", "--out", str(tmp_path)]
    assert main([*options, "--epochs", "1"]) == 0
    folder = tmp_path / "digits-mlp-focal-g1-s0"
    before = (folder / "checkpoint.safetensors").read_bytes()
    # continue with a second epoch while no file can be as large as a checkpoint
    (folder / "card.json").unlink()
    settings = before.replace(b'\\"epochs\\": 1,', b'\\"epochs\\": 2,')
    (folder / "checkpoint.safetensors").write_bytes(settings)
    with largest_file(50_000):
        assert main([*options, "--epochs", "2", "--milestones", "1"]) == 1
    assert "could not be written (File too large); the previous one is kept" in capsys.readouterr().err
    assert (folder / "checkpoint.safetensors").read_bytes() == settings
    assert {path.name for path in folder.iterdir()} == {
        *(".lock", "checkpoint.safetensors", "metrics.jsonl", "predictions.npz", "weights.safetensors")
    }


def test_a_disk_without_room_for_the_first_checkpoint_keeps_none(tmp_path, capsys):
    with largest_file(50_000):
        assert main(["train", *SMALL, "--epochs", "2", "--device", "cpu", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("checkpoint.safetensors could not be written (File too large)\n")


@pytest.mark.parametrize(
    ("trained", "size", "name"),
    [
        (False, 500, "metrics.jsonl"),
        (False, 5_000, "train-epoch-1.npz"),
        (True, 5_000, "predictions.npz"),
        (True, 20_000, "weights.safetensors"),
    ],
)
def test_a_full_disk_tells_what_it_has_no_room_for(tmp_path, capsys, trained, size, name):
    recipe = TrainingRecipe(**DIGITS)
    folder = tmp_path / recipe.name
    options = ["train", *SMALL, "--epochs", "4", "--batch-size", "64", "--device", "cpu", "--out", str(tmp_path)]
    if trained:
        assert main(options) == 0
        for written in ("card.json", "predictions.npz", "weights.safetensors"):
            (folder / written).unlink()
    elif name != "metrics.jsonl":
        options += ["--keep-logits", "1"]
    with largest_file(size):
        assert main(options) == 1
    assert capsys.readouterr().err.endswith(f"refocal-lab: {folder / name}: File too large\n")
    assert main(options) == 0
    assert [record["epoch"] for record in history(folder)] == [1, 2, 3, 4]


def test_what_a_kill_left_half_written_is_removed(tmp_path):
    pytest.importorskip("fcntl")
    recipe = TrainingRecipe(**DIGITS)
    folder = tmp_path / recipe.name
    folder.mkdir()
    code = (
        "import os, sys; from pathlib import Path; from refocal._files import replacing\n"
        "with replacing(Path(sys.argv[1]), overwrite=True) as file: file.write(b'half'), os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, folder / "checkpoint.safetensors"], check=False)
    assert [path.suffix for path in folder.iterdir()] == [".tmp"]
    run(recipe, tmp_path)
    assert {path.suffix for path in folder.iterdir()} == {"", ".json", ".jsonl", ".npz", ".safetensors"}


def test_damaged_measures_are_told_before_a_run_goes_on(tmp_path):
    recipe = TrainingRecipe(**DIGITS)
    folder = unfinished(recipe, tmp_path)
    path = folder / "metrics.jsonl"
    lines = path.read_bytes()
    path.write_bytes(lines + b'{"epoch": 5, \xff\x00')  # as after a crash of the machine
    run(recipe, tmp_path)
    assert path.read_bytes() == lines
    (folder / "card.json").unlink()
    path.write_bytes(lines.replace(b'"epoch": 2,', b'"epoch": \xff,'))
    with pytest.raises(ValueError, match=r"metrics\.jsonl is damaged \(.*\): remove it and the checkpoint beside it"):
        run(recipe, tmp_path)
