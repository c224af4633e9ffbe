"""A real process, killed for real at random moments, resumes to the bit-equal result.

MRBOOST_KILLS=200 kills so many trainings.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock, Timeout

from commands import alone
from mrboost.files import checksum, read_tensors

TRAIN = "train at-mce --data digits --epochs 5 --seed 3 --device cpu --quiet"
COMMAND = [sys.executable, "-m", "mrboost", *TRAIN.split()]


@pytest.fixture(autouse=True)
def _hears_ctrl_c() -> Iterator[None]:
    """What a shell starts in the background ignores it, and so do the processes
    that are started here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training that nobody interrupts."""
    folder = tmp_path_factory.mktemp("trained") / "whole"
    finish(start(folder))
    return folder


def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*COMMAND, "--out", str(folder), *more],
        env=one_thread,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors.decode()


def wait_for_epochs(folder: Path, process: subprocess.Popen[bytes], epochs: int) -> None:
    """Until that many epochs are logged, or the process has ended."""
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + 1200
    while process.poll() is None and time.monotonic() < deadline:
        if metrics.exists() and metrics.read_text().count("\n") >= epochs:
            return
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("how", "after"), [(signal.SIGKILL, (1, 3)), (signal.SIGINT, (2,))], ids=["kill -9", "ctrl-c"]
)
def test_killed_and_resumed_equals_uninterrupted(
    how: signal.Signals, after: tuple[int, ...], whole: Path, tmp_path: Path
) -> None:
    moments = random.Random(os.urandom(8))
    killed = 0
    for epochs in after:
        process = start(tmp_path / "killed", *(["--resume"] if killed else []))
        wait_for_epochs(tmp_path / "killed", process, epochs)
        time.sleep(moments.uniform(0, 0.5))
        if process.poll() is None:
            process.send_signal(how)
            _, errors = process.communicate()
            if how == signal.SIGINT and process.returncode != 0:
                assert process.returncode == 130, errors.decode()
                assert b"--resume" in errors
            killed += 1
    assert killed, "the training ended before it could be killed"
    finish(start(tmp_path / "killed", "--resume"))
    folders = whole, tmp_path / "killed"
    for member in ("01.safetensors", "01.last.safetensors"):
        one, two = (read_tensors(folder / "members" / member)[0] for folder in folders)
        assert one.keys() == two.keys()
        assert all((one[key] == two[key]).all() for key in one), f"{member} differs"
    assert len((folders[1] / "metrics.jsonl").read_text().splitlines()) == 5


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
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["commands", "lightning_fabric", "PIL.Image"])
    folder, moments = tmp_path / "run", random.Random(os.urandom(8))
    options = ["--rounds", "2", "--epochs", "2", "--steps", "1", "--device", "cpu", "--quiet"]
    arguments = ["train", "mrboost", *pictures, *options, "--resume", "--out", str(folder)]

    def start() -> Any:
        process = processes.Process(target=alone, args=(arguments,))
        process.start()
        return process

    def finished() -> dict[str, object]:
        process = start()
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
        process = start()
        process.join(moments.uniform(0, seconds))
        if process.exitcode is None:
            os.kill(process.pid, moments.choice([signal.SIGKILL, signal.SIGTERM]))
            process.join(600)
        if process.exitcode == 0:
            assert finished() == uninterrupted
        else:
            assert process.exitcode in (-signal.SIGKILL, -signal.SIGTERM)
            killed += 1
    assert finished() == uninterrupted


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
        wait_for_epochs(folder, process, 1)
        process.kill()
        process.wait(timeout=600)
        assert is_free(folder / "checkpoint" / "lock", seconds=600), (
            "the training goes on without what started it"
        )
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def is_free(lock: Path, seconds: float) -> bool:
    """Whether the lock of a training is free by then: the system drops it
    when the training ends."""
    try:
        with FileLock(lock, timeout=seconds):
            return True
    except Timeout:
        return False


DIES = """
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
    (tmp_path / "dies.py").write_text(DIES)
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        shutil.copytree(trained, folder)

    def evaluate(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
        options = ["--attack", "pgd-20,autoattack", "--n", "8", "--eps", "0.2", "--device", "cpu"]
        return subprocess.run(
            [sys.executable, "-m", "mrboost", "evaluate", str(folder), *options, *more, "--json"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=1200,
        )

    kept = folders[1] / "checkpoint" / "evaluation"
    saved: list[int] = []
    for more in ([], ["--resume"]):
        done = evaluate(folders[1], *more, "--import", str(tmp_path / "dies.py"))
        assert done.returncode == -signal.SIGKILL, done.stderr
        saved.append(len(list(kept.rglob("*.safetensors"))))
    assert saved[1] >= saved[0] > 0
    results = []
    for done in (evaluate(folders[0]), evaluate(folders[1], "--resume")):
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout)["evaluations"][0]["outcomes"])
    for first, second in zip(*results, strict=True):
        assert first["correct"] == second["correct"]
        assert [stage["accuracy"] for stage in first["stages"]] == [
            stage["accuracy"] for stage in second["stages"]
        ]
    assert not kept.exists()
