"""Damaged prediction files: `python mutations.py FORMAT SEED COUNT FOLDER` reads COUNT of them.

It runs in a process of its own, so that the test can see hangs, crashes and memory use from outside. The address space
can grow by at most GROWTH bytes, and the process ends if a file takes longer than LIMIT seconds.
"""

from __future__ import annotations

import faulthandler
import io
import re
import resource
import struct
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np

from refocal.predictions import Predictions, PredictionsError, PredictionsReader, PredictionsWarning

warnings.simplefilter("ignore", PredictionsWarning)  # a damaged name may be that of a column which is not used
GROWTH = 1 << 30
LIMIT = 20
NUMBERS = [0, 1, 2, 7, 127, 128, 255, 256, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
NUMBERS += [1 << 33, (1 << 62) // 7, (1 << 63) - 1, (1 << 64) - 1]
WORDS = ["logits", "probs", "label", "labels", "split", "weight", "<f4", "|O", "<U3", "<U99999999", ">f8", "|V8", "()"]
WORDS += [
    "(99999999999,)",
    "(-1, 3)",
    "(1, 99999999999)",
    "True",
    "nan",
    "-inf",
    "1e999",
    '"',
    "[",
    "]",
    ",",
    "\n",
    "\0",
]


def corpus(form, folder):
    """Yield small valid files with various inputs, shapes, dtypes, layouts and compression."""
    rng = np.random.default_rng(1)
    rows = 40
    logits = rng.standard_normal((rows, 3))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    optional = {"labels": rng.integers(0, 2, rows), "split": np.array(["val", "test"])[rng.integers(0, 2, rows)]}
    names = {} if form == "csv" else {"class_names": ("cat", "dog", "owl")}
    for predictions in (
        Predictions(logits, input="logits", sample_weight=rng.random(rows), **optional, **names),
        Predictions(probs.astype(np.float32), input="probs", **optional),
        Predictions(logits[:, 0].astype(np.float16), input="logits", labels=optional["labels"]),
        Predictions(logits.astype(np.float32), input="logits"),
        Predictions(probs, input="probs", labels=rng.random((rows, 3)) < 0.5),
    ):
        path = folder / f"seed.{form}"
        predictions.write(path, overwrite=True)
        yield path.read_bytes()
        if form == "npz":
            labels = predictions.labels if predictions.task == "multilabel" else optional["labels"]
            arrays = {predictions.input: np.asfortranarray(predictions.scores), "labels": np.asfortranarray(labels)}
            np.savez_compressed(path, **arrays)
            yield path.read_bytes()
        if form == "parquet":
            yield plain_parquet(predictions)
        if form == "csv":
            cells = [f'"{row.tolist()}",{label}' for row, label in zip(logits, optional["labels"], strict=True)]
            yield "\n".join(["logits,label", *cells, ""]).encode()


def plain_parquet(predictions):
    """Write lists of any length or one column per class, without checksums, so that damage reaches the decoders."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if predictions.scores.ndim == 2 and predictions.input == "logits":
        table = pa.table({f"logit_{k}": predictions.scores[:, k] for k in range(3)})
    else:
        table = pa.table({predictions.input: predictions.scores.tolist(), "label": predictions.labels.tolist()})
    file = io.BytesIO()
    compression = "gzip" if predictions.input == "probs" else "none"
    pq.write_table(table, file, row_group_size=16, compression=compression)
    return file.getvalue()


def mutate(data, others, form, rng):
    """Make one to three changes to a file."""
    for _ in range(max(1, int(rng.integers(-3, 4)))):
        change = CHANGES[int(rng.integers(len(CHANGES)))]
        if form == "npz" and rng.random() < 0.5:
            data = inside_the_archive(data, others, change, rng)
        elif form == "parquet" and rng.random() < 0.7:
            data = inside_the_pages(data, others, change, rng)
        else:
            data = change(data, others, rng)
    return data


def flip(data, others, rng):
    """Flip one to eight bits."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 9)) if changed else 0):
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def truncate(data, others, rng):
    """Cut off the end, or the start."""
    at = int(rng.integers(len(data) + 1))
    return data[:at] if rng.random() < 0.8 else data[at:]


def splice(data, others, rng):
    """Insert a piece of another file, or overwrite with it."""
    other = others[int(rng.integers(len(others)))]
    start, at = int(rng.integers(len(other))), int(rng.integers(len(data) + 1))
    piece = other[start : start + int(rng.integers(1, 200))]
    return data[:at] + piece + data[at + (len(piece) if rng.random() < 0.5 else 0) :]


def remove(data, others, rng):
    """Remove a piece."""
    at = int(rng.integers(len(data) + 1))
    return data[:at] + data[at + int(rng.integers(1, 50)) :]


def length(data, others, rng):
    """Overwrite bytes with a number: anywhere, or near the lengths in zip and parquet files."""
    marks = [m.start() for m in re.finditer(rb"PK\x01\x02|PK\x03\x04|PK\x05\x06|PK\x06\x06|NUMPY|PAR1", data)]
    if marks and rng.random() < 0.7:
        at = marks[int(rng.integers(len(marks)))] + int(rng.integers(-8, 48))
    else:
        at = int(rng.integers(len(data) + 1))
    at = max(0, at)
    size, code = [(1, "B"), (2, "<H"), (4, "<I"), (8, "<Q")][int(rng.integers(4))]
    number = NUMBERS[int(rng.integers(len(NUMBERS)))] % (1 << (8 * size))
    return data[:at] + struct.pack(code, number) + data[at + size :]


def word(data, others, rng):
    """Replace a word of a header, or of the text."""
    found = list(re.finditer(rb"[A-Za-z_<>|]+[0-9]*|\([0-9, ]*\)|[-0-9.]+", data[:4096]))
    if not found:
        return data
    match = found[int(rng.integers(len(found)))]
    new = WORDS[int(rng.integers(len(WORDS)))].encode()
    if rng.random() < 0.5:  # of the same length: the bytes behind it do not move
        new = new.ljust(match.end() - match.start())[: match.end() - match.start()]
    return data[: match.start()] + new + data[match.end() :]


CHANGES = [flip, truncate, splice, remove, length, word]


def inside_the_archive(data, others, change, rng):
    """Change one array of an npz file and correct the checksums of the archive."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            arrays = {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # an earlier change left no archive
        return change(data, others, rng)
    chosen = sorted(arrays)[int(rng.integers(len(arrays)))] if arrays else None
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED][int(rng.integers(2))]) as archive:
        for name, array in arrays.items():
            archive.writestr(name, change(array, others, rng) if name == chosen else array)
    return file.getvalue()


def inside_the_pages(data, others, change, rng):
    """Change the pages of a parquet file in place, or its footer, and correct the length of the footer."""
    size = struct.unpack("<I", data[-8:-4])[0] if len(data) > 12 else len(data)
    if size + 12 > len(data):  # an earlier change left no footer
        return change(data, others, rng)
    pages, footer = data[4 : -8 - size], data[-8 - size : -8]
    if rng.random() < 0.7:
        pages = change(pages, others, rng).ljust(len(pages), b"\0")[: len(pages)]
    else:
        footer = change(footer, others, rng)
    return b"PAR1" + pages + footer + struct.pack("<I", len(footer)) + b"PAR1"


def read(path):
    """Read a file whole and in blocks; return whether it was accepted."""
    try:
        whole = Predictions.read(path)
    except PredictionsError as error:
        if str(path) not in str(error):
            msg = f"the error does not name the file: {error}"
            raise RuntimeError(msg) from error
        return False
    with PredictionsReader(path) as blocks:
        scores = np.concatenate([block.scores for block in blocks])
    np.testing.assert_array_equal(scores, whole.scores)
    return True


def main(form, seed, count, folder):
    files = list(corpus(form, folder))
    path = folder / f"mutated.{form}"
    for data in files:
        path.write_bytes(data)
        if not read(path):
            msg = "the corpus must be valid"
            raise RuntimeError(msg)
    size = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + GROWTH, size + GROWTH))
    accepted = 0
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        path.write_bytes(mutate(files[int(rng.integers(len(files)))], files, form, rng))
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        try:
            accepted += read(path)
        except BaseException:
            print(f"{form} {seed} {index}", file=sys.stderr, flush=True)
            raise
        faulthandler.cancel_dump_traceback_later()
    print(count, accepted)


if __name__ == "__main__":
    faulthandler.enable()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
