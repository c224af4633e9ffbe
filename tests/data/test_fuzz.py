"""Damaged and hostile files of data, and arrays: each is read or refused in one line."""

import io
import pickle
import struct
import tarfile
import zipfile

import numpy as np

from hostile import refuted
from mrboost.data import from_tensors, load
from mrboost.data.pickles import read_pickle
from mrboost.data.sources import SOURCES
from samples import encoded, pack, picture, pictures, png, python2_pickle


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


def read_pack(name, folder, files):
    """What ``load`` makes of these files."""
    return load(name, pack(folder, files))


def image(rng, folder):
    whole = encoded(picture(), rng.choice(["PNG", "JPEG", "BMP", "WEBP"]))
    bad = rng.choice([damaged(whole, rng), png_of_any_size(rng)])
    return read_pack(f"folder:{folder}", folder, pictures(per_class=1) | {"train/cat/0.png": bad})


def idx(rng, folder):
    _, names, _ = SOURCES["mnist"].readers
    return read_pack("mnist", folder, {name: idx_file(rng) for name in names})


DOORS = {
    "archive": lambda rng, folder: read_pack(
        f"folder:{folder / 'a.zip'}", folder, {"a.zip": archive(rng)}
    ),
    "pickle": lambda rng, _: read_pickle(hostile_batch(rng), "batch"),
    "mnist": lambda rng, folder: read_pack("mnist", folder, {"mnist.npz": mnist_file(rng)}),
    "idx": idx,
    "image": image,
    "arrays": lambda rng, _: from_tensors(*(odd_arrays(rng) for _ in range(4))),
}


def test_any_input_is_read_or_refused_in_one_line(tmp_path):
    assert refuted(__file__, tmp_path) == []
