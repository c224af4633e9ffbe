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
from mrboost.data import load, registry
from mrboost.data.pickles import read_pickle
from mrboost.errors import InputError


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
@pytest.mark.parametrize("writer", ["python2", "python3 protocol 2", "python3 protocol 5"])
@pytest.mark.parametrize("unpacked", [False, True])
def test_cifar_in_small(make, tmp_path, kind, writer, unpacked):
    dump = make.python2 if writer == "python2" else make.python3(int(writer[-1]))
    batches, key = make.cifar(tmp_path, kind, dump)
    if unpacked:
        (archive,) = tmp_path.glob("*.tar.gz")
        folder = tmp_path / {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}[kind]
        make.tree(folder, {name: dump(batch, key) for name, batch in batches.items()})
        archive.unlink()
    dataset = load(kind, tmp_path, verify=False)
    *train, test = batches.values()
    x = np.concatenate([batch["data"] for batch in train]).reshape(-1, 3, 32, 32)
    assert torch.equal(dataset.train.x, torch.from_numpy(x))
    assert dataset.train.y.tolist() == [label for batch in train for label in batch[key]]
    assert torch.equal(dataset.test.x.flatten(1), torch.from_numpy(test["data"]))
    assert dataset.test.y.tolist() == test[key]
    assert dataset.num_classes == {"cifar10": 10, "cifar100": 100}[kind]


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
    with pytest.raises(InputError, match=f"{changed.name} has md5.*the official file has"):
        load(kind, tmp_path)


def test_cifar_class_names_follow_the_official_order():
    assert registry.SOURCES["cifar10"].classes[3] == "cat"
    assert registry.SOURCES["cifar100"].classes[19] == "cattle"
    assert registry.SOURCES["cifar100"].classes[99] == "worm"


def test_an_array_in_fortran_order_is_read_as_such(make, tmp_path):
    dump = make.python3(2)
    batches, _ = make.cifar(
        tmp_path,
        "cifar10",
        lambda batch, key: dump({**batch, "data": np.asfortranarray(batch["data"])}, key),
    )
    dataset = load("cifar10", tmp_path, verify=False)
    assert torch.equal(dataset.test.x.flatten(1), torch.from_numpy(batches["test_batch"]["data"]))


def nested(depth):
    """A dictionary whose key is a deeply nested tuple: its hash would end the process."""
    return b"\x80\x02}" + b"(K\x01" + depth * b"\x85" + b"K\x01u."


def doubling(times):
    """Labels that are a tuple of twice a tuple of twice …, of 2**times numbers."""
    double = b"".join(
        b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(times)
    )
    return b"\x80\x02}(U\x06labelsK\x01q\x00" + double + b"u."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nested(300_000), "asks for tuples-in-tuples"),
        (nested(1), "asks for keys-that-are-no-text"),
        (doubling(36), "asks for tuples-in-tuples"),
        (pickle.dumps({"labels": [[1] * 10] * 10}), "asks for lists-of-objects"),
        (pickle.dumps({"labels": [1, "a"]}), "'labels' is neither an array"),
        (pickle.dumps({"labels": [2**40]}), "damaged pickle|'labels' is neither"),
        (pickle.dumps({"labels": {1}}), "asks for EMPTY_SET"),
        (pickle.dumps({"data": {"data": 1}}), "'data' is neither an array"),
        (
            b"\x80\x02}(U\x04datacnumpy.core.numeric\n_frombuffer\n(J\xff\xff\xff\x7f"
            b"cnumpy\ndtype\nU\x02u1\x85R(K\x03U\x01|tbK\x09\x85U\x01CtRu.",
            "damaged array",
        ),
        (
            b"\x80\x02}(U\x04datacnumpy.core.numeric\n_frombuffer\n(U\x01a"
            b"cnumpy\ndtype\nU\x03,,,\x85R(K\x03U\x01|tbK\x01\x85U\x01CtRu.",
            "damaged array",
        ),
        (b"\x80\x02" + 1_000_001 * b"N" + b".", "more than 1,000,000 instructions"),
    ],
)
def test_pickles_that_would_cost_much_are_refused(content, message):
    with pytest.raises(InputError, match=message) as error:
        read_pickle(content, "batch")
    assert len(one_line(error)) < 300


class Hostile:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_that_runs_code_is_refused_before_it_runs(make, tmp_path, protocol):
    trap = tmp_path / "ran"
    payload = pickle.dumps({b"data": Hostile(trap), b"labels": [0]}, protocol)
    pickle.loads(payload)
    assert trap.exists()  # the payload is live
    trap.unlink()
    make.cifar(tmp_path, "cifar10", lambda batch, key: payload)
    with pytest.raises(InputError, match=r"asks for \S+, which no CIFAR file needs") as error:
        load("cifar10", tmp_path, verify=False)
    one_line(error)
    assert not trap.exists()


@pytest.mark.parametrize(
    "what", ["os.system", "builtins.eval", "numpy.load", "numpy.ndarray.tofile"]
)
def test_the_refused_global_is_named(make, tmp_path, what):
    module, _, name = what.rpartition(".")
    payload = f"c{module}\n{name}\n(S'x'\ntR.".encode()
    make.cifar(tmp_path, "cifar10", lambda batch, key: payload)
    with pytest.raises(InputError, match=f"data_batch_1: the pickle asks for {what}"):
        load("cifar10", tmp_path, verify=False)


def cut(batches):
    batches["data_batch_2"]["data"] = batches["data_batch_2"]["data"][:-1]


def narrow(batches):
    batches["test_batch"]["data"] = batches["test_batch"]["data"][:, :-1].copy()


def beyond(batches):
    batches["test_batch"]["labels"][0] = 10


def below(batches):
    batches["data_batch_1"]["labels"][0] = -1


def no_frogs(batches):
    for name in batches:
        batches[name]["labels"] = [label if label != 6 else 5 for label in batches[name]["labels"]]


def absent(batches):
    del batches["data_batch_4"]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (cut, "data_batch_2: 9 images but 10 labels"),
        (narrow, r"test_batch: images are \(10, 3071\)"),
        (beyond, r"cifar10 test: label 10 is out of range.*0\.\.9"),
        (below, "cifar10 train: label -1 is out of range"),
        (no_frogs, "no training image of class frog"),
        (absent, "lacks data_batch_4"),
    ],
)
def test_cifar_contents_are_checked(make, tmp_path, edit, message):
    make.cifar(tmp_path, "cifar10", edit=edit)
    with pytest.raises(InputError, match=message) as error:
        load("cifar10", tmp_path, verify=False)
    one_line(error)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"garbage",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": 3, b"labels": [1]}),
        b"\x80\x02]q\x00(K",
        b"\x94.",
    ],
)
def test_a_damaged_batch_is_an_input_error(make, tmp_path, content):
    make.cifar(tmp_path, "cifar10", lambda batch, key: content)
    with pytest.raises(InputError, match="data_batch_1") as error:
        load("cifar10", tmp_path, verify=False)
    one_line(error)


def test_array_bytes_must_match_their_shape(make, tmp_path):
    whole = (3072).to_bytes(4, "little")
    assert whole in make.python2(
        {"data": np.zeros((10, 3072), np.uint8), "labels": [0] * 10}, "labels"
    )
    lying = (3073).to_bytes(4, "little")
    make.cifar(
        tmp_path, "cifar10", lambda batch, key: make.python2(batch, key).replace(whole, lying, 1)
    )
    with pytest.raises(InputError, match="damaged array"):
        load("cifar10", tmp_path, verify=False)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_truncated_archive_is_refused_with_and_without_its_checksum(make, tmp_path, keep):
    make.cifar(tmp_path, "cifar10")
    archive = tmp_path / "cifar-10-python.tar.gz"
    content = archive.read_bytes()
    archive.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(InputError, match="is truncated, damaged or not") as error:
        load("cifar10", tmp_path, verify=False)
    one_line(error)
    with pytest.raises(InputError, match="truncated or altered"):
        load("cifar10", tmp_path)


def test_a_wrong_checksum_names_both_sums(make, tmp_path):
    make.cifar(tmp_path, "cifar10")
    actual = hashlib.md5((tmp_path / "cifar-10-python.tar.gz").read_bytes()).hexdigest()
    with pytest.raises(InputError, match="official") as error:
        load("cifar10", tmp_path)
    assert actual in one_line(error)
    assert "c58f30108f718f92721af3b95e74349a" in one_line(error)


def test_members_that_climb_out_of_the_archive_are_refused(make, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    make.tar(root / "cifar-10-python.tar.gz", {"../../data_batch_1": b"x", "test_batch": b"x"})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="points outside"):
        load("cifar10", root, verify=False)
    assert sorted(tmp_path.rglob("*")) == before
