"""Compact shards of a data set of color images: lossless WebP mosaics (`.wpm`) and labels (`labels.npz`).

A .wpm file consists of b"WPM1", the length of the header as four bytes (little endian), the header in JSON, and the
mosaics one after another. The header has the height `h` and width `w` of the images, the number `cols` of columns of a
mosaic, and for each mosaic the number of its images (`counts`) and of its bytes (`lengths`). Images fill a mosaic row
by row.
"""

from __future__ import annotations

import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from refocal_lab.train.data.sources import DataError, convert_errors

_MAGIC = b"WPM1"
FILES = ("train-00.wpm", "test-00.wpm", "labels.npz")


class _Header(NamedTuple):
    offset: int
    h: int
    w: int
    cols: int
    counts: list[int]
    lengths: list[int]


def read_images(folder: Path, part: str, *, count: int) -> np.ndarray:
    """Read all images of a part, uint8 (count, H, W, 3)."""
    paths = sorted(folder.glob(f"{part}-[0-9][0-9].wpm"))
    expected = [f"{part}-{number:02d}.wpm" for number in range(len(paths))]
    if [path.name for path in paths] != expected:
        msg = f"{folder} lacks shards: expected {', '.join(expected)}, found {', '.join(path.name for path in paths)}"
        raise DataError(msg)
    headers = [_read_header(path) for path in paths]
    held = sum(sum(header.counts) for header in headers)
    if held != count:
        msg = f"{folder} holds {held} images of {part} in {len(paths)} shards, expected {count}: shards are missing"
        raise DataError(msg)
    images = np.empty((count, headers[0].h, headers[0].w, 3), dtype=np.uint8)
    start = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, header in zip(paths, headers, strict=True):
            content = path.read_bytes()
            ends = list(accumulate(header.lengths, initial=header.offset))
            starts = list(accumulate(header.counts, initial=start))
            jobs = [
                pool.submit(_decode, content[ends[k] : ends[k + 1]], header, images[starts[k] : starts[k + 1]])
                for k in range(len(header.counts))
            ]
            for number, job in enumerate(jobs):
                try:
                    job.result()
                except Exception as error:  # Pillow raises exceptions of many types for damaged images
                    msg = f"{path} is damaged: mosaic {number} cannot be read ({error})"
                    raise DataError(msg) from error
            start = starts[-1]
    return images


def read_labels(folder: Path) -> dict[str, np.ndarray]:
    """Read the arrays of labels.npz."""
    path = folder / "labels.npz"
    with convert_errors(path), open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def _read_header(path: Path) -> _Header:
    size = path.stat().st_size
    with open(path, "rb") as file:
        try:
            magic, length = file.read(4), int.from_bytes(file.read(4), "little")
            fields: dict[str, Any] = json.loads(file.read(length)) if magic == _MAGIC else {}
            header = _Header(8 + length, *(fields[name] for name in _Header._fields[1:]))
            ends = header.offset + sum(header.lengths)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            msg = f"{path} is damaged or not a .wpm file: its header cannot be read"
            raise DataError(msg) from error
    if ends != size or len(header.counts) != len(header.lengths):
        msg = f"{path} is damaged: its header describes {ends} bytes, the file has {size}"
        raise DataError(msg)
    return header


def _decode(content: bytes, header: _Header, images: np.ndarray) -> None:
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["WEBP"]) as picture:
        mosaic = np.asarray(picture.convert("RGB"))
    h, w, cols = header.h, header.w, header.cols
    rows = -(-len(images) // cols)
    tiles = mosaic.reshape(rows, h, cols, w, 3).swapaxes(1, 2).reshape(rows * cols, h, w, 3)
    images[:] = tiles[: len(images)]
