"""Small files in the official formats."""

import io
import pickle
import tarfile
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(autouse=True)
def private_places(tmp_path, monkeypatch):
    """No test finds, or writes into, the data of the person who runs it."""
    monkeypatch.delenv("MRBOOST_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def python2_pickle(batch, label_key):
    """A CIFAR batch byte for byte as Python 2 and its numpy wrote it
    (protocol 2, str for bytes)."""
    x = batch["data"]

    def short(text):
        return b"U" + bytes([len(text)]) + text  # SHORT_BINSTRING: Python 2's str

    def number(value):
        return b"J" + int(value).to_bytes(4, "little", signed=True)

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + short(b"b") + b"\x87R"
        b"(K\x01" + number(x.shape[0]) + number(x.shape[1]) + b"\x86"
        b"cnumpy\ndtype\n"
        + short(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + short(b"|")
        + b"NNN"
        + number(-1)
        + number(-1)
        + b"K\x00tb\x89"
        + b"T"
        + len(x.tobytes()).to_bytes(4, "little")
        + x.tobytes()
        + b"tb"
    )
    labels = b"](" + b"".join(number(label) for label in batch[label_key]) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + short(label_key.encode()) + labels + b"u."


def python3_pickle(protocol):
    def dump(batch, label_key):
        return pickle.dumps(
            {b"data": batch["data"], label_key.encode(): list(batch[label_key])}, protocol
        )

    return dump


def cifar_batches(kind, seed=0):
    """{file name: {"data": (N, 3072), labels: [...]}} with every class in the training part."""
    rng = np.random.default_rng(seed)
    classes, key = {"cifar10": (10, "labels"), "cifar100": (100, "fine_labels")}[kind]
    names = (
        [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
        if classes == 10
        else ["train", "test"]
    )
    return {
        name: {
            "data": rng.integers(0, 256, (classes, 3072), dtype=np.uint8),
            key: rng.permutation(classes).tolist(),
        }
        for name in names
    }, key


def write_tar(path, files, mode="w:gz"):
    """files: {member name: bytes, or a TarInfo for a special member}."""
    with tarfile.open(path, mode) as tar:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def write_cifar(root, kind, dump=python2_pickle, edit=lambda batches: None):
    batches, key = cifar_batches(kind)
    edit(batches)
    folder, archive = {
        "cifar10": ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
        "cifar100": ("cifar-100-python", "cifar-100-python.tar.gz"),
    }[kind]
    files = {f"{folder}/{name}": dump(batch, key) for name, batch in batches.items()}
    write_tar(root / archive, files)
    return batches, key


def encoded(pixels, suffix="png"):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG" if suffix in ("jpg", "jpeg") else suffix.upper())
    return buffer.getvalue()


def picture(seed=0, shape=(6, 5, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def picture_files(classes=("cat", "dog"), per_class=3, shape=(6, 5, 3), splits=("train", "test")):
    """{path: png bytes}, each image different."""
    return {
        f"{split}/{label}/{i}.png": encoded(picture(seed_of(split, label, i), shape))
        for split in splits
        for label in classes
        for i in range(per_class)
    }


def seed_of(*parts):
    return zlib.crc32("/".join(map(str, parts)).encode("utf-8", "surrogateescape"))


def write_tree(root, files):
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.fixture
def make():
    """The helpers above, for the tests."""
    return SimpleNamespace(
        python2=python2_pickle,
        python3=python3_pickle,
        tar=write_tar,
        cifar=write_cifar,
        encoded=encoded,
        picture=picture,
        pictures=picture_files,
        tree=write_tree,
    )
