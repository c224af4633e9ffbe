"""Commands as a user types them, and small things that several tests share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from mrboost.attacks import APGD, FAB, RayS, Search, Square
from mrboost.cli.main import main
from mrboost.evaluation.doubts import Doubt
from mrboost.losses import dlr, margin_cross_entropy
from mrboost.recipes import RECIPES

_GIVEN_DATA = os.environ.get("MRBOOST_DATA")


def development_data(file: str) -> Path:
    """The path of a file of the development data; skips the test when it is not there."""
    for place in (_GIVEN_DATA, Path(__file__).parents[2] / "shared" / "data"):
        if place and (Path(place) / file).exists():
            return Path(place) / file
    return pytest.skip(f"{file} is neither in $MRBOOST_DATA nor in ../shared/data")


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line of a refused command."""
    capsys.readouterr()
    assert main([str(a) for a in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mrboost: error: ")
    assert err.count("\n") == 1
    return err


def done(*arguments: str | Path) -> None:
    """Run a command that succeeds."""
    assert main([str(a) for a in arguments]) == 0


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict:
    capsys.readouterr()
    assert main([*(str(a) for a in arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def same(one: nn.Module, two: nn.Module) -> bool:
    """Whether two networks are equal, weights and BatchNorm's statistics, to the last bit."""
    a, b = one.state_dict(), two.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SMOKE = ["--scale", "smoke", "--device", "cpu", "--quiet"]


def study(name: str, out: Path, *arguments: str | Path) -> str:
    """The Markdown page of a study at scale smoke."""
    done("study", name, *SMOKE, *arguments, "--out", out)
    return (out / f"{name}.md").read_text()


def results_of(run: Path) -> dict:
    return json.loads((run / "results.json").read_text())


def cells(page: Path) -> dict[str, dict[str, list[str]]]:
    """The first table of a page: method, then ours / paper / difference, to the cells."""
    found: dict[str, dict[str, list[str]]] = {}
    method = ""
    for line in page.read_text().split("| method |")[1].split("\n\n")[0].splitlines()[2:]:
        name, kind, *values = [cell.strip() for cell in line.strip("|").split("|")]
        method = name or method
        found.setdefault(method, {})[kind] = values
    return found


def outcome(run: Path, attack: str, weights: str = "best", members: int = 1) -> float:
    for evaluation in results_of(run)["evaluations"]:
        if (evaluation["weights"], evaluation["members"]) == (weights, members):
            return 100 * {o["attack"]: o["accuracy"] for o in evaluation["outcomes"]}[attack]
    raise AssertionError(f"{run} has no such evaluation")


def write_pictures(root: Path, names: str) -> None:
    """Three classes, darker to brighter: 24 images each to train on and 4 to test."""
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 24), ("test", 4)):
        for label, name in enumerate(names):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = (40 * torch.rand(8, 8, 3, generator=generator) + 80 * label).byte().numpy()
                Image.fromarray(pixels).save(folder / f"{i}.png")


def checks(doubts: Iterable[Doubt]) -> list[str]:
    return [doubt.check for doubt in doubts]


def quantised(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """A defence that masks its gradients."""
    return lambda x: network((4 * x).round() / 4)


ONE_OF_EACH: dict[tuple, str] = {}
"""One recipe for each sampler, objective, scope and what its networks become."""
for _recipe in RECIPES.values():
    _kind = (type(_recipe.sampler), type(_recipe.objective), _recipe.scope, _recipe.combine)
    ONE_OF_EACH.setdefault(_kind, _recipe.name)


SEARCHES: dict[str, Search] = {
    "apgd-ce": APGD(0.12, steps=12),
    "apgd-ce-l2": APGD(0.7, "L2", steps=12),
    "apgd-mce": APGD(0.12, steps=12, loss=margin_cross_entropy),
    "apgd-dlr-restarts": APGD(0.12, steps=8, loss=dlr, restarts=2),
    "apgd-t": APGD(0.12, steps=12, targets=3),
    "apgd-t-nearest": APGD(0.12, steps=12, targets=3, nearest=True),
    "apgd-eot": APGD(0.12, steps=6, eot=2),
    "fab": FAB(0.12, steps=6, restarts=2),
    "fab-t": FAB(0.12, steps=12, targets=3),
    "fab-t-l2": FAB(0.7, "L2", steps=12, targets=3),
    "square": Square(0.2, steps=80),
    "square-l2": Square(1.2, "L2", steps=80),
    "rays": RayS(0.2, steps=80),
}
"""Every search, small."""
