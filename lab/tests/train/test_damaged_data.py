"""Damaged files of data sets: each is named, and none is parsed before its checksum is right."""

from __future__ import annotations

import zipfile
from dataclasses import replace

import numpy as np
import published
import pytest
from data_folders import load, write

from refocal_lab.train.data import human, shards, sst, word_vectors
from refocal_lab.train.data.sources import DataError


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
