"""Small data sets in folders: write their files, and load them as the lab does."""

from __future__ import annotations

from refocal_lab.train.data import _load


def load(spec, folder, *, name=None, download=False, split_seed=0):
    return _load(name or spec.key, spec, folder, download=download, split_seed=split_seed)


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
