"""Damaged, truncated and dishonest files are rejected before they take memory."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refocal.predictions import Predictions, PredictionsReader
from rejection import GOOD, assert_rejected


@pytest.mark.parametrize("suffix", [".npz", ".parquet"])
def test_truncated_anywhere(suffix, tmp_path):
    path = tmp_path / f"a{suffix}"
    Predictions(GOOD, input="logits", labels=[0, 1, 0]).write(path)
    data = path.read_bytes()
    for end in range(0, len(data), 37):
        path.write_bytes(data[:end])
        assert_rejected(path, "")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.npz", b"", "the file is empty"),
        ("a.npz", b"PAR1", "cannot read the zip archive; .* File is not a zip file"),
        ("a.parquet", b"", "is not a parquet file: it must begin with b'PAR1', but it is empty"),
        ("a.parquet", b"PK\3\4", "is not a parquet file: it must begin with b'PAR1', but it begins with"),
        ("a.parquet", b"PAR1", "cannot read the footer"),
        ("a.txt", b"", r"the suffix must be one of .npz, .parquet, .csv, got '.txt': .* may be called .csv"),
        ("a.npy", b"", r"the suffix must be .* got '.npy': save scores and labels in one file with numpy.savez"),
        ("a.pt", b"", r"the suffix must be .* got '.pt': pickles are never read"),
        ("a", b"", r"the suffix must be one of .npz, .parquet, .csv, got ''"),
    ],
)
def test_other_formats(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    assert_rejected(tmp_path / name, message)


def test_damaged_values_are_seen_by_checksums(tmp_path):
    for suffix, message in ((".npz", "Bad CRC-32"), (".parquet", "verify page integrity")):
        path = tmp_path / f"a{suffix}"
        scores = np.random.default_rng(0).standard_normal((50, 2))
        Predictions(scores, input="logits").write(path)
        data = path.read_bytes()
        position = data.index(scores[0].tobytes())
        path.write_bytes(data[:position] + b"\1" + data[position + 1 :])
        assert_rejected(path, message)


def archive(path, members, **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, data in members:
            file.writestr(name, data)


def npy(array, header=(b"", b"")):
    """The bytes of a .npy file with a changed header."""
    file = io.BytesIO()
    np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
    data = file.getvalue()
    old, new = header
    assert old in data
    return data.replace(old, new.ljust(len(old))) if old else data


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ((b"(3, 2), }          ", b"(3333333333333, 2)}"), r"shape \(3333333333333, 2\) .* do not match the 48 bytes"),
        ((b"(3, 2)", b"(-3,2)"), r"logits: shape \(-3, 2\) and dtype float64 do not match"),
        ((b"(3, 2)", b"(3,  )"), r"logits: shape \(3,\) and dtype float64 do not match the 48 bytes"),
        ((b"'<f8'", b"'|O'"), "logits: is an array of Python objects, stored as a pickle: pickles are never loaded"),
        ((b"'<f8'", b"'<U0'"), "logits: must have a plain dtype, got <U0"),
        ((b"'<f8'", b"'<q8'"), "cannot read the header of logits"),
        ((b"(3, 2)", b"(((((("), "cannot read the header of logits"),
        ((b"(3, 2)", b"(3L,2)"), "cannot read the header of logits"),
        ((b"\x93NUMPY", b"\x93NUMPI"), "cannot read the header of logits"),
        ((b"NUMPY\1", b"NUMPY\3"), r"logits: must have npy format 1.0 or 2.0, got \(3, 0\)"),
    ],
)
def test_headers_of_arrays(header, message, tmp_path):
    archive(tmp_path / "a.npz", [("logits.npy", npy(GOOD, header))])
    assert_rejected(tmp_path / "a.npz", message)


def test_objects_are_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", logits=GOOD, labels=np.array([0, print, 1], dtype=object))
    assert_rejected(
        tmp_path / "a.npz", "labels: is an array of Python objects, stored as a pickle: pickles are never loaded"
    )


def test_shapes_are_compared_before_anything_is_read(tmp_path):
    archive(tmp_path / "a.npz", [("logits.npy", npy(GOOD)), ("labels.npy", npy([0, 1]))])
    assert_rejected(tmp_path / "a.npz", r"labels: must have shape \(3,\), one value per row, got \(2,\)")
    archive(tmp_path / "a.npz", [("logits.npy", npy(GOOD)), ("class_names.npy", npy([["a", "b"]]))])
    assert_rejected(tmp_path / "a.npz", r"class_names: must have one name for each of 2 classes, got shape \(1, 2\)")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_of_the_archive(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, [("logits.npy", npy(GOOD)), ("logits.npy", npy(GOOD))])
    assert_rejected(path, "array 'logits' appears twice")
    archive(path, [("logits.npy", npy(GOOD))], compression=zipfile.ZIP_LZMA)
    assert_rejected(path, "logits: must be stored or deflated, got compression method 14")
    archive(path, [("logits.npy", npy(GOOD)[:-8])])
    assert_rejected(path, r"logits: shape \(3, 2\) and dtype float64 do not match the 40 bytes")


def test_an_encrypted_archive(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, [("logits.npy", npy(GOOD))])
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1  # the flags of the directory
    path.write_bytes(data)
    assert_rejected(path, "logits: is encrypted")


def test_a_claimed_number_of_classes_allocates_nothing(tmp_path):
    scores = pa.array([], pa.list_(pa.float64(), 5_000_000))
    pq.write_table(pa.table({"logits": scores, "label": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    tracemalloc.start()
    try:
        assert_rejected(tmp_path / "a.parquet", "there are no rows")
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_claims_beyond_the_file_allocate_nothing(tmp_path):
    """Directory and npy header both claim 48 GB, but the file contains 48 bytes."""
    path = tmp_path / "a.npz"
    rows = 3_000_000_000
    header = (b"(3, 2), }       ", b"(%d, 2)}" % rows)
    archive(path, [("logits.npy", npy(GOOD, header))])
    data = path.read_bytes()
    size = struct.pack("<I", len(npy(GOOD)))
    assert data.count(size * 2) == 2  # compressed and plain size, in the local header and in the directory
    path.write_bytes(data.replace(size * 2, size + struct.pack("<I", 0xFFFFFFF0)))
    tracemalloc.start()
    assert_rejected(path, "logits: claims 4294967280 bytes, more than the file can contain")
    path.write_bytes(data)
    assert_rejected(path, "logits: shape .* do not match the 48 bytes")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1e6


def test_an_archive_that_expands_is_read_in_blocks(tmp_path):
    """80 MB of zeros in 80 kB: deflate can do this, so it is allowed; streaming takes the memory of one block."""
    path = tmp_path / "a.npz"
    np.savez_compressed(path, logits=np.zeros((1_000_000, 10)))
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    with PredictionsReader(path) as blocks:
        assert sum(len(block) for block in blocks) == 1_000_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6
