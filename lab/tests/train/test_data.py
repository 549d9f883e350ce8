"""Data sets: the format of each publisher, shards, splits, downloads, damage; and the real files, if available."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import threading
import zipfile
from dataclasses import replace

import numpy as np
import published
import pytest

from refocal_lab.train import data
from refocal_lab.train.data import _load, human, shards, splits, sst, word_vectors
from refocal_lab.train.data.sources import DataError, Download

REAL = os.environ.get("REFOCAL_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="REFOCAL_DATA is not set")


def load(spec, folder, *, name=None, download=False, split_seed=0):
    return _load(name or spec.key, spec, folder, download=download, split_seed=split_seed)


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def check(found, train, train_labels, test, test_labels):
    """Check that each sample is there once and in its place, whatever the split."""
    places = np.concatenate([found.train.indices, found.val.indices])
    assert sorted(places) == list(range(len(train)))
    for part in (found.train, found.val):
        np.testing.assert_array_equal(part.inputs, train[part.indices])
        np.testing.assert_array_equal(part.labels, train_labels[part.indices])
    np.testing.assert_array_equal(found.test.inputs, test)
    np.testing.assert_array_equal(found.test.labels, test_labels)
    np.testing.assert_array_equal(found.test.indices, np.arange(len(test)))
    for part in (found.train, found.val, found.test):
        assert part.labels.dtype == part.indices.dtype == np.int64
        assert part.inputs.dtype == np.uint8
        assert part.inputs.flags.c_contiguous
    np.testing.assert_allclose(found.mean, found.train.inputs.mean(axis=(0, 1, 2)))
    np.testing.assert_allclose(found.std, found.train.inputs.std(axis=(0, 1, 2)))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("place", ["", "own"])
@pytest.mark.parametrize("door", ["archive", "unpacked", "files", "shards"])
def test_cifar(tmp_path, name, place, door):
    parts, files, archive, cifar = published.tiny_cifar(name)
    images, labels, test, test_labels = (parts[k] for k in ((0, 1, 2, 3) if name == "cifar10" else (0, 1, 3, 4)))
    folder = tmp_path / (name if place == "own" else "")
    if door == "archive":
        write(folder, {cifar.archive.file: archive})
    elif door == "unpacked":
        write(folder / cifar.folder, files)
    elif door == "files":
        write(folder, files)
    else:
        stored = {"train": labels, "test": test_labels, "train_coarse": labels // 5, "test_coarse": test_labels // 5}
        published.write_shards(folder, images, test, **stored)
    found = load(cifar.spec(held_out=4), tmp_path)
    check(found, images, labels, test, test_labels)
    assert len(found.val) == 4
    assert "verified" in found.source
    assert found.shape == (3, 32, 32)
    assert len(found.classes) == int(name.removeprefix("cifar"))


def test_cifar10_s_is_a_tenth_of_each_class(tmp_path):
    parts, files, _, cifar = published.tiny_cifar("cifar10", train=60)
    write(tmp_path, files)
    spec = cifar.spec(held_out=50)
    full, small = load(spec, tmp_path), load(replace(spec, share=0.1), tmp_path, name="cifar10-s")
    assert set(small.train.indices) < set(full.train.indices)
    np.testing.assert_array_equal(small.val.indices, full.val.indices)
    for label in range(10):
        assert (small.train.labels == label).sum() == round(0.1 * (full.train.labels == label).sum())
    np.testing.assert_array_equal(small.train.inputs, parts[0][small.train.indices])


@pytest.mark.parametrize("door", ["matlab", "shards"])
def test_svhn(tmp_path, door):
    folder = tmp_path / "svhn"
    (images, labels, test, test_labels), svhn = published.tiny_svhn(folder)
    if door == "shards":
        for path in folder.iterdir():
            path.unlink()
        published.write_shards(folder, images, test, train=labels, test=test_labels)
    found = load(svhn.spec(held_out=2), tmp_path)
    check(found, images, labels, test, test_labels)
    assert ("re-derived" in found.source) == (door == "shards")


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist(tmp_path, packed):
    parts, files, compressed, fashion = published.tiny_fashion()
    write(tmp_path / "fashion-mnist", compressed if packed else files)
    found = load(fashion.spec(held_out=3), tmp_path)
    check(found, *parts)
    assert found.shape == (1, 28, 28)


@pytest.mark.parametrize("packed", [True, False])
def test_tiny_imagenet(tmp_path, packed):
    pixels, archive, tiny = published.tiny_imagenet(tmp_path / "made")
    folder = tmp_path / "made"
    if packed:
        folder = tmp_path / "packed"
        write(folder, {"tiny-imagenet-200.zip": archive})
    found = load(tiny.spec(held_out=3), folder)
    names = [f"train/{name}/images/{name}_{k}.JPEG" for name in ("n01", "n02", "n03") for k in range(4)]
    tests = [f"val/images/val_{k}.JPEG" for k in range(6)]
    train, test = (np.stack([pixels[name] for name in part]) for part in (names, tests))
    check(found, train, np.repeat([0, 1, 2], 4), test, np.array([2, 0, 1, 2, 0, 1]))
    assert found.classes == ("n01", "n02", "n03")


def test_digits_are_divided_once_and_for_all():
    first, other = data.load("digits"), data.load("digits", split_seed=1)
    assert (len(first.train), len(first.val), len(first.test)) == (1257, 180, 360)
    np.testing.assert_array_equal(first.test.indices, other.test.indices)
    assert not np.array_equal(first.val.indices, other.val.indices)
    assert len(np.unique(np.concatenate([part.indices for part in (first.train, first.val, first.test)]))) == 1797
    assert first.train.inputs.dtype == np.float32
    assert first.train.inputs.max() == 1
    np.testing.assert_allclose([first.mean, first.std], [[first.train.inputs.mean()], [first.train.inputs.std()]], 1e-5)


# the splits of trained networks must never change
@pytest.mark.parametrize(
    ("key", "total", "count", "checksum"),
    [
        ("cifar10", 50_000, 5_000, "eafacc989acc84ad"),
        ("cifar100", 50_000, 5_000, "2b4e8baaff28c73e"),
        ("svhn", 73_257, 7_325, "41262ee7310404bb"),
        ("fashion-mnist", 60_000, 6_000, "ef63584d065c07a6"),
        ("tiny-imagenet", 100_000, 10_000, "3f4f2c02e3561c7d"),
    ],
)
def test_splits_are_pinned(key, total, count, checksum):
    drawn = splits.draw(np.arange(total), count, key=key, seed=0)
    assert len(drawn) == count
    assert hashlib.sha256(drawn.astype("<i8").tobytes()).hexdigest()[:16] == checksum


def test_seed_and_key_draw_other_splits():
    draws = [set(splits.draw(np.arange(1000), 100, key=key, seed=seed)) for key in "ab" for seed in (0, 1)]
    for k, one in enumerate(draws):
        for other in draws[:k]:
            assert len(one & other) < 30  # expected: 10, with a standard deviation of 3


class TestDamage:
    @pytest.fixture
    def cifar(self):
        self.parts, self.files, self.archive, made = published.tiny_cifar("cifar10")
        return made

    def test_flipped_bit(self, tmp_path, cifar):
        content = bytearray(self.files["data_batch_3.bin"])
        content[5000] ^= 1
        write(tmp_path, self.files | {"data_batch_3.bin": bytes(content)})
        with pytest.raises(
            DataError, match=r"data_batch_3\.bin is damaged or not the published one: expected md5 .*, f"
        ):
            load(cifar.spec(held_out=2), tmp_path)

    def test_truncated_archive(self, tmp_path, cifar):
        write(tmp_path, {cifar.archive.file: self.archive[:-10]})
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz is damaged"):
            load(cifar.spec(held_out=2), tmp_path)

    def test_missing_batch(self, tmp_path, cifar):
        del self.files["data_batch_2.bin"]
        write(tmp_path / "cifar10", self.files)
        with pytest.raises(DataError, match=r"cifar10 is not complete: .*cifar10 lacks data_batch_2\.bin$"):
            load(cifar.spec(held_out=2), tmp_path)

    def test_python_version_is_refused(self, tmp_path, cifar):
        write(tmp_path, {"cifar-10-python.tar.gz": b"anything"})
        with pytest.raises(FileNotFoundError, match=r"pickles, which are never read .* use cifar-10-binary\.tar\.gz"):
            load(cifar.spec(held_out=2), tmp_path)

    def test_nothing_there(self, tmp_path, cifar):
        with pytest.raises(
            FileNotFoundError, match=r"needs cifar-10-binary.* download=True \(--download\) fetches https://www\.cs\."
        ):
            load(cifar.spec(held_out=2), tmp_path / "absent")

    def shards(self, folder):
        images, labels, test, test_labels = self.parts
        published.write_shards(folder, images, test, train=labels, test=test_labels)

    def test_missing_shard(self, tmp_path, cifar):
        self.shards(tmp_path)
        (tmp_path / "train-01.wpm").unlink()
        with pytest.raises(DataError, match="holds 7 images of train in 1 shards, expected 50"):
            load(cifar.spec(held_out=2), tmp_path)
        (tmp_path / "train-02.wpm").write_bytes(b"")
        with pytest.raises(DataError, match=r"lacks shards: expected train-00.wpm, train-01.wpm, found .*train-02"):
            load(cifar.spec(held_out=2), tmp_path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda content: content[:-1], r"train-01\.wpm is damaged: its header describes \d+ bytes, the file has"),
            (lambda content: b"WPM2" + content[4:], "not a .wpm file"),
            (lambda content: content[:20], "header cannot be read"),
            (lambda content: content[:-4000] + bytes(4000), "is damaged"),
            (lambda content: content.replace(b'"cols": 4', b'"cols": 2'), "is damaged: mosaic 0 cannot be read"),
        ],
    )
    def test_damaged_shard(self, tmp_path, cifar, change, message):
        self.shards(tmp_path)
        path = tmp_path / "train-01.wpm"
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(DataError, match=message):
            load(cifar.spec(held_out=2), tmp_path)

    def test_damaged_labels(self, tmp_path, cifar):
        self.shards(tmp_path)
        path = tmp_path / "labels.npz"
        _, labels, _, test_labels = self.parts
        np.savez(path, train=(labels + 1) % 10, test=test_labels)
        with pytest.raises(DataError, match=r"data_batch_1\.bin, as .* gives it, is damaged"):
            load(cifar.spec(held_out=2), tmp_path)
        np.savez(path, train=labels)
        with pytest.raises(DataError, match=r"labels\.npz lacks test"):
            load(cifar.spec(held_out=2), tmp_path)
        path.write_bytes(path.read_bytes()[:50])
        with pytest.raises(DataError, match=r"labels\.npz is damaged"):
            load(cifar.spec(held_out=2), tmp_path)

    def test_svhn(self, tmp_path):
        parts, svhn = published.tiny_svhn(tmp_path)
        path = tmp_path / "test_32x32.mat"
        path.write_bytes(path.read_bytes()[:-5])
        with pytest.raises(DataError, match=r"test_32x32\.mat is damaged"):
            load(svhn.spec(held_out=2), tmp_path)
        path.unlink()
        images, labels, test, test_labels = parts
        published.write_shards(tmp_path / "svhn", images[::-1], test, train=labels, test=test_labels)
        with pytest.raises(DataError, match=r"train, as .*svhn gives it, is damaged"):
            load(svhn.spec(held_out=2), tmp_path)

    def test_fashion_mnist(self, tmp_path):
        _, _, packed, fashion = published.tiny_fashion()
        name = "t10k-labels-idx1-ubyte.gz"
        write(tmp_path, packed | {name: packed[name][:-9]})
        with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is damaged"):
            load(fashion.spec(held_out=2), tmp_path)
        write(tmp_path, {name: packed["train-labels-idx1-ubyte.gz"]})
        with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz is damaged or not the published one"):
            load(fashion.spec(held_out=2), tmp_path)

    def test_tiny_imagenet(self, tmp_path):
        folder = tmp_path / "tiny-imagenet-200"
        _, _, tiny = published.tiny_imagenet(folder)
        image = folder / "train/n02/images/n02_1.JPEG"
        image.write_bytes(image.read_bytes()[:300])
        with pytest.raises(DataError, match=r"n02_1\.JPEG cannot be read"):
            load(tiny.spec(held_out=2), tmp_path)
        image.unlink()
        with pytest.raises(DataError, match=r"n02_1\.JPEG cannot be read: .*No such file"):
            load(tiny.spec(held_out=2), tmp_path)
        with pytest.raises(DataError, match="expected 200 classes and 6 validation images, found 3 and 6"):
            load(replace(tiny, classes=200).spec(held_out=2), tmp_path)
        annotations = folder / "val/val_annotations.txt"
        for content in (annotations.read_bytes() + b"val_6.JPEG", b"\xff\t\xff\n"):
            annotations.write_bytes(content)
            with pytest.raises(DataError, match=r"wnids\.txt or val/val_annotations\.txt, is damaged"):
                load(tiny.spec(held_out=2), tmp_path)


class TestDownload:
    @pytest.fixture
    def server(self, tmp_path):
        """A web server for one folder."""
        (tmp_path / "web").mkdir()
        handler = functools.partial(Quiet, directory=str(tmp_path / "web"))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
            thread = threading.Thread(target=made.serve_forever)
            thread.start()
            yield f"http://127.0.0.1:{made.server_port}"
            made.shutdown()
            thread.join()

    @pytest.fixture
    def spec(self, tmp_path, server):
        _, _, archive, cifar = published.tiny_cifar("cifar10")
        (tmp_path / "web" / cifar.archive.file).write_bytes(archive)
        download = Download(f"{server}/{cifar.archive.file}", cifar.archive.md5)
        return replace(cifar, archive=download).spec(held_out=2)

    def test_whole(self, tmp_path, spec, capsys):
        found = load(spec, tmp_path / "data", download=True)
        assert len(found.train) == 48
        assert "cifar-10-binary.tar.gz" in capsys.readouterr().err
        (tmp_path / "web" / "cifar-10-binary.tar.gz").unlink()
        load(spec, tmp_path / "data", download=True)  # files that are there are not fetched again

    def test_damaged_on_the_way(self, tmp_path, spec):
        path = tmp_path / "web" / "cifar-10-binary.tar.gz"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(DataError, match=r"sent \d+ bytes with md5 .*, expected md5"):
            load(spec, tmp_path / "data", download=True)
        assert list((tmp_path / "data" / "cifar10").iterdir()) == []

    def test_not_there(self, tmp_path, spec):
        (tmp_path / "web" / "cifar-10-binary.tar.gz").unlink()
        with pytest.raises(
            ConnectionError, match=r"cannot fetch http://127.* 404.*: put cifar-10-binary\.tar\.gz into"
        ):
            load(spec, tmp_path / "data", download=True)

    def test_no_network(self, tmp_path, spec):
        unreachable = replace(spec, downloads=(Download("http://127.0.0.1:9/cifar-10-binary.tar.gz", "0" * 32),))
        with pytest.raises(ConnectionError, match="cannot fetch"):
            load(unreachable, tmp_path / "data", download=True)

    def test_only_what_is_missing(self, tmp_path, server):
        folder = tmp_path / "data"
        _, svhn = published.tiny_svhn(folder)
        (folder / "test_32x32.mat").rename(tmp_path / "web" / "test_32x32.mat")
        spec = svhn.spec(held_out=2)
        with pytest.raises(DataError, match=r"data lacks test_32x32\.mat"):
            load(spec, folder)
        files = tuple(Download(f"{server}/{download.file}", download.md5) for download in spec.downloads)
        assert len(load(replace(spec, downloads=files), folder, download=True).test) == 6


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Say nothing."""


def test_human_counts(tmp_path):
    counts = np.random.default_rng(0).integers(0, 50, (6, 10)) + 1
    checksum = published.md5(counts.astype(np.int64).tobytes())
    with pytest.raises(
        FileNotFoundError, match=r"needs cifar10h-counts\.npy or counts\.npz; the publisher's is https:"
    ):
        human.read(tmp_path, md5=checksum)
    (tmp_path / "cifar10h").mkdir()
    np.savez(tmp_path / "cifar10h" / "counts.npz", counts=counts.astype(np.uint8))
    expected = counts / counts.sum(axis=1)[:, None]
    np.testing.assert_array_equal(human.read(tmp_path, md5=checksum), expected)
    np.save(tmp_path / "cifar10h" / "cifar10h-counts.npy", counts.astype(np.float64))
    np.testing.assert_array_equal(human.read(tmp_path, md5=checksum), expected)
    np.save(tmp_path / "cifar10h" / "cifar10h-counts.npy", counts[::-1])
    with pytest.raises(DataError, match=r"cifar10h-counts\.npy is damaged or not the published one"):
        human.read(tmp_path, md5=checksum)
    np.save(tmp_path / "cifar10h" / "cifar10h-counts.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(DataError, match=r"cifar10h-counts\.npy is damaged: Object arrays"):
        human.read(tmp_path, md5=checksum)


def _read_glove(path):
    return word_vectors.read(path, [f"word{k}" for k in range(200)])


def _read_trees(path):
    return sst._read_archive(path.parent, "train.txt")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("labels.npz", lambda path: shards.read_labels(path.parent)),
        ("counts.npz", human._read_counts),
        ("glove.6B.100d-subset.npz", _read_glove),
        ("trainDevTestTrees_PTB.zip", _read_trees),
    ],
)
def test_damage_in_compressed_files_is_told_with_their_names(tmp_path, name, read):
    path, rng = tmp_path / name, np.random.default_rng(0)
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("trees/train.txt", rng.bytes(400).hex())
    else:
        words = [f"word{k}" for k in range(200)]
        counts = rng.integers(0, 50, (200, 10))
        np.savez_compressed(path, counts=counts, words=words, vectors=counts / 50)
    whole = path.read_bytes()
    read(path)
    damaged = [whole[:length] for length in range(0, len(whole), len(whole) // 40)]
    for place in range(0, len(whole), len(whole) // 200):
        damaged.append(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    told = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            read(path)  # some bytes of such a file do not matter
        except DataError as error:
            told += 1
            assert name in str(error)
    assert told > len(damaged) / 2


def test_arguments(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"name must be one of 'cifar10', .*, got 'cifar'"):
        data.load("cifar")
    with pytest.raises(ValueError, match="split_seed must be at least 0, got -1"):
        data.load("digits", split_seed=-1)
    monkeypatch.setenv("REFOCAL_DATA", str(tmp_path / "mine"))
    with pytest.raises(FileNotFoundError, match=r"svhn is not in .*mine"):
        data.load("svhn")


@needs_data
def test_real_cifar10():
    found = data.load("cifar10", folder=REAL)
    assert (len(found.train), len(found.val), len(found.test)) == (45_000, 5_000, 10_000)
    np.testing.assert_array_equal(np.bincount(found.test.labels), 1000)
    # the means over all 50,000 images that most training scripts use
    np.testing.assert_allclose(found.mean / 255, [0.4914, 0.4822, 0.4465], atol=1e-3)
    np.testing.assert_allclose(found.std / 255, [0.2470, 0.2435, 0.2616], atol=1e-3)
    small = data.load("cifar10-s", folder=REAL)
    assert len(small.train) == 4_500
    human_probs = data.cifar10h(REAL)
    np.testing.assert_allclose(human_probs.sum(axis=1), 1)
    # Peterson et al. (2019): people and labels agree on about 99%; in another order of images they would not
    assert (human_probs.argmax(axis=1) == found.test.labels).mean() > 0.99


@needs_data
def test_real_svhn():
    found = data.load("svhn", folder=REAL)
    assert (len(found.train), len(found.val), len(found.test)) == (65_932, 7_325, 26_032)
    # the publisher's counts of digits in the test part, 0 to 9
    np.testing.assert_array_equal(
        np.bincount(found.test.labels), [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]
    )
    assert "re-derived" in found.source
