"""CIFAR in its official format in small: every writer of it, and every way in which
a file can be wrong."""

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import development_data
from mrboost.data import load, sources
from mrboost.data.pickles import read_pickle
from mrboost.errors import InputError
from samples import CIFAR, pack, python2_pickle, python3_pickle, refusal, write_cifar


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
@pytest.mark.parametrize("dump", [python2_pickle, python3_pickle(2), python3_pickle(5)])
@pytest.mark.parametrize("unpacked", [False, True])
def test_cifar_in_small(tmp_path, kind, dump, unpacked):
    batches, key = write_cifar(tmp_path, kind, dump)
    classes, _, folder, archive = CIFAR[kind]
    if unpacked:
        pack(tmp_path / folder, {name: dump(batch, key) for name, batch in batches.items()})
        (tmp_path / archive).unlink()
    dataset = load(kind, tmp_path, verify=False)
    *train, test = batches.values()
    x = np.concatenate([batch["data"] for batch in train]).reshape(-1, 3, 32, 32)
    assert torch.equal(dataset.train.x, torch.from_numpy(x))
    assert dataset.train.y.tolist() == [label for batch in train for label in batch[key]]
    assert torch.equal(dataset.test.x.flatten(1), torch.from_numpy(test["data"]))
    assert dataset.test.y.tolist() == test[key]
    assert dataset.num_classes == classes


@pytest.mark.parametrize(("kind", "mean"), [("cifar10", 0.4914), ("cifar100", 0.5071)])
def test_the_official_files_and_a_changed_one(tmp_path, kind, mean):
    unpack = development_data("unpack.py")
    subprocess.run([sys.executable, unpack, kind, "--to", tmp_path], check=True)
    cifar = load(kind, tmp_path)
    assert (len(cifar.train), len(cifar.test)) == (50000, 10000)
    assert cifar.channel_stats()[0][0] == pytest.approx(mean, abs=1e-4)
    (folder,) = tmp_path.iterdir()
    changed = folder / {"cifar10": "test_batch", "cifar100": "test"}[kind]
    content = bytearray(changed.read_bytes())
    content[-1000] ^= 1
    changed.write_bytes(content)
    refusal(f"{changed.name} has md5.*the official file ", kind, tmp_path)


def test_cifar_class_names_follow_the_official_order():
    assert sources.SOURCES["cifar10"].classes[3] == "cat"
    assert sources.SOURCES["cifar100"].classes[19] == "cattle"
    assert sources.SOURCES["cifar100"].classes[99] == "worm"


def test_an_array_in_fortran_order_is_read_as_such(tmp_path):
    def dump(batch, key):
        return python3_pickle(2)({**batch, "data": np.asfortranarray(batch["data"])}, key)

    batches, _ = write_cifar(tmp_path, dump=dump)
    dataset = load("cifar10", tmp_path, verify=False)
    assert torch.equal(dataset.test.x.flatten(1), torch.from_numpy(batches["test_batch"]["data"]))


def nested(depth):
    """A dictionary whose key is a deeply nested tuple: its hash would end the process."""
    return b"\x80\x02}" + b"(K\x01" + depth * b"\x85" + b"K\x01u."


def doubling(times):
    """Labels that are a tuple of twice a tuple of twice …, of 2**times numbers."""
    pieces = [b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(times)]
    return b"\x80\x02}(U\x06labelsK\x01q\x00" + b"".join(pieces) + b"u."


def array(data, dtype):
    """A batch whose images are made of these bytes, as protocol 5 would, nine of them."""
    start = b"\x80\x02}(U\x04datacnumpy.core.numeric\n_frombuffer\n("
    return start + data + b"cnumpy\ndtype\n" + dtype + b"\x85R(K\x03U\x01|tbK\x09\x85U\x01CtRu."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nested(300_000), "asks for tuples-in-tuples"),
        (nested(1), "asks for keys-that-are-no-text"),
        (doubling(36), "asks for tuples-in-tuples"),
        (b"\x80\x02(" + 17 * b"K\x01" + b"t.", "asks for a-long-tuple"),
        (pickle.dumps({"labels": [[1] * 10] * 10}), "asks for lists-of-objects"),
        (pickle.dumps({"labels": [1, "a"]}), "'labels' is neither an array"),
        (pickle.dumps({"labels": [2**40]}), "damaged pickle|'labels' is neither"),
        (pickle.dumps({"labels": {1}}), "asks for EMPTY_SET"),
        (pickle.dumps({"data": {"data": 1}}), "'data' is neither an array"),
        (array(b"J\xff\xff\xff\x7f", b"U\x02u1"), "damaged array"),
        (array(b"U\x09123456789", b"U\x03,,,"), "damaged array"),
        (array(b"U\x0812345678", b"U\x02u1"), "8 bytes for shape"),
        (b"\x80\x02" + 1_000_001 * b"N" + b".", "more than 1,000,000 instructions"),
        (b"", "batch: damaged pickle"),
        (b"garbage", "batch"),
        (b"\x80\x02]q\x00(K", "batch: damaged pickle"),
        (b"\x94.", "batch: damaged pickle"),
        (pickle.dumps([1, 2]), "holds a list"),
        *(
            (f"c{name.replace(' ', chr(10))}\n(S'x'\ntR.".encode(), name.replace(" ", "."))
            for name in ("os system", "builtins eval", "numpy load", "numpy.ndarray tofile")
        ),
    ],
)
def test_pickles_that_are_damaged_hostile_or_costly_are_refused(content, message):
    with pytest.raises(InputError, match=message) as error:
        read_pickle(content, "batch")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


class Hostile:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_runs_code_is_refused_before_it_runs(tmp_path, protocol):
    trap = tmp_path / "ran"
    payload = pickle.dumps({b"data": Hostile(trap), b"labels": [0]}, protocol)
    pickle.loads(payload)
    assert trap.exists()  # the payload is live
    trap.unlink()
    write_cifar(tmp_path, dump=lambda batch, key: payload)
    message = r"data_batch_1: the pickle asks for \S+, which no CIFAR file needs"
    refusal(message, "cifar10", tmp_path, verify=False)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("data_batch_2", {"data": np.zeros((9, 3072), np.uint8)}, "9 images but 10 labels"),
        ("test_batch", {"data": np.zeros((10, 3071), np.uint8)}, r"images are \(10, 3071\)"),
        ("test_batch", {"labels": [*range(9), 10]}, r"cifar10 test: label 10 is out.*0\.\.9"),
        ("data_batch_1", {"labels": [*range(9), -1]}, "cifar10 train: label -1 is out of range"),
        ("data_batch_4", None, "lacks data_batch_4"),
        ("", {"labels": [0, 1, 2, 3, 4, 5, 5, 7, 8, 9]}, "no training image of class frog"),
    ],
)
def test_cifar_contents_are_checked(tmp_path, name, change, message):
    def edit(batches):
        if change is None:
            del batches[name]
        for batch in [name] if name else list(batches):
            batches.get(batch, {}).update(change or {})

    write_cifar(tmp_path, edit=edit)
    refusal(message, "cifar10", tmp_path, verify=False)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_truncated_archive_is_refused_with_and_without_its_checksum(tmp_path, keep):
    write_cifar(tmp_path)
    archive = tmp_path / "cifar-10-python.tar.gz"
    content = archive.read_bytes()[: int(keep * archive.stat().st_size)]
    archive.write_bytes(content)
    refusal("is truncated, damaged or not", "cifar10", tmp_path, verify=False)
    found = refusal("truncated or altered", "cifar10", tmp_path)
    assert hashlib.md5(content).hexdigest() in found
    assert "c58f30108f718f92721af3b95e74349a" in found
