"""More images than memory: packed once into a file, and the same to everything that uses them."""

import os

import pytest
import torch

import mrboost
from mrboost.data import Augment, Batches, folder, load
from mrboost.data.mapped import Mapped
from mrboost.files import digest
from samples import LARGE, encoded, pack, picture, pictures, refusal


@pytest.fixture
def packing(monkeypatch, tmp_path):
    """From here on all images are packed, into a cache of the test's own, which it gives."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(folder, "IN_MEMORY", 0)
    return tmp_path / "cache"


@pytest.fixture(params=["tree", "tar.gz", "zip"])
def name(request, tmp_path):
    files = pictures(per_class=9, shape=(16, 16, 3))
    return f"folder:{pack(tmp_path / f'pictures.{request.param}', files)}"


def test_packed_images_are_those_in_memory(name, monkeypatch, tmp_path):
    plain = load(name)
    assert isinstance(plain.train.x, torch.Tensor)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(folder, "IN_MEMORY", 0)
    for packed in (load(name), load(name)):
        assert isinstance(packed.train.x, Mapped)
        assert packed.fingerprint() == plain.fingerprint()
        assert packed.channel_stats() == plain.channel_stats()
        assert packed.classes == plain.classes
        assert digest(packed.test.x, packed.test.y) == digest(plain.test.x, plain.test.y)
        assert torch.equal(packed.train.images(), plain.train.images())
        odd = torch.arange(18) % 2 == 1
        for index in (slice(3, 11, 2), odd, torch.tensor([5, 5, 0])):
            part = packed.train[index]
            assert isinstance(part.x, Mapped)
            assert torch.equal(part[1:].images(), plain.train[index][1:].images())
            assert torch.equal(part.y, plain.train[index].y)


@pytest.mark.parametrize("augment", [None, Augment(2, True)])
def test_streamed_batches_are_those_of_a_split_in_memory(packing, name, augment):
    split = load(name).train[2:]
    resident = Batches(mrboost.data.Split(split.x[:], split.y), 5, augment=augment)
    streamed = Batches(split, 5, augment=augment)
    assert streamed.streamed
    assert not resident.streamed
    one, other = (torch.Generator().manual_seed(3) for _ in range(2))
    for _ in range(2):
        for (x, y), (x2, y2) in zip(resident.epoch(one), streamed.epoch(other), strict=True):
            assert torch.equal(x, x2)
            assert torch.equal(y, y2)
            # A step of training draws from the same stream between two batches
            assert torch.equal(torch.rand(3, generator=one), torch.rand(3, generator=other))
    assert streamed.waited > 0


def test_training_and_evaluation_from_the_file(monkeypatch, tmp_path):
    files = pictures(per_class=20, shape=(8, 8, 3))
    name = f"folder:{pack(tmp_path / 'pictures', files)}"
    how = {"model": "cnn-digits", "epochs": 2, "device": "cpu", "batch_size": 16}
    plain = mrboost.boost("at", name, out=tmp_path / "plain", **how)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(folder, "IN_MEMORY", 0)
    packed = mrboost.boost("at", name, out=tmp_path / "packed", **how)
    for one, other in zip(plain.parameters(), packed.parameters(), strict=True):
        assert torch.equal(one, other)
    found = [
        mrboost.runs.evaluate_run.evaluate_run(tmp_path / run, ["pgd-5"], device="cpu").to_dict()
        for run in ("plain", "packed")
    ]
    for evaluation in found:
        for outcome in evaluation["outcomes"]:
            outcome.pop("seconds")
    assert found[0]["outcomes"] == found[1]["outcomes"]


def test_other_files_are_packed_anew_and_the_old_ones_removed(packing, tmp_path):
    path = pack(tmp_path / "pictures", pictures())
    first = load(f"folder:{path}")
    (path / "train/cat/0.png").write_bytes(encoded(picture(99)))
    second = load(f"folder:{path}")
    assert first.fingerprint() != second.fingerprint()
    assert len(list(packing.rglob("*.images"))) == 1
    assert load(f"folder:{path}?size=3").shape == (3, 3, 3)
    assert len(list(packing.rglob("*.images"))) == 2
    assert not list(packing.rglob("*.partial"))


@pytest.mark.parametrize("kind", ["tree", "tar"])
def test_packing_that_was_killed_goes_on(packing, tmp_path, monkeypatch, kind):
    path = pack(tmp_path / f"pictures.{kind}", pictures(per_class=9))
    expected = load(f"folder:{path}").fingerprint()
    os.utime(path if kind == "tar" else path / "train/cat/0.png", ns=(1, 1))
    monkeypatch.setattr(folder, "SAVE_EVERY", 0)
    decoded = []

    class Killed(folder.Decoder):
        def pixels(self, content):
            if len(decoded) == 23:
                raise KeyboardInterrupt
            decoded.append(content)
            return super().pixels(content)

    with monkeypatch.context() as killing:
        killing.setattr(folder, "Decoder", Killed)
        with pytest.raises(KeyboardInterrupt):
            load(f"folder:{path}")
    assert len(list(packing.rglob("*.partial"))) == 1
    assert not list(packing.rglob("*.images"))
    decoded.clear()
    monkeypatch.setattr(folder, "Decoder", Killed)
    assert load(f"folder:{path}").fingerprint() == expected
    assert len(decoded) == 36 - 20  # those since the last note are decoded again


def test_damaged_images_and_a_full_disk_are_refused(packing, tmp_path, monkeypatch):
    files = pictures(shape=(64, 64, 3)) | {"train/cat/0.png": LARGE[: len(LARGE) // 2]}
    path = pack(tmp_path / "a.zip", files)
    refusal("train/cat/0.png cannot be read", f"folder:{path}")
    assert not [file for file in packing.rglob("*.*") if file.is_file()]
    path = pack(tmp_path / "b.zip", pictures())
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 0, "total": 1}))
    refusal("the images need .* GiB are free: set XDG_CACHE_HOME", f"folder:{path}")
