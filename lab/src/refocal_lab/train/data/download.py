"""Fetch the files of a publisher, whole and verified or not at all."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from refocal import _files
from refocal_lab.train.data.sources import DataError, Download

_PIECE = 1 << 20
_SECONDS = 60


def fetch(downloads: Sequence[Download], root: Path, name: str) -> None:
    """Fetch missing files into the folder that has some of them, or else into a folder named after the data set."""
    started = (folder for folder in (root / name, root) if any((folder / each.file).is_file() for each in downloads))
    folder = next(started, root / name)
    folder.mkdir(parents=True, exist_ok=True)
    for download in downloads:
        if not (folder / download.file).is_file():
            _fetch(download, folder)


def _fetch(download: Download, folder: Path) -> None:
    """Fetch one file, under a temporary name until its checksum is right. A failed download leaves nothing."""
    target = folder / download.file
    try:
        with (
            urllib.request.urlopen(download.url, timeout=_SECONDS) as response,
            _files.replacing(target, overwrite=True) as file,
        ):
            size = int(response.headers.get("Content-Length", 0)) or None
            digest, length = hashlib.md5(usedforsecurity=False), 0
            with _progress() as progress:
                task = progress.add_task(download.file, total=size)
                while piece := response.read(_PIECE):
                    digest.update(piece)
                    file.write(piece)
                    length += len(piece)
                    progress.advance(task, len(piece))
            if digest.hexdigest() != download.md5:
                msg = (
                    f"{download.url} sent {length} bytes with md5 {digest.hexdigest()}, expected md5 {download.md5}"
                    + (f" and {size} bytes" if size else "")
                )
                raise DataError(msg)
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        msg = f"cannot fetch {download.url} ({error}): put {download.file} into {folder} yourself"
        raise ConnectionError(msg) from error


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
