"""The command line, as a user types it: outputs, exit codes, one-line errors."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import mrboost
from commands import done, error_of, json_of, snapshot, write_pictures
from mrboost.cli.main import main
from mrboost.files import write_tensors

CPU = ["--device", "cpu", "--quiet"]
LOUD = ["--epochs", "1", "--device", "cpu"]
ONCE = [*LOUD, "--quiet"]


def config_of(run: Path) -> dict:
    return json.loads((run / "config.json").read_text())


def test_the_command_is_installed_and_prints_help() -> None:
    command = [str(Path(sys.executable).parent / "mrboost"), "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(name in ended.stdout for name in ("train", "evaluate", "report", "recipes", "data"))


def test_recipes(capsys: pytest.CaptureFixture[str]) -> None:
    done("recipes")
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert listed == list(mrboost.recipes.RECIPES)
    for name, parts in (
        ("at-mce", ["Learner(loss=margin_cross_entropy)", "ICML 2022"]),
        ("strong", ["Learner(loss=margin_cross_entropy)", "AWP(gamma=0.005", "OneCycle", "0.999"]),
    ):
        done("recipes", "--show", name)
        shown = " ".join(capsys.readouterr().out.split())
        assert all(part in shown for part in parts)
    assert json_of(capsys, "recipes", "--show", "at2")["objective"]["scale"] == 2.0


def test_data(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert json_of(capsys, "data", "digits")["shape"] == [1, 8, 8]
    assert len(json_of(capsys, "data", "--data-dir", tmp_path)) == len(mrboost.data.names())
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(b"not the official archive")
    assert "--no-verify" in error_of(capsys, "data", "cifar10", "--data-dir", tmp_path)
    damaged = error_of(capsys, "data", "cifar10", "--data-dir", tmp_path, "--no-verify")
    assert "truncated, damaged or not a tar" in damaged


OPTIONS = {
    "trades": "--awp 0.02 --smoothing 0.2 --cutmix 0.3 --steps 3",
    "mrboost-strong": "--rounds 2 --later-epochs 2",
    "strong": "--awp 0 --smoothing 0 --ema 0",
    "at": "--schedule one-cycle --ema 0.9 --clip 1 --padding 1 --flip",
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_are_the_folders_and_resume_needs_none(
    name: str, pictures: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where they switch a recipe's own parts off."""
    out = tmp_path / "my run"
    done("train", name, *pictures, *OPTIONS[name].split(), *LOUD, "--out", out)
    assert f"next: mrboost evaluate '{out}'" in capsys.readouterr().out, "ready to be typed"
    before, recipe = snapshot(out), config_of(out)["recipe"]
    done("train", "--resume", "--out", out, *CPU)
    assert snapshot(out) == before
    assert recipe["steps"] == (3 if name == "trades" else 10)
    gamma = {"trades": 0.02, "mrboost-strong": 0.005}.get(name)
    assert (recipe["awp"] or {}).get("gamma") == gamma
    if name == "at":
        assert (recipe["schedule"]["part"], recipe["ema"], recipe["clip"]) == ("OneCycle", 0.9, 1.0)
        assert config_of(out)["augment"] == {"part": "Augment", "padding": 1, "flip": True}
        given = ["train", "at", *pictures, *ONCE, "--out", out, "--resume"]
        message = error_of(capsys, *given, "--padding", "1", "--no-flip")
        assert "flip: True -> False" in message
        assert "ema: 0.9 -> 0" in message


def test_a_model_of_the_users_own(
    forgotten: None, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nimport mrboost\n"
        "@mrboost.models.register('mine')\n"
        "def mine(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.chdir(tmp_path)
    train = ["train", "at", "--model", "mine", "--out", "my run", *LOUD]
    assert "unknown model 'mine'" in error_of(capsys, *train)
    done(*train, "--import", "mine")
    assert type(mrboost.load("my run")[0][1]) is torch.nn.Sequential
    lines = capsys.readouterr().out.splitlines()
    advice = [line.removeprefix("next: ") for line in lines if line.startswith("next: ")]
    assert [shlex.split(line) for line in advice] == [
        ["mrboost", command, "my run", "--import=mine"] for command in ("evaluate", "report")
    ]
    done(*shlex.split(advice[0])[1:], "--attack", "fgsm", "--n", "20", "--quiet")
    missing = error_of(capsys, "evaluate", "my run", "--import", "missing")
    assert "cannot import 'missing'" in missing


@pytest.mark.parametrize("said", ["./nets/there.py", "nets/there.py", "{}/nets/there.py"])
def test_a_module_by_its_path(
    said: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "there.py").write_text("import beside\n")
    (tmp_path / "nets" / "beside.py").write_text("print('imported')\n")
    monkeypatch.chdir(tmp_path)
    refused = ["--epochs", "1", "--rounds", "0"]
    assert main(["train", "at", "--import", said.format(tmp_path), *refused]) == 2
    for name in ("there", "beside"):
        sys.modules.pop(name)
    assert capsys.readouterr().out == "imported\n"
    missing = error_of(capsys, "train", "at", "--import", "./nets/missing.py")
    assert "cannot import './nets/missing.py'" in missing


def test_a_model_with_the_wrong_number_of_logits(forgotten: None, tmp_path: Path, capsys) -> None:
    @mrboost.models.register("seven")
    def seven(shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 7))

    out = tmp_path / "run"
    message = error_of(capsys, "train", "at", "--model", "seven", "--out", out, "--quiet")
    assert "must return logits of shape (2, 10) for 2 images of digits, it gave (2, 7)" in message
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train at-mec", "unknown recipe 'at-mec': did you mean at-mce"),
        ("train at --data digit", "unknown dataset 'digit': did you mean digits"),
        ("train at --model cnndigits", "did you mean cnn-digits"),
        ("train at --eps 0", "eps must be positive and finite, got 0.0"),
        ("train at --eps 1.5", "eps must be in (0, 1]"),
        ("train at --eps 8/0", "'8/0' is not a number or a fraction"),
        ("train at --epochs many", "invalid int value: 'many'"),
        ("train at --ema 1.5", "between 0 and 1, got 1.5"),
        ("train at --clip 0", "got 0.0"),
        ("train at --schedule onecycle", "unknown schedule 'onecycle': did you mean one-cycle"),
        ("train at --padding -1", "padding -1 is negative"),
        ("train at --epohcs 3", "unknown argument '--epohcs': did you mean --epochs?"),
        ("train at --epoch 3", "unknown argument '--epoch': did you mean --epochs?"),
        ("train at --seeds 3", "did you mean --seed?"),
        ("train at --epsilon=0.1", "did you mean --eps?"),
        ("train at --n 5", "'--n': it is an option of mrboost evaluate, report, study, not of"),
        ("train at --limit 5", "unknown argument '--limit' (see mrboost train --help)"),
        ("study boosting --first x", "'--first': it is an option of mrboost train, not of study"),
        ("--quiet train at", "unknown argument '--quiet': give it after train"),
        ("train at digits", "unknown argument 'digits' (see"),
        ("train at --norm L3", "unknown norm 'L3': "),
        ("train mrboost-exp --norm L2 --eps 0.5", "draws from Linf balls: leave norm out"),
        ("train at --norm l2 --eps 0.5", "unknown norm 'l2': did you mean L2"),
        ("train at --device tpu", "device 'tpu' is not available"),
        ("train at --import=--", "--import=-- names no value"),
        ("train", "give a RECIPE"),
        ("trian at", "unknown command 'trian': did you mean train?"),
        ("", "arguments are required: COMMAND"),
        ("evaluate nowhere", "there is no run folder 'nowhere'"),
        ("report nowhere", "there is no run folder 'nowhere'"),
        ("recipes --show att", "did you mean at"),
    ],
)
def test_mistakes_get_one_line(
    arguments: str, message: str, capsys, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in error_of(capsys, *arguments.split())
    assert list(tmp_path.iterdir()) == [], "a refused command writes nothing"


def test_folders_of_others_stay_untouched(run: Path, tmp_path: Path, capsys) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("do not touch")
    before = snapshot(tmp_path)
    for command, message in (
        (["train", "at", "--out", foreign], "exists and is not a run folder"),
        (["train", "at", "--resume", "--out", foreign], "exists and is not a run folder"),
        (["train", "at", "--out", foreign / "thesis.txt"], "exists and is not a run folder"),
        (["train", "at", "--out", foreign / "thesis.txt" / "run"], "cannot write the run folder"),
        (["train", "at", "--out", run], "holds a run already: go on with it (--resume"),
        (["train", "at-mce", "--epochs", "9", "--resume", "--out", run], "epochs: 8 -> 9"),
        (["train", "at-mce", "--eps", "0.2", "--resume", "--out", run], "eps: 0.1 -> 0.2"),
        (["train", "at", "--resume", "--out", run], "another configuration"),
        (["evaluate", foreign], "it has no config.json"),
    ):
        assert message in error_of(capsys, *command, "--quiet")
    assert snapshot(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    message = error_of(capsys, "train", "at", "--out", tmp_path / "run")
    assert "cannot write the run folder" in message


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "is not valid JSON"),
        ("config.json", b'{"format": 2}', "it lacks recipe.name"),
        ("results.json", b'{"evaluations": [{}]}', "it lacks weights"),
        ("members/01.safetensors", b"\x80\x04not safetensors", "is not a whole safetensors file"),
    ],
)
def test_damaged_runs_are_refused(
    run: Path, file: str, content: bytes, message: str, capsys
) -> None:
    (run / file).write_bytes(content)
    assert message in error_of(capsys, "evaluate", run, "--attack", "fgsm", "--quiet")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", [], ""),
        ("rounds", "many", ""),
        ("data", 7, "data is '7'"),
        ("input.shape", [1, 8, 10**9], ""),
        ("input.classes", 10**9, ""),
        ("format", 99, "has format 99"),
        ("format", 1, "was written by mrboost 0.1"),
    ],
)
def test_hostile_configurations_are_refused(
    run: Path, key: str, value: object, message: str, capsys
) -> None:
    config = config_of(run)
    *path, last = key.split(".")
    place = config
    for part in path:
        place = place[part]
    place[last] = value
    (run / "config.json").write_text(json.dumps(config))
    assert (message or "is not a run's config.json") in error_of(capsys, "evaluate", run)


def test_weights_of_something_else_are_refused(run: Path, capsys) -> None:
    member = run / "members" / "01.safetensors"
    write_tensors(member, mrboost.models.build("cnn-digits", (1, 8, 8), 7).state_dict(), {})
    assert main(["evaluate", str(run)]) == 2
    # Before it, a note that these weights have no checksum
    assert "does not fit model 'cnn-digits'" in capsys.readouterr().err.splitlines()[-1]
    member.unlink()
    missing = error_of(capsys, "evaluate", run)
    assert "no finished round 1 (members/01.safetensors is missing)" in missing
    facts = {"round": 1, "epoch": 3, "best_epoch": 1}
    state = {"learner.wrong": torch.zeros(2)}
    write_tensors(run / "checkpoint" / "state.safetensors", state, facts)
    assert "does not fit this run" in error_of(capsys, "train", "--resume", "--out", run, "--quiet")


def test_a_run_whose_folder_of_images_moved(tmp_path: Path, capsys) -> None:
    images, out = tmp_path / "images", tmp_path / "run"
    write_pictures(images, "ab")
    quick = ["--model", "cnn-digits", *ONCE, "--out", out]
    done("train", "at", "--data", f"folder:{images}", *quick)
    message = error_of(capsys, "train", "at", *quick, "--resume")
    assert message.count(" -> ") == 1, "digits differ from it in everything"
    assert f"data: 'folder:{images}' -> 'digits'" in message
    (tmp_path / "new").mkdir()
    images.rename(tmp_path / "new" / "images")
    command = ["evaluate", out, "--attack", "fgsm", "--quiet"]
    assert "--data-dir names the folder that holds images now" in error_of(capsys, *command)
    done(*command, "--data-dir", tmp_path / "new")


def test_what_is_made_of_a_folders_images_is_kept_with_the_run(tmp_path: Path, capsys) -> None:
    """Every command loads them again from the name in config.json, also where they moved."""
    images, out = tmp_path / "images", tmp_path / "run"
    write_pictures(images, "ab")
    shutil.rmtree(images / "test")
    given = ["--data", f"folder:{images}", "--size", "6", "--test-share", "0.25"]
    done("train", "at", "--model", "cnn-digits", *given, *ONCE, "--out", out)
    assert config_of(out)["data"] == f"folder:{images}?size=6&test-share=0.25"
    done("train", "--resume", "--out", out, "--quiet")
    (tmp_path / "new").mkdir()
    images.rename(tmp_path / "new" / "images")
    found = json_of(
        capsys, "evaluate", out, "--attack", "fgsm", "--quiet", "--data-dir", tmp_path / "new"
    )
    assert found["evaluations"][0]["n"] == 12
    assert "size is for images of a folder" in error_of(capsys, "data", "digits", "--size", "9")


def test_other_training_images_are_noticed(tmp_path: Path, digits, capsys) -> None:
    changed = replace(digits, train=mrboost.data.Split(1 - digits.train.x, digits.train.y))
    out = tmp_path / "run"
    mrboost.boost("at", changed, epochs=1, out=out, device="cpu")
    assert "are not those that the run" in error_of(capsys, "evaluate", out)
    again = error_of(capsys, "train", "at", "--resume", "--out", out, *ONCE)
    assert "another configuration" in again


def test_a_reader_that_leaves_early_is_no_error() -> None:
    shell = f"{sys.executable} -m mrboost recipes | true"
    command = ["bash", "-o", "pipefail", "-c", shell]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.stderr, ended.returncode) == ("", 0)


def test_an_ascii_terminal_gets_its_text() -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "mrboost", "train", "--help"]
    ended = subprocess.run(command, capture_output=True, env=environment, check=True)
    assert b"learner, all, ? (default: " in ended.stdout


def test_load_gives_a_plain_module(trained: Path, digits) -> None:
    model = mrboost.load(trained)
    assert isinstance(model, torch.nn.Module)
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model(digits.test.images()[:3]).shape == (3, 10)
