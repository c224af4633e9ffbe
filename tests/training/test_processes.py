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

from commands import done, error_of, json_of, results_of
from mrboost import devices
from mrboost.cli.main import main
from mrboost.runs import evaluate_run
from processes import in_two, train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    done("train", "at", "--epochs", "1", "--quiet", "--out", folder)
    return folder


def test_processes_end_with_equal_weights_and_those_of_one(tmp_path: Path, forgotten: None) -> None:
    """Four batches of 32 and one of 9: shares of unequal size are weighed by it."""
    (tmp_path / "one").mkdir()
    assert in_two(tmp_path, "mrboost", "plain", tmp_path, function=train)[0] == 0
    train("mrboost", "plain", str(tmp_path / "one"))
    first, second, alone = (
        load_file(tmp_path / f"{name}.safetensors") for name in ("0", "1", "one/alone")
    )
    assert first.keys() == second.keys() == alone.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name])
        torch.testing.assert_close(value, alone[name], rtol=1e-3, atol=1e-4)
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 4


def test_statistics_of_batchnorm_agree(tmp_path: Path) -> None:
    """Each process draws false labels, and sees images, of its own."""
    assert in_two(tmp_path, "mrboost-rnd", "cnn-digits", tmp_path, function=train)[0] == 0
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    assert any("running_mean" in name for name in first)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_processes_share_an_evaluation(run: Path, capsys, tmp_path: Path) -> None:
    """Point by point what one process finds; AutoAttack's queue included, and a last
    share that is smaller."""
    options = "--attack pgd-5,apgd-ce,autoattack --n 3 --quiet --device cpu"
    evaluate = ["evaluate", run, *options.split()]
    (alone,) = json_of(capsys, *evaluate)["evaluations"]
    status, out, err = in_two(tmp_path, *evaluate, "--json")
    assert status == 0, err
    (shared,) = json.loads(out)["evaluations"]
    assert alone["n"] == shared["n"] == 3
    assert [outcome["correct"] for outcome in results_of(run)["evaluations"][-1]["outcomes"]] == [
        outcome["correct"] for outcome in shared["outcomes"]
    ]
    for mine, theirs in zip(shared["outcomes"], alone["outcomes"], strict=True):
        assert mine["attack"] == theirs["attack"]
        assert mine["correct"] == theirs["correct"]
        assert mine["per_class"] == theirs["per_class"]
        assert mine["margin"] == pytest.approx(theirs["margin"], abs=1e-4)
        assert [s["accuracy"] for s in mine["stages"]] == [s["accuracy"] for s in theirs["stages"]]
    assert sum(shared["outcomes"][-1]["correct"]) < sum(shared["outcomes"][0]["correct"])
    assert not (run / "checkpoint/evaluation").exists()


def error_of_two(folder: Path, *arguments: str | Path) -> str:
    """The one line of a command that two processes refuse, or fail at."""
    status, _, err = in_two(folder, *arguments, "--device", "cpu")
    assert status != 0
    (line,) = [line for line in err.splitlines() if line.startswith("mrboost: error")]
    assert "[rank1]" not in err
    return line


def test_what_all_processes_have_finished_is_not_lost(run: Path, tmp_path: Path, capsys) -> None:
    """One of two fails: what the other has of that attack says nothing of all images."""
    shutil.copytree(run, tmp_path / "run")
    fails = tmp_path / "fails.py"
    fails.write_text(
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
    evaluate = ["evaluate", tmp_path / "run", "--n", "8", "--quiet", "--attack"]
    expected = json_of(capsys, *evaluate, "pgd-3", "--device", "cpu")["evaluations"][0]
    Path(tmp_path, "run/results.json").unlink()
    line = error_of_two(tmp_path, *evaluate, "fgsm,pgd-3,autoattack", "--import", fails)
    assert "image 1 under fgsm are NaN" in line
    others = "(in process 1 of 2, which counts its own images, one in 2)"
    assert f"autoattack failed too {others}" in line
    (kept,) = results_of(tmp_path / "run")["evaluations"]
    assert [found["attack"] for found in kept["outcomes"]] == ["clean", "pgd-3"]
    assert kept["failed"] == ["fgsm", "autoattack"]
    assert kept["worst"] is None
    for outcome, same in zip(kept["outcomes"], expected["outcomes"], strict=True):
        assert outcome["correct"] == same["correct"]


def test_what_only_one_process_meets_is_said(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    way = tmp_path / "way.py"
    way.write_text(
        "import os, mrboost.evaluation.resume as saved\n"
        "write = saved.write_tensors\n"
        "def refuse(path, *rest):\n"
        "    if os.environ['RANK'] == '1': raise saved.InputError(f'{path.parent} is in the way')\n"
        "    write(path, *rest)\n"
        "saved.write_tensors = refuse\n"
    )
    options = ["--attack", "fgsm", "--n", "4", "--no-check", "--import", way, "--device", "cpu"]
    status, _, err = in_two(tmp_path, "evaluate", tmp_path / "run", *options)
    assert status != 0
    assert "best-1-1-2 is in the way" in err


def test_a_trained_network_is_boosted_together(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "boosted"
    boost = ["train", "mrboost", "--first", run, "--rounds", "2", "--epochs", "1", "--out", out]
    status, _, err = in_two(tmp_path, *boost, "--device", "cpu")
    assert status == 0, err
    for kind in ("01.safetensors", "01.last.safetensors"):
        ours, theirs = (load_file(folder / "members" / kind) for folder in (out, run))
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert (out / "members" / "02.safetensors").exists()


def test_mistakes_under_torchrun_get_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.json").write_text("{}")
    for arguments, message in (
        (["train", "at", "--out", tmp_path / "empty"], "holds a run already"),
        (["evaluate", run, "--n", "1"], "2 processes have only 1 images"),
    ):
        assert message in error_of_two(tmp_path, *arguments)


def test_a_killed_process_ends_the_training_which_can_go_on(tmp_path: Path) -> None:
    torchrun = "torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d"
    options = "-m mrboost train at --data digits --epochs 8 --device cpu --resume --out"
    command = [sys.executable, "-m", *torchrun.split(), "--rdzv-endpoint", "localhost:0"]
    command += [*options.split(), str(tmp_path / "run")]
    job = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True,
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
