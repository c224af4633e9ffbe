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
from mrboost.cli.commands import main
from mrboost.evaluation import chunk, examples, resume
from mrboost.evaluation.resume import Parts
from mrboost.files import fingerprint
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
    other = threading.Thread(
        target=run.save_results, args=(lambda results: results | {"second": 2},)
    )

    def change(results: dict) -> dict:
        other.start()
        other.join(0.5)  # it has to wait for this one
        return results | {"first": 1}

    run.save_results(change)
    other.join()
    assert {"first", "second", *json.loads((trained / "results.json").read_text())} == set(
        run.results
    )


def test_a_folder_that_another_process_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, removals = resume.write_tensors, 0

    def removing(path: Path, *rest: object) -> None:
        nonlocal removals
        if removals < 2:
            removals += 1
            shutil.rmtree(path.parent.parent)
        write(path, *rest)

    monkeypatch.setattr(resume, "write_tensors", removing)
    kept = Parts(tmp_path / "evaluation" / "parts")
    kept.put("0-0", "this", {"a": torch.ones(2)})
    assert removals == 2
    assert kept.get("0-0", "this")["a"].tolist() == [1, 1]
    assert kept.get("0-0", "that") is None
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FileExistsError):
        Parts(tmp_path / "file").put("0-0", "this", {})


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
    monkeypatch.setattr(examples, "replacing", full)
    command = ["evaluate", str(run), "--attack", "fgsm,cw", "--n", "20", "--no-check", "--quiet"]
    assert main(command) == 0
    out, error = capsys.readouterr()
    assert out.count("fgsm") == 1
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


def test_a_single_element_has_a_fingerprint_whatever_its_stride() -> None:
    labels = torch.arange(4)
    # As the last image of a share has it
    assert fingerprint(labels[1::3]) == fingerprint(torch.tensor([1]))


def test_damaged_results_are_found_before_anything_runs(
    run: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run / "results.json").write_text('{"evalu')
    monkeypatch.setattr(
        mrboost.runs.evaluate_run, "measure", lambda *_, **__: pytest.fail("it began")
    )
    assert "results.json is not valid JSON" in error_of(capsys, "evaluate", run, "--attack", "fgsm")


THINGS = """
import functools
import torch

class Slots:
    __slots__ = ("by",)
    def __init__(self, by): self.by = by
    def __call__(self, x): return x + self.by

class Bound(Slots):
    def shift(self, x): return x

class Above(torch.nn.Module):
    def __init__(self, floor):
        super().__init__()
        self.floor = floor

def named(k):
    space = {"__name__": "here", "torch": torch, "k": k}
    exec(f"def inner(x): return x + {k}\\ndef outer(x): return inner(x)\\ndef plain(x): return x + k", space)
    exec(f"class Code(torch.nn.Module):\\n  def forward(self, x): return x + {k}", space)
    return space

def factory(k):
    def loss(x, *, scale=k): return x * k
    return loss

def recursive(n):
    def down(m): return m if m < n else down(m - 1)
    return down

def things(k):
    return {
        "closure": factory(k), "partial": functools.partial(max, k), "keyword": functools.partial(max, a=k),
        "nested": eval(f"lambda x: (lambda y: y + {k})(x)"), "slots": Slots(k), "method": Bound(k).shift,
        "default": eval(f"lambda x, k={k}: x"), "name": eval(f"lambda x: x.a{k}"), "recursive": recursive(k),
        "words": eval(f"lambda x: x in {{'a', 'b', 'c', 'd', '{k}'}}"), "array": torch.full((3000,), k).numpy(),
        "inside": [{"a": (Slots(k), {k, "a", "b"})}], "module": torch.nn.Sequential(torch.nn.AvgPool2d(k)),
        "attribute": torch.nn.Sequential(Above(k)), "forward": torch.nn.Sequential(named(k)["Code"]()),
        "called": named(k)["outer"], "global": named(k)["plain"],
    }
"""  # noqa: E501


def test_fingerprints_are_of_the_contents() -> None:
    """The same in another process, where addresses and hashes of words are others;
    another for other contents."""
    space: dict = {"__name__": "__main__"}
    exec(THINGS, space)
    one, same, two = (
        {name: fingerprint(thing) for name, thing in space["things"](k).items()} for k in (1, 1, 2)
    )
    script = f"{THINGS}\nimport json\nfrom mrboost.files import fingerprint\n" + (
        "print(json.dumps({name: fingerprint(thing) for name, thing in things(1).items()}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    there = json.loads(done.stdout)
    for name, text in one.items():
        assert text == same[name] == there[name], name
        assert text != two[name], name
        assert " at 0x" not in text, name


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


def test_figures_are_not_those_of_another_model_or_attack(model, batch, tmp_path: Path) -> None:
    """Logits and losses so large that the cross-entropy is flat: those attacks fail."""
    x, y = batch
    for pairs in (
        [(Scaled(model, factor), PGD(0.15, steps=5)) for factor in (1.0, 1e4)],
        [(model, PGD(0.15, steps=5, loss=scaled_loss(factor))) for factor in (1.0, 1e4)],
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


class Odd(Scaled):
    """With an attribute that nobody can look at, and one whose name is that of a global."""

    def __init__(self, network: nn.Module, factor: float) -> None:
        super().__init__(network, factor)
        self.sparse, self.config = (
            torch.eye(2).to_sparse(),
            type("C", (), {"__repr__": lambda _: 1 / 0})(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0 * x.size(0)


def test_names_of_attributes_are_no_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor) -> int:
        return x.size(0)

    texts = []
    for number in (1, 2):
        monkeypatch.setitem(globals(), "size", number)
        texts.append(fingerprint(f))
    assert texts[0] == texts[1]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda m: Noisy(m, 1.0),
        Wrapped,
        lambda m: functools.partial(Wrapped(m)),
        lambda m: Odd(m, 1.0),
        lambda m: nn.Sequential(torch.jit.trace(m[0], torch.rand(2, 1, 8, 8))),
    ],
)
def test_nothing_is_done_twice(
    make, model, batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, attack = batch[0][:16], batch[1][:16], {"a": PGD(0.15, steps=2, loss=scaled_loss(2.0))}
    first = mrboost.evaluate(make(model), x, y, attack, check=False, keep=tmp_path)
    monkeypatch.setattr(chunk.Chunk, "attack", lambda *_: pytest.fail("it was finished"))
    attack = {"a": PGD(0.15, steps=2, loss=scaled_loss(2.0))}
    again = mrboost.evaluate(make(model), x, y, attack, check=False, keep=tmp_path, resume=True)
    assert again["a"].correct == first["a"].correct
