"""Files that several processes write, and parts of evaluations: what counts as
the same evaluation."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mrboost
from commands import error_of
from mrboost import InputError, files
from mrboost.attacks import PGD
from mrboost.cli.main import main
from mrboost.evaluation import observers
from mrboost.files import digest
from mrboost.runs import Run


def test_two_writers_of_a_file_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second writes all of its file while the first is about to flush its own."""
    path, flush = tmp_path / "file", files.os.fsync

    def interleaved(number: int) -> None:
        monkeypatch.setattr(files.os, "fsync", flush)
        files.replace_file(path, b"second")
        flush(number)

    monkeypatch.setattr(files.os, "fsync", interleaved)
    files.replace_file(path, b"first")
    assert path.read_bytes() == b"first"
    with pytest.raises(OSError, match="directory"):
        files.replace_file(tmp_path, b"a folder is in the way")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}.*"))


def test_results_are_changed_by_one_at_a_time(trained: Path, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(trained, tmp_path / "run"))

    def second() -> None:
        with run.changing_results() as results:
            results["second"] = 2

    other = threading.Thread(target=second)
    with run.changing_results() as results:
        other.start()
        other.join(0.5)  # it has to wait for this one
        results["first"] = 1
    other.join()
    assert {"first", "second", *json.loads((trained / "results.json").read_text())} == set(
        run.results
    )


@pytest.mark.parametrize(
    ("number", "problem"), [(28, "No space left on device"), (13, "Permission denied")]
)
def test_a_full_disk_costs_the_parts_alone(
    run: Path, capsys, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int, problem: str
) -> None:
    """What cannot be kept is said once, and the figures come all the same; so they do
    without their examples."""

    def full(path: Path) -> AbstractContextManager[Path]:
        if path.name == "results.json":
            return replacing(path)
        raise OSError(number, problem)

    replacing = files.replacing
    monkeypatch.setattr(files, "replacing", full)
    monkeypatch.setattr(observers, "replacing", full)
    command = ["evaluate", str(run), "--attack", "fgsm,cw", "--n", "20", "--no-check", "--quiet"]
    assert main(command) == 0
    out, error = capsys.readouterr()
    assert out.count("\nfgsm") == 1
    assert error.count("\n") == error.count(problem) == 1
    assert main([*command, "--examples", str(tmp_path / "x.safetensors")]) == 2
    again, error = capsys.readouterr()
    assert [line[:45] for line in again.splitlines()] == [line[:45] for line in out.splitlines()]
    assert "cannot write examples to" in error.splitlines()[-1]
    with pytest.raises(InputError, match="cannot write examples") as caught:
        mrboost.evaluate(
            mrboost.load(run),
            torch.rand(4, 1, 8, 8),
            torch.arange(4),
            "fgsm",
            examples=tmp_path / "x.safetensors",
            check=False,
        )
    assert [o.attack for o in caught.value.evaluation.outcomes] == ["clean", "fgsm"]


def test_a_single_element_has_a_digest_whatever_its_stride() -> None:
    labels = torch.arange(4)
    # As the last image of a share has it
    assert digest(labels[1::3]) == digest(torch.tensor([1]))


def test_damaged_results_are_found_before_anything_runs(
    run: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "results.json").write_text('{"evalu')
    monkeypatch.setattr(
        mrboost.runs.evaluate_run, "measure", lambda *_, **__: pytest.fail("it began")
    )
    assert "results.json is not valid JSON" in error_of(capsys, "evaluate", run, "--attack", "fgsm")


class Scaled(nn.Module):
    def __init__(self, network: nn.Module, factor: float) -> None:
        super().__init__()
        self.network, self.factor = network, factor

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x) * self.factor


class Noisy(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        return self.network(x + 0.05 * torch.randn_like(x))


class Wrapped:
    __slots__ = ("network",)

    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def __call__(self, x: Tensor) -> Tensor:
        return (lambda images: self.network(images))(x)


def scaled_loss(factor: float):
    def loss(logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return mrboost.losses.cross_entropy(logits * factor, target, reduction=reduction)

    return loss


class ScaledLoss(nn.Module):
    """The factor is a weight, which the repr does not show."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, logits: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
        return mrboost.losses.cross_entropy(logits * self.factor, target, reduction=reduction)


def test_figures_are_not_those_of_another_model_or_attack(model, batch, tmp_path: Path) -> None:
    """Logits and losses so large that the cross-entropy is flat: those attacks fail."""
    x, y = batch
    for pairs in (
        [(Scaled(model, factor), PGD(0.15, steps=5)) for factor in (1.0, 1e4)],
        [(model, PGD(0.15, steps=5, loss=loss)) for loss in map(scaled_loss, (1.0, 1e4))],
        [(model, PGD(0.15, steps=5, loss=loss)) for loss in map(ScaledLoss, (1.0, 1e4))],
    ):
        kept = [
            mrboost.evaluate(
                network, x, y, {"a": attack}, check=False, keep=tmp_path / "parts", resume=True
            )
            for network, attack in pairs
        ]
        truth = mrboost.evaluate(pairs[1][0], x, y, {"a": pairs[1][1]}, check=False)
        assert kept[1]["a"].correct == truth["a"].correct
        assert kept[1]["a"].accuracy > kept[0]["a"].accuracy


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda m: Noisy(m, 1.0),
        Wrapped,
        lambda m: functools.partial(Wrapped(m)),
        lambda m: nn.Sequential(torch.jit.trace(m[0], torch.rand(2, 1, 8, 8))),
    ],
)
def test_nothing_is_done_twice(
    make, model, batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = batch[0][:16], batch[1][:16]
    attack = PGD(0.15, steps=2, loss=ScaledLoss(2.0))
    first = mrboost.evaluate(make(model), x, y, {"a": attack}, check=False, keep=tmp_path)
    monkeypatch.setattr(PGD, "__call__", lambda *_: pytest.fail("it was finished"))
    attack = PGD(0.15, steps=2, loss=ScaledLoss(2.0))
    again = mrboost.evaluate(
        make(model), x, y, {"a": attack}, check=False, keep=tmp_path, resume=True
    )
    assert again["a"].correct == first["a"].correct


ELSEWHERE = """
import sys
import mrboost, torch

def evaluated(keep, **more):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    x, y = torch.rand(16, 1, 8, 8), torch.arange(16) % 10
    attacks = ["pgd-2", mrboost.attacks.Transfer(mrboost.attacks.CW(0.1, steps=2), network)]
    how = {"eps": 0.1, "check": False, "keep": keep, **more}
    return mrboost.evaluate(lambda x: network(x), x, y, attacks, **how)
"""


def test_another_process_goes_on_with_what_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Addresses and hashes of words are others there."""
    subprocess.run(
        [sys.executable, "-c", f"{ELSEWHERE}evaluated(sys.argv[1])", tmp_path], check=True
    )
    monkeypatch.setattr(PGD, "__call__", lambda *_: pytest.fail("it was finished"))
    space: dict = {}
    exec(ELSEWHERE, space)
    found = space["evaluated"](tmp_path, resume=True)
    assert [outcome.attack for outcome in found.outcomes] == ["clean", "pgd-2", "Transfer"]
