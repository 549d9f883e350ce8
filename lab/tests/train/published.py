"""Tiny data sets in their publishers' formats, with records of their checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
from PIL import Image
from scipy.io import savemat

from refocal_lab.train.data.cifar import CIFAR10, CIFAR100
from refocal_lab.train.data.fashion_mnist import FashionMNIST
from refocal_lab.train.data.sources import Download
from refocal_lab.train.data.svhn import SVHN
from refocal_lab.train.data.tiny_imagenet import TinyImageNet


def md5(content):
    return hashlib.md5(bytes(content)).hexdigest()


def pictures(count, *, classes=10, side=32, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8), rng.integers(0, classes, count, dtype=np.uint8)


def records(images, *labels):
    """The records of CIFAR, image by image."""
    return b"".join(
        bytes([*(int(column[k]) for column in labels)]) + images[k].transpose(2, 0, 1).tobytes()
        for k in range(len(images))
    )


def tiny_cifar(name, *, train=10, test=4):
    """Images, labels, the contents of the files, and the record with their checksums."""
    published = CIFAR10 if name == "cifar10" else CIFAR100
    files = {}
    parts = []
    for seed, (names, count) in enumerate(((published.train, train), (published.test, test))):
        images, fine = pictures(count * len(names), classes=len(published.classes), seed=seed)
        labels = (fine,) if name == "cifar10" else (fine // 5, fine)
        for number, file in enumerate(names):
            part = slice(number * count, (number + 1) * count)
            files[file] = records(images[part], *(column[part] for column in labels))
        parts += [images, *labels[::-1]]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for file, content in files.items():
            info = tarfile.TarInfo(f"{published.folder}/{file}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    made = replace(
        published,
        archive=replace(published.archive, md5=md5(archive.getvalue())),
        train={file: md5(files[file]) for file in published.train},
        test={file: md5(files[file]) for file in published.test},
    )
    return parts, files, archive.getvalue(), made


def write_wpm(path, images, *, per, cols):
    """Write a shard, tile by tile."""
    counts, mosaics = [], []
    for start in range(0, len(images), per):
        piece = images[start : start + per]
        rows = -(-len(piece) // cols)
        height, width = images.shape[1:3]
        mosaic = Image.new("RGB", (cols * width, rows * height))
        for k, image in enumerate(piece):
            mosaic.paste(Image.fromarray(image), (k % cols * width, k // cols * height))
        stream = io.BytesIO()
        mosaic.save(stream, "WEBP", lossless=True)
        counts.append(len(piece))
        mosaics.append(stream.getvalue())
    header = {"format": "webp-lossless-mosaic-v1", "n": len(images), "per": per, "cols": cols, "channels": 3}
    header |= {"h": height, "w": width, "counts": counts, "lengths": [len(mosaic) for mosaic in mosaics]}
    text = json.dumps(header).encode()
    path.write_bytes(b"WPM1" + len(text).to_bytes(4, "little") + text + b"".join(mosaics))


def write_shards(folder, train, test, /, **labels):
    """Write two training shards and one test shard."""
    folder.mkdir(parents=True, exist_ok=True)
    write_wpm(folder / "train-00.wpm", train[:7], per=3, cols=1)
    write_wpm(folder / "train-01.wpm", train[7:], per=5, cols=4)
    write_wpm(folder / "test-00.wpm", test, per=10, cols=2)
    np.savez(folder / "labels.npz", **labels)


def tiny_svhn(folder):
    """Both layouts of SVHN; the publisher's files have 10 for the digit 0."""
    folder.mkdir(parents=True, exist_ok=True)
    parts, sums = [], []
    for name, count, seed in (("train", 20, 3), ("test", 6, 4)):
        images, labels = pictures(count, seed=seed)
        labels[0] = 0
        matlab = {"X": images.transpose(1, 2, 3, 0), "y": np.where(labels == 0, 10, labels)[:, None]}
        savemat(folder / f"{name}_32x32.mat", matlab, do_compression=True)
        parts += [images, labels]
        sums.append(md5(images.tobytes() + labels.tobytes()))
    downloads = [
        Download(f"http://localhost/{name}_32x32.mat", md5((folder / f"{name}_32x32.mat").read_bytes()))
        for name in ("train", "test")
    ]
    return parts, SVHN(*downloads, shards=tuple(sums))


def tiny_fashion():
    """The four unpacked idx files."""
    rng = np.random.default_rng(5)
    files, parts = {}, []
    for name, count in (("train", 15), ("t10k", 5)):
        images, labels = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), rng.integers(0, 10, count, np.uint8)
        big = [length.to_bytes(4, "big") for length in (count, 28, 28)]
        files[f"{name}-images-idx3-ubyte"] = b"\0\0\x08\x03" + b"".join(big) + images.tobytes()
        files[f"{name}-labels-idx1-ubyte"] = b"\0\0\x08\x01" + big[0] + labels.tobytes()
        parts += [images[..., None], labels]
    packed = {f"{name}.gz": gzip.compress(content) for name, content in files.items()}
    return parts, files, packed, FashionMNIST(md5=tuple(md5(content) for content in files.values()))


def tiny_imagenet(folder):
    """Three classes of four training and two validation images; one image is gray."""
    rng = np.random.default_rng(6)
    names = ["n03", "n01", "n02"]
    folder.mkdir(parents=True)
    (folder / "wnids.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    pixels = {}

    def save(name, gray=False):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray(rng.integers(0, 256, (64, 64) if gray else (64, 64, 3), dtype=np.uint8))
        picture.save(path, "JPEG")
        with Image.open(path) as again:
            pixels[name] = np.asarray(again.convert("RGB"))

    for name in names:
        for k in range(4):
            save(f"train/{name}/images/{name}_{k}.JPEG", gray=k == 3)
    lines = []
    for k in range(6):
        save(f"val/images/val_{k}.JPEG")
        lines.append(f"val_{k}.JPEG\t{names[k % 3]}\t0\t0\t62\t62")
    (folder / "val/val_annotations.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                packed.write(path, f"tiny-imagenet-200/{path.relative_to(folder)}")
    download = Download("http://localhost/tiny-imagenet-200.zip", md5(archive.getvalue()))
    return pixels, archive.getvalue(), TinyImageNet(download, classes=3, train=4, test=6)
