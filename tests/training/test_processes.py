"""Training in several processes that torchrun starts: two of them, on the CPU."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from commands import error_of, json_of
from mrboost import devices, models
from mrboost.cli.main import main
from mrboost.runs import evaluate_run

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
mrboost.files.write_tensors(__import__("pathlib").Path(out) / f"{rank}.safetensors", trained.state_dict(), {})
"""  # noqa: E501


RUN = "torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0"
TORCHRUN = [sys.executable, "-m", *RUN.split()]


def launch(folder: Path, *arguments: str) -> None:
    """The script in two processes."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [*TORCHRUN, str(script), *arguments, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, env=environment())
    assert done.returncode == 0, done.stderr


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def test_processes_end_with_equal_weights_and_those_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four batches of 32 and one of 9: shares of unequal size are weighed by it."""
    for name in ("two", "one"):
        (tmp_path / name).mkdir()
    launch(tmp_path / "two", "mrboost", "plain")
    monkeypatch.setattr(models.registry, "_REGISTRY", dict(models.registry._REGISTRY))
    monkeypatch.setattr(sys, "argv", ["script.py", "mrboost", "plain", str(tmp_path / "one")])
    exec(SCRIPT, {})
    first, second, alone = (
        load_file(tmp_path / name)
        for name in ("two/0.safetensors", "two/1.safetensors", "one/alone.safetensors")
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
    options = "-m mrboost train at --data digits --epochs 8 --device cpu --resume --out"
    command = [*TORCHRUN, *options.split(), str(tmp_path / "run")]
    job = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True
    )
    try:
        metrics = tmp_path / "run/metrics.jsonl"
        deadline = time.monotonic() + 1200
        while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            assert job.poll() is None, job.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        workers = subprocess.run(
            ["pgrep", "-P", str(job.pid)], capture_output=True, text=True
        ).stdout.split()
        assert len(workers) == 2
        os.kill(int(workers[1]), signal.SIGKILL)
        _, errors = job.communicate(timeout=1200)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert job.returncode != 0
    (line,) = [text for text in errors.splitlines() if text.startswith("mrboost: ")]
    assert "another process has" in line
    assert "the same command" in line
    done = metrics.read_text().count("\n")
    assert 2 <= done < 8
    assert main(["train", "--resume", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert metrics.read_text().count("\n") == 8


def command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command of mrboost in two processes."""
    return subprocess.run(
        [*TORCHRUN, "-m", "--", "mrboost", *arguments, "--device", "cpu"],
        capture_output=True,
        text=True,
        timeout=1200,
        env=environment(),
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("trained") / "run")
    assert main(["train", "at", "--epochs", "1", "--quiet", "--out", folder]) == 0
    return folder


def test_processes_share_an_evaluation(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Point by point what one process finds; AutoAttack's queue included, and a last
    share that is smaller."""
    options = "--attack pgd-5,apgd-ce,autoattack --n 3 --quiet --json"
    evaluate = ["evaluate", run, *options.split()]

    def in_two() -> dict:
        done = command(*evaluate)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found = []
    for ask in (lambda: json_of(capsys, *evaluate, "--device", "cpu"), in_two):
        (one,) = ask()["evaluations"]
        assert one["n"] == 3
        kept = json.loads(Path(run, "results.json").read_text())["evaluations"]
        assert [outcome["correct"] for outcome in kept[-1]["outcomes"]] == [
            o["correct"] for o in one["outcomes"]
        ]
        found.append(one)
    alone, shared = found
    for mine, theirs in zip(shared["outcomes"], alone["outcomes"], strict=True):
        assert mine["attack"] == theirs["attack"]
        assert mine["correct"] == theirs["correct"]
        assert mine["per_class"] == theirs["per_class"]
        assert mine["margin"] == pytest.approx(theirs["margin"], abs=1e-4)
        assert [s["accuracy"] for s in mine["stages"]] == [s["accuracy"] for s in theirs["stages"]]
    assert sum(shared["outcomes"][-1]["correct"]) < sum(shared["outcomes"][0]["correct"])
    assert not Path(run, "checkpoint/evaluation").exists()


def test_what_all_processes_have_finished_is_not_lost(run: str, tmp_path: Path, capsys) -> None:
    """One of two fails: what the other has of that attack says nothing of all images."""
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "fails.py").write_text(
        "import os\n"
        "from mrboost.attacks import PGD, Square\n"
        "from mrboost.errors import NanLogitsError\n"
        "def fail(attack, *rest, **more): raise NanLogitsError(1, attack.name)\n"
        "pgd = PGD.__call__\n"
        "if os.environ['RANK'] == '1':\n"
        "    Square.begin = fail\n"
        "    PGD.__call__ = lambda attack, *rest, **more: (fail if attack.steps == 1 else "
        "pgd)(attack, *rest, **more)\n"
    )
    evaluate = ["evaluate", str(tmp_path / "run"), "--n", "8", "--quiet", "--json", "--attack"]
    expected = json_of(capsys, *evaluate, "pgd-3", "--device", "cpu")["evaluations"][0]
    Path(tmp_path, "run/results.json").unlink()
    done = command(*evaluate, "fgsm,pgd-3,autoattack", "--import", "fails", cwd=tmp_path)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("mrboost: error")]
    assert len(lines) == 1
    assert "image 1 under fgsm are NaN" in lines[0]
    assert (
        "autoattack failed too (in process 1 of 2, which counts its own images, one in 2)"
        in lines[0]
    )
    (kept,) = json.loads(Path(tmp_path, "run/results.json").read_text())["evaluations"]
    assert [found["attack"] for found in kept["outcomes"]] == ["clean", "pgd-3"]
    assert kept["failed"] == ["fgsm", "autoattack"]
    assert kept["worst"] is None
    for outcome, same in zip(kept["outcomes"], expected["outcomes"], strict=True):
        assert outcome["correct"] == same["correct"]


def test_what_only_one_process_meets_is_said(run: str, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "way.py").write_text(
        "import os, mrboost.evaluation.resume as saved\n"
        "write = saved.write_tensors\n"
        "def refuse(path, *rest):\n"
        "    if os.environ['RANK'] == '1': raise saved.InputError(f'{path.parent} is in the way')\n"
        "    write(path, *rest)\n"
        "saved.write_tensors = refuse\n"
    )
    options = "--attack fgsm --n 4 --no-check --import way"
    done = command("evaluate", str(tmp_path / "run"), *options.split(), cwd=tmp_path)
    assert done.returncode != 0
    assert "best-1-1-2 is in the way" in done.stderr


def test_a_trained_network_is_boosted_together(run: str, tmp_path: Path) -> None:
    out = tmp_path / "boosted"
    done = command(
        "train", "mrboost", "--first", run, "--rounds", "2", "--epochs", "1", "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    for kind in ("01.safetensors", "01.last.safetensors"):
        ours, theirs = (load_file(Path(folder) / "members" / kind) for folder in (out, run))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert (out / "members" / "02.safetensors").exists()


def test_mistakes_under_torchrun_get_one_line(run: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.json").write_text("{}")
    for arguments, message in (
        (["train", "at", "--out", str(tmp_path / "empty")], "holds a run already"),
        (["evaluate", run, "--n", "1"], "2 processes have only 1 images"),
    ):
        done = command(*arguments)
        assert done.returncode != 0
        lines = [line for line in done.stderr.splitlines() if line.startswith("mrboost: error")]
        assert len(lines) == 1
        assert message in lines[0]
        assert "[rank1]" not in done.stderr


def test_what_one_process_does_is_refused_to_several(
    run: str, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        for name, value in (
            ("TORCHELASTIC_RUN_ID", "1"),
            ("WORLD_SIZE", "2"),
            ("RANK", "0"),
            ("LOCAL_RANK", "0"),
        ):
            patched.setenv(name, value)
        assert "start it without torchrun" in error_of(capsys, "reweight", run)
    monkeypatch.setattr(
        evaluate_run, "make_fabric", lambda *_, **__: SimpleNamespace(global_rank=0, world_size=2)
    )
    assert "examples are written by one process" in error_of(
        capsys, "evaluate", run, "--examples", "x.npz"
    )


def test_who_waits_for_a_stopped_process_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "_QUIET", 0.01)
    said = ""
    monkeypatch.setattr(devices, "_place", lambda: (1, 2))
    with devices.lost_processes(""):
        for _ in range(6000):
            time.sleep(0.01)
            if said := capsys.readouterr().err:
                break
    assert re.match(r"note: process 1 of 2 has waited \d+ minutes for another", said)
    monkeypatch.setattr(devices, "_place", lambda: (0, 1))
    with devices.lost_processes(""):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
