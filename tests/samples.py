"""Small files in the official formats, and trees of small pictures in every kind of archive."""

import io
import pickle
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from mrboost.data import load
from mrboost.errors import InputError


def refusal(message, name, place=None, **options):
    """The error of ``load``, which is one line and fits the pattern ``message``."""
    with pytest.raises(InputError, match=message) as error:
        load(name, place, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def python2_pickle(batch, label_key):
    """A CIFAR batch byte for byte as Python 2 and its numpy wrote it
    (protocol 2, str for bytes)."""
    x = batch["data"]

    def short(text):
        return b"U" + bytes([len(text)]) + text  # SHORT_BINSTRING: Python 2's str

    def number(value):
        return b"J" + int(value).to_bytes(4, "little", signed=True)

    shape = number(x.shape[0]) + number(x.shape[1]) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + short(b"u1") + b"K\x00K\x01\x87R(K\x03" + short(b"|")
    dtype += b"NNN" + number(-1) + number(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b")
    array += b"\x87R(K\x01" + shape + dtype + b"\x89"
    array += b"T" + len(x.tobytes()).to_bytes(4, "little") + x.tobytes() + b"tb"
    labels = b"](" + b"".join(number(label) for label in batch[label_key]) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + short(label_key.encode()) + labels + b"u."


def python3_pickle(protocol):
    def dump(batch, label_key):
        entries = {b"data": batch["data"], label_key.encode(): list(batch[label_key])}
        return pickle.dumps(entries, protocol)

    return dump


CIFAR = {
    "cifar10": (10, "labels", "cifar-10-batches-py", "cifar-10-python.tar.gz"),
    "cifar100": (100, "fine_labels", "cifar-100-python", "cifar-100-python.tar.gz"),
}


def write_cifar(root, kind="cifar10", dump=python2_pickle, edit=lambda batches: None):
    """Writes the archive; {file name: {"data": (N, 3072), labels: [...]}}, with every class in
    each file, changed by ``edit``, and the key of the labels."""
    rng = np.random.default_rng(0)
    classes, key, folder, archive = CIFAR[kind]
    names = ["train", "test"]
    if kind == "cifar10":
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    batches = {}
    for name in names:
        x = rng.integers(0, 256, (classes, 3072), dtype=np.uint8)
        batches[name] = {"data": x, key: rng.permutation(classes).tolist()}
    edit(batches)
    files = {f"{folder}/{name}": dump(batch, key) for name, batch in batches.items()}
    pack(root / archive, files)
    return batches, key


def encoded(pixels, kind="PNG"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def picture(seed=0, shape=(6, 5, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


LARGE = encoded(picture(0, (64, 64, 3)))


def pictures(classes=("cat", "dog"), per_class=3, shape=(6, 5, 3), splits=("train", "test")):
    """{path: png bytes}, each image different."""
    names = [f"{split}/{c}/{i}.png" for split in splits for c in classes for i in range(per_class)]
    seeds = [zlib.crc32(name.encode("utf-8", "surrogateescape")) for name in names]
    return {name: encoded(picture(seed, shape)) for name, seed in zip(names, seeds, strict=True)}


def pack(path, files, method=zipfile.ZIP_DEFLATED):
    """Writes {name: bytes, or a TarInfo for a special member} as the tree, tar or zip that the
    suffix of the path says."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", method) as bundle:
            for name, content in files.items():
                bundle.writestr(name, content)
    elif ".tar" in path.suffixes:
        kind = path.suffix.removeprefix(".tar").removeprefix(".")
        with tarfile.open(path, f"w:{kind}") as tar:
            for name, content in files.items():
                info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
                if info is not content:
                    info.size = len(content)
                tar.addfile(info, None if info is content else io.BytesIO(content))
    else:
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    return path


def png(width, height, depth=8, colour=2, interlaced=0):
    """A header that announces so many pixels, and hardly any after it."""
    header = b"".join(size.to_bytes(4, "big") for size in (width, height))
    header += bytes([depth, colour, 0, 0, interlaced])
    image = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(99))), (b"IEND", b"")):
        checksum = zlib.crc32(kind + data).to_bytes(4, "big")
        image += len(data).to_bytes(4, "big") + kind + data + checksum
    return image
