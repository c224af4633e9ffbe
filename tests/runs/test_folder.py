"""What a run folder promises: nothing of others is touched, nothing is lost or believed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import mrboost
from commands import error_of, snapshot
from mrboost.cli.main import main
from mrboost.data import Dataset
from mrboost.errors import InputError
from mrboost.files import read_facts
from mrboost.runs import Run

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


@pytest.mark.parametrize(
    ("part", "command"), [("members", "train"), ("checkpoint", "train"), ("checkpoint", "evaluate")]
)
def test_a_link_takes_nothing_out_of_a_run(
    part: str, command: str, run: Path, tmp_path: Path, capsys
) -> None:
    """Nothing is written, nor tidied up, where the links of a stranger's run lead."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in (".notes.1.tmp", "state.safetensors"):
        (theirs / name).write_text("years of work")
    before = snapshot(theirs)
    shutil.rmtree(run / part)
    (run / part).symlink_to(theirs, target_is_directory=True)
    given = ["train", "--resume", "--out", run] if command == "train" else ["evaluate", run]
    assert "leads out of" in error_of(capsys, *given, "--device", "cpu", "--quiet")
    assert snapshot(theirs) == before  # without a lock, too


@pytest.mark.parametrize("command", ["train", "evaluate", "report", "reweight"])
def test_nothing_is_fetched_into_a_folder_that_a_run_names(
    command: str, run: Path, tmp_path: Path, capsys
) -> None:
    config = json.loads((run / "config.json").read_text())
    config |= {"data": "mnist", "data_dir": str(tmp_path / "new")}
    (run / "config.json").write_text(json.dumps(config))
    given = ["train", "--resume", "--out", run] if command == "train" else [command, run]
    message = error_of(capsys, *given, "--device", "cpu", "--quiet")
    assert "mnist not found" in message
    assert "download failed" not in message
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "changed",
    [{"model": "99xwrn-34-10"}, {"model": "5xcnn-digits"}, {"input": {"shape": [1, 9999, 9999]}}],
    ids=str,
)
def test_a_network_is_no_larger_than_its_weights(
    changed: dict[str, Any], run: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """It is refused before it takes memory."""
    monkeypatch.setattr(Run, "new_model", lambda _: pytest.fail("it was built"))
    config = json.loads((run / "config.json").read_text())
    config["model"] = changed.get("model", config["model"])
    config["input"] |= changed.get("input", {})
    (run / "config.json").write_text(json.dumps(config))
    message = error_of(capsys, "evaluate", run, "--device", "cpu", "--quiet")
    assert "does not fit model" in message
    assert "numbers" in message


def test_what_is_lost_of_the_metrics_is_said_before_more_is_trained(run: Path, capsys) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text(f"{lines[0][:20]}\n{lines[1]}\n")
    grow = ["train", "--resume", "--out", run, "--rounds", "3", "--device", "cpu", "--quiet"]
    assert "metrics.jsonl is not valid JSON" in error_of(capsys, *grow)
    (run / "metrics.jsonl").write_text(f"{lines[1]}\n{lines[0][:20]}\n")
    assert "has no line of round 1" in error_of(capsys, *grow)
    assert Run.open(run).config["rounds"] == 2
    assert Run.open(run).rounds_done() == 2


def test_a_file_of_text_is_not_read_without_end(run: Path, capsys) -> None:
    for name in ("config.json", "results.json", "metrics.jsonl", "members/weights.json"):
        kept = (run / name).read_bytes() if (run / name).exists() else None
        (run / name).touch()
        os.truncate(run / name, 2**40)  # it takes no room on the disk
        grow = ["train", "--resume", "--out", run, "--rounds", "3", "--device", "cpu", "--quiet"]
        assert f"{name} has 1,099,511,627,776 bytes" in error_of(capsys, *grow)
        (run / name).unlink()
        if kept is not None:
            (run / name).write_bytes(kept)


def test_a_full_disk_names_the_file_and_the_remedy(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    message = error_of(capsys, "reweight", run, "--device", "cpu", "--quiet")
    assert "No space left on device" in message
    assert "weights.json" in message
    assert "make room there" in message
