"""What a run folder promises: nothing of others is touched, nothing is lost or believed."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import mrboost
from commands import error_of
from mrboost.cli.main import main
from mrboost.data import Dataset
from mrboost.errors import InputError
from mrboost.files import read_facts
from mrboost.runs import Run
from mrboost.runs.compare import text_table

QUICK = {"model": "cnn-digits", "device": "cpu", "epochs": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds on digits, evaluated."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    mrboost.boost("mrboost", "digits", out=folder, rounds=2, steps=1, **QUICK | {"epochs": 1})
    evaluate = ["evaluate", str(folder), "--attack", "fgsm", "--n", "20", "--no-check"]
    assert main([*evaluate, "--device", "cpu", "--quiet"]) == 0
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_locks_follow_no_link_and_empty_no_file(run: Path, tmp_path: Path, capsys) -> None:
    important = tmp_path / "important"
    important.write_text("years of work")
    for lock in (run / ".results.lock", run / "checkpoint" / "lock"):
        lock.unlink()
        lock.symlink_to(important)
        assert "is a link: remove it" in error_of(capsys, "train", "--resume", "--out", run)
        lock.unlink()
        os.link(important, lock)
        assert main(["train", "--resume", "--quiet", "--out", str(run)]) == 0
        lock.unlink()
    (run / ".results.lock").unlink()
    (run / ".results.lock").symlink_to(important)
    evaluate = ["evaluate", str(run), "--attack", "fgsm", "--n", "4", "--no-check", "--quiet"]
    assert main(evaluate) == 0
    assert "is a link: remove it" in capsys.readouterr().err, "a result that is not kept is shown"
    assert important.read_text() == "years of work"


def test_what_killed_processes_left_is_removed(run: Path) -> None:
    left = [
        run / ".config.json.0.tmp",
        run / ".results.json.0.tmp",
        run / "members" / ".01.safetensors.0.tmp",
        run / "checkpoint" / ".state.safetensors.0.tmp",
        run / "checkpoint" / "state.safetensors",
    ]
    for path in left:
        shutil.copy(run / "members" / "02.safetensors", path)
    with Run.training(run, Run.open(run).config, resume=True):
        assert not any(path.exists() for path in left)


def test_what_a_killed_join_left_is_removed(run: Path, tmp_path: Path) -> None:
    other = mrboost.boost("at", "digits", out=tmp_path / "at", seed=1, **QUICK | {"epochs": 1})
    assert len(other) == 1
    shutil.copytree(run, tmp_path / ".both.joining")
    assert len(mrboost.join([run, tmp_path / "at"], tmp_path / "both")) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"run", "at", "both"}


def test_a_bit_that_flips_in_the_weights_is_noticed(run: Path) -> None:
    path = run / "members" / "01.last.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"01\.last\.safetensors has changed since it was written"):
        mrboost.load(run)


def test_weights_that_were_converted_load_with_a_note(run: Path, capsys) -> None:
    x = torch.rand(4, 1, 8, 8)
    before = mrboost.load(run)(x)
    for path in (run / "members").glob("*.safetensors"):
        save_file({name: value.half() for name, value in load_file(path).items()}, path)
    torch.testing.assert_close(mrboost.load(run)(x), before, rtol=0.02, atol=0.02)
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 2
    assert all("its checksum is unknown" in line for line in notes)


def test_an_edited_configuration_is_refused(
    tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any time: after an epoch, and after all rounds."""
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save_member", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            mrboost.boost("at", tiny, out=folder, **QUICK)
    as_it_was = (folder / "config.json").read_text()
    for _ in range(2):
        config = json.loads(as_it_was)
        config["lr"] = 0.05
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.raises(InputError, match=r"config\.json has changed .*lr: 0\.1 -> 0\.05"):
            mrboost.boost("at", tiny, out=folder, resume=True, lr=0.05, **QUICK)
        (folder / "config.json").write_text(as_it_was)
        mrboost.boost("at", tiny, out=folder, resume=True, **QUICK)
    assert read_facts(folder / "members" / "01.safetensors")["config"] == json.loads(as_it_was)


@pytest.mark.parametrize("content", [None, ""])
def test_a_finished_run_without_metrics_ends_in_one_line(
    run: Path, content: str | None, capsys
) -> None:
    (run / "metrics.jsonl").unlink()
    if content is not None:
        (run / "metrics.jsonl").write_text(content)
    message = error_of(capsys, "train", "--resume", "--out", run, "--quiet")
    assert "has no line of round 1" in message
    assert "metrics.jsonl" in message


def _deep(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("file", "content", "command", "message"),
    [
        ("config.json", _deep(100_000), "evaluate", "nested too deep"),
        ("config.json", '{"recipe": ' + _deep(60) + "}", "evaluate", "nested too deep"),
        ("config.json", '{"rounds": ' + "9" * 5000 + "}", "train", "is not valid JSON"),
        ("results.json", _deep(100_000), "evaluate", "nested too deep"),
        ("members/weights.json", _deep(100_000), "evaluate", "nested too deep"),
        ("members/weights.json", '{"of": "best"}', "evaluate", "it lacks weights"),
        ("metrics.jsonl", '{"round": 1}', "train", "it lacks epoch"),
        ("metrics.jsonl", _deep(100_000), "train", "has no line of round 1"),
    ],
)
def test_json_of_a_stranger_is_refused(
    run: Path, file: str, content: str, command: str, message: str, capsys
) -> None:
    (run / file).write_text(content)
    given = ["train", "--resume", "--out", run] if command == "train" else ["evaluate", run]
    assert message in error_of(capsys, *given, "--quiet")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_a_pipe_in_the_place_of_a_file_is_refused(run: Path, capsys) -> None:
    for name in ("results.json", "members/01.last.safetensors"):
        (run / name).unlink()
        os.mkfifo(run / name)
        assert "is not a regular file" in error_of(capsys, "evaluate", run, "--quiet")
        (run / name).unlink()


HOSTILE = (None, -1, 0, 1e308, 10**30, float("nan"), True, "", "x\x1b[2J", [], [1], {}, {"a": 1})


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with every key in it."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    inner = [place for _, item in pairs if isinstance(item, dict | list) for place in _places(item)]
    return [(value, key) for key, _ in pairs] + inner


def test_no_value_anywhere_ends_in_a_traceback(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """One value of a run's files is replaced, or is gone: commands work, or say one line."""
    monkeypatch.setattr(mrboost.training.boost, "_rounds", lambda *_: mrboost.load(finished))
    draw = random.Random(0)
    commands: list[Callable[[str], list[str]]] = [
        lambda run: ["train", "--resume", "--out", run, "--device", "cpu", "--quiet"],
        lambda run: ["evaluate", run, "--attack", "fgsm", "--n", "2", "--device", "cpu", "--quiet"],
    ]
    for case in range(int(os.environ.get("MRBOOST_FUZZ", "20"))):
        run = tmp_path / str(case)
        shutil.copytree(finished, run)
        name = ("config.json", "results.json", "metrics.jsonl")[case % 3]
        lines = (run / name).read_text().splitlines() if name == "metrics.jsonl" else None
        value = json.loads(lines[0] if lines else (run / name).read_text())
        container, key = draw.choice(_places(value))
        if draw.random() < 0.2 and isinstance(container, dict):
            del container[key]
        else:
            container[key] = draw.choice(HOSTILE)
        text = json.dumps(value)
        (run / name).write_text("\n".join([text, *lines[1:]]) if lines else text)
        for command in commands:
            given = command(str(run))
            assert main(given) in (0, 2), (given, text)
        with suppress(InputError):
            text_table([run, finished])
        assert "\x1b" not in capsys.readouterr().err
        shutil.rmtree(run)
