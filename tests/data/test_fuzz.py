"""Damaged and hostile files, drawn at random from a seed: each is read or refused in one line, and
costs little memory. MRBOOST_FUZZ=2000 tries as many cases."""

import io
import os
import pickle
import random
import resource
import struct
import sys
import tarfile
import zipfile
import zlib

import numpy as np
import pytest

from mrboost.data import from_tensors, load
from mrboost.data.pickles import read_pickle
from mrboost.errors import InputError

CASES = int(os.environ.get("MRBOOST_FUZZ", "100"))
MAX_MEMORY = 3 * 2**30


def damaged(content, rng):
    """A few bytes changed, cut out, doubled or overwritten by numbers that sizes are made of."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(1, len(content)))
        kind = rng.randrange(5)
        if kind == 0:
            content[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            del content[at : at + rng.choice([1, 10, 10_000])]
        elif kind == 2:
            content[at:at] = content[at : at + rng.choice([1, 100, 10_000])]
        elif kind == 3:
            content[at : at + 4] = rng.choice([bytes(4), b"\xff" * 4, b"\xff\xff\xff\x7f"])
        else:
            content[at : at + 8] = struct.pack("<Q", rng.choice([2**31, 2**40, 2**63]))
    return bytes(content)


def png_of_any_size(rng):
    """A header that announces many pixels, and few bytes after it."""

    def chunk(kind, data):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    width, height = (rng.choice([0, 1, 4096, 2**16, 2**31 - 1]) for _ in range(2))
    depth, colour = rng.choice([1, 8, 16]), rng.choice([0, 2, 3, 4, 6])
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, rng.randrange(2))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99)))


def archive(make, rng):
    """A tree of images packed in some way, with odd names, kinds and contents among them."""
    files = dict(make.pictures(per_class=2))
    for _ in range(rng.randrange(3)):
        name = rng.choice(
            ["train/cat/0.png", "train/cat/x.png", "../x.png", "a\udcff/b", "x" * 5000]
        )
        image = rng.choice(list(files.values()))
        files[name] = rng.choice([image, damaged(image, rng), png_of_any_size(rng), b""])
    buffer = io.BytesIO()
    if rng.random() < 0.4:
        method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
        with zipfile.ZipFile(buffer, "w", method) as bundle:
            for name, content in files.items():
                bundle.writestr(name.encode("ascii", "replace").decode(), content)
    else:
        mode = rng.choice(["w:", "w:gz", "w:bz2", "w:xz"])
        style = rng.choice([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
        with tarfile.open(fileobj=buffer, mode=mode, format=style) as tar:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                info.type = rng.choice([tarfile.REGTYPE] * 20 + [tarfile.SYMTYPE, tarfile.DIRTYPE])
                tar.addfile(info, io.BytesIO(content))
    content = buffer.getvalue()
    return damaged(content, rng) if rng.random() < 0.7 else content


def random_pickle(rng):
    """Instructions of pickles in any order, with small arguments."""
    pieces = [b"\x80\x02"]
    names = ["numpy.core.multiarray\n_reconstruct", "numpy\ndtype", "numpy\nndarray", "os\nsystem"]
    for _ in range(rng.randrange(60)):
        code = rng.choice(b"(]})Nabehjqrtsu0213R\x85\x86\x87\x88\x94\x93cdKJUTXC.")
        piece = bytes([code])
        if piece in (b"K", b"h", b"q"):
            piece += bytes([rng.randrange(4)])
        elif piece in (b"j", b"r", b"J"):
            piece += struct.pack("<i", rng.choice([0, 1, -1, 2**31 - 1]))
        elif piece in (b"U", b"C"):
            piece += rng.choice([b"\x04data", b"\x06labels", b"\x02u1", b"\x01|", b"\x00"])
        elif piece in (b"T", b"X"):
            piece += struct.pack("<I", rng.choice([0, 2**31 - 1]))
        elif piece == b"c":
            piece += rng.choice(names).encode() + b"\n"
        pieces.append(piece)
    return b"".join(pieces) + b"."


def hostile_batch(make, rng):
    """What a stranger's CIFAR batch may be."""
    x = np.zeros((3, 3072), np.uint8)
    labels = rng.choice([[0, 1, 2], [10**30], ["a"], [[0]], (0, 1, 2), None, {}, 1.5, {1, 2}, b"x"])
    entries = {rng.choice([b"data", "data", 7, (1, (2, (3,)))]): x, b"labels": labels}
    plain = rng.choice(
        [
            pickle.dumps(entries, rng.randrange(6)),
            make.python2({"data": x, "labels": [0, 1, 2]}, "labels"),
            random_pickle(rng),
        ]
    )
    return damaged(plain, rng) if rng.random() < 0.6 else plain


def mnist_file(rng):
    """An npz, or something that is named so."""
    arrays = {
        name: np.zeros(rng.choice([(20, 28, 28), (20,), (0, 28, 28), ()]), rng.choice(["u1", "f4"]))
        for name in ("x_train", "y_train", "x_test", "y_test")
    }
    buffer = io.BytesIO()
    rng.choice([np.savez, np.savez_compressed])(buffer, **arrays)
    return damaged(buffer.getvalue(), rng) if rng.random() < 0.7 else buffer.getvalue()


def idx_file(rng):
    sizes = [rng.choice([0, 1, 28, 2**31, 2**32 - 1]) for _ in range(rng.randrange(5))]
    header = b"\x00\x00\x08" + bytes([len(sizes)]) + struct.pack(f">{len(sizes)}I", *sizes)
    return header + bytes(rng.choice([0, 1, 784]))


def odd_arrays(rng):
    shapes = [(4, 3, 8, 8), (4, 8, 8), (4,), (), (0, 3, 8, 8), (4, 0, 8, 8), (4, 3)]
    kinds = ["u1", "f4", "f8", "i8", "c8", "U3", "M8[s]", "O", "?", ">f4"]
    array = np.zeros(rng.choice(shapes), rng.choice(kinds))
    return rng.choice([array, array.tolist(), None, "text", array[::-1] if array.ndim else array])


def attempt(kind, make, rng, folder):
    if kind == "archive":
        path = folder / "a.zip"
        path.write_bytes(archive(make, rng))
        load(f"folder:{path}")
    elif kind == "pickle":
        read_pickle(hostile_batch(make, rng), "batch")
    elif kind == "mnist":
        (folder / "mnist.npz").write_bytes(mnist_file(rng))
        load("mnist", folder)
    elif kind == "idx":
        for name in (
            "train-images-idx3",
            "train-labels-idx1",
            "t10k-images-idx3",
            "t10k-labels-idx1",
        ):
            (folder / f"{name}-ubyte").write_bytes(idx_file(rng))
        load("mnist", folder)
    elif kind == "image":
        make.tree(folder, make.pictures(per_class=1))
        image = make.encoded(make.picture(), rng.choice(["png", "jpg", "bmp", "webp"]))
        content = rng.choice([damaged(image, rng), png_of_any_size(rng)])
        (folder / "train/cat/0.png").write_bytes(content)
        load(f"folder:{folder}")
    else:
        from_tensors(*(odd_arrays(rng) for _ in range(4)))


@pytest.mark.filterwarnings("ignore")  # Pillow's, of many pixels
@pytest.mark.parametrize("kind", ["archive", "pickle", "mnist", "idx", "image", "arrays"])
def test_any_input_is_read_or_refused_in_one_line(make, tmp_path, kind):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(1 + CASES // 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            attempt(kind, make, random.Random(f"{kind} {seed}"), folder)
        except InputError as error:
            assert "\n" not in str(error), (kind, seed)  # noqa: PT017
        except Exception as error:
            raise AssertionError(f"{kind} {seed}: {type(error).__name__}") from error
    unit = 1 if sys.platform == "darwin" else 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_MEMORY / unit
