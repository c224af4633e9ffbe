"""What an evaluation keeps: adversarial examples, finished parts to go on from, the attacks
before one that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import mrboost
from mrboost import InputError
from mrboost.attacks import FGSM, PGD, Square, autoattack
from mrboost.evaluation import batches, inputs, observers
from mrboost.files import read_tensors


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_adversarial_examples_can_be_kept(
    model, batch, small_autoattack, tmp_path, suffix: str
) -> None:
    path = tmp_path / f"examples.{suffix}"
    result = mrboost.evaluate(
        model,
        *batch,
        {"aa": small_autoattack, "pgd": PGD(0.15, steps=5)},
        check=False,
        examples=path,
    )
    kept = (
        dict(np.load(path))
        if suffix == "npz"
        else {k: v.numpy() for k, v in load_file(path).items()}
    )
    assert sorted(kept) == ["aa", "clean", "pgd", "y"]
    assert np.array_equal(kept["clean"], batch[0].numpy())
    if suffix == "safetensors":
        assert read_tensors(path)[1]["eps"] == 0.15
    for name in ("aa", "pgd"):
        again = mrboost.evaluate(model, kept[name], kept["y"], [], check=False)
        assert again["clean"].correct == result[name].correct
        assert np.abs(kept[name] - batch[0].numpy()).max() <= 0.15 + 1e-6
    with pytest.raises(InputError, match=r"\.safetensors or \.npz, got 'here.pt'"):
        mrboost.evaluate(model, *batch, "fgsm", examples="here.pt")


GATHERING = """
import sys, torch, mrboost
from pathlib import Path
import sys
from mrboost import evaluate
from mrboost.evaluation import observers
from mrboost.evaluation import inputs as intake

def memory():
    (line,) = (line for line in open("/proc/self/smaps_rollup") if line.startswith("Anonymous:"))
    return int(line.split()[1])

class Watched(observers.Examples):
    def on_end(self):
        super().on_end()
        print(memory() - before)

def batches():
    for seed in range(16):
        yield torch.rand(16, 1, 256, 256, generator=torch.Generator().manual_seed(seed)), torch.arange(16) % 10

sys.modules[evaluate.__module__].Examples, intake.CHUNK = Watched, 16 * 256 * 256
for path in sys.argv[1:]:
    before = memory()
    mrboost.evaluate(
        lambda x: x.flatten(1)[:, :10], batches(), None, {"darker": lambda _, x, y: x / 2}, check=False,
        examples=path,
    )
"""  # noqa: E501


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(),
    reason="memory is read from /proc/self/smaps_rollup",
)
def test_examples_are_gathered_on_the_disk(tmp_path) -> None:
    """128 MiB of images, clean and attacked, while the memory of the process does not grow
    by a quarter of that."""
    paths = [tmp_path / "x.npz", tmp_path / "x.safetensors"]
    # What is freed goes back to the system
    whole = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    done = subprocess.run(
        [sys.executable, "-c", GATHERING, *paths], capture_output=True, text=True, env=whole
    )
    assert done.returncode == 0, done.stderr
    assert max(map(int, done.stdout.split())) < 32 * 1024
    last = torch.rand(16, 1, 256, 256, generator=torch.Generator().manual_seed(15)).numpy()
    for kept in (np.load(paths[0]), {k: v.numpy() for k, v in load_file(paths[1]).items()}):
        assert kept["clean"].shape == kept["darker"].shape == (256, 1, 256, 256)
        assert np.array_equal(kept["clean"][-16:], last)
        assert np.array_equal(kept["darker"][-16:], last / 2)
    assert sorted(tmp_path.iterdir()) == paths


def test_a_full_disk_costs_the_examples_alone(batch, tmp_path, monkeypatch) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(observers, "TemporaryFile", full)
    with pytest.raises(InputError, match=r"cannot write .*x.npz': No space left") as caught:
        mrboost.evaluate(
            lambda x: x.flatten(1), *batch, [], check=False, examples=tmp_path / "x.npz"
        )
    assert [outcome.attack for outcome in caught.value.evaluation.outcomes] == ["clean"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("noise", "lanes"), [(0.0, None), (0.1, None), (0.1, 8)])
def test_an_interrupted_evaluation_goes_on_to_the_same_result(
    noise: float, lanes: int | None, model, digits, small_autoattack, tmp_path, monkeypatch
) -> None:
    """Stopped at every possible look at the lanes, and between chunks and attacks; also
    of a model that draws."""
    split = digits.test[:45]
    monkeypatch.setattr(inputs, "CHUNK", 20 * 64)
    monkeypatch.setattr(batches, "SAVE_EVERY", 0.0)
    attacks = {"pgd": PGD(0.15, steps=3), "aa": small_autoattack}

    class Count:
        calls, most = 0, 0

    def interrupted(images: Tensor) -> Tensor:
        Count.calls += 1
        if Count.most and Count.calls % Count.most == 0:
            raise KeyboardInterrupt
        return model(images + noise * torch.randn_like(images))

    def wrapped(images: Tensor) -> Tensor:
        return interrupted(images)

    how: Any = {"check": False, "batch_size": lanes}
    expected = mrboost.evaluate(wrapped, split, None, attacks, **how)
    Count.calls, Count.most, attempts = 0, 45, 0
    while attempts < 200:
        attempts += 1
        try:
            result = mrboost.evaluate(
                wrapped, split, None, attacks, **how, keep=tmp_path / "parts", resume=True
            )
        except KeyboardInterrupt:
            continue
        break
    assert attempts in range(3, 200)
    for name in ("clean", "pgd", "aa"):
        assert result[name].correct == expected[name].correct
        assert result[name].margin == pytest.approx(expected[name].margin, abs=1e-3)
    assert not list((tmp_path / "parts").glob("*unfinished*"))


def test_files_that_are_not_ours_stay(model, batch, tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "0-0.safetensors").write_bytes(b"an old part")
    mrboost.evaluate(model, *batch, {"a": FGSM(0.1)}, keep=tmp_path, check=False)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert len(list(tmp_path.iterdir())) == 3


SCALE = 1.0


def test_a_small_change_behind_a_function_is_seen(model, batch, tmp_path, monkeypatch) -> None:
    """A function has no weights to go by: what counts is what it answers."""

    def scaled(images: Tensor) -> Tensor:
        return SCALE * model(images)

    kept = {"keep": tmp_path / "parts", "resume": True, "check": False}
    first = mrboost.evaluate(scaled, *batch, "fgsm", eps=0.1, **kept)
    monkeypatch.setitem(globals(), "SCALE", 0.998)
    second = mrboost.evaluate(scaled, *batch, "fgsm", eps=0.1, **kept)
    assert second["fgsm"].margin == pytest.approx(0.998 * first["fgsm"].margin, rel=1e-5)


@pytest.mark.parametrize("chunk", [0, 2])
def test_attacks_before_one_that_fails_are_not_lost(model, digits, monkeypatch, chunk: int) -> None:
    """Wherever among the images it fails, the others are measured on all of them."""
    x, y = digits.test.images()[:45], digits.test.y[:45]
    monkeypatch.setattr(inputs, "CHUNK", 20 * 64)

    def fails(network, images: Tensor, labels: Tensor) -> Tensor:
        return images * torch.nan if torch.equal(images[0], x[20 * chunk]) else images

    attacks = {"pgd": PGD(0.15, steps=3), "fails": fails, "fgsm": FGSM(0.1)}
    with pytest.raises(InputError, match=f"made NaN of image {20 * chunk}: the attack") as caught:
        mrboost.evaluate(model, x, y, attacks, check=False)
    found = caught.value.evaluation
    del attacks["fails"]
    assert [outcome.attack for outcome in found.outcomes] == ["clean", "pgd", "fgsm"]
    expected = mrboost.evaluate(model, x, y, attacks, check=False)
    assert [outcome.correct for outcome in found.outcomes] == [
        outcome.correct for outcome in expected.outcomes
    ]


def test_an_attack_that_fails_late_has_no_figures(
    model, digits, small_autoattack, monkeypatch, tmp_path
) -> None:
    """Logits around one image turn to NaN once square has begun with it: nothing is left of
    AutoAttack, and nothing is lost of the others."""
    x, y = digits.test.images()[:45], digits.test.y[:45]
    monkeypatch.setattr(inputs, "CHUNK", 20 * 64)
    whole = mrboost.evaluate(model, x, y, ["fgsm", small_autoattack], eps=0.15, check=False)
    victim = whole["autoattack-small"].broken_by.index(-1, 40)
    begun: list[bool] = []

    class Poisonous(Square):
        def begin(self, x: Tensor, *more: Tensor) -> dict[str, Tensor]:
            begun.extend((x == digits.test.images()[victim]).flatten(1).all(dim=1).tolist())
            return super().begin(x, *more)

    parts = (*small_autoattack.searches[:-1], Poisonous(0.15, steps=30))
    monkeypatch.setitem(autoattack.VERSIONS, "small", lambda eps, norm: parts)

    def network(images: Tensor) -> Tensor:
        near = (images - x[victim]).abs().flatten(1).amax(dim=1) <= 0.15 + 1e-6
        return model(images).masked_fill((near & any(begun))[:, None], torch.nan)

    path = tmp_path / "adv.safetensors"
    with pytest.raises(InputError, match=f"for image {victim} under square are NaN") as caught:
        mrboost.evaluate(
            network, x, y, ["fgsm", small_autoattack], eps=0.15, check=False, examples=path
        )
    found = caught.value.evaluation
    assert [outcome.attack for outcome in found.outcomes] == ["clean", "fgsm"]
    assert found["clean"].correct == whole["clean"].correct
    assert found.failed == ("autoattack-small",)
    assert found.to_dict()["worst"] is None
    assert "worst case" not in str(found)
    assert load_file(path).keys() == {"clean", "fgsm", "y"}
