"""What processes of torchrun say when they are stopped from outside: killed, ended, interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from commands import json_of
from mrboost.cli.signals import saying_stops
from mrboost.devices import say_once

RUN = "torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0"

DIES = """
import os, signal
from mrboost import files
from mrboost.evaluation import resume
write = resume.write_tensors

def write_and_die(path, *rest):
    write(path, *rest)
    if os.environ["RANK"] == "1" and path.name.startswith("0-1"):
        os.kill(os.getpid(), signal.SIGKILL)

resume.write_tensors = write_and_die
"""


def test_a_killed_process_is_told_of_and_the_command_goes_on(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(shutil.copytree(trained, tmp_path / "run"))
    (tmp_path / "dies.py").write_text(DIES)
    evaluate = ["evaluate", run, "--attack", "pgd-5,fab", "--n", "9", "--no-check", "--device"]

    def in_two(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *RUN.split(), "-m", "--", "mrboost", *evaluate, "cpu"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.run(
            [*command, *more], capture_output=True, text=True, timeout=1200, env=environment
        )

    killed = in_two("--import", str(tmp_path / "dies.py"))
    assert killed.returncode != 0
    (line,) = [text for text in killed.stderr.splitlines() if text.startswith("mrboost: ")]
    assert "another process has" in line
    assert "the same command" in line
    assert "with --resume" in line
    done = in_two("--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert "goes on with what is saved" in done.stderr
    assert "evaluate (process 0 of 2, its images): pgd-5 is done" in done.stderr
    (shared,) = json.loads(done.stdout)["evaluations"]
    (alone,) = json_of(capsys, *evaluate, "cpu")["evaluations"]
    for found, expected in zip(shared["outcomes"], alone["outcomes"], strict=True):
        assert (found["attack"], found["correct"]) == (expected["attack"], expected["correct"])


STUCK = """
import ctypes, os
from mrboost.cli.signals import saying_stops

os.environ["TORCHELASTIC_RUN_ID"] = "1"
library, lock = ctypes.CDLL(None), ctypes.create_string_buffer(256)
library.pthread_mutex_init(lock, None)
with saying_stops("; go on so"):
    print("begun", flush=True)
    for _ in range(2):
        library.pthread_mutex_lock(lock)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="of POSIX")
@pytest.mark.parametrize(
    ("how", "line"),
    [
        (signal.SIGTERM, "mrboost: stopped, since another process has died or the job was ended"),
        (signal.SIGINT, "mrboost: interrupted"),
    ],
)
def test_also_where_nothing_comes_back_to_python(how: signal.Signals, line: str) -> None:
    """As a process that waits for another one."""
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK], stdout=-1, stderr=-1, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(how)
        errors = process.communicate(timeout=600)[1].strip()
    finally:
        process.kill()
    assert process.returncode == 128 + how
    assert errors.startswith(line)
    assert errors.endswith("; go on so")
    assert "\n" not in errors


def test_signals_are_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    before = handlers()
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    with saying_stops(""):
        assert handlers() == before, "without torchrun, nothing is changed"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with saying_stops(""):
        assert not set(handlers()) & set(before)
    assert handlers() == before
    assert signal.set_wakeup_fd(-1) == -1


def test_the_end_is_told_where_nothing_else_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    for name, value in (
        ("TORCHELASTIC_RUN_ID", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", str(port)),
    ):
        monkeypatch.setenv(name, value)
    for attempt, told in enumerate(("mistake end", "end end", "end mistake mistake other")):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(attempt))
        for line in told.split():
            say_once(line, alone=line == "end")
    assert capsys.readouterr().err.split() == ["mistake", "end", "end", "mistake", "other"]
    del server
