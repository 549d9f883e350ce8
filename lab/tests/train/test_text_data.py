"""Documents, trees and word vectors: each file layout, the vocabulary, the splits, and errors."""

import gzip
import hashlib
import lzma
import os
import re
import tracemalloc
import zipfile
from functools import partial

import numpy as np
import pytest
import texts

from refocal_lab.train import data
from refocal_lab.train.data import _load, newsgroups20, splits, sst, word_vectors
from refocal_lab.train.data.newsgroups20 import NEWSGROUPS20
from refocal_lab.train.data.sources import DataError
from refocal_lab.train.data.trees import read_forest
from refocal_lab.train.data.words import Documents, Lexicon, build_vocabulary, renumber

REAL = os.environ.get("REFOCAL_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="REFOCAL_DATA is not set")


def load(spec, folder, *, split_seed=0, word_vectors="learned"):
    return _load(spec.key, spec, folder, download=False, split_seed=split_seed, word_vectors=word_vectors)


@pytest.mark.parametrize("door", ["archive", "files", "xz"])
def test_sst(tmp_path, door):
    files, treebank = texts.trees()
    if door == "archive":
        (tmp_path / "sst").mkdir()
        with zipfile.ZipFile(tmp_path / "sst" / "trainDevTestTrees_PTB.zip", "w") as archive:
            for name, content in files.items():
                archive.writestr(f"trees/{name}", content)
    elif door == "files":
        texts.write(tmp_path / "trees", files)
    else:
        texts.write(tmp_path / "sst", {f"{name}.xz": lzma.compress(content) for name, content in files.items()})
    found = load(treebank.spec(), tmp_path)
    assert found.kind == "trees"
    assert found.classes == ("negative", "neutral", "positive")
    assert found.scored == (0, 2)
    assert found.split == "40 / 13 / 13, as published"
    assert found.word_vectors == "learned"
    lines = files["train.txt"].decode().splitlines()
    kept = [line for line in lines if line[1] != "2"]
    assert found.train.labels.tolist() == [int(line[1] in "34") for line in kept]
    forest = found.train.inputs
    assert [lines[k] for k in found.train.indices] == kept
    for number, line in enumerate(kept):
        nodes = slice(*forest.starts[number : number + 2])
        leaves = [found.vocabulary[k - 1] for k in forest.words[nodes] if k >= 0]
        assert leaves == re.findall(r"([^\s()]+)\)", line.lower())
    assert set(np.unique(forest.labels)) == {0, 1, 2}  # other sentences keep their neutral nodes


def leaves_of(line):
    lexicon = Lexicon()
    read_forest([line], lexicon, name="test")
    return lexicon.words()


def test_trees_are_read_node_by_node():
    lexicon = Lexicon()
    forest = read_forest(["(3 (2 An) (4 (2 odd) (4 an)))", "", "(0 x)"], lexicon, name="test")
    assert lexicon.words() == ("an", "odd", "x")
    assert forest.words.tolist() == [0, 1, 0, -1, -1, 2]
    assert forest.left.tolist() == [-1, -1, -1, 1, 0, -1]
    assert forest.right.tolist() == [-1, -1, -1, 2, 3, -1]
    assert forest.heights.tolist() == [0, 0, 0, 1, 2, 0]
    assert forest.labels.tolist() == [2, 2, 4, 4, 3, 0]
    assert forest.starts.tolist() == [0, 5, 6]
    again = forest[np.array([1, 0, 1])]
    assert again.labels.tolist() == [0, 2, 2, 4, 4, 3, 0]
    assert leaves_of("(2 (2 -LRB-) (2 1\\/2))") == ("(", "1/2")
    assert leaves_of("(2 8\xa01\\/2)") == ("8\xa01/2",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(3 (2 a) (2 b)", "brackets do not balance: 1 still open at the end of the line"),
        ("(3 (2 a) (2 b)))", r"brackets do not balance: '\)' follows the end of the tree"),
        ("(5 (2 a) (2 b))", "a node must have a label 0, 1, 2, 3 or 4, got '5'"),
        ("((2 a) (2 b))", r"a node must have a label 0, 1, 2, 3 or 4, got '\('"),
        ("(3", "brackets do not balance"),
        ("(", "a node must have a label .* got 'the end of the line'"),
        ("(3 (2 a))", "a node must hold one word or two nodes, got 0 words and 1 nodes"),
        ("(3 (2 a) (2 b) (2 c))", "got 0 words and 3 nodes"),
        ("(3 a b)", "got 2 words and 0 nodes"),
        ("(3)", "got 0 words and 0 nodes"),
        ("a", r"a tree must begin with '\(', got 'a'"),
    ],
)
def test_a_line_that_is_no_tree_is_named(line, message):
    with pytest.raises(DataError, match=rf"train\.txt, line 3: .*{message}"):
        read_forest(["(2 a)", "", line], Lexicon(), name="train.txt")


def test_damaged_treebanks(tmp_path):
    files, treebank = texts.trees()
    texts.write(tmp_path, files | {"dev.txt": files["dev.txt"] + b"(2 more)\n"})
    with pytest.raises(DataError, match=r"dev\.txt has 21 trees, the published file has 20"):
        load(treebank.spec(), tmp_path)
    texts.write(tmp_path, {"dev.txt": b"(2 a)\n(2 \xff)\n"})
    with pytest.raises(DataError, match=r"dev\.txt, line 2: not UTF-8"):
        load(treebank.spec(), tmp_path)
    (tmp_path / "dev.txt").unlink()
    with pytest.raises(DataError, match=r"sst is not complete: .* lacks dev\.txt"):
        load(treebank.spec(), tmp_path)
    texts.write(tmp_path / "sst", dict.fromkeys((f"{part}.txt.xz" for part in ("train", "dev", "test")), b"no"))
    with pytest.raises(DataError, match=r"train\.txt\.xz is damaged"):
        load(treebank.spec(), tmp_path / "sst")
    (tmp_path / "sst" / "trainDevTestTrees_PTB.zip").write_bytes(b"no")
    with pytest.raises(DataError, match=r"trainDevTestTrees_PTB\.zip is damaged or not the published one"):
        load(treebank.spec(), tmp_path)


@pytest.mark.parametrize("door", ["20news-bydate.tar.gz", "20news-bydate.tar.xz", "folder"])
@pytest.mark.parametrize("by_date", [True, False])
@pytest.mark.parametrize("left_out", ["nothing", "headers", "headers, quotes and signatures"])
def test_newsgroups(tmp_path, door, by_date, left_out):
    files, groups = texts.messages()
    shuffled = dict(sorted(files.items(), key=lambda item: hash(item[0])))
    if door == "folder":
        texts.write(tmp_path, shuffled)
    else:
        texts.write(tmp_path / "newsgroups20", {door: texts.archive(shuffled, f"w:{door[-2:]}")})
    found = load(groups.spec(by_date=by_date, left_out=left_out), tmp_path)
    assert found.kind == "documents"
    assert found.classes == ("rec.autos", "sci.space")
    parts = found.train, found.val, found.test
    assert [len(part) for part in parts] == ([38, 2, 20] if by_date else [45, 3, 12])
    places = np.concatenate([part.indices for part in parts])
    assert sorted(places) == list(range(60))
    if by_date:
        assert found.test.indices.tolist() == list(range(40, 60))
    order = sorted(files, key=lambda name: ("-train" not in name.split("/")[0], name))
    for part in parts:
        for row, place in enumerate(part.indices):
            assert order[place].split("/")[1] == found.classes[part.labels[row]]
    words = set(found.vocabulary)
    assert {"engine", "orbit"} <= words
    kept = {"signed", "quoted", "subject", "from", "naïve"} & words
    assert (
        kept
        == {
            "nothing": {"signed", "quoted", "subject", "from", "naïve"},
            "headers": {"signed", "quoted"},
            "headers, quotes and signatures": set(),
        }[left_out]
    )
    assert ("messages whole" if left_out == "nothing" else f"{left_out} left out") in found.source
    lengths = np.concatenate([np.diff(part.inputs.starts) for part in parts])
    assert (lengths == 0).sum() == 2  # a message without words stays, with its label


def test_newsgroups_in_lines_joined_by_tabs(tmp_path):
    files, groups = texts.messages()
    spec = groups.spec(by_date=True, left_out="headers, quotes and signatures")
    texts.write(tmp_path / "a", files)
    texts.write(tmp_path / "b", {name: content.replace(b"\n", b"\t") + b"\n" for name, content in files.items()})
    one, other = (load(spec, tmp_path / name) for name in "ab")
    np.testing.assert_array_equal(one.train.inputs.words, other.train.inputs.words)


def test_damaged_newsgroups(tmp_path):
    files, groups = texts.messages()
    spec = groups.spec(by_date=True)
    texts.write(tmp_path, dict(list(files.items())[1:]))
    with pytest.raises(DataError, match=r"has 39 \+ 20 messages, the published edition 40 \+ 20"):
        load(spec, tmp_path)
    packed = texts.archive(files, "w:gz")
    texts.write(tmp_path, {"20news-bydate.tar.gz": packed[: len(packed) // 2]})
    with pytest.raises(DataError, match=r"20news-bydate\.tar\.gz is damaged"):
        load(spec, tmp_path)
    for place in range(len(packed) // 4, len(packed) // 2, 7):  # many of these change the text without any other sign
        flipped = bytearray(packed)
        flipped[place] ^= 1
        texts.write(tmp_path, {"20news-bydate.tar.gz": bytes(flipped)})
        with pytest.raises(DataError, match=r"20news-bydate\.tar\.gz is damaged"):
            load(spec, tmp_path)


@pytest.mark.parametrize("name", ["20news-bydate.tar.gz", "20news-bydate.tar.xz", "train.txt.xz", "trees.zip"])
def test_what_unpacks_to_any_size_is_refused_before_it_does(tmp_path, monkeypatch, name):
    """64 MB of zeros in a few kB, for readers that accept 1 MB."""
    zeros = bytes(1 << 26)
    monkeypatch.setattr(newsgroups20, "_MOST", 1 << 20)
    monkeypatch.setattr(sst, "_MOST", 1 << 20)
    if name == "trees.zip":
        path = tmp_path / "trainDevTestTrees_PTB.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("trees/train.txt", zeros)
        read = partial(sst._read_archive, tmp_path, "train.txt")
    else:
        path = tmp_path / name
        path.write_bytes(gzip.compress(zeros) if name.endswith("gz") else lzma.compress(zeros, preset=0))
        read = partial(sst._read_xz, tmp_path, "train.txt")
        if name.startswith("20news"):
            read = partial(list, newsgroups20._read_archive(path))
    del zeros
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="is not the published one: it unpacks to more than 1,048,576 bytes"):
            read()
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()


def test_proportions_are_those_of_002():
    random, by_date = (NEWSGROUPS20.spec(by_date=each) for each in (False, True))
    assert NEWSGROUPS20._drawn_test() == 3_769
    assert random.held_out == 848
    assert by_date.held_out == 636


def test_splits_of_texts_are_pinned():
    every = np.arange(18_846)
    test = splits.draw(every, 3_769, key="newsgroups20/test", seed=0)
    val = splits.draw(np.setdiff1d(every, test), 848, key="newsgroups20", seed=0)
    val_by_date = splits.draw(every[:11_314], 636, key="newsgroups20-bydate", seed=0)
    checksums = [hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest()[:16] for drawn in (test, val, val_by_date)]
    assert checksums == ["c6d1f9837f18013c", "0dacff9ba096e432", "28ce0ad6ea326a4d"]


def test_vocabulary_is_of_the_training_part_and_the_most_frequent():
    lexicon = ("rare", "b", "a", "common", "elsewhere")
    training = Documents(np.array([3, 3, 3, 1, 2, 1, 2, 0], np.int32), np.array([0, 3, 8]))
    assert build_vocabulary(training, lexicon, size=3) == ("common", "a", "b")
    assert build_vocabulary(training, lexicon, size=9) == ("common", "a", "b", "rare")
    other = Documents(np.array([4, 3, 0, 1], np.int32), np.array([0, 4]))
    assert renumber(other, lexicon, ("common", "a", "b")).words.tolist() == [0, 1, 0, 3]


def test_word_vectors(tmp_path):
    files, treebank = texts.trees()
    texts.write(tmp_path / "sst", files)
    with pytest.raises(FileNotFoundError, match=r"word_vectors 'glove' needs glove\.6B\.100d\.txt .*'learned' needs"):
        load(treebank.spec(), tmp_path, word_vectors="glove")
    content = texts.vectors(["of", "good", "never", ","])
    texts.write(tmp_path, {"glove/glove.6B.100d.txt": content, "mine.txt": content})
    found = load(treebank.spec(), tmp_path, word_vectors="glove")
    assert found.word_vectors == f"glove.6B.100d.txt: 3 of {len(found.vocabulary)} words"
    assert found.shape == (1 + len(found.vocabulary), 32)
    row = found.vectors[1 + found.vocabulary.index("good")]
    np.testing.assert_array_equal(row, np.array(content.decode().splitlines()[1].split()[1:], np.float32))
    assert not found.vectors[0].any()
    assert not found.vectors[1 + found.vocabulary.index("bad")].any()
    mine = load(treebank.spec(), tmp_path, word_vectors=str(tmp_path / "mine.txt"))
    np.testing.assert_array_equal(mine.vectors, found.vectors)
    table = [line.split(" ") for line in content.decode().splitlines()]
    np.savez(
        tmp_path / "v.npz", words=[words[0] for words in table], vectors=np.array([w[1:] for w in table], np.float16)
    )
    arrays, count = word_vectors.read(tmp_path / "v.npz", found.vocabulary)
    assert count == 3
    np.testing.assert_allclose(arrays, found.vectors, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", b"a 1 2\nb 1\n", r"v\.txt, line 2: expected a word and 2 numbers, got 1"),
        ("v.txt", b"a 1 2\nb 1 x\n", r"v\.txt, line 2: could not convert"),
        ("v.txt", b"b\n", r"v\.txt, line 1: expected a word and its numbers, got 0"),
        ("v.txt", b"", r"v\.txt is empty"),
        ("v.txt", b"b 1 nan\n", r"v\.txt has numbers that are not finite"),
        ("v.txt", b"b 1 2\n\xff 1 2\n", r"v\.txt is damaged: 'utf-8' codec can't decode"),
        ("v.npz", b"no", r"v\.npz is damaged or without the arrays words and vectors"),
    ],
)
def test_damaged_word_vectors(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        word_vectors.read(tmp_path / name, ("b",))


def test_word_vectors_of_wrong_shapes(tmp_path):
    np.savez(tmp_path / "v.npz", words=["a", "b"], vectors=np.zeros((3, 4)))
    with pytest.raises(DataError, match=r"must have a row of vectors for each word, got shapes \(2,\) and \(3, 4\)"):
        word_vectors.read(tmp_path / "v.npz", ("b",))


def test_word_vectors_of_other_words_are_refused(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"BAD 1 2\nGOOD 3 4\n")
    np.savez(tmp_path / "v.npz", words=[b"bad", b"good"], vectors=np.ones((2, 2)))
    for name in ("v.txt", "v.npz"):  # all vectors would be zero, and nothing would be learned
        with pytest.raises(DataError, match=rf"{name} has a vector for none of the 2 words of the training part"):
            word_vectors.read(tmp_path / name, ("bad", "good"))


def test_word_vectors_are_for_texts():
    with pytest.raises(ValueError, match=r"word_vectors are for newsgroups20, .*, got 'glove' for digits"):
        data.load("digits", word_vectors="glove")


@needs_data
def test_real_sst():
    found = data.load("sst", folder=REAL)
    assert (len(found.train), len(found.val), len(found.test)) == (6_920, 872, 1_821)
    assert np.bincount(found.test.labels).tolist() == [912, 909]  # Socher et al. 2013


@needs_data
def test_real_newsgroups():
    found = data.load("newsgroups20", folder=REAL)
    assert (len(found.train), len(found.val), len(found.test)) == (14_229, 848, 3_769)
    assert len(found.vocabulary) == 20_000
    later = data.load("newsgroups20-bydate-stripped", folder=REAL)
    assert (len(later.train), len(later.val), len(later.test)) == (10_678, 636, 7_532)
    assert len(later.vocabulary) == 20_000
