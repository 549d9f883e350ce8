"""Reading gives back what was written, in every format, whole and in blocks."""

from __future__ import annotations

import itertools
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from refocal.predictions import Predictions, PredictionsReader, PredictionsWriter

FORMATS = [".npz", ".parquet", ".csv"]
DTYPES = [np.float16, np.float32, np.float64]


def softmax(logits):
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def sample(rows=50, classes=4, *, input="logits", dtype=np.float32, optional=True, seed=0):
    rng = np.random.default_rng(seed)
    scores = 3 * rng.standard_normal((rows, classes))
    if input == "probs":
        scores = softmax(scores)
    more = {
        "labels": rng.integers(0, classes, rows),
        "split": np.array(["val", "test", 'a "b", c'])[rng.integers(0, 3, rows)],
        "sample_weight": rng.random(rows),
    }
    return Predictions(scores.astype(dtype), input=input, **(more if optional else {}))


def assert_same(found, expected, *, text=False):
    """Check that everything is equal; text gives the same float32 back, as float64."""
    assert found.input == expected.input
    assert found.class_names == expected.class_names
    assert found.scores.shape == expected.scores.shape
    assert found.scores.dtype == (np.float64 if text else expected.scores.dtype)
    np.testing.assert_array_equal(found.scores.astype(expected.scores.dtype), expected.scores)
    for name in ("labels", "split", "sample_weight"):
        left, right = getattr(found, name), getattr(expected, name)
        assert (left is None) == (right is None), name
        if left is not None:
            np.testing.assert_array_equal(left, right)


# csv is read as float64; rows of float16 do not sum to 1 in that precision (see test_wrong_use.py)
COMBINATIONS = [
    (suffix, input, dtype)
    for suffix, input, dtype in itertools.product(FORMATS, ["logits", "probs"], DTYPES)
    if (suffix, input, dtype) != (".csv", "probs", np.float16)
]


@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize(("suffix", "input", "dtype"), COMBINATIONS)
def test_every_format_input_and_dtype(suffix, input, dtype, optional, tmp_path):
    predictions = sample(input=input, dtype=dtype, optional=optional)
    path = tmp_path / f"a{suffix}"
    predictions.write(path)
    found = Predictions.read(path)
    assert_same(found, predictions, text=suffix == ".csv")
    assert found.source == path
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("shape", [(6,), (6, 1)])
@pytest.mark.parametrize("input", ["logits", "probs"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_one_column_keeps_its_shape_and_has_two_classes(suffix, input, shape, tmp_path):
    predictions = Predictions(np.linspace(0, 1, 6).reshape(shape), input=input, labels=[0, 1, 0, 1, 0, 1])
    path = tmp_path / f"a{suffix}"
    predictions.write(path)
    assert_same(Predictions.read(path), predictions)
    assert predictions.classes == 2


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("names", [("cat", "<b>", 'Eule, "é"'), ("1", "2", "3")])
def test_class_names_come_back(suffix, names, tmp_path):
    predictions = replace(sample(classes=3), class_names=names)
    path = tmp_path / f"a{suffix}"
    predictions.write(path)
    assert_same(Predictions.read(path), predictions, text=suffix == ".csv")
    with PredictionsReader(path) as blocks:
        assert blocks.class_names == predictions.class_names


@pytest.mark.parametrize("suffix", FORMATS)
def test_masked_logits(suffix, tmp_path):
    predictions = Predictions(np.array([[-np.inf, 0.5], [1.5, -np.inf]]), input="logits")
    predictions.write(tmp_path / f"a{suffix}")
    assert_same(Predictions.read(tmp_path / f"a{suffix}"), predictions)


@settings(max_examples=40, deadline=None)
@given(
    scores=st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(
            dtype,
            hnp.array_shapes(min_dims=1, max_dims=2, max_side=5),
            elements=st.floats(allow_nan=False, allow_infinity=False, width=np.dtype(dtype).itemsize * 8),
        )
    ),
    data=st.data(),
    suffix=st.sampled_from(FORMATS),
)
def test_any_finite_scores_and_text(scores, data, suffix, tmp_path_factory):
    word = st.text(st.characters(exclude_categories=["C"], codec="utf-8"), min_size=1, max_size=64)
    split = data.draw(st.none() | st.lists(word, min_size=len(scores), max_size=len(scores)))
    predictions = Predictions(scores, input="logits", split=split)
    path = tmp_path_factory.mktemp("any") / f"a{suffix}"
    predictions.write(path)
    assert_same(Predictions.read(path), predictions, text=suffix == ".csv")


@pytest.mark.parametrize("suffix", FORMATS)
def test_blocks_add_up_to_the_whole(suffix, tmp_path, monkeypatch):
    monkeypatch.setattr("refocal.predictions.protocol.BLOCK_SCORES", 64)
    monkeypatch.setattr("refocal.predictions.csv_text.BLOCK_BYTES", 1 << 10)
    predictions = sample(rows=203)
    path = tmp_path / f"a{suffix}"
    with PredictionsWriter(path) as writer:
        for start in range(0, 203, 10):
            writer.write(rows(predictions, slice(start, start + 10)))
    assert_same(Predictions.read(path), predictions, text=suffix == ".csv")
    with PredictionsReader(path) as reader:
        assert reader.rows == (None if suffix == ".csv" else 203)
        blocks = list(reader)
    assert len(blocks) > 10
    start = 0
    for block in blocks:
        assert_same(block, rows(predictions, slice(start, start + len(block))), text=suffix == ".csv")
        start += len(block)
    assert start == 203


def rows(predictions, chosen):
    names = ("scores", "labels", "split", "sample_weight")
    return replace(predictions, **{name: getattr(predictions, name)[chosen] for name in names})


def test_text_of_growing_width(tmp_path):
    path = tmp_path / "a.npz"
    words = ["a", "validation", "b" * 64, "c"]
    with PredictionsWriter(path) as writer:
        for word in words:
            writer.write(Predictions(np.zeros((2, 2)), input="logits", split=[word, word]))
    assert Predictions.read(path).split.tolist() == [word for word in words for _ in range(2)]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">f8"])
def test_npz_of_numpy(save, order, dtype, tmp_path):
    predictions = sample(rows=30)
    scores = np.asarray(predictions.scores, dtype=dtype, order=order)
    labels = predictions.labels.astype(">u2")
    save(tmp_path / "a.npz", logits=scores, labels=labels, split=predictions.split, weights=np.arange(30))
    found = Predictions.read(tmp_path / "a.npz")
    assert found.scores.dtype == np.dtype(dtype).newbyteorder("=")
    assert found.scores.flags.c_contiguous
    np.testing.assert_array_equal(found.scores, scores)
    np.testing.assert_array_equal(found.labels, predictions.labels)
    np.testing.assert_array_equal(found.sample_weight, np.arange(30))
    assert found.labels.dtype == np.int64
    assert found.sample_weight.dtype == np.float64


def test_numpy_reads_npz_files(tmp_path):
    predictions = replace(sample(), class_names=tuple("abcd"))
    predictions.write(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        assert sorted(arrays) == ["class_names", "labels", "logits", "split", "weights"]
        np.testing.assert_array_equal(arrays["logits"], predictions.scores)
        np.testing.assert_array_equal(arrays["split"], predictions.split)


def test_same_predictions_same_bytes(tmp_path):
    for suffix in FORMATS:
        for name in ("a", "b"):
            sample().write(tmp_path / f"{name}{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_parquet_layouts(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    predictions = sample(rows=20, dtype=np.float64)
    lists = pa.array(predictions.scores.tolist())
    split = pa.array(predictions.split).dictionary_encode()
    others = {"label": predictions.labels.astype(np.int8), "split": split, "weight": predictions.sample_weight}
    columns = {f"logit_{k}": predictions.scores[:, k] for k in (2, 0, 3, 1)}  # in any order
    for scores in ({"logits": lists}, {"logits": lists.cast(pa.large_list(pa.float64()))}, columns):
        for group in (7, 20):
            pq.write_table(pa.table({**others, **scores}), tmp_path / "a.parquet", row_group_size=group)
            found = Predictions.read(tmp_path / "a.parquet")
            assert_same(found, predictions)
            assert found.scores.flags.c_contiguous


def test_csv_layouts(tmp_path):
    path = tmp_path / "a.csv"
    expected = Predictions(np.array([[0.5, 0.25, 0.25], [1, 0, 0]]), input="probs", labels=[2, 0])
    by_column = "label,prob_2,prob_0,prob_1\n2,0.25,0.5,.25\n0.0,0e5,1, 0\n"
    for text in (
        by_column,
        by_column.replace("\n", "\r\n"),
        "\ufeff" + by_column.rstrip(),
        'probs,label\n"[0.5, 0.25,0.25]",2\n" [1,0,0] ",0\n',
    ):
        path.write_text(text, newline="", encoding="utf-8")
        assert_same(Predictions.read(path), expected)


def test_csv_of_long_lists(tmp_path):
    scores = np.random.default_rng(0).standard_normal((3, 100_000))
    (tmp_path / "a.csv").write_text("\n".join(["logits", *(f'"{row.tolist()}"' for row in scores)]), encoding="utf-8")
    assert_same(Predictions.read(tmp_path / "a.csv"), Predictions(scores, input="logits"))


def test_selecting_a_split():
    predictions = sample()
    chosen = predictions.select("val")
    assert set(chosen.split) == {"val"}
    np.testing.assert_array_equal(chosen.scores, predictions.scores[predictions.split == "val"])
    np.testing.assert_array_equal(chosen.labels, predictions.labels[predictions.split == "val"])
    assert len(chosen) == np.sum(predictions.split == "val")


def test_suffix_in_capitals(tmp_path):
    sample().write(tmp_path / "A.NPZ")
    assert zipfile.is_zipfile(tmp_path / "A.NPZ")
    assert_same(Predictions.read(tmp_path / "A.NPZ"), sample())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports the peak memory of a process")
@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.thorough
def test_streaming_takes_the_memory_of_a_block(suffix, tmp_path):
    """Copy 80 MB of scores in a process that grows by less; allocators keep a constant amount."""
    path, copy = tmp_path / f"large{suffix}", tmp_path / f"copy{suffix}"
    with PredictionsWriter(path) as writer:
        for seed in range(20):
            writer.write(sample(rows=50_000, classes=10, dtype=np.float64, seed=seed))
    program = """
import sys
from refocal.predictions import PredictionsReader, PredictionsWriter
def peak():  # VmHWM in MB, of this process only: ru_maxrss starts with that of the parent
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024
start, count = None, 0
with PredictionsReader(sys.argv[1]) as blocks, PredictionsWriter(sys.argv[2]) as writer:
    for block in blocks:
        writer.write(block)
        count += len(block)
        start = start or peak()  # with everything imported and one block in memory
print(count, peak() - start)
"""
    command = [sys.executable, "-c", program, path, copy]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, encoding="utf-8", cwd=Path(__file__).parent
    )
    count, grown = map(int, done.stdout.split())
    assert count == 1_000_000
    assert path.stat().st_size > 80e6
    assert grown < 70, f"{grown} MB more than after the first block"
    assert abs(copy.stat().st_size - path.stat().st_size) < 1e6
