"""A real process, killed for real at random moments, resumes to the bit-equal result.

MRBOOST_KILLS=200 kills so many trainings.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock

from commands import results_of
from mrboost.cli.main import main
from mrboost.files import checksum, read_tensors
from mrboost.runs import Run
from processes import start

KILLS = int(os.environ.get("MRBOOST_KILLS", "4"))


def _whole_run(folder: Path) -> dict[str, object]:
    """All that a run's result is made of."""
    members = sorted((folder / "members").iterdir())
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {path.name: checksum(read_tensors(path)[0]) for path in members} | {
        "config": (folder / "config.json").read_text(),
        "metrics": [{k: v for k, v in row.items() if k != "seconds"} for row in rows],
        "rounds": json.loads((folder / "results.json").read_text())["rounds"],
        "files": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
    }


def test_no_kill_loses_or_changes_anything(pictures: list[str], tmp_path: Path) -> None:
    """Killed again and again at random moments, a training ends as one that was left alone."""
    folder, moments = tmp_path / "run", random.Random(os.urandom(8))
    options = ["--rounds", "2", "--epochs", "2", "--steps", "1", "--device", "cpu", "--quiet"]
    train = ["train", "mrboost", *pictures, *options, "--resume", "--out", folder]

    def finished() -> dict[str, object]:
        process = start(tmp_path / "log", *train)
        process.join(600)
        assert process.exitcode == 0
        found = _whole_run(folder)
        shutil.rmtree(folder)
        return found

    finished()  # the first loads what is not loaded before
    began = time.monotonic()
    uninterrupted = finished()
    seconds = time.monotonic() - began
    killed = 0
    while killed < KILLS:
        process = start(tmp_path / "log", *train)
        process.join(moments.uniform(0, seconds))
        if process.exitcode is None and process.pid:
            os.kill(process.pid, moments.choice([signal.SIGKILL, signal.SIGTERM]))
            process.join(600)
        if process.exitcode == 0:
            assert finished() == uninterrupted
        else:
            assert process.exitcode in (-signal.SIGKILL, -signal.SIGTERM)
            killed += 1
    assert finished() == uninterrupted


def test_ctrl_c_says_how_to_go_on(
    pictures: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "log", interrupt)
    assert main(["train", "at", *pictures, "--out", str(tmp_path / "run"), "--epochs", "1"]) == 130
    assert "interrupted; --resume goes on after the last" in capsys.readouterr().err


def test_trainings_side_by_side_end_with_what_started_them(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "defences.py"
    options = "--recipes at --seeds 0 --epochs 10000 --jobs 2 --device cpu --out"
    process = subprocess.Popen(
        [sys.executable, str(example), *options.split(), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    folder = tmp_path / "at-seed0"
    try:
        while not (folder / "metrics.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        # The system drops the lock of a training when that ends
        FileLock(folder / "checkpoint" / "lock", timeout=600).acquire().lock.release()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


SMALL = """
from mrboost.attacks import APGD, FAB, Square, autoattack
autoattack.VERSIONS["standard"] = lambda eps, norm: (
    APGD(eps, steps=30), FAB(eps, steps=20, targets=2), Square(eps, steps=300)
)
"""
DIES = f"""{SMALL}
import os, signal
from mrboost import files
write, written = files.replace_file, []

def replace_file(path, content):
    write(path, content)
    written.append(path)
    if len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

files.replace_file = replace_file
"""


def test_a_killed_evaluation_goes_on_to_the_same_result(trained: Path, tmp_path: Path) -> None:
    """AutoAttack, killed twice after it has saved something; what was finished is not done
    again."""
    for name, content in (("small", SMALL), ("dies", DIES)):
        (tmp_path / f"{name}.py").write_text(content)
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        shutil.copytree(trained, folder)

    def evaluate(folder: Path, *more: str, name: str = "small") -> int | None:
        options = ["--attack", "pgd-20,autoattack", "--n", "8", "--eps", "0.2", "--device", "cpu"]
        options += ["--import", str(tmp_path / f"{name}.py")]
        process = start(tmp_path / "log", "evaluate", folder, *options, *more)
        process.join(600)
        return process.exitcode

    kept = folders[1] / "checkpoint" / "evaluation"
    saved: list[int] = []
    for more in ([], ["--resume"]):
        assert evaluate(folders[1], *more, name="dies") == -signal.SIGKILL
        saved.append(len(list(kept.rglob("*.safetensors"))))
    assert saved[1] >= saved[0] > 0
    assert evaluate(folders[0]) == evaluate(folders[1], "--resume") == 0
    whole, resumed = (results_of(folder)["evaluations"][-1]["outcomes"] for folder in folders)
    for first, second in zip(whole, resumed, strict=True):
        assert first["correct"] == second["correct"]
        assert [stage["accuracy"] for stage in first["stages"]] == [
            stage["accuracy"] for stage in second["stages"]
        ]
    assert not kept.exists()
