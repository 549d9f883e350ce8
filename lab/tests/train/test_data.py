"""Data sets: the format of each publisher, shards and splits; and the real files, if available."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

import numpy as np
import published
import pytest
from data_folders import load, write

from refocal_lab.train import data
from refocal_lab.train.data import human, splits
from refocal_lab.train.data.sources import DataError

REAL = os.environ.get("REFOCAL_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="REFOCAL_DATA is not set")


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
