"""Labels of image files: those of the model, of every file that can be used, under attack too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mrboost
from commands import done, error_of, json_of
from mrboost.attacks import PGD
from mrboost.cli.main import main

CPU = ["--device", "cpu", "--quiet"]


@pytest.fixture
def photos(digits: mrboost.data.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve digits as files, in a folder with one that is hidden."""
    monkeypatch.chdir(tmp_path)
    Path("photos/more").mkdir(parents=True)
    for number, image in enumerate(digits.test.images()[:12]):
        place = Path("photos/more" if number > 8 else "photos")
        grey(image).save(place / f"{number:02}.png")
    Path("photos/._hidden.png").write_bytes(b"of a Mac")
    return Path("photos")


def grey(image: torch.Tensor) -> Image.Image:
    return Image.fromarray((255 * image[0]).round().byte().numpy())


def pixels(digits: mrboost.data.Dataset, count: int) -> torch.Tensor:
    """The images as 8-bit files hold them."""
    return (255 * digits.test.images()[:count]).round() / 255


def test_labels_and_confidence_are_the_models(trained, model, digits, photos, capsys) -> None:
    expected = model(pixels(digits, 12)).softmax(dim=1)
    document = json_of(capsys, "predict", trained, "photos", "photos/*.png", *CPU)
    found = document["predictions"]
    assert [Path(one["image"]).stem for one in found] == [f"{i:02}" for i in range(12)]
    assert [one["label"] for one in found] == [str(k) for k in expected.argmax(dim=1).tolist()]
    confidence = torch.tensor([one["confidence"] for one in found])
    torch.testing.assert_close(confidence, expected.amax(dim=1))
    done("predict", trained, "photos/00.png", *CPU)
    label, share = found[0]["label"], found[0]["confidence"]
    assert capsys.readouterr().out.split() == ["photos/00.png", label, f"{share:.1%}"]


def test_an_attack_starts_from_the_answer(trained, model, digits, photos, capsys) -> None:
    x = pixels(digits, 12)
    y = model(x).argmax(dim=1)
    attack = PGD(0.2, steps=20, step_size=0.2 / 4)
    after = model(attack(model, x, y)).argmax(dim=1)
    assert 0 < (after != y).sum() < 12, "some withstand"
    found = mrboost.predict(trained, ["photos"], attack=["pgd-20"], eps=0.2, device="cpu")
    assert [one.attacked["pgd-20"].label for one in found.found] == [str(k) for k in after.tolist()]
    lines = str(found).splitlines()
    for line, before, now in zip(lines, y.tolist(), after.tolist(), strict=False):
        verdict = "withstands" if before == now else f"becomes {now} under"
        assert line.endswith(f"% {' '}{verdict} pgd-20 at Linf 0.2")
    assert lines[-1] == f"{(after == y).sum()} of 12 labels withstand pgd-20"
    at_its_own = mrboost.predict(trained, ["photos/00.png"], attack=["fgsm"], device="cpu")
    assert (at_its_own.eps, at_its_own.norm) == (0.1, "Linf"), "those of the training"


def test_answers_that_are_long_take_a_line_each(trained, photos, capsys) -> None:
    command = ["predict", trained, "photos/00.png", "photos/more", *CPU, "--attack"]
    done(*command, "fgsm")
    beside = capsys.readouterr().out.splitlines()
    done(*command, "fgsm,pgd-3,pgd-2")
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in beside + lines)
    assert len(beside) == 4 + 1
    assert len(lines) == 4 * (1 + 3) + 3
    assert [line[:2] for line in lines[:4]] == ["ph", "  ", "  ", "  "]
    image, verdict = lines[:2]
    assert f"{image}{verdict}" == beside[0]


def test_files_become_what_the_model_takes(trained, digits, photos, model) -> None:
    """Colour, an orientation of EXIF, transparency and another size."""
    plain = grey(digits.test.images()[0])
    plain.convert("RGB").save("a-colour.png")
    turned = plain.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.save("b-turned.png", exif=exif)
    opaque = Image.fromarray(np.dstack([np.asarray(plain), np.full((8, 8), 255, np.uint8)]), "LA")
    opaque.save("c-opaque.png")
    wide = Image.new("L", (80, 32), 0)
    wide.paste(plain.resize((32, 32), Image.Resampling.BOX), (24, 0))
    wide.save("d-wide.png")
    expected = mrboost.predict(trained, ["photos/00.png"], device="cpu").found[0]
    others = mrboost.predict(trained, ["[a-d]-*.png"], device="cpu").found
    assert len(others) == 4
    for one in others[:3]:
        assert (one.label, one.confidence) == (expected.label, expected.confidence), one.image
    assert others[3].label == expected.label, "the middle of it, made smaller"


def test_what_cannot_be_read_is_named_and_the_rest_answered(trained, photos, capsys) -> None:
    for name in "abcd":
        Path(f"photos/{name}.jpg").write_bytes(b"none")
    capsys.readouterr()
    assert main(["predict", str(trained), "photos", "--json", *CPU]) == 2
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert len(document["predictions"]) == 12
    assert list(document["problems"]) == [f"photos/{name}.jpg" for name in "abcd"]
    assert err.startswith("mrboost: error: photos/a.jpg cannot be read as an image (it is none of")
    assert err.endswith("and 1 more: repair them or leave them out\n")
    assert main(["predict", str(trained), "photos/a.jpg", *CPU]) == 2
    assert capsys.readouterr().out == "", "no empty line where there is no answer"
    for given in ("missing.png", "missing/*.png"):
        assert f"there is no image '{given}'" in error_of(capsys, "predict", trained, given)
    assert "unknown attack 'pgdd-20'" in error_of(
        capsys, "predict", trained, "photos", "--attack", "pgdd-20"
    )


def test_a_mixture_has_no_label(run: Path, photos: Path, capsys) -> None:
    config = json.loads((run / "config.json").read_text())
    config["recipe"]["combine"] = "Mixture"
    (run / "config.json").write_text(json.dumps(config))
    message = error_of(capsys, "predict", run, "photos", *CPU)
    assert "drawn at random for each image: name one of them" in message
    done("predict", run / "members" / "01.safetensors", "photos", *CPU)


def test_classes_have_their_names(pictures: list[str], tmp_path: Path, capsys) -> None:
    """And images the background of the training."""
    train = ["train", "at", *pictures, "--epochs", "1", "--steps", "1", *CPU]
    done(*train, "--background", "black", "--out", tmp_path / "run")
    clear = Image.new("RGBA", (8, 8), (200, 100, 50, 0))
    clear.save(tmp_path / "clear.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "black.png")
    document = json_of(capsys, "predict", tmp_path / "run", tmp_path, *CPU)
    black, clear = document["predictions"]
    assert black["label"] in "abc"
    assert (clear["label"], clear["confidence"]) == (black["label"], black["confidence"])
