"""What an evaluation keeps: adversarial examples, finished parts to go on from, the attacks before one that fails."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import mrboost
from mrboost import InputError, evaluation, intake
from mrboost.attacks import FGSM, PGD, Transfer
from mrboost.storage import read_tensors


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_adversarial_examples_can_be_kept(model, batch, small_autoattack, tmp_path, suffix: str) -> None:
    path = tmp_path / f"examples.{suffix}"
    result = mrboost.evaluate(model, *batch, {"aa": small_autoattack, "pgd": PGD(0.15, steps=5)}, examples=path)
    kept = dict(np.load(path)) if suffix == "npz" else {k: v.numpy() for k, v in load_file(path).items()}
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


def test_an_interrupted_evaluation_goes_on_to_the_same_result(model, digits, small_autoattack, tmp_path, monkeypatch):
    """Stopped at every possible look at the lanes, and between chunks and attacks."""
    split = digits.test[:45]
    monkeypatch.setattr(intake, "CHUNK", 20 * 64)
    monkeypatch.setattr(evaluation, "SAVE_EVERY", 0.0)
    attacks = {"pgd": PGD(0.15, steps=3), "aa": small_autoattack}
    expected = mrboost.evaluate(model, split, None, attacks, check=False)

    class Count:  # a number in the closure would make another model of the function with each call
        calls = 0

    def interrupted(images: Tensor) -> Tensor:
        Count.calls += 1
        if Count.calls % 70 == 0:
            raise KeyboardInterrupt
        return model(images)

    def wrapped(images: Tensor) -> Tensor:
        return interrupted(images)

    attempts = 0
    while attempts < 30:
        attempts += 1
        try:
            result = mrboost.evaluate(wrapped, split, None, attacks, check=False, keep=tmp_path / "parts", resume=True)
        except KeyboardInterrupt:
            continue
        break
    assert attempts in range(3, 30)
    for name in ("clean", "pgd", "aa"):
        assert result[name].correct == expected[name].correct
        assert result[name].margin == pytest.approx(expected[name].margin, abs=1e-3)
    assert not list((tmp_path / "parts").glob("*unfinished*"))


def test_parts_of_another_evaluation_do_not_count(model, undefended, batch, tmp_path) -> None:
    mrboost.evaluate(model, *batch, {"a": PGD(0.15, steps=3)}, keep=tmp_path / "parts", check=False)
    expected = mrboost.evaluate(undefended, *batch, {"a": PGD(0.15, steps=3)}, check=False)
    result = mrboost.evaluate(
        undefended, *batch, {"a": PGD(0.15, steps=3)}, keep=tmp_path / "parts", resume=True, check=False
    )
    assert result["a"].correct == expected["a"].correct
    weaker = mrboost.evaluate(
        undefended, *batch, {"a": PGD(0.01, steps=3)}, keep=tmp_path / "parts", resume=True, check=False
    )
    assert weaker["a"].accuracy > result["a"].accuracy


def test_files_that_are_not_ours_stay(model, batch, tmp_path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    (tmp_path / "0-0.safetensors").write_bytes(b"an old part")
    mrboost.evaluate(model, *batch, {"a": FGSM(0.1)}, keep=tmp_path, check=False)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert len(list(tmp_path.iterdir())) == 3


def test_parts_know_functions_and_attacks_apart(model, undefended, batch, tmp_path) -> None:
    x, y = batch
    kept = {"keep": tmp_path / "parts", "resume": True, "check": False}

    class Shift:
        def __init__(self, by: float) -> None:
            self.by = by

        def __call__(self, model, x: Tensor, y: Tensor) -> Tensor:
            return (x + self.by).clamp(0, 1)

    for network in (lambda z: model(z), lambda z: undefended(z)):
        for attack in (Shift(0.1), Shift(0.9), PGD(0.1, steps=2, loss=lambda *a, **k: mrboost.losses.margin(*a, **k))):
            expected = mrboost.evaluate(network, x, y, {"a": attack}, check=False)
            found = mrboost.evaluate(network, x, y, {"a": attack}, **kept)
            assert found["a"].correct == expected["a"].correct
    first, second = (
        mrboost.evaluate(model, x, y, {"t": Transfer(PGD(0.2, steps=5), source)}, **kept)
        for source in (model, undefended)
    )
    assert first["t"].correct != second["t"].correct


SCALE = 1.0


def test_a_small_change_behind_a_function_is_seen(model, batch, tmp_path, monkeypatch) -> None:
    """A function has no weights to go by: what counts is what it answers."""

    def scaled(images: Tensor) -> Tensor:
        return SCALE * model(images)

    kept = {"keep": tmp_path / "parts", "resume": True, "check": False}
    first = mrboost.evaluate(scaled, *batch, "fgsm", **kept)
    monkeypatch.setitem(globals(), "SCALE", 0.998)
    second = mrboost.evaluate(scaled, *batch, "fgsm", **kept)
    assert second["fgsm"].margin == pytest.approx(0.998 * first["fgsm"].margin, rel=1e-5)


@pytest.mark.parametrize("chunk", [0, 2])
def test_attacks_before_one_that_fails_are_not_lost(model, digits, monkeypatch, chunk: int) -> None:
    """Wherever among the images it fails, the others are measured on all of them."""
    x, y = digits.test.images()[:45], digits.test.y[:45]
    monkeypatch.setattr(intake, "CHUNK", 20 * 64)

    def fails(network, images: Tensor, labels: Tensor) -> Tensor:
        return images * torch.nan if torch.equal(images[0], x[20 * chunk]) else images

    attacks = {"pgd": PGD(0.15, steps=3), "fails": fails, "fgsm": FGSM(0.1)}
    with pytest.raises(InputError, match=f"made NaN of image {20 * chunk}: the attack") as caught:
        mrboost.evaluate(model, x, y, attacks, check=False)
    found = caught.value.measured.evaluation()
    assert [outcome.attack for outcome in found.outcomes] == ["clean", "pgd"]
    assert found["pgd"].correct == mrboost.evaluate(model, x, y, {"pgd": attacks["pgd"]}, check=False)["pgd"].correct
