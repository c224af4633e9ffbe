"""The named datasets: their official formats in small, where they are looked for,
and what is refused."""

import dataclasses
import functools
import gzip
import hashlib
import http.server
import json
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests
import scipy.io
import torch

from commands import development_data, done, error_of
from mrboost.data import describe, load, names, sources
from mrboost.errors import InputError
from samples import pack, pictures, refusal

_, IDX, _ = sources.SOURCES["mnist"].readers


def mnist_arrays(train=30, test=10):
    rng = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", train), ("test", test)):
        arrays[f"x_{part}"] = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) % 10).astype(np.uint8)
    return arrays


def write_npz(folder, **arrays):
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "mnist.npz", **arrays)


def write_idx(folder, arrays, suffix=""):
    for name, array in zip(IDX, arrays.values(), strict=True):
        sizes = struct.pack(f">{array.ndim}i", *array.shape)
        content = b"\x00\x00\x08" + bytes([array.ndim]) + sizes + array.tobytes()
        (folder / f"{name}{suffix}").write_bytes(gzip.compress(content) if suffix else content)


def write_svhn(root):
    rng = np.random.default_rng(0)
    for part in ("train", "test"):
        x = rng.integers(0, 256, (32, 32, 3, 20), dtype=np.uint8)
        y = (np.arange(20) % 10 + 1).astype(np.uint8)[:, None]
        scipy.io.savemat(root / f"{part}_32x32.mat", {"X": x, "y": y}, do_compression=True)
    return x, y


# --- the registry


def test_names():
    assert names() == ("cifar10", "cifar100", "digits", "mnist", "svhn")
    refusal(r"unknown dataset 'cifar-10': did you mean cifar10.*folder:PATH", "cifar-10")
    with pytest.raises(InputError, match="unknown dataset"):
        describe("imagenet")


def test_digits_are_the_whole_of_scikit_learns_in_a_fixed_stratified_split():
    from sklearn.datasets import load_digits

    digits = load("digits")
    assert digits.shape == (1, 8, 8)
    assert digits.train.x.dtype == torch.float32
    assert (len(digits.train), len(digits.test)) == sources.SOURCES["digits"].sizes
    fractions = digits.test.y.bincount() / (digits.train.y.bincount() + digits.test.y.bincount())
    assert fractions.min() > 0.19
    assert fractions.max() < 0.21
    both = torch.cat([digits.train.x, digits.test.x]).flatten(1) * 16
    ours = sorted(map(tuple, both.int().tolist()))
    assert ours == sorted(map(tuple, load_digits().data.astype(int).tolist()))
    torch.manual_seed(5)
    assert torch.equal(load("digits").test.x, digits.test.x)


# --- MNIST


@pytest.mark.parametrize("form", ["npz", "idx", "idx.gz"])
def test_mnist_of_any_checksum(tmp_path, form):
    arrays = mnist_arrays()
    if form == "npz":
        write_npz(tmp_path, **arrays)
    else:
        write_idx(tmp_path, arrays, form.removeprefix("idx"))
    mnist = load("mnist", tmp_path)
    assert mnist.shape == (1, 28, 28)
    for part, split in (("train", mnist.train), ("test", mnist.test)):
        assert split.x.dtype == torch.uint8
        assert torch.equal(split.x[:, 0], torch.from_numpy(arrays[f"x_{part}"]))
        assert split.y.tolist() == arrays[f"y_{part}"].tolist()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "truncated or damaged"),
        (lambda content: content + b"\x00", "truncated or damaged"),
        (lambda content: b"\x00\x00\x0d" + content[3:], "not an IDX file"),
        (lambda content: content[:6], "not an IDX file"),
        (lambda content: b"", "not an IDX file"),
        (lambda content: content[:4] + bytes(4) + 2 * b"\xff\xff\xff\xff", "0 bytes for shape"),
        (lambda content: gzip.compress(content)[:-20], "truncated or damaged"),
    ],
)
def test_damaged_idx_files(tmp_path, damage, message):
    write_idx(tmp_path, mnist_arrays())
    bad = tmp_path / IDX[2]
    bad.write_bytes(damage(bad.read_bytes()))
    refusal(f"t10k-images.*{message}", "mnist", tmp_path)


WITH_NAN = np.zeros((30, 28, 28))
WITH_NAN[17, 3, 3] = np.nan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_train": WITH_NAN}, "NaN"),
        ({"x_train": np.full((30, 28, 28), 255.0)}, "rescale them"),
        ({"x_train": np.zeros((30, 28, 28), np.int16)}, "type torch.int16"),
        ({"x_train": np.zeros((30, 784), np.uint8)}, r"shape \(30, 784\)"),
        ({"x_train": np.zeros((30, 28, 14), np.uint8)}, r"\(1, 28, 14\) but test images"),
        ({"y_train": np.arange(29) % 10}, "30 images but 29 labels"),
        ({"y_train": np.arange(30) % 11}, "label 10 is out of range"),
        ({"y_train": np.arange(30) % 10 * 1.0}, "type torch.float64"),
        ({"y_train": np.arange(30) % 9}, "class 9"),
        ({"y_test": None}, "lacks y_test"),
        ({"x_test": np.array([Path("x")], dtype=object)}, "allow_pickle=False"),
    ],
)
def test_mnist_npz_contents_are_checked(tmp_path, change, message):
    arrays = mnist_arrays() | change
    write_npz(tmp_path, **{key: array for key, array in arrays.items() if array is not None})
    refusal(message, "mnist", tmp_path)


def test_a_truncated_npz_is_refused(tmp_path):
    write_npz(tmp_path, **mnist_arrays())
    content = (tmp_path / "mnist.npz").read_bytes()
    for keep in (0, 10, len(content) // 2):
        (tmp_path / "mnist.npz").write_bytes(content[:keep])
        refusal("truncated", "mnist", tmp_path)


def test_the_development_mnist():
    mnist = load("mnist", development_data("mnist.npz").parent)
    assert (len(mnist.train), len(mnist.test)) == (60000, 3000)
    assert mnist.train.y[:5].tolist() == [5, 0, 4, 1, 9]  # the well-known beginning
    assert mnist.channel_stats()[0] == pytest.approx([0.1307], abs=1e-4)
    assert mnist.channel_stats()[1] == pytest.approx([0.3081], abs=1e-4)


# --- SVHN


def test_svhn_in_small_with_ten_for_zero(tmp_path):
    x, y = write_svhn(tmp_path)
    test = load("svhn", tmp_path, verify=False).test
    assert torch.equal(test.x, torch.from_numpy(x).permute(3, 2, 0, 1))
    assert test.y.tolist() == [label % 10 for label in y[:, 0]]
    assert 10 in y


def test_damaged_svhn_is_refused(tmp_path):
    write_svhn(tmp_path)
    refusal(r"train_32x32\.mat has md5", "svhn", tmp_path)
    bad = tmp_path / "test_32x32.mat"
    for content in (b"", b"not a mat file" * 50):
        bad.write_bytes(content)
        refusal(r"test_32x32\.mat", "svhn", tmp_path, verify=False)
    for label, message in ((np.array([[11]]), "label 11 is out of range"), (["seven"], "lacks .*")):
        scipy.io.savemat(bad, {"X": np.zeros((32, 32, 3, 1), np.uint8), "y": label})
        refusal(message, "svhn", tmp_path, verify=False)


# --- where files are looked for, and downloads


def test_the_order_of_places(tmp_path, monkeypatch):
    explicit, named = tmp_path / "explicit", tmp_path / "named"
    for size, place in ((10, explicit / "mnist"), (20, named), (30, tmp_path / "cache/mrboost")):
        write_npz(place, **mnist_arrays(train=size))
    monkeypatch.setenv("MRBOOST_DATA", str(named))
    assert len(load("mnist", explicit).train) == 10  # in the subfolder of the dataset's name
    assert len(load("mnist").train) == 20
    (named / "mnist.npz").unlink()
    assert len(load("mnist").train) == 30
    refusal("not found", "mnist", named, download=False)  # an explicit place is the only one


def test_without_a_network_the_error_says_what_where_and_how(tmp_path, monkeypatch):
    def offline(*args, **kwargs):
        raise OSError("no route\nto host")

    monkeypatch.setattr(pooch, "retrieve", offline)
    place = tmp_path / "cache" / "mrboost"
    wanted = rf"train_32x32\.mat .* in {place}; put train.* into {place}, or set MRBOOST_DATA"
    refusal(f"{wanted}.*no route to host", "svhn")


@pytest.fixture
def served(tmp_path, monkeypatch):
    """SVHN's two files on a server of our own: (files served, requests seen)."""
    site = tmp_path / "site"
    site.mkdir()
    write_svhn(site)
    seen = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            seen.append(self.path)

    handler = functools.partial(Handler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    svhn = sources.SOURCES["svhn"]
    sums = {file: hashlib.md5((site / file).read_bytes()).hexdigest() for file in svhn.checksums}
    ours = dataclasses.replace(
        svhn,
        urls=tuple(f"http://127.0.0.1:{server.server_port}/{file}" for file in sums),
        checksums={file: f"md5:{found}" for file, found in sums.items()},
    )
    monkeypatch.setitem(sources.SOURCES, "svhn", ours)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield site, seen
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_download_is_kept_and_used_again(served, tmp_path):
    _, seen = served
    for _ in range(2):
        assert len(load("svhn", tmp_path / "data").train) == 20
        found = {path.name for path in (tmp_path / "data" / "svhn").iterdir()}
        assert found == {"test_32x32.mat", "train_32x32.mat"}
        assert len(seen) == 2


def test_a_command_downloads(served, tmp_path, capsys):
    _, seen = served
    place = ["--data-dir", tmp_path / "data"]
    done("data", "svhn", *place)
    assert "found      None" in capsys.readouterr().out
    assert not seen
    done("data", "svhn", *place, "--download")
    out, err = capsys.readouterr()
    assert f"{tmp_path / 'data' / 'svhn' / 'train_32x32.mat'}, " in " ".join(out.split())
    assert err.splitlines() == [
        f"svhn: downloading {file} from 127.0.0.1" for file in ("train_32x32.mat", "test_32x32.mat")
    ]
    assert "the NAME of the dataset" in error_of(capsys, "data", "--download")


def test_without_a_connection_the_host_is_named(tmp_path, monkeypatch, capsys):
    def offline(*args, **kwargs):
        raise requests.ConnectionError("HTTPSConnectionPool(host=…): Max retries exceeded")

    monkeypatch.setattr(pooch, "retrieve", offline)
    with pytest.raises(InputError, match=r"failed: no connection to www\.cs\.toronto\.edu\)$"):
        load("cifar10", tmp_path)


def test_a_download_with_another_checksum_is_refused_and_not_kept(served, tmp_path):
    site, _ = served
    with (site / "test_32x32.mat").open("ab") as file:
        file.write(b"x")
    refusal("download failed", "svhn", tmp_path / "data")
    assert not (tmp_path / "data" / "svhn" / "test_32x32.mat").exists()


@pytest.mark.parametrize("place", ["~nosuchuser/x", "/tmp/\udcff", 5000 * "x"])
def test_paths_that_cannot_be_are_refused(place):
    refusal("is no path here|cannot read", f"folder:{place}")
    refusal("is no path here|cannot read", "mnist", place, download=False)


def test_pipes_are_not_waited_for(tmp_path):
    (tmp_path / "other").mkdir()
    write_svhn(tmp_path / "other")
    (tmp_path / "other/train_32x32.mat").rename(tmp_path / "train_32x32.mat")
    for file in ("mnist.npz", "pictures.zip", "test_32x32.mat", "cifar-10-python.tar.gz"):
        os.mkfifo(tmp_path / file)
    for name in ("mnist", f"folder:{tmp_path / 'pictures.zip'}", "svhn", "cifar10"):
        for verify in (False, True):
            refusal(r"not a regular file|has md5", name, tmp_path, verify=verify)


def test_without_a_home_there_is_no_cache(monkeypatch):
    """A folder in the temporary directory could be filled by another user."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: Path("~"))
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert load("digits").num_classes == 10
    refusal(r"in no folder; put mnist\.npz into a folder", "mnist")


# --- describe


def test_describe_what_is_there(tmp_path):
    write_npz(tmp_path, **mnist_arrays())
    facts = json.loads(json.dumps(describe("mnist", tmp_path)))
    assert facts["found"] == str(tmp_path / "mnist.npz")
    assert facts["sizes"] == {"train": 30, "test": 10}
    assert facts["shape"] == [1, 28, 28]
    assert facts["defaults"]["eps"] == 0.3
    assert describe("digits")["found"] == "part of scikit-learn"


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "svhn"])
def test_describe_what_is_not_there_without_raising(tmp_path, name):
    facts = json.loads(json.dumps(describe(name, tmp_path)))
    assert facts["found"] is None
    assert facts["looked_in"] == [str(tmp_path)]
    assert facts["urls"][0].endswith(facts["looked_for"][0].split(" + ")[0])
    assert str(tmp_path) in facts["remedy"]
    assert len(facts["classes"]) == {"cifar100": 100}.get(name, 10)


def test_describe_a_folder(tmp_path):
    assert describe(f"folder:{tmp_path / 'nowhere'}")["found"] is None
    tree = pack(tmp_path / "tree", pictures())
    facts = json.loads(json.dumps(describe(f"folder:{tree}")))
    assert (facts["classes"], facts["sizes"]) == (["cat", "dog"], {"train": 6, "test": 6})
