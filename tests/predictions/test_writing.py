"""A file appears whole or not at all; an old file stays until then."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace

import numpy as np
import pytest

from refocal.predictions import Predictions, PredictionsError, PredictionsWriter

FORMATS = [".npz", ".parquet", ".csv"]
OLD = Predictions(np.zeros((2, 3)), input="logits", labels=[0, 1])
NEW = Predictions(np.ones((4, 3)), input="logits", labels=[0, 1, 2, 0])


@pytest.fixture(params=FORMATS)
def path(request, tmp_path):
    return tmp_path / f"a{request.param}"


def names(folder):
    return sorted(file.name for file in folder.iterdir())


def test_an_old_file_is_replaced_only_when_asked(path):
    OLD.write(path)
    with pytest.raises(FileExistsError, match=r"a\.\w+ exists; pass overwrite=True to replace it"):
        NEW.write(path)
    assert len(Predictions.read(path)) == 2
    NEW.write(path, overwrite=True)
    assert len(Predictions.read(path)) == 4
    assert names(path.parent) == [path.name]


def test_a_file_that_appears_in_the_meantime_stays(path):
    with pytest.raises(FileExistsError, match="overwrite=True"), PredictionsWriter(path) as writer:
        writer.write(NEW)
        path.write_text("another file", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "another file"
    assert names(path.parent) == [path.name]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_an_exception_between_blocks(path, error, old, blocks):
    if old:
        OLD.write(path)
    with pytest.raises(error), PredictionsWriter(path, overwrite=True) as writer:
        for _ in range(blocks):
            writer.write(NEW)
        raise error
    assert names(path.parent) == ([path.name] if old else [])
    if old:
        assert len(Predictions.read(path)) == 2


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_an_exception_at_the_end(path, error, function, monkeypatch):
    def fail(*_):
        raise error

    OLD.write(path)
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(os, function, fail)
        NEW.write(path, overwrite=True)
    assert names(path.parent) == [path.name]
    assert len(Predictions.read(path)) == 2


def test_an_exception_inside_a_format(path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    OLD.write(path)
    target = {
        ".npz": "zipfile.ZipFile.open",
        ".parquet": "pyarrow.parquet.ParquetWriter.write_table",
        ".csv": "refocal.predictions.arrow.optional_columns",
    }[path.suffix]
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(target, interrupted)
        NEW.write(path, overwrite=True)
    assert names(path.parent) == [path.name]
    assert len(Predictions.read(path)) == 2


def test_no_blocks_leave_no_file(path):
    with pytest.raises(PredictionsError, match="there are no rows: no block was written"), PredictionsWriter(path):
        pass
    assert names(path.parent) == []


def test_a_failed_block_is_remembered(path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with pytest.raises(PredictionsError, match="a block was not written completely"), PredictionsWriter(path) as writer:
        writer.write(NEW)
        monkeypatch.setattr(writer, "_write", fail)
        with pytest.raises(OSError, match="No space left"):
            writer.write(NEW)
        with pytest.raises(PredictionsError, match="a block was not written completely"):
            writer.write(NEW)
    assert names(path.parent) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"scores": np.full((4, 3), 1 / 3), "input": "probs"},
            r"input must match the first block \(logits\), got probs",
        ),
        ({"scores": np.ones((4, 3), dtype=np.float32)}, r"dtype of scores must match .* \(float64\), got float32"),
        ({"scores": np.ones((4, 5))}, r"shape of a row must match the first block \(\(3,\)\), got \(5,\)"),
        ({"labels": None}, r"presence of labels must match the first block \(True\), got False"),
        ({"split": ["a"] * 4}, r"presence of split must match the first block \(False\), got True"),
        (
            {"sample_weight": np.ones(4)},
            r"presence of sample_weight must match the first block \(False\), got True",
        ),
        (
            {"class_names": ("a", "b", "c")},
            r"class_names must match the first block \(None\), got \('a', 'b', 'c'\)",
        ),
    ],
)
def test_blocks_that_differ_from_the_first(path, changes, message):
    with pytest.raises(PredictionsError, match=message), PredictionsWriter(path) as writer:
        writer.write(NEW)
        writer.write(replace(NEW, **changes))
    assert names(path.parent) == []


def test_a_missing_folder(path):
    with pytest.raises(FileNotFoundError):
        NEW.write(path.parent / "missing" / path.name)


def test_permissions_are_the_same_as_for_any_new_file(path):
    NEW.write(path)
    (path.parent / "other").touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((path.parent / "other").stat().st_mode)


def test_a_folder_that_cannot_be_written_to_is_named_with_the_file(path, monkeypatch):
    def refuse(name, mode):
        raise PermissionError(errno.EACCES, "Permission denied", str(name))

    monkeypatch.setattr("refocal._files.open", refuse, raising=False)
    with pytest.raises(PermissionError, match=rf"Permission denied: '.*{path.name}'$"):
        NEW.write(path)
