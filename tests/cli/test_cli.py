"""The command line, as a user types it: outputs, exit codes, one-line errors."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mrboost
from commands import error_of, json_of, snapshot
from mrboost.cli.main import main
from mrboost.files import write_tensors


def test_augmentation_can_be_chosen(
    pictures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = [
        *pictures,
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(["train", "at", "--padding", "1", "--flip", *quick]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["augment"] == {"part": "Augment", "padding": 1, "flip": True}
    assert (
        main(["train", "--resume", "--device", "cpu", "--quiet", "--out", str(tmp_path / "run")])
        == 0
    )
    assert "flip: True -> False" in error_of(
        capsys, "train", "at", "--padding", "1", "--no-flip", "--resume", *quick
    )
    assert "padding -1 is negative" in error_of(
        capsys, "train", "at", "--padding", "-1", "--out", tmp_path / "other"
    )


def test_the_command_is_installed_and_prints_help() -> None:
    command = [str(Path(sys.executable).parent / "mrboost"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("train", "evaluate", "report", "recipes", "data"))


def test_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(mrboost.recipes.RECIPES)
    assert main(["recipes", "--show", "at-mce"]) == 0
    shown = capsys.readouterr().out
    assert "Learner(loss=margin_cross_entropy)" in shown
    assert "ICML 2022" in shown
    assert json_of(capsys, "recipes", "--show", "at2")["objective"]["scale"] == 2.0
    assert main(["recipes", "--show", "strong"]) == 0
    shown = capsys.readouterr().out
    for part in ("Learner(loss=margin_cross_entropy)", "AWP(gamma=0.005", "OneCycle", "0.999"):
        assert part in shown


def test_parts_on_the_command_line_and_resume_without_them(
    pictures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """AWP, smoothing, CutMix and average of a run are its folder's, also where they
    switch a recipe's own off."""
    for name, options in (
        ("trades", ["--awp", "0.02", "--smoothing", "0.2", "--cutmix", "0.3", "--steps", "3"]),
        ("mrboost-strong", ["--rounds", "2", "--later-epochs", "2"]),
        ("strong", ["--awp", "0", "--smoothing", "0", "--ema", "0"]),
    ):
        out = tmp_path / f"my {name}"
        quick = ["--out", str(out), "--device", "cpu", "--quiet"]
        assert main(["train", name, "--epochs", "1", *pictures, *options, *quick]) == 0
        assert f"next: mrboost evaluate '{out}'" in capsys.readouterr().out, "ready to be typed"
        before = snapshot(out)
        assert main(["train", "--resume", *quick]) == 0
        assert snapshot(out) == before
        recipe = json.loads((out / "config.json").read_text())["recipe"]
        assert recipe["steps"] == (3 if name == "trades" else 10)
        assert (recipe["awp"] or {}).get("gamma") == {"trades": 0.02, "mrboost-strong": 0.005}.get(
            name
        )
    assert "another configuration" in error_of(
        capsys, "train", "strong", "--epochs", "1", "--resume", *pictures, *quick
    )


def test_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    facts = json_of(capsys, "data", "digits")
    assert facts["shape"] == [1, 8, 8]
    assert len(json_of(capsys, "data", "--data-dir", tmp_path)) == len(mrboost.data.names())


def test_resume_needs_nothing_but_the_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(run)
    assert main(["train", "--resume", "--out", str(run), "--quiet"]) == 0
    assert "epoch   8" in capsys.readouterr().out
    assert snapshot(run) == before


def test_a_model_of_the_users_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nimport mrboost\n"
        "@mrboost.models.register('mine')\n"
        "def mine(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, "
        "classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        mrboost.models.registry, "_REGISTRY", dict(mrboost.models.registry._REGISTRY)
    )
    arguments = [
        "--model",
        "mine",
        "--epochs",
        "1",
        "--out",
        "my run",
        "--device",
        "cpu",
        "--quiet",
    ]
    assert "unknown model 'mine'" in error_of(capsys, "train", "at", *arguments)
    assert main(["train", "at", *arguments, "--import", "mine"]) == 0
    assert type(mrboost.load("my run")[0][1]) is torch.nn.Sequential
    advice = capsys.readouterr().out.splitlines()[-1].removeprefix("next: ").split("  and  ")
    assert [shlex.split(line) for line in advice] == [
        ["mrboost", command, "my run", "--import=mine"] for command in ("evaluate", "report")
    ]
    assert main([*shlex.split(advice[0])[1:], "--attack", "fgsm", "--n", "20", "--quiet"]) == 0
    assert "cannot import 'missing'" in error_of(
        capsys, "evaluate", "my run", "--import", "missing"
    )


@pytest.mark.parametrize("said", ["./nets/there.py", "nets/there.py", "{}/nets/there.py"])
def test_a_module_by_its_path(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "there.py").write_text("import beside\n")
    (tmp_path / "nets" / "beside.py").write_text("print('imported')\n")
    monkeypatch.chdir(tmp_path)
    assert (
        main(["train", "at", "--import", said.format(tmp_path), "--epochs", "1", "--rounds", "0"])
        == 2
    )
    for name in ("there", "beside"):
        sys.modules.pop(name)
    assert capsys.readouterr().out == "imported\n"
    assert "cannot import './nets/missing.py'" in error_of(
        capsys, "train", "at", "--import", "./nets/missing.py"
    )


def test_a_model_with_the_wrong_number_of_logits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        mrboost.models.registry, "_REGISTRY", dict(mrboost.models.registry._REGISTRY)
    )

    @mrboost.models.register("seven")
    def seven(shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 7))

    message = error_of(
        capsys, "train", "at", "--model", "seven", "--out", tmp_path / "run", "--quiet"
    )
    assert "must return logits of shape (2, 10) for 2 images of digits, it gave (2, 7)" in message
    assert not (tmp_path / "run").exists()


def test_no_verify_reaches_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"not the official archive")
    assert "--no-verify" in error_of(capsys, "data", "cifar10", "--data-dir", tmp_path)
    damaged = error_of(capsys, "data", "cifar10", "--data-dir", tmp_path, "--no-verify")
    assert "truncated, damaged or not a tar" in damaged


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "at-mec"], "unknown recipe 'at-mec': did you mean at-mce"),
        (["train", "at", "--data", "digit"], "unknown dataset 'digit': did you mean digits"),
        (["train", "at", "--model", "cnndigits"], "did you mean cnn-digits"),
        (["train", "at", "--eps", "0"], "eps must be positive and finite, got 0.0"),
        (["train", "at", "--eps", "1.5"], "eps must be in (0, 1]"),
        (["train", "at", "--eps", "8/0"], "'8/0' is not a number or a fraction"),
        (["train", "at", "--epochs", "many"], "invalid int value: 'many'"),
        (["train", "at", "--epohcs", "3"], "unknown argument '--epohcs': did you mean --epochs?"),
        (["train", "at", "--epoch", "3"], "unknown argument '--epoch': did you mean --epochs?"),
        (["train", "at", "--seeds", "3"], "did you mean --seed?"),
        (["train", "at", "--epsilon=0.1"], "did you mean --eps?"),
        (
            ["train", "at", "--n", "5"],
            "'--n': it is an option of mrboost evaluate, report, study, not of train (see",
        ),
        (["train", "at", "--limit", "5"], "unknown argument '--limit' (see mrboost train --help)"),
        (
            ["study", "boosting", "--first", "x"],
            "'--first': it is an option of mrboost train, not of study",
        ),
        (["--quiet", "train", "at"], "unknown argument '--quiet': give it after train"),
        (["train", "at", "digits"], "unknown argument 'digits' (see"),
        (["train", "at", "--norm", "L1"], "unknown norm 'L1': "),
        (
            ["train", "mrboost-exp", "--norm", "L2", "--eps", "0.5"],
            "'mrboost-exp' draws from Linf balls, got norm 'L2'",
        ),
        (["train", "at", "--norm", "l2", "--eps", "0.5"], "unknown norm 'l2': did you mean L2"),
        (["train", "at", "--device", "tpu"], "device 'tpu' is not available"),
        (["train"], "give a RECIPE"),
        (["trian", "at"], "unknown command 'trian': did you mean train?"),
        ([], "arguments are required: COMMAND"),
        (["evaluate", "nowhere"], "there is no run folder 'nowhere'"),
        (["report", "nowhere"], "there is no run folder 'nowhere'"),
        (["recipes", "--show", "att"], "did you mean at"),
    ],
)
def test_mistakes_get_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(capsys, *arguments)
    assert list(tmp_path.iterdir()) == [], "a refused command writes nothing"


def test_folders_of_others_stay_untouched(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("do not touch")
    before = snapshot(tmp_path)
    quick = ["--epochs", "1", "--quiet", "--out"]
    assert "exists and is not a run folder" in error_of(capsys, "train", "at", *quick, foreign)
    assert "exists and is not a run folder" in error_of(
        capsys, "train", "at", "--resume", *quick, foreign
    )
    assert "exists and is not a run folder" in error_of(
        capsys, "train", "at", *quick, foreign / "thesis.txt"
    )
    assert "holds a run already: go on with it (--resume" in error_of(
        capsys, "train", "at", *quick, run
    )
    assert "it has no config.json" in error_of(capsys, "evaluate", foreign)
    assert snapshot(tmp_path) == before


def test_resume_refuses_another_configuration(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(run)
    message = error_of(
        capsys, "train", "at-mce", "--epochs", "9", "--eps", "0.2", "--resume", "--out", run
    )
    assert "epochs: 8 -> 9" in message
    assert "eps: 0.1 -> 0.2" in message
    assert "another configuration" in error_of(
        capsys, "train", "at", "--epochs", "8", "--resume", "--out", run
    )
    assert snapshot(run) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert "cannot write the run folder" in error_of(
        capsys, "train", "at", "--out", tmp_path / "run"
    )


def test_a_folder_below_a_file_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write the run folder" in error_of(
        capsys, "train", "at", "--out", tmp_path / "file" / "run"
    )


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "is not valid JSON"),
        ("config.json", b"[]", "must hold a JSON object"),
        ("config.json", b'{"format": 2}', "it lacks recipe.name"),
        (
            "config.json",
            b'{"format": 2, "recipe": {"name": "at", "summary": ""}, "data": 7}',
            "data is '7'",
        ),
        ("metrics.jsonl", b"5\n", "no epoch's metrics"),
        ("results.json", b'{"evaluations": [{}]}', "it lacks weights"),
        ("results.json", b'{"curve": 5}', "curve is '5'"),
        ("members/01.safetensors", b"\x80\x04not safetensors", "is not a whole safetensors file"),
        ("members/01.safetensors", b"", "is not a whole safetensors file"),
        ("results.json", b"\xff\xfe", "is not valid JSON"),
    ],
)
def test_damaged_runs_are_refused(
    run: Path, file: str, content: bytes, message: str, capsys
) -> None:
    (run / file).write_bytes(content)
    command = (
        ["train", "--resume", "--out", run]
        if file == "metrics.jsonl"
        else ["evaluate", run, "--attack", "fgsm"]
    )
    assert message in error_of(capsys, *command, "--quiet")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model", []),
        ("input", 3),
        ("rounds", "many"),
        ("eps", "a"),
        ("norm", None),
        ("data_dir", 7),
        ("train_images", "many"),
        ("input.shape", [1, 8]),
        ("input.shape", [1, 8, 10**9]),
        ("input.classes", 10**9),
        ("input.classes", -1),
    ],
)
def test_hostile_configurations_are_refused(run: Path, key: str, value: object, capsys) -> None:
    config = json.loads((run / "config.json").read_text())
    *path, last = key.split(".")
    place = config
    for part in path:
        place = place[part]
    place[last] = value
    (run / "config.json").write_text(json.dumps(config))
    assert "is not a run's configuration" in error_of(capsys, "evaluate", run)


def test_a_checkpoint_of_something_else_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "members" / "01.safetensors").unlink()
    facts = {"round": 1, "epoch": 3, "best_epoch": 1}
    write_tensors(
        run / "checkpoint" / "state.safetensors", {"learner.wrong": torch.zeros(2)}, facts
    )
    assert "does not fit this run" in error_of(capsys, "train", "--resume", "--out", run, "--quiet")


def test_a_run_whose_folder_of_images_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part, label, number in product(("train", "test"), ("a", "b"), range(8)):
        folder = tmp_path / "images" / part / label
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.full((8, 8), number + (100 if label == "b" else 0), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    quick = [
        "--model",
        "cnn-digits",
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(["train", "at", "--data", f"folder:{tmp_path / 'images'}", *quick]) == 0
    message = error_of(capsys, "train", "at", *quick, "--resume")
    assert message.count(" -> ") == 1, "digits differ from it in everything"
    assert f"data: 'folder:{tmp_path / 'images'}' -> 'digits'" in message
    (tmp_path / "new").mkdir()
    (tmp_path / "images").rename(tmp_path / "new" / "images")
    command = ["evaluate", str(tmp_path / "run"), "--attack", "fgsm", "--quiet"]
    assert "--data-dir names the folder that holds images now" in error_of(capsys, *command)
    assert main([*command, "--data-dir", str(tmp_path / "new")]) == 0


def test_other_training_images_are_noticed(
    tmp_path: Path, digits, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = replace(digits, train=mrboost.data.Split(1 - digits.train.x, digits.train.y))
    mrboost.boost("at", changed, epochs=1, out=tmp_path / "run", device="cpu")
    assert "are not those that the run" in error_of(capsys, "evaluate", tmp_path / "run")
    assert "another configuration" in error_of(
        capsys,
        "train",
        "at",
        "--epochs",
        "1",
        "--resume",
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
    )


def test_schedule_average_and_clipping(
    pictures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = ["--schedule", "one-cycle", "--ema", "0.9", "--clip", "1"]
    quick = [
        *pictures,
        "--epochs",
        "1",
        "--device",
        "cpu",
        "--quiet",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(["train", "at", *parts, *quick]) == 0
    recipe = json.loads((tmp_path / "run" / "config.json").read_text())["recipe"]
    assert (recipe["schedule"]["part"], recipe["ema"], recipe["clip"]) == ("OneCycle", 0.9, 1.0)
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert "ema: 0.9 -> 0" in error_of(capsys, "train", "at", "--resume", *quick)
    for wrong, message in (
        (["--ema", "1.5"], "between 0 and 1, got 1.5"),
        (["--clip", "0"], "got 0.0"),
        (["--schedule", "onecycle"], "unknown schedule 'onecycle': did you mean one-cycle"),
    ):
        assert message in error_of(capsys, "train", "at", *wrong, "--out", tmp_path / "other")


def test_a_reader_that_leaves_early_is_no_error() -> None:
    shell = f"{sys.executable} -m mrboost recipes | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0


def test_an_ascii_terminal_gets_its_text() -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "mrboost", "recipes", "--show", "at-mce"]
    done = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"margin_cross_entropy" in done.stdout


def test_weights_of_another_model_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = mrboost.models.build("cnn-digits", (1, 8, 8), 7)
    write_tensors(run / "members" / "01.safetensors", other.state_dict(), {})
    assert main(["evaluate", str(run)]) == 2
    # Before it, a note that these weights have no checksum
    assert "does not fit model 'cnn-digits'" in capsys.readouterr().err.splitlines()[-1]
    (run / "members" / "01.safetensors").unlink()
    assert "no finished round 1 (members/01.safetensors is missing)" in error_of(
        capsys, "evaluate", run
    )


def test_a_newer_format_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "format": 99}))
    assert "has format 99" in error_of(capsys, "evaluate", run)
    (run / "config.json").write_text(json.dumps({**config, "format": 1}))
    assert "was written by mrboost 0.1" in error_of(capsys, "evaluate", run)


def test_load_gives_a_plain_module(trained: Path, digits) -> None:
    model = mrboost.load(trained)
    assert isinstance(model, torch.nn.Module)
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(digits.test.images()[:3]).shape == (3, 10)
