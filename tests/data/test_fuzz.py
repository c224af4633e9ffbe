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

import numpy as np
import pytest

from mrboost.data import from_tensors, load
from mrboost.data.pickles import read_pickle
from mrboost.data.registry import SOURCES
from mrboost.errors import InputError
from samples import encoded, pack, picture, pictures, png, python2_pickle

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
    width, height = (rng.choice([0, 1, 4096, 2**16, 2**31 - 1]) for _ in range(2))
    depth, colour = rng.choice([1, 8, 16]), rng.choice([0, 2, 3, 4, 6])
    return png(width, height, depth, colour, rng.randrange(2))


def archive(rng):
    """A tree of images packed in some way, with odd names, kinds and contents among them."""
    files = pictures(per_class=2)
    for _ in range(rng.randrange(3)):
        names = ["train/cat/0.png", "train/cat/x.png", "../x.png", "a\udcff/b", "x" * 5000]
        name = rng.choice(names)
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


def hostile_batch(rng):
    """What a stranger's CIFAR batch may be."""
    x = np.zeros((3, 3072), np.uint8)
    labels = rng.choice([[0, 1, 2], [10**30], ["a"], [[0]], (0, 1, 2), None, {}, 1.5, {1, 2}, b"x"])
    entries = {rng.choice([b"data", "data", 7, (1, (2, (3,)))]): x, b"labels": labels}
    whole = python2_pickle({"data": x, "labels": [0, 1, 2]}, "labels")
    plain = rng.choice([pickle.dumps(entries, rng.randrange(6)), whole, random_pickle(rng)])
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


def attempt(kind, rng, folder):
    files = {}
    name = "mnist"
    match kind:
        case "pickle":
            return read_pickle(hostile_batch(rng), "batch")
        case "arrays":
            return from_tensors(*(odd_arrays(rng) for _ in range(4)))
        case "archive":
            files = {"a.zip": archive(rng)}
            name = f"folder:{folder / 'a.zip'}"
        case "mnist":
            files = {"mnist.npz": mnist_file(rng)}
        case "idx":
            _, idx, _ = SOURCES["mnist"].readers
            files = {file: idx_file(rng) for file in idx}
        case "image":
            image = encoded(picture(), rng.choice(["PNG", "JPEG", "BMP", "WEBP"]))
            bad = rng.choice([damaged(image, rng), png_of_any_size(rng)])
            files = pictures(per_class=1) | {"train/cat/0.png": bad}
            name = f"folder:{folder}"
    pack(folder, files)
    return load(name, folder)


@pytest.mark.filterwarnings("ignore")  # Pillow's, of many pixels
@pytest.mark.parametrize("kind", ["archive", "pickle", "mnist", "idx", "image", "arrays"])
def test_any_input_is_read_or_refused_in_one_line(tmp_path, kind):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(1 + CASES // 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            attempt(kind, random.Random(f"{kind} {seed}"), folder)
        except InputError as error:
            assert "\n" not in str(error), (kind, seed)  # noqa: PT017
        except Exception as error:
            raise AssertionError(f"{kind} {seed}: {type(error).__name__}") from error
    unit = 1 if sys.platform == "darwin" else 1024
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_MEMORY / unit
