"""Training in several processes that torchrun starts: two of them, on the CPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file

SCRIPT = """
import sys, torch, mrboost
from torch import nn

torch.set_num_threads(1)

@mrboost.models.register("plain")
def plain(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, classes))

recipe, model, out = sys.argv[1:]
digits = mrboost.data.load("digits")
small = mrboost.data.Dataset("small", digits.train[:140], digits.test[:40], digits.classes, digits.defaults)
trained = mrboost.boost(
    recipe, small, model=model, epochs=2, rounds=2, batch_size=32, validation=3, device="cpu", lr=0.05, ema=0.9,
    out=f"{out}/run",
)
rank = __import__("os").environ.get("RANK", "alone")
mrboost.storage.write_tensors(__import__("pathlib").Path(out) / f"{rank}.safetensors", trained.state_dict(), {})
"""


def launch(folder: Path, *arguments: str, processes: int = 2) -> None:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = (
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        if processes > 1
        else [sys.executable]
    )
    if processes > 1:
        command += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    done = subprocess.run(
        [*command, str(script), *arguments, str(folder)], capture_output=True, text=True, timeout=300, env=environment()
    )
    assert done.returncode == 0, done.stderr


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def test_processes_end_with_equal_weights_and_those_of_one(tmp_path: Path) -> None:
    """Four batches of 32 and one of 9: shares of unequal size are weighed by it."""
    for name, processes in (("two", 2), ("one", 1)):
        (tmp_path / name).mkdir()
        launch(tmp_path / name, "mrboost", "plain", processes=processes)
    first, second, alone = (
        load_file(tmp_path / name) for name in ("two/0.safetensors", "two/1.safetensors", "one/alone.safetensors")
    )
    assert first.keys() == second.keys() == alone.keys()
    assert not (tmp_path / "one/0.safetensors").exists()
    for name, value in first.items():
        assert torch.equal(value, second[name])
        torch.testing.assert_close(value, alone[name], rtol=1e-3, atol=1e-4)
    assert len((tmp_path / "two/run/metrics.jsonl").read_text().splitlines()) == 4


def test_statistics_of_batchnorm_agree(tmp_path: Path) -> None:
    """Each process draws false labels, and sees images, of its own."""
    launch(tmp_path, "mrboost-rnd", "cnn-digits")
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    assert any("running_mean" in name for name in first)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_a_killed_process_ends_the_training_which_can_go_on(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "localhost:0", "-m", "mrboost", "train", "at", "--data", "digits", "--epochs", "10",
        "--device", "cpu", "--out", str(tmp_path / "run"), "--resume",
    ]  # fmt: skip
    job = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True)
    try:
        metrics = tmp_path / "run/metrics.jsonl"
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            assert job.poll() is None, job.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        workers = subprocess.run(["pgrep", "-P", str(job.pid)], capture_output=True, text=True).stdout.split()
        assert len(workers) == 2
        os.kill(int(workers[1]), signal.SIGKILL)
        _, errors = job.communicate(timeout=120)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode != 0
    assert "Signal 9" in errors or "another process of this training has ended" in errors
    done = metrics.read_text().count("\n")
    assert 2 <= done < 10
    resumed = subprocess.run(
        [sys.executable, "-m", "mrboost", "train", "--resume", "--out", str(tmp_path / "run"), "--quiet"],
        capture_output=True, text=True, timeout=300, env=environment(),
    )  # fmt: skip
    assert resumed.returncode == 0, resumed.stderr
    assert metrics.read_text().count("\n") == 10


def test_mistakes_under_torchrun_get_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for arguments, message in (
        (["train", "at", "--out", str(tmp_path)], "holds a run already"),
        (["evaluate", str(tmp_path)], "without torchrun"),
    ):
        if arguments[0] == "evaluate":
            (tmp_path / "config.json").unlink()
            trained = [sys.executable, "-m", "mrboost", "train", "at", "--epochs", "1", "--quiet", "--device", "cpu"]
            subprocess.run([*trained, "--out", str(tmp_path)], check=True, capture_output=True, env=environment())
        done = subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d",
             "--rdzv-endpoint", "localhost:0", "-m", "mrboost", *arguments, "--device", "cpu"],
            capture_output=True, text=True, timeout=300, env=environment(),
        )  # fmt: skip
        assert done.returncode != 0
        lines = [line for line in done.stderr.splitlines() if line.startswith("mrboost: error")]
        assert len(lines) == 1
        assert message in lines[0]
        assert "[rank1]" not in done.stderr
